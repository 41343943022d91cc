"""Ports, programs and process trees of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tacit.errors import TacitError

LOOPBACK = "127.0.0.1"


class DeploymentError(TacitError):
    """A process of the deployment did not do what it should."""


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether somebody accepts connections on a port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((LOOPBACK, port)) == 0


def program(name: str) -> str:
    """Return the path of one of Flower's programs, the one beside this Python if there is one."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DeploymentError(f"There is no program {name}; run pip install 'tacit-dp[federated]'.")
    return found


def signal_tree(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a process and all its descendants: Flower's children lead process groups of their own."""
    for pid in [process.pid, *_descendants(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


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
