"""Instructions that a process executes, from the processor's own counters, where the machine shows them.

Unlike time they do not depend on clock rates or on what else runs, so two machines can be compared. Virtual machines
often hide the counters; then there are no figures.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from functools import cache

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _INSTRUCTIONS = 0, 1
# Bits of perf_event_attr: count threads made later too; count neither the kernel nor a hypervisor.
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_SIZE = 112


@cache
def _counter(process: int) -> int | None:
    """The descriptor of a counter of this process, None where there is none."""
    number = _SYSCALLS.get(platform.machine())
    if number is None or not hasattr(os, "fork"):
        return None
    flags = _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    attributes = struct.pack("<IIQQQQQ", _HARDWARE, _SIZE, _INSTRUCTIONS, 0, 0, 0, flags).ljust(_SIZE, b"\0")
    found = int(ctypes.CDLL(None, use_errno=True).syscall(number, attributes, 0, -1, -1, 0))
    return found if found >= 0 else None


def instructions() -> int | None:
    """Instructions of this process in user mode since it first asked, None if the machine does not show them."""
    descriptor = _counter(os.getpid())
    return None if descriptor is None else int(struct.unpack("<Q", os.read(descriptor, 8))[0])
