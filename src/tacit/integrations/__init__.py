"""Tacit inside other trainers: they keep the loop, callbacks and logs; sampling, clipping, noise and update stay here.

``hugging_face`` and ``lightning`` need the extra ``integrations``. ``scikit_learn`` is not a loop but the jobs of
``tacit train`` as estimators; it needs the extra ``data``.
"""
