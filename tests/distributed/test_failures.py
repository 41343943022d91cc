"""A rank that dies, fails, hangs or is interrupted: all stop, the ledger is right, and the run can go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distributed.processes import PATIENCE, run_ranks, succeed
from tacit import SeededNoise, Trainer
from tacit.distributed import ALONE, Ranks
from tacit.errors import LedgerError
from tacit.losses import cross_entropy
from tacit.release.ledger import FileLedger, read_ledger
from tacit.runs import verify
from tacit.tensors import read_tensors
from training.small import data, flat, network, plan, sgd, trainer

ROOT = Path(__file__).parents[2]
Chunk = tuple[Tensor, Tensor]
CHOSEN = plan(epsilon=3.0, epochs=2.5)
STEPS = CHOSEN.steps


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """The places of the ledger whose noise was drawn, by any process, in order."""
    witness = tmp_path / "witness"
    begin = SeededNoise.begin

    def noted(self: SeededNoise, index: int) -> None:
        with witness.open("a") as file:
            file.write(f"{index}\n")
        begin(self, index)

    monkeypatch.setattr(SeededNoise, "begin", noted)
    return lambda: [int(line) for line in witness.read_text().splitlines()]


def at_step(step: int, rank: int, act: Callable[[], None], ranks: Ranks, directory: Path) -> Any:
    """An augmentation that acts once, on one rank, when so many steps have been charged."""
    ledger = directory / "ledger.jsonl"
    acted = directory.with_suffix(".acted")  # what an augmentation keeps for itself is taken back

    def augment(chunk: Chunk) -> Chunk:
        waiting = ranks.rank == rank and not acted.exists()
        if waiting and ledger.exists() and len(read_ledger(ledger).charges) == step:
            acted.touch()
            act()
        return chunk

    return augment


def fit(ranks: Ranks, directory: Path, **options: Any) -> bool:
    run = trainer(CHOSEN, run_dir=directory, ranks=ranks, checkpoint_seconds=0.0, **options)
    begun = ranks.lead((directory / "run.json").exists)
    return (run.resume(progress=False) if begun else run.fit(progress=False)).finished


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_stops_all_and_the_run_goes_on_with_another_number(
    tmp_path: Path, drawn: Callable[[], list[int]], victim: int
) -> None:
    directory = tmp_path / "run"

    def work(ranks: Ranks) -> bool:
        die = at_step(5, victim, lambda: os.kill(os.getpid(), signal.SIGKILL), ranks, directory)
        return fit(ranks, directory, augment=die)

    started = time.monotonic()
    endings = run_ranks(3, tmp_path / "ranks", work)
    assert time.monotonic() - started < PATIENCE / 2, "nobody waits for the dead"
    assert endings[victim].exitcode == -signal.SIGKILL
    for ending in endings[:victim] + endings[victim + 1 :]:
        assert ending.error.startswith("RankError: Another process")
        assert "can be resumed" in ending.error
    # The victim died before its sum was in, so the step was neither charged nor released.
    assert len(read_ledger(directory / "ledger.jsonl").charges) == 5
    assert drawn() == list(range(5))
    assert succeed(2, tmp_path / "again", lambda ranks: fit(ranks, directory)) == [True, True]
    assert drawn() == list(range(STEPS))
    assert len(read_ledger(directory / "ledger.jsonl").charges) == STEPS
    assert verify(directory).agrees


def test_the_first_rank_killed_between_charge_and_noise(
    tmp_path: Path, drawn: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    charge = FileLedger.charge

    def fatal(self: FileLedger, given: Any) -> None:
        charge(self, given)
        if given.index == 6:
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(FileLedger, "charge", fatal)
        first, second = run_ranks(2, tmp_path / "ranks", lambda ranks: fit(ranks, directory))
    assert first.exitcode == -signal.SIGKILL
    assert second.error.startswith("RankError")
    assert len(read_ledger(directory / "ledger.jsonl").charges) == 7
    assert drawn() == list(range(6))
    assert fit(ALONE, directory)
    charges = read_ledger(directory / "ledger.jsonl").charges
    assert [charge.step for charge in charges] == [*range(7), *range(6, STEPS - 1)]
    assert drawn() == [*range(6), *range(7, STEPS)]
    assert [charge.noise_multiplier for charge in charges] == [
        CHOSEN.noise_at(place) for place in range(STEPS)
    ]
    assert verify(directory).agrees


def test_a_failure_on_one_rank_is_named_on_the_others(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> bool:
        def loss(model: nn.Module, batch: Chunk) -> Tensor:
            if ranks.rank == 1:
                raise OSError("the disk with the data is gone")
            return cross_entropy(model, batch)

        run = Trainer(network(), data(), loss, plan(), optimizer=sgd, ranks=ranks)
        return run.fit(progress=False).finished

    first, second = run_ranks(2, tmp_path, work)
    assert second.error == "OSError: the disk with the data is gone"
    assert first.error == (
        "RankError: Process 1 of 2 has failed, so all stop: OSError: the disk with the data is gone."
    )


def test_a_ledger_that_cannot_be_written_stops_all_before_noise_is_drawn(
    tmp_path: Path, drawn: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    charge = FileLedger.charge

    def full(self: FileLedger, given: Any) -> None:
        if given.index == 4:
            raise LedgerError("The ledger cannot be written: No space left on device.")
        charge(self, given)

    with monkeypatch.context() as patched:
        patched.setattr(FileLedger, "charge", full)
        first, second = run_ranks(2, tmp_path / "ranks", lambda ranks: fit(ranks, directory))
    assert first.error.startswith("LedgerError: The ledger cannot be written")
    assert "Process 0 of 2 has failed" in second.error
    assert drawn() == list(range(4))
    assert fit(ALONE, directory)
    assert drawn() == list(range(STEPS))


def test_an_interrupt_of_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    directory = tmp_path / "run"

    def work(ranks: Ranks) -> list[Any]:
        stop = at_step(7, 1, lambda: os.kill(os.getpid(), signal.SIGINT), ranks, directory)
        run = trainer(CHOSEN, run_dir=directory, ranks=ranks, augment=stop)
        result = run.fit(progress=False)
        return [result.finished, result.steps]

    assert succeed(2, tmp_path / "ranks", work) == [[False, 8]] * 2
    assert read_tensors(directory / "checkpoint.safetensors")[1]["step"] == 8
    whole = trainer(CHOSEN)
    for _ in whole.steps():
        pass
    resumed = trainer(CHOSEN, run_dir=directory)
    assert resumed.resume(progress=False).finished
    assert torch.allclose(flat(resumed.model), flat(whole.model), atol=1e-9)


def test_a_rank_that_does_not_answer_counts_as_gone(tmp_path: Path) -> None:
    directory = tmp_path / "run"

    def work(ranks: Ranks) -> bool:
        return fit(ranks, directory, augment=at_step(3, 1, lambda: time.sleep(8), ranks, directory))

    first, second = run_ranks(2, tmp_path / "ranks", work, timeout=2.0)
    assert first.error.startswith("RankError")
    assert second.error.startswith("RankError")
    assert len(read_ledger(directory / "ledger.jsonl").charges) == 3


def test_a_directory_in_use_is_refused_on_every_rank(tmp_path: Path) -> None:
    owner = trainer(CHOSEN, run_dir=tmp_path / "run")
    next(owner.steps())

    def resume(ranks: Ranks) -> None:
        trainer(CHOSEN, run_dir=tmp_path / "run", ranks=ranks).resume(progress=False)

    def start(ranks: Ranks) -> None:
        trainer(CHOSEN, run_dir=tmp_path / "run", ranks=ranks).fit(progress=False)

    for ending in run_ranks(2, tmp_path / "ranks", resume):
        assert ending.error.startswith("LedgerError")
        assert "in use by another process" in ending.error
    for ending in run_ranks(2, tmp_path / "ranks", start):
        assert ending.error.startswith("FileError")
        assert "already holds a run" in ending.error
    owner.close()


def under_torchrun(directory: Path, *arguments: str) -> str:
    """What two processes print that torchrun starts; the port is a free one, since tests run side by side."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "--log-dir", "logs", *arguments],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_under_torchrun(tmp_path: Path) -> None:
    rows = "".join(f"{age},{5 * age % 7},{'yes' if age % 3 else 'no'}\n" for age in range(20, 80))
    (tmp_path / "people.csv").write_text("age,visits,ill\n" + rows * 4)
    options = [
        "--target",
        "ill",
        "--epsilon",
        "3",
        "--epochs",
        "2",
        "--batch-size",
        "48",
        "--model",
        "logistic",
    ]
    said = under_torchrun(tmp_path, "-m", "tacit", "train", "people.csv", *options, "--json", "--out", "run")
    assert json.loads(said)["finished"], "one report, from the first rank"
    assert verify(tmp_path / "run").for_release


def test_no_thread_of_the_group_outlives_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(
        "import atexit, os\n"
        "def threads():\n"
        "    return [open(f'/proc/self/task/{task}/comm').read() for task in os.listdir('/proc/self/task')]\n"
        "def count():\n"
        "    open('left' + os.environ['RANK'], 'w').write(str(sum('gloo' in name for name in threads())))\n"
        "atexit.register(count)\n"
        "from tacit.distributed import join\n"
        "group = join()\n"
        "group.new_key()\n"
        "kept = [group]\n"
        "kept.append(kept)\n"
        "assert any('gloo' in name for name in threads())\n"
    )
    under_torchrun(tmp_path, "ends.py")
    assert [(tmp_path / f"left{rank}").read_text() for rank in range(2)] == ["0", "0"]
