"""Warnings that point at the user's own line."""

from __future__ import annotations

import sys
import warnings

from tacit.name_lists import spelled

_INSIDE = ("tacit", "torch", "contextlib", "functools")


def warn(sentence: str) -> None:
    """Warn, and point at the line that called Tacit, not at one of Tacit's own."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(spelled(sentence), stacklevel=level)
