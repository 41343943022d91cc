"""Faults of files: cut, with a flipped bit, out of order, mixed up, or made to do harm."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tacit.errors import TacitError
from tacit.runs import verify
from tacit.support import Support
from tools.faults.checks import MENDED, REFUSED, UNHARMED, Outcome, finished
from tools.faults.subject import Case, Setting, attempt

Damage = Callable[[bytes, random.Random], bytes]


def truncated(content: bytes, rng: random.Random) -> bytes:
    """Some of the end is missing."""
    return content[: rng.randrange(len(content))]


def flipped(content: bytes, rng: random.Random) -> bytes:
    """One bit has changed."""
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def blanked(content: bytes, rng: random.Random) -> bytes:
    """A stretch of up to 512 bytes reads as zeros."""
    start = rng.randrange(len(content))
    stop = min(len(content), start + 512)
    return content[:start] + bytes(stop - start) + content[stop:]


def line_removed(content: bytes, rng: random.Random) -> bytes:
    """One line is missing."""
    lines = content.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def lines_swapped(content: bytes, rng: random.Random) -> bytes:
    """Two neighbouring lines have changed places."""
    lines = content.splitlines(keepends=True)
    place = rng.randrange(len(lines) - 1)
    lines[place], lines[place + 1] = lines[place + 1], lines[place]
    return b"".join(lines)


def checkpoint(case: Case, rng: random.Random) -> Outcome:
    """A damaged checkpoint."""
    return _damaged(case, rng, "checkpoint.safetensors", (truncated, flipped, flipped, blanked))


def ledger(case: Case, rng: random.Random) -> Outcome:
    """A damaged ledger, or a damaged note of its head."""
    if rng.random() < 0.2:
        return _damaged(case, rng, "ledger.head", (truncated, flipped, blanked))
    kinds = (truncated, truncated, flipped, flipped, blanked, line_removed, lines_swapped)
    return _damaged(case, rng, "ledger.jsonl", kinds)


def description(case: Case, rng: random.Random) -> Outcome:
    """A damaged plan or description of the run."""
    return _damaged(case, rng, rng.choice(("plan.json", "run.json")), (truncated, flipped, blanked))


def _damaged(case: Case, rng: random.Random, name: str, kinds: tuple[Damage, ...]) -> Outcome:
    """Damage a file of a stopped run; if the run is refused, put the file back as it was and go on."""
    run, problems = case.place / "run", []
    steps = rng.randint(2, case.plan.steps - 1)
    attempt(case, run, Setting(stop_at=steps))
    damage = rng.choice(kinds)
    sound = (run / name).read_bytes()
    (run / name).write_bytes(damage(sound, rng))
    before = _content(run)
    first = attempt(case, run)
    refused = first.ending == "refused"
    if refused:
        if _content(run) != before:
            problems.append("a refused directory was changed")
        if "\n" in first.words:
            problems.append("the error is more than a sentence")
        (run / name).write_bytes(sound)
        first = attempt(case, run)
    if first.ending != "finished":
        problems.append(f"{first.ending}: {first.words}")
    what = f"{name}: {damage.__name__.replace('_', ' ')}"
    return finished(case, run, what, MENDED if refused else UNHARMED, problems, 1)


def _content(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}


def support(case: Case, rng: random.Random) -> Outcome:
    """A damaged support file: refused, or read as exactly the support that was written."""
    model = nn.Sequential(nn.Linear(12, 16), nn.Linear(16, 3))
    chosen = Support.random(model, ratio=0.3, seed=case.number)
    path = case.place / "support.safetensors"
    chosen.save(path)
    damage = rng.choice((truncated, flipped, blanked))
    path.write_bytes(damage(path.read_bytes(), rng))
    what = f"support file: {damage.__name__}"
    try:
        loaded = Support.load(path)
    except TacitError:
        return Outcome(case, what, REFUSED, ())
    same = loaded == chosen
    return Outcome(case, what, UNHARMED, () if same else ("a damaged support was taken for a sound one",))


def certificate(case: Case, rng: random.Random) -> Outcome:
    """A damaged file in a finished run: verification fails."""
    run = case.place / "run"
    ended = attempt(case, run)
    problems = [] if ended.ending == "finished" else [f"{ended.ending}: {ended.words}"]
    name = rng.choice(
        (
            "certificate.json",
            "certificate.txt",
            "ledger.jsonl",
            "ledger.head",
            "plan.json",
            "run.json",
            "model.safetensors",
            "checkpoint.safetensors",
        )
    )
    damage = rng.choice((truncated, flipped, blanked))
    kept = (run / name).read_bytes()
    (run / name).write_bytes(damage(kept, rng))
    found = verify(run)
    what = f"{name}: {damage.__name__}"
    if found.agrees and (run / name).read_bytes().rstrip(b"\n") != kept.rstrip(b"\n"):
        problems.append("a damaged run verifies")
    agrees = found.agrees
    (run / name).write_bytes(kept)
    return finished(case, run, what, UNHARMED if agrees else REFUSED, problems, 0)


class _Payload:
    """What a pickle of it would do when it is read."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self._marker),)


def _safetensors(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def _named(name: str) -> bytes:
    about = {"numbers": "{}", "digest": "0" * 64}
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    return _safetensors(json.dumps({"__metadata__": about, name: entry}).encode(), bytes(4))


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "a pickle": lambda marker: pickle.dumps(_Payload(marker)),
    "a file of torch.save": lambda marker: _saved(_Payload(marker)),
    "a header of 2^63 bytes": lambda marker: _safetensors(b"{}", length=2**63),
    "a header of 2 GB that is not there": lambda marker: _safetensors(b"{}", length=2**31),
    "a header nested 100,000 deep": lambda marker: _safetensors(b'{"a":' * 100_000),
    "numbers nested 100,000 deep": lambda marker: _safetensors(
        json.dumps({"__metadata__": {"numbers": "[" * 100_000, "digest": "0"}}).encode()
    ),
    "a tensor of 2^60 elements": lambda marker: _safetensors(
        json.dumps({"x": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}}).encode()
    ),
    "a name that leads elsewhere": lambda marker: _named(f"../../{marker.name}"),
    "a name of a megabyte": lambda marker: _named("x" * 1_000_000),
    "nothing": lambda marker: b"",
}
"""Checkpoints made to run code (they would make the directory ``marker``), to exhaust memory, to hang or to escape."""


def hostile(case: Case, rng: random.Random) -> Outcome:
    """A checkpoint made to do harm: refused at once."""
    run, marker = case.place / "run", case.place / "struck"
    attempt(case, run, Setting(stop_at=rng.randint(2, case.plan.steps - 1)))
    path = run / "checkpoint.safetensors"
    sound = path.read_bytes()
    what = list(HOSTILE)[case.number % len(HOSTILE)]
    path.write_bytes(HOSTILE[what](marker))
    ended = attempt(case, run)
    problems = [] if ended.ending == "refused" else [f"{ended.ending}: {ended.words}"]
    if marker.exists() or (case.place.parent / marker.name).exists():
        problems.append("it ran code or wrote elsewhere")
    if ended.seconds > 30:
        problems.append(f"it took {ended.seconds:.0f} s to refuse")
    path.write_bytes(sound)
    last = attempt(case, run)
    if last.ending != "finished":
        problems.append(f"{last.ending}: {last.words}")
    return finished(case, run, what, MENDED, problems, 1)


def _saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save({"model": content}, file)
    return file.getvalue()
