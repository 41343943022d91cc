"""Finding the other processes."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

from tacit.distributed.group import Group
from tacit.distributed.ranks import ALONE, Ranks
from tacit.errors import ArgumentError, RankError, check_positive


def join(*, timeout_seconds: float = 1800.0) -> Ranks:
    """The ranks that ``torchrun`` has started together with this process; ``ALONE`` if there are no others.

    Where a default process group exists already, its ranks are used. A rank that does not answer for
    ``timeout_seconds`` counts as gone; one whose process ends is noticed at once.
    """
    timeout = timedelta(seconds=check_positive("timeout_seconds", timeout_seconds))
    if processes() == 1:
        return ALONE
    try:
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=timeout)
            return Group(dist.group.WORLD)  # type: ignore[arg-type]
        return Group(dist.new_group(backend="gloo", timeout=timeout))
    except (RuntimeError, ValueError) as error:
        raise RankError(f"The other processes cannot be reached: {' '.join(str(error).split())}.") from error


def processes() -> int:
    """How many processes were started together, this one included."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    text = os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ else "1"
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(
            f"The environment variable WORLD_SIZE must be a whole number above 0, got {text!r}."
        )
    return int(text)


def checked(ranks: Ranks | None) -> Ranks:
    """``ranks``, or ``ALONE`` where none were given and there are no others to be forgotten."""
    if ranks is None and processes() > 1:
        raise ArgumentError(
            f"This process is one of {processes()} that were started together; give ranks=tacit.distributed.join() to "
            "train one model with all of them, or ranks=tacit.distributed.ALONE to train by itself."
        )
    return ALONE if ranks is None else ranks
