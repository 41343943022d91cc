"""Faults of the disk: full, or not to be written to."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.faults.checks import MENDED, RESUMED, UNHARMED, Outcome, finished
from tools.faults.subject import Case, Setting, attempt


def full_disk(case: Case, rng: random.Random) -> Outcome:
    """The disk has room for some kilobytes only; later there is room again."""
    room = int(2 ** rng.uniform(12, 16))
    with _small_disk(case.place) as disk:
        run = case.place / "run" if disk is None else disk / "run"
        if disk is None:
            what, setting = f"no file above {room} bytes", Setting(patched=lambda: _file_size_limit(room))
        else:
            what, setting = f"{room} bytes free", Setting()
            _leave_free(disk, room)
        first = attempt(case, run, setting)
        problems = _in_a_sentence(first.ending, first.words, run)
        if disk is not None:
            (disk / "ballast").unlink()
        last = attempt(case, run)
        if last.ending != "finished" and not (first.ending == "finished" and "already" in last.words):
            problems.append(f"{last.ending}: {last.words}")
        ending = UNHARMED if first.ending == "finished" else RESUMED
        return finished(case, run, what, ending, problems, int(first.ending != "finished"))


def read_only(case: Case, rng: random.Random) -> Outcome:
    """The directory cannot be written to, at the start or at a resume; later it can."""
    with _small_disk(case.place) as disk:
        home = case.place if disk is None else disk
        home, run = (home / "home", home / "home" / "run") if disk is None else (home, home / "run")
        home.mkdir(exist_ok=True)
        begun = rng.random() < 0.6
        steps = rng.randint(1, case.plan.steps - 1)
        if begun:
            attempt(case, run, Setting(stop_at=steps))
        with _unwritable(home if disk is not None else (run if begun else home), mounted=disk is not None):
            before = _content(home)
            ended = attempt(case, run)
            problems = [] if ended.ending == "refused" else [f"{ended.ending}: {ended.words}"]
            problems += _in_a_sentence(ended.ending, ended.words, run)
            if _content(home) != before:
                problems.append("something was written")
        last = attempt(case, run)
        if last.ending != "finished":
            problems.append(f"{last.ending}: {last.words}")
        what = f"after step {steps}" if begun else "from the start"
        return finished(case, run, what, MENDED, problems, int(begun))


def _in_a_sentence(ending: str, words: str, run: Path) -> list[str]:
    problems = []
    if ending not in ("finished", "refused"):
        problems.append(f"{ending}: {words}")
    if "\n" in words:
        problems.append("the error is more than a sentence")
    left = list(run.glob("*.part")) + list(run.glob(".*.part")) if run.exists() else []
    return [*problems, *(f"{path.name} was left behind" for path in left)]


def _content(place: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in place.rglob("*") if p.is_file() and "witness" not in p.name}


@contextmanager
def _small_disk(place: Path) -> Iterator[Path | None]:
    """A file system of one megabyte in memory, where one may be mounted; otherwise None."""
    disk = place / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    ).returncode:
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _leave_free(disk: Path, room: int) -> None:
    about = os.statvfs(disk)
    with (disk / "ballast").open("wb") as file:
        file.write(bytes(max(0, about.f_bavail * about.f_frsize - max(room, 4096))))


@contextmanager
def _file_size_limit(room: int) -> Iterator[None]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


@contextmanager
def _unwritable(directory: Path, *, mounted: bool) -> Iterator[None]:
    if mounted:
        subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
    else:
        directory.chmod(0o500)
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["mount", "-o", "remount,rw", str(directory)], check=True)
        else:
            directory.chmod(0o700)
