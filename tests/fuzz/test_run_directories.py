"""A finished run in which anything was changed does not verify; an edit that means the same may."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tools.fuzz.edits import EVIDENCE, edit_run
from torch import nn
from torch.utils.data import TensorDataset

from fuzz.effort import tries
from tacit.losses import cross_entropy
from tacit.plan import make_plan
from tacit.runs import verify
from tacit.training.trainer import Trainer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two finished runs of the same kind, on other data and with another number of steps."""
    made = []
    for number, epochs in enumerate((2, 3)):
        place = tmp_path_factory.mktemp("runs") / str(number)
        torch.manual_seed(number)
        plan = make_plan(
            "tp-topk",
            epsilon=3.0 + number,
            delta=1e-5,
            examples=60,
            batch_size=20,
            epochs=epochs,
            active_ratio=0.5,
            accountant="rdp",
        )
        data = TensorDataset(torch.randn(60, 4), torch.randint(3, (60,)))
        trainer = Trainer(
            nn.Linear(4, 3),
            data,
            cross_entropy,
            plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
            run_dir=place,
        )
        trainer.fit(progress=False)
        made.append(place)
    return made[0], made[1]


def test_both_runs_verify_and_hold_all_evidence(runs: tuple[Path, Path]) -> None:
    for run in runs:
        assert verify(run).for_release, str(verify(run))
        assert all((run / name).exists() for name in EVIDENCE)


@tries(60)
@given(st.integers(0, 2**32))
def test_no_edit_of_a_run_goes_unnoticed(runs: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(runs[0], copy)
    done = edit_run(copy, runs[1], random)
    if done is not None:
        assert not verify(copy).agrees, done
