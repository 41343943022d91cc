"""Checks that rarely find anything. On a device they are put off to the end of a batch, for one answer to all of them.

A host that asks a device for an answer waits until everything before it is computed. So a batch on a device is worked
on in the hope that no check finds anything: no number that is not finite, no norm that single precision leaves in
doubt, no sum that is too far off. What the checks found is asked for once, at the end. If one has found something, all
that was computed is dropped, and the batch is worked on again, check by check, with the same random draws. The result
is that of the careful way in either case.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Doubts = list[Tensor]
"""What checks that were put off have found: numbers on a device, true where the hope was wrong."""


class _Thread(threading.local):
    """Hooks of a backward pass on a device run in a thread of its own, so every hook says what holds for it."""

    noted: Doubts | None = None


_thread = _Thread()


@contextmanager
def put_off(noted: Doubts | None) -> Iterator[None]:
    """Within this context checks note what they find; None: they answer at once."""
    before, _thread.noted = _thread.noted, noted
    try:
        yield
    finally:
        _thread.noted = before


def noting() -> Doubts | None:
    """Where checks note what they find, or None where they answer at once."""
    return _thread.noted


def anywhere(found: Tensor) -> bool:
    """Whether a check has found something; a check that is put off says no, for now."""
    if _thread.noted is None:
        return bool(found.any())
    _thread.noted.append(found.any())
    return False


def confirmed(noted: Doubts) -> bool:
    """Whether a check that was put off has found something. The host waits for the device here."""
    return bool(noted) and bool(torch.stack(noted).any())
