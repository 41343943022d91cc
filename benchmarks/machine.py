"""Facts about the machine and the software, to read the figures by."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Machine:
    """Where and with what a run was made."""

    date: str
    cpu: str
    cores: int
    cpu_capability: str
    memory_bytes: int
    python: str
    torch: str
    opacus: str
    tacit: str
    threads: int
    commit: str
    load_average: tuple[float, float, float]


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _git(*arguments: str) -> str | None:
    try:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def commit() -> str:
    """The commit of the checkout, with "+ changes" when src or benchmarks differ from it."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return "unknown"
    return head + (" + changes" if _git("status", "--porcelain", "--", "src", "benchmarks") else "")


def machine(threads: int) -> Machine:
    """The facts now."""
    return Machine(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
        torch=torch.__version__,
        opacus=_version("opacus"),
        tacit=_version("tacit-dp"),
        threads=threads,
        commit=commit(),
        load_average=os.getloadavg(),
    )
