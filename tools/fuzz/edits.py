"""Edits of a finished run: what somebody might change in it so that it says something else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from tacit.runs import write_certificate
from tacit.runs.layout import CERTIFICATE_FILE, LEDGER_FILE, PAGE_FILE, PLAN_FILE
from tools.fuzz.mutation import mutated
from tools.fuzz.packing import as_ledger

HEAD_FILE, RUN_FILE = "ledger.head", "run.json"
MODEL_FILE, CHECKPOINT_FILE = "model.safetensors", "checkpoint.safetensors"
EVIDENCE = (
    LEDGER_FILE,
    HEAD_FILE,
    RUN_FILE,
    PLAN_FILE,
    MODEL_FILE,
    CHECKPOINT_FILE,
    CERTIFICATE_FILE,
    PAGE_FILE,
)
"""The files of a run that its certificate rests on."""

Edit = Callable[[Path, Path, Random], None]


def edit_run(directory: Path, other: Path, random: Random) -> str | None:
    """Change one thing in a run; ``other`` is a run to take from. What was done, or None if it means the same."""
    name, edit = random.choice(EVIDENCE), random.choice(EDITS)
    if random.random() < 0.15:
        name, edit = LEDGER_FILE, random.choice((_forged, _cut))
    before = {file: meaning(directory / file) for file in EVIDENCE}
    edit(directory / name, other / name, random)
    after = {file: meaning(directory / file) for file in EVIDENCE}
    return f"{edit.__name__.strip('_')}: {name}" if before != after else None


def meaning(path: Path) -> Any:
    """What a file says, whatever the spaces and the order of keys; its bytes where it says nothing readable."""
    if not path.exists():
        return None
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            return json.loads(content)
        if path.suffix == ".safetensors":
            return read_tensors(path)
    except Exception:
        return content
    return content.strip()


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensors of a file, as plain values that can be compared."""
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return dict(file.metadata() or {}), {
            name: (str(t.dtype), t.flatten().tolist()) for name, t in tensors.items()
        }


def _number(path: Path, other: Path, random: Random) -> None:
    """Another digit somewhere."""
    text = path.read_bytes().decode("latin-1")
    places = [match.start() for match in re.finditer(r"\d", text)]
    if places:
        place = random.choice(places)
        digit = random.choice([d for d in "0123456789" if d != text[place]])
        path.write_bytes((text[:place] + digit + text[place + 1 :]).encode("latin-1"))


def _word(path: Path, other: Path, random: Random) -> None:
    """A word of the file in place of another."""
    text = path.read_bytes().decode("latin-1")
    words = [match.span() for match in re.finditer(r"[A-Za-z]{3,}", text)]
    if words:
        (start, end), (first, last) = random.choice(words), random.choice(words)
        path.write_bytes((text[:start] + text[first:last] + text[end:]).encode("latin-1"))


def _lines(path: Path, other: Path, random: Random) -> None:
    """A line dropped, doubled, exchanged, or taken from the other run."""
    lines = path.read_bytes().splitlines(keepends=True)
    place, second = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[place])
        case 2:
            lines[place], lines[second] = lines[second], lines[place]
        case _:
            lines[place] = random.choice(other.read_bytes().splitlines(keepends=True))
    path.write_bytes(b"".join(lines))


def _truncated(path: Path, other: Path, random: Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.randrange(len(content))])


def _byte(path: Path, other: Path, random: Random) -> None:
    """One bit turned over."""
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _exchanged(path: Path, other: Path, random: Random) -> None:
    """The same file of the other run."""
    path.write_bytes(other.read_bytes())


def _removed(path: Path, other: Path, random: Random) -> None:
    path.unlink()


def _record(path: Path, other: Path, random: Random) -> None:
    """A node of the content replaced, removed or doubled, and everything within the file made to fit again."""
    if path.suffix == ".json":
        path.write_text(json.dumps(mutated(json.loads(path.read_bytes()), random), indent=2))
    elif path.name == LEDGER_FILE:
        _write_ledger(path, mutated(_ledger_lines(path), random))
    elif path.suffix == ".safetensors":
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        name = random.choice([name for name, t in tensors.items() if t.numel()])
        flat = tensors[name].view(-1)
        flat[random.randrange(len(flat))] += 1
        save_file(tensors, str(path), metadata)
    else:
        _number(path, other, random)


def _forged(path: Path, other: Path, random: Random) -> None:
    """A ledger with one node changed, its chain and head made to fit, and a certificate written for it."""
    _write_ledger(path, mutated(_ledger_lines(path), random))
    _recertify(path.parent)


def _cut(path: Path, other: Path, random: Random) -> None:
    """The ledger as it was some releases ago, with its head and a certificate of the same moment."""
    lines = _ledger_lines(path)
    _write_ledger(path, lines[: random.randrange(1, len(lines))])
    _recertify(path.parent)


def _recertify(directory: Path) -> None:
    try:
        write_certificate(directory)
    except Exception:
        return  # Nothing is certified for such a ledger; the old certificate stays beside it.


def _ledger_lines(path: Path) -> list[Any]:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in ("digest", "previous")} for line in lines
    ]


def _write_ledger(path: Path, lines: Any) -> None:
    content = as_ledger(lines)
    path.write_bytes(content)
    last = content.splitlines()[-1] if content else b'{"digest":"' + b"0" * 64
    (path.parent / HEAD_FILE).write_bytes(last[11:75] + b"\n")


EDITS: tuple[Edit, ...] = (
    _number,
    _number,
    _word,
    _lines,
    _truncated,
    _byte,
    _exchanged,
    _removed,
    _record,
    _record,
)
