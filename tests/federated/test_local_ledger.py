from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tacit.errors import LedgerError
from tacit.federated import local_ledger
from tacit.federated.local_ledger import LocalCharge, LocalLedger


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


@pytest.mark.parametrize("damage", ["digit", "drop", "swap", "newline"])
def test_damage_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "l"
    with LocalLedger(path) as ledger:
        for number in (1, 2, 3):
            ledger.charge(charge(number))
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
