"""Whether a table of weights fits into the memory of this machine."""

from __future__ import annotations

import contextlib
import os

from tacit.errors import ModelError

_BYTES_PER_WEIGHT = 16
"""Of a table that is trained: the weights, and a sum in double precision."""


def check_table(rows: int, width: int) -> None:
    """Refuse a table that could not be trained in this machine's memory, before the system kills the process."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if rows * width * _BYTES_PER_WEIGHT > memory:
            raise ModelError(
                f"A table of {rows:,} rows with {width} weights each takes more than the {memory / 2**30:.0f} GB of "
                "memory here; hash words or columns to fewer numbers (--buckets), or give a shorter word list."
            )
