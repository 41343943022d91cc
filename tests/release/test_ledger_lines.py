"""Long ledgers: lines that are not decoded one by one, and heads in few bytes."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path

import pytest

from tacit.errors import LedgerError
from tacit.files import decode_json
from tacit.release.ledger import FileLedger, read_ledger
from tacit.release.ledger_file import Charge, ledger_line
from tacit.release.ledger_lines import Heads, LineDecoder

CHARGE = Charge(0, 0, "train", 0.1, 1.0, 1.0, 10, 100, True)


def line_of(charge: dict[str, object], previous: str = "0" * 64, **more: object) -> bytes:
    return ledger_line({"charge": charge, **more}, previous)[0][:-1]


def meaning(record: dict[str, object]) -> dict[str, object]:
    return {name: record[name] for name in ("charge", "previous", "since") if name in record}


@pytest.mark.parametrize("phase", ["train", 'say "index":7,', "a\\b", "ü", '"step":', "}", ""])
@pytest.mark.parametrize("more", [{}, {"since": 0}, {"since": 12}, {"since": -1}, {"since": "3"}])
def test_lines_mean_what_json_says(phase: str, more: dict[str, object]) -> None:
    decode = LineDecoder()
    for index, step in ((0, 0), (1, 1), (2, 7), (10**17, 3), (10**18, 10**18), (5, -1)):
        for noise in (1.0, 1, 0.5, "1"):
            record = {
                **CHARGE.record(),
                "index": index,
                "step": step,
                "phase": phase,
                "noise_multiplier": noise,
            }
            line = line_of(record, "ab" * 32, **more)
            assert meaning(decode(line)) == meaning(decode_json(line))
            assert type(decode(line)["charge"]["noise_multiplier"]) is type(noise)


def test_a_line_that_json_refuses_is_refused_however_often_it_comes() -> None:
    decode = LineDecoder()
    line = line_of(CHARGE.record())
    assert decode(line)
    twice = line.replace(b'"active":100,', b'"active":100,"index":5,')
    broken = line.replace(b'"index":0', b'"index":00')
    for bad in (twice, broken, line + b" x", line.replace(b"1.0", b"NaN")):
        for _ in range(2):
            with pytest.raises(ValueError):
                decode(bad)


def test_known_lines_change_nothing_for_others() -> None:
    decode, chance = LineDecoder(), random.Random(0)
    for number in range(300):
        record = {
            **CHARGE.record(),
            "index": number,
            "step": chance.randrange(5),
            "phase": chance.choice(["a", "b"]),
            "active": chance.randrange(3),
            "secure_noise": chance.random() < 0.5,
        }
        assert decode(line_of(record))["charge"] == record


def written(path: Path, charges: int) -> FileLedger:
    with FileLedger.create(path, run="r", plan_digest="p") as ledger:
        for first in range(0, charges, 100):
            given = [
                Charge(i, i // 2, "train", 0.1, 1.0, 1.0, 10, 5, True) for i in range(first, first + 100)
            ]
            ledger.charge_ahead(given)
            for charge in given:
                ledger.charge(charge)
    return ledger


def test_every_charge_and_every_head_is_read(tmp_path: Path) -> None:
    ledger = written(tmp_path / "ledger.jsonl", 300)
    record = read_ledger(ledger.path)
    assert record.charges == tuple(ledger.charges)
    digests = [json.loads(line)["digest"] for line in ledger.path.read_text().splitlines()]
    assert dict(record.counts) == {digest: count for count, digest in enumerate(digests)}
    assert record.newest == 100
    assert all(ledger.confirm(digest) == count for count, digest in enumerate(digests))


@pytest.mark.parametrize(
    ("wrong", "right"), [(b'"index":150,', b'"index":151,'), (b'"step":75}', b'"step":-5}')]
)
def test_a_changed_number_with_a_fitting_digest_is_found(tmp_path: Path, wrong: bytes, right: bytes) -> None:
    path = written(tmp_path / "ledger.jsonl", 200).path
    lines, previous = [], "0" * 64
    for line in path.read_bytes().replace(wrong, right).splitlines():
        content = json.loads(line)
        del content["digest"], content["at"], content["previous"]
        made, previous = ledger_line(content, previous)
        lines.append(made)
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError, match=r"Line 15\d of the ledger"):
        read_ledger(path)


def test_heads_are_found_only_as_they_were_noted() -> None:
    heads = Heads({"00" * 31 + "01": 0})
    heads.add("01" * 32, 1)
    heads.add("ab" * 32, 5)
    assert dict(heads) == {"00" * 31 + "01": 0, "01" * 32: 1, "ab" * 32: 5}
    assert "01" * 32 in heads
    assert heads["ab" * 32] == 5
    # Bytes that lie across two digests are none, nor are other ways to write one.
    shifted = ("00" * 31 + "01" + "01" * 32)[2:66]
    for absent in (
        shifted,
        "AB" * 32,
        " " + "ab" * 32,
        "ab" * 31,
        "",
        "zz" * 32,
        "ba" * 32,
        "1" + "01" * 31 + "0",
    ):
        assert absent not in heads
    copy = Heads(heads)
    copy.add("cd" * 32, 6)
    assert len(heads) == 3
    assert len(copy) == 4


def test_a_long_ledger_takes_little_memory(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.jsonl", 2_000).path
    tracemalloc.start()
    record = read_ledger(path)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(record.charges) == 2_000
    assert held < 2_000 * 250
