"""A crash at every single moment at which a run touches the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tacit import Plan, SeededNoise
from tacit.plan import Spend, epsilon_of
from tacit.release.ledger import read_ledger
from tacit.runs import verify
from training.small import plan, trainer


class Killed(BaseException):
    """Not an Exception: nobody cleans up after a kill."""


class Disk:
    """Counts what makes the disk change, and dies at a chosen count: before it, or right after."""

    def __init__(self) -> None:
        self.calls, self.last, self.after = 0, -1, False

    def watch(self, call: Any) -> Any:
        def watched(*given: Any) -> Any:
            self.calls += 1
            if self.calls == self.last and not self.after:
                raise Killed
            result = call(*given)
            if self.calls == self.last:
                raise Killed
            return result

        return watched


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, disk.watch(getattr(os, name)))
    return disk


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places of the ledger whose noise was drawn, in order."""
    places: list[int] = []
    begin = SeededNoise.begin

    def noted(self: SeededNoise, index: int) -> None:
        places.append(index)
        begin(self, index)

    monkeypatch.setattr(SeededNoise, "begin", noted)
    return places


def go_on(chosen: Plan, directory: Path, witnessed: bool = False) -> None:
    witness = directory.with_suffix(".witness") if witnessed else None
    run = trainer(chosen, run_dir=directory, witness=witness, checkpoint_seconds=0.0, chunk_size=None)
    if (directory / "run.json").exists():
        run.resume(progress=False)
    else:
        run.fit(progress=False)


@pytest.mark.parametrize("witnessed", [False, True], ids=["", "with a witness"])
def test_a_run_goes_on_after_a_crash_at_any_moment(
    tmp_path: Path, disk: Disk, drawn: list[int], witnessed: bool
) -> None:
    chosen = plan("tp-topk", epsilon=3.0, epochs=0.75)
    go_on(chosen, tmp_path / "unharmed", witnessed)
    moments, disk.calls = disk.calls, 0
    assert moments > 25
    lost = 0
    for moment in range(1, moments + 1):
        directory = tmp_path / str(moment)
        disk.calls, disk.last, disk.after = 0, moment, moment % 2 == 0
        drawn.clear()
        with pytest.raises(Killed):
            go_on(chosen, directory, witnessed)
        disk.last = -1
        go_on(chosen, directory, witnessed)
        charges = read_ledger(directory / "ledger.jsonl").charges
        assert len(set(drawn)) == len(drawn), moment
        assert set(drawn) <= set(range(len(charges))), moment
        assert len(drawn) <= len(charges) <= len(drawn) + 1, moment
        spends = [Spend(charge.sampling_rate, charge.noise_multiplier, 1) for charge in charges]
        assert epsilon_of(spends, chosen.delta, chosen.accountant) <= chosen.epsilon, moment
        assert verify(directory).agrees, moment
        assert len(charges) == chosen.steps, moment
        lost += len(charges) - len({charge.step for charge in charges})
    assert lost > 0


def test_a_charge_is_on_disk_before_its_noise_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced, seen = tmp_path / "ledger.jsonl", [0], []
    sync, begin = os.fsync, SeededNoise.begin

    def noted(descriptor: int) -> None:
        sync(descriptor)
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            synced.append(path.stat().st_size)

    def checked(self: SeededNoise, index: int) -> None:
        assert len(read_ledger(path).charges) == index + 1
        assert synced[-1] == path.stat().st_size
        seen.append(index)
        begin(self, index)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(SeededNoise, "begin", checked)
    chosen = plan("tp-topk", epsilon=3.0, epochs=0.75)
    go_on(chosen, tmp_path)
    assert seen == list(range(chosen.steps))
