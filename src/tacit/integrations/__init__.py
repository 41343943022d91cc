"""Tacit inside other trainers: they keep the loop, callbacks and logs; sampling, clipping, noise and update stay here.

``hugging_face`` and ``lightning`` need the extra ``integrations``.
"""
