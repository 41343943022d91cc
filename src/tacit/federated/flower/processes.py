"""Ports, programs and process trees of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tacit.errors import TacitError

LOOPBACK = "127.0.0.1"

_PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec a child must load nothing.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class DeploymentError(TacitError):
    """A process of the deployment did not do what it should."""


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def listens(port: int, host: str = LOOPBACK) -> bool:
    """Return whether somebody accepts connections on a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((host, port)) == 0


def program(name: str) -> str:
    """Return the path of one of Flower's programs, the one beside this Python if there is one."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DeploymentError(f"There is no program {name}; run pip install 'tacit-dp[federated]'.")
    return found


def supernode_command() -> list[str]:
    """Return the command of a SuperNode; what lies in the folder where it runs is not imported."""
    program("flower-supernode")
    return [sys.executable, "-P", "-m", "tacit.federated.flower.supernode"]


@dataclass(frozen=True)
class ProcessTree:
    """A process and all its descendants at one moment: Flower's children lead process groups of their own."""

    members: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, root: int) -> ProcessTree:
        """Return the tree below ``root``, with the start time of each process, since numbers are used again."""
        pids = [root, *_descendants(root)]
        return cls(tuple((pid, start) for pid in pids if (start := _started(pid)) is not None))

    def signal(self, number: signal.Signals) -> None:
        """Signal every process of the tree that still runs."""
        for pid, start in self.members:
            if _started(pid) == start:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def runs(self) -> bool:
        """Return whether some process of the tree still runs."""
        return any(_started(pid) == start for pid, start in self.members)


def stop_on_signals() -> None:
    """Make SIGTERM, SIGHUP and SIGINT end this process in order: what it started is stopped on the way out.

    Also where a shell that started it in the background told it to ignore Ctrl-C.
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def end_with_parent() -> None:
    """Ask the system to send this process SIGTERM when its parent ends, however that ends (Linux; else nothing).

    For ``preexec_fn``: a run that is killed then leaves no node behind that goes on to answer.
    """
    if sys.platform == "linux" and _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _started(pid: int) -> int | None:
    """Return when a process started, in clock ticks; None if there is none, or only its exit code is left."""
    try:
        # "pid (name) state parent ...", and the name may hold anything
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # "pid (name) state parent ...", and the name may hold anything
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
