"""Peak memory of this process, from the kernel's own high-water mark (Linux)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 64 * 1024


def _status_bytes(*fields: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return sum(int(lines[field].split()[0]) * 1024 for field in fields)


def return_freed_blocks() -> None:
    """Have the C library give every block of 64 KB or more straight back to the system when it is freed.

    Otherwise holes in its heap count as memory, and they differ by up to a third from one run to the next.
    """
    library = ctypes.CDLL(None)
    library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
    library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK)


def idle_anonymous() -> int:
    """Resident anonymous memory now, after garbage collection and after free heap has been handed back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _status_bytes("RssAnon")


def peak_anonymous(run: Callable[[], None]) -> int:
    """The largest resident anonymous memory while `run` runs.

    This is the resident high-water mark, reset just before, less the file-backed pages resident afterwards:
    program code that happens to be paged in is not counted.
    """
    _CLEAR_REFS.write_text("5")
    run()
    return _status_bytes("VmHWM") - _status_bytes("RssFile", "RssShmem")
