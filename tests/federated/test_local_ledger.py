from __future__ import annotations

import math
import multiprocessing
import os
import signal
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tacit.errors import LedgerError
from tacit.federated import local_ledger
from tacit.federated.local_ledger import LocalCharge, LocalHead, LocalLedger
from tacit.release.ledger_file import START, ledger_line


def charge(number: int, training: str = "demo", epsilon: float = 0.5) -> LocalCharge:
    return LocalCharge(training, "plan", number, epsilon, 3, 1_000)


def test_charges_survive_and_add_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with LocalLedger(path) as ledger:
        ledger.charge(charge(1))
        ledger.charge(charge(2, epsilon=0.25))
        head = ledger.head
    with LocalLedger(path) as ledger:
        assert ledger.charges == (charge(1), charge(2, epsilon=0.25))
        assert ledger.spent == 0.75
        assert ledger.head == head
        assert ledger.find("demo", 2) == charge(2, epsilon=0.25)
        assert ledger.find("other", 2) is None
    assert path.stat().st_mode & 0o077 == 0


def test_a_round_is_never_charged_twice(tmp_path: Path) -> None:
    with LocalLedger(tmp_path / "l") as ledger:
        ledger.charge(charge(1))
        with pytest.raises(LedgerError, match="already"):
            ledger.charge(charge(1, epsilon=0.1))
        ledger.charge(charge(1, "other"))


def test_a_torn_last_line_was_never_sent_and_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with LocalLedger(path) as ledger:
        ledger.charge(charge(1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:57])
    with LocalLedger(path) as ledger:
        assert ledger.charges == (charge(1),)
        ledger.charge(charge(2))
    with LocalLedger(path) as ledger:
        assert len(ledger.charges) == 2


def written(path: Path, count: int = 3, witness: Path | None = None) -> None:
    with LocalLedger(path, witness) as ledger:
        for number in range(1, count + 1):
            ledger.charge(charge(number))


def cut(path: Path, lines: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_a_ledger_cut_at_a_line_end_is_refused(tmp_path: Path, left: int) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path)
    cut(path, left)
    for _ in range(2):
        with pytest.raises(LedgerError, match="does not reach as far"):
            LocalLedger(path)


def test_a_ledger_cut_within_a_line_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path)
    path.write_bytes(path.read_bytes()[:-9])
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="does not reach as far"):
        LocalLedger(path)
    assert path.read_bytes() == before


def test_a_deleted_ledger_is_refused_and_not_started_afresh(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path)
    path.unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match="deleted"):
            LocalLedger(path)
    assert not path.exists()


def test_a_deleted_or_damaged_note_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path)
    for content in (b"", b"0" * 64, b"\xff\x00"):
        path.with_suffix(".head").write_bytes(content)
        with pytest.raises(LedgerError, match="does not reach as far"):
            LocalLedger(path)
    path.with_suffix(".head").unlink()
    with pytest.raises(LedgerError, match="missing"):
        LocalLedger(path)


@pytest.mark.parametrize("loss", ["all", "older"])
def test_a_witness_notices_what_one_folder_cannot(tmp_path: Path, loss: str) -> None:
    """Without it, a folder that lost both files or came back from a backup looks like a new or an older one."""
    path, witness = tmp_path / "client" / "ledger.jsonl", tmp_path / "elsewhere" / "note"
    path.parent.mkdir()
    written(path, 2, witness)
    files = (path, path.with_suffix(".head"))
    older = [file.read_bytes() for file in files]
    with LocalLedger(path, witness) as ledger:
        ledger.charge(charge(3))
    for file, content in zip(files, older, strict=True):
        file.unlink() if loss == "all" else file.write_bytes(content)
    LocalLedger(path).close()
    with pytest.raises(LedgerError, match="elsewhere"):
        LocalLedger(path, witness)


def test_a_crash_between_charge_and_note_costs_the_charge_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path, 1)

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with LocalLedger(path) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(LocalHead, "write", crash)
            with pytest.raises(KeyboardInterrupt):
                ledger.charge(charge(2))
        with pytest.raises(LedgerError, match="closed"):
            ledger.charge(charge(3))
    with LocalLedger(path) as ledger:
        assert [c.round for c in ledger.charges] == [1, 2]
        assert path.with_suffix(".head").read_text().strip() == ledger.head


def test_a_crash_in_the_first_charge_leaves_a_ledger_that_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path, 1)
    whole = path.read_bytes()
    path.with_suffix(".head").unlink()
    first = whole.index(b"\n") + 1
    for size in (0, 10, first, first + 10):
        path.write_bytes(whole[:size])
        path.with_suffix(".head").unlink(missing_ok=True)
        with LocalLedger(path) as ledger:
            assert ledger.charges == ()
            ledger.charge(charge(1))


def test_a_ledger_of_the_first_version_is_continued_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    lines, head = b"", START
    for number in (1, 2):
        line, head = ledger_line({"answer": asdict(charge(number))}, head)
        lines += line
    path.write_bytes(lines)
    with LocalLedger(path) as ledger:
        assert [c.round for c in ledger.charges] == [1, 2]
        ledger.charge(charge(3))
    with LocalLedger(path) as ledger:
        assert ledger.spent == 1.5
        ledger.charge(charge(4))
    cut(path, 4)
    with pytest.raises(LedgerError, match="does not reach as far"):
        LocalLedger(path)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": -1e-16},
        {"epsilon": 0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": np.float64(0.5)},
        {"round": 0},
        {"round": True},
        {"coordinate": -2},
        {"coordinate": np.int64(3)},
        {"steps": 2**60},
        {"steps": 1.0},
        {"training": None},
    ],
)
def test_a_charge_that_could_not_be_read_back_cannot_be_made(change: dict[str, object]) -> None:
    with pytest.raises(LedgerError, match=next(iter(change))):
        LocalCharge(**{**asdict(charge(1)), **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-16, 1e-14, 0.1, 1e8])
def test_every_number_that_is_written_is_read_back(tmp_path: Path, epsilon: float) -> None:
    path = tmp_path / "ledger.jsonl"
    with LocalLedger(path) as ledger:
        ledger.charge(charge(1, epsilon=epsilon))
    with LocalLedger(path) as ledger:
        assert ledger.charges == (charge(1, epsilon=epsilon),)


@pytest.mark.parametrize("damage", ["digit", "drop", "swap", "newline"])
def test_damage_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "l"
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "digit":
        lines[1] = lines[1].replace(b'"epsilon":0.5', b'"epsilon":0.1')
    elif damage == "drop":
        del lines[1]
    elif damage == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines[2] = lines[2].rstrip(b"\n")
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError):
        LocalLedger(path)


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ledger, "_LOCK_SECONDS", 0.1)
    with LocalLedger(tmp_path / "l"), pytest.raises(LedgerError, match="in use"):
        LocalLedger(tmp_path / "l")
    LocalLedger(tmp_path / "l").close()


def test_a_charge_is_synced_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    honest = os.fsync
    with LocalLedger(tmp_path / "l") as ledger:
        monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), honest(descriptor)))
        ledger.charge(charge(1))
        assert synced


def test_a_failed_write_takes_no_further_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with LocalLedger(tmp_path / "l") as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(LedgerError, match="No space"):
                ledger.charge(charge(1))
        with pytest.raises(LedgerError, match="closed"):
            ledger.charge(charge(2))


def test_a_disk_that_was_full_leaves_a_ledger_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    written(path, 1)
    honest = os.write

    def full(descriptor: int, content: bytes) -> int:
        if len(content) < 60:
            raise OSError(28, "No space left on device")
        return honest(descriptor, content[:-50])

    with LocalLedger(path) as ledger, monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(LedgerError, match="No space"):
            ledger.charge(charge(2))
    with LocalLedger(path) as ledger:
        assert ledger.charges == (charge(1),)
        ledger.charge(charge(2))


def _charge_and_die(path: str) -> None:
    ledger = LocalLedger(path)
    ledger.charge(charge(1))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_its_charge_and_no_lock(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_charge_and_die, args=(str(tmp_path / "l"),)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with LocalLedger(tmp_path / "l") as ledger:
        assert ledger.charges == (charge(1),)
