"""The raw side: everything here sees single examples, and nothing here may be shown, stored or scored.

Only ``tacit.release`` and the training step import this package.
"""
