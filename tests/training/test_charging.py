"""Charges that are written ahead of their releases: never fewer on disk than releases, whatever happens."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tacit import SeededNoise
from tacit.errors import LedgerError
from tacit.plan import Spend, epsilon_of
from tacit.release.ledger import FileLedger, read_ledger
from tacit.release.ledger_file import Charge
from tacit.release.witness import Witness
from tacit.runs import verify
from tacit.training import course
from tacit.training.course import Together
from training.small import plan, trainer

TOGETHER = 3


def charge(index: int, **changed: Any) -> Charge:
    about = {"step": index, "phase": "all", "sampling_rate": 0.1, "noise_multiplier": 1.0, "clip_norm": 1.0}
    return Charge(index=index, **{**about, "batch_size": 5, "active": 7, "secure_noise": True, **changed})


def started(folder: Path, witness: Witness | None = None) -> FileLedger:
    return FileLedger.create(folder / "ledger.jsonl", run="a-run", plan_digest="p", witness=witness)


def test_all_are_on_disk_by_one_sync_before_the_first_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path) as ledger:
        synced: list[int] = []
        sync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda d: (sync(d), synced.append(ledger.path.stat().st_size)))
        ledger.charge_ahead([charge(0), charge(1), charge(2)])
        assert synced == [ledger.path.stat().st_size]
        assert len(read_ledger(ledger.path).charges) == len(ledger.charges) == 3
        assert (len(ledger), ledger.ahead) == (0, 3)
        for index in range(3):
            ledger.charge(charge(index))
            assert (len(ledger), ledger.ahead) == (index + 1, 2 - index)
        assert len(synced) == 1
        ledger.charge(charge(3))
        assert len(synced) == 2
        assert len(read_ledger(ledger.path).charges) == 4


def test_a_release_that_was_not_paid_for_is_refused(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        ledger.charge_ahead([charge(0), charge(1)])
        for other in ({"noise_multiplier": 0.5}, {"active": 8}, {"clip_norm": 2.0}, {"sampling_rate": 0.2}):
            with pytest.raises(LedgerError, match="charged ahead"):
                ledger.charge(charge(0, **other))
        with pytest.raises(LedgerError, match="must have index 0"):
            ledger.charge(charge(1))
        with pytest.raises(LedgerError, match="use them up first"):
            ledger.charge_ahead([charge(0)])
        assert len(ledger) == 0
    with pytest.raises(LedgerError, match="closed"):
        ledger.charge(charge(0))


def test_what_was_not_used_stays_charged(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "witness")
    with started(tmp_path, witness) as ledger:
        ledger.charge_ahead([charge(0), charge(1), charge(2)])
        ledger.charge(charge(0))
        assert witness.last("a-run") == (3, ledger.head)
    with FileLedger.open(ledger.path, plan_digest="p", witness=witness) as again:
        assert (len(again), again.ahead) == (3, 0)
        with pytest.raises(LedgerError, match="must have index 3"):
            again.charge(charge(1))
        again.charge(charge(3))


@pytest.mark.parametrize("lines", [2, 3])
def test_a_crash_before_the_witness_hears_of_a_group_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    witness = Witness(tmp_path / "witness")
    with started(tmp_path, witness) as ledger:
        ledger.charge(charge(0))
        with monkeypatch.context() as patched:
            patched.setattr(Witness, "note", lambda *_: (_ for _ in ()).throw(OSError("crash")))
            with pytest.raises(OSError, match="crash"):
                ledger.charge_ahead([charge(1), charge(2), charge(3)])
    whole = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(whole[: 2 + lines]))
    with FileLedger.open(ledger.path, plan_digest="p", witness=witness) as again:
        assert len(again) == 1 + lines
        assert witness.last("a-run") == (1 + lines, again.head)
        again.charge(charge(1 + lines))


def test_a_witness_that_is_more_than_one_group_behind_is_refused(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "witness")
    with started(tmp_path, witness) as ledger:
        ledger.charge_ahead([charge(0), charge(1)])
        early = witness.path.read_bytes()
        for index in range(2):
            ledger.charge(charge(index))
        ledger.charge(charge(2))
        ledger.charge_ahead([charge(3), charge(4)])
    witness.path.write_bytes(early)
    with pytest.raises(LedgerError, match="stops at 2 releases, the ledger has 5"):
        FileLedger.open(ledger.path, plan_digest="p", witness=witness)


def test_a_torn_group_was_never_relied_on(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        whole = ledger.path.stat().st_size
        ledger.charge_ahead([charge(0), charge(1), charge(2)])
        size = ledger.path.stat().st_size
    ledger.path.with_suffix(".head").unlink()
    with ledger.path.open("r+b") as file:
        file.truncate((whole + size) // 2)
    with FileLedger.open(ledger.path, plan_digest="p") as again:
        assert len(again) == 1  # a whole line counts, though no release can have followed
        assert again.torn == 1


def test_indices_of_a_group_follow_one_another(tmp_path: Path) -> None:
    with started(tmp_path) as ledger, pytest.raises(LedgerError, match="must have index 1"):
        ledger.charge_ahead([charge(0), charge(2)])
    assert not read_ledger(ledger.path).charges


def test_more_is_charged_at_once_the_shorter_steps_are(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(course.time, "monotonic", lambda: now[0])

    def counts(step: float, disk: float, steps: int, left: int = 10**6) -> list[int]:
        together, found = Together(steps), []
        for _ in range(4):
            found.append(together.count(left, disk))
            now[0] += disk + step * found[-1]
        return found

    assert counts(0.1, 0.004, 10**6) == [1, 1, 1, 1]
    assert counts(0.25, 0.25, 10**6) == [1, 20, 20, 20]
    assert counts(0.0001, 0.004, 10**6) == [1, 64, 64, 64]
    assert counts(0.0001, 0.004, 1000) == [1, 10, 10, 10]  # a crash costs a hundredth of the run at most
    assert counts(0.0001, 0.004, 150) == [1, 1, 1, 1]
    assert counts(0.0001, 0.004, 10**6, left=5) == [1, 5, 5, 5]


class Killed(BaseException):
    """Not an Exception: nobody cleans up after a kill."""


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Together, "count", lambda self, left, disk: min(TOGETHER, left))


def test_a_crash_at_any_moment_leaves_no_release_uncharged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped: None
) -> None:
    moment, last = [0], [-1]
    drawn: list[int] = []

    def watched(call: Any) -> Any:
        def counted(*given: Any) -> Any:
            moment[0] += 1
            if moment[0] == last[0] and last[0] // 2 % 2:
                raise Killed
            result = call(*given)
            if moment[0] == last[0]:
                raise Killed
            return result

        return counted

    begin = SeededNoise.begin

    def noted(self: SeededNoise, index: int) -> None:
        assert index < len(read_ledger(folder / "ledger.jsonl").charges)
        drawn.append(index)
        begin(self, index)

    monkeypatch.setattr(SeededNoise, "begin", watched(noted))
    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    chosen = plan("tp-topk", epsilon=3.0, epochs=1.25)

    def go_on() -> None:
        run = trainer(chosen, run_dir=folder, checkpoint_seconds=0.0, chunk_size=None)
        run.resume(progress=False) if (folder / "run.json").exists() else run.fit(progress=False)

    folder = tmp_path / "unharmed"
    go_on()
    moments, lost = moment[0], 0
    assert drawn == list(range(chosen.steps))
    for kill in range(1, moments + 1, 2):
        folder = tmp_path / str(kill)
        drawn.clear()
        moment[0], last[0] = 0, kill
        with pytest.raises(Killed):
            go_on()
        last[0] = -1
        go_on()
        charges = read_ledger(folder / "ledger.jsonl").charges
        assert len(set(drawn)) == len(drawn), kill
        assert set(drawn) <= set(range(len(charges))), kill
        assert len(drawn) <= len(charges) <= len(drawn) + TOGETHER, kill
        assert len(charges) == chosen.steps, kill
        spends = [Spend(charge.sampling_rate, charge.noise_multiplier, 1) for charge in charges]
        assert epsilon_of(spends, chosen.delta, chosen.accountant) <= chosen.epsilon, kill
        assert verify(folder).agrees, kill
        lost = max(lost, len(charges) - len(drawn))
    assert 1 < lost <= TOGETHER


def test_an_orderly_stop_takes_what_is_charged_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped: None
) -> None:
    chosen = plan("dp-sgd", epsilon=3.0, epochs=2.0)
    assert chosen.steps > 6
    begin = SeededNoise.begin

    def asks(self: SeededNoise, index: int) -> None:
        begin(self, index)
        if index == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(SeededNoise, "begin", asks)
    stopped = trainer(chosen, run_dir=tmp_path / "stopped", chunk_size=None)
    result = stopped.fit(progress=False)
    assert not result.finished
    assert result.steps == 6 == len(read_ledger(tmp_path / "stopped" / "ledger.jsonl").charges)
    monkeypatch.setattr(SeededNoise, "begin", begin)
    again = trainer(chosen, run_dir=tmp_path / "stopped", chunk_size=None)
    assert again.resume(progress=False).steps == chosen.steps
    straight = trainer(chosen, run_dir=tmp_path / "straight", chunk_size=None)
    straight.fit(progress=False)
    for one, other in zip(again.model.parameters(), straight.model.parameters(), strict=True):
        assert one.equal(other)


def test_a_loop_of_ones_own_is_charged_step_by_step(tmp_path: Path, grouped: None) -> None:
    run = trainer(plan("dp-sgd", epsilon=3.0, epochs=2.0), run_dir=tmp_path, chunk_size=None)
    for step in run.steps():
        assert run.ahead == 0
        assert len(read_ledger(tmp_path / "ledger.jsonl").charges) == step.number
        if step.number == 4:
            break
    run.close()
