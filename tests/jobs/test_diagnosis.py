"""The energy curve of a diagnosis is the one that the run itself chose by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tacit import FileError, Trainer
from tacit.jobs.diagnosis import diagnose, spending_of
from tacit.losses import binary_cross_entropy
from tacit.plan import Spend, epsilon_of, make_plan
from tacit.release.ledger_file import Charge


@pytest.fixture(params=[None, "column"])
def trainer(request: pytest.FixtureRequest, tmp_path: Path) -> Trainer:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(400, 30, generator=generator)
    plan = make_plan(
        "tp-topk",
        epsilon=20,
        delta=1e-5,
        examples=400,
        batch_size=100,
        epochs=10,
        active_ratio="auto",
        pooling=request.param,
        accountant="rdp",
    )
    torch.manual_seed(1)
    return Trainer(
        nn.Sequential(nn.Linear(30, 4), nn.Tanh(), nn.Linear(4, 1)),
        TensorDataset(x, (x[:, :2].sum(1) > 0).float()),
        binary_cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=1.0),
        run_dir=tmp_path / "run",
        seed=1,
    )


def test_the_curve_is_the_one_the_run_chose_by(trainer: Trainer, tmp_path: Path) -> None:
    estimate = None
    for step in trainer.steps():
        if step.selection.estimate is not None:
            estimate = step.selection.estimate
    trainer.save()
    trainer.close()
    assert estimate is not None
    found = diagnose(tmp_path / "run")
    assert found.energy is not None
    assert list(found.energy.counts) == estimate.counts.tolist()
    expected = (estimate.captured / estimate.total).tolist()
    assert list(found.energy.captured) == pytest.approx(expected, abs=1e-6)
    nu2 = trainer.plan.phases[1].noise_deviation(100) ** 2
    below = [
        int(count)
        for count, left in zip(estimate.counts, estimate.uncaptured, strict=True)
        if count < estimate.dimension and left <= (estimate.dimension - count) * nu2
    ]
    assert found.energy.break_even == (below[0] if below else None)
    assert found.active == trainer.support.size
    assert found.phase_ends == (12, 40)
    assert found.epsilons[-1] == pytest.approx(trainer.plan.spent(), rel=1e-6)


def test_what_was_lost_in_a_crash_is_spent_beyond_the_plan() -> None:
    plan = make_plan(
        "dp-sgd", epsilon=3, delta=1e-5, examples=1000, batch_size=100, epochs=4, accountant="rdp"
    )
    phase = plan.phases[0]

    def charge(index: int, step: int, noise: float) -> Charge:
        return Charge(index, step, phase.name, phase.sampling_rate, noise, 1.0, 100, 5, True)

    steps = [*range(10), *range(6, plan.steps)]
    noises = [phase.noise_multiplier * (1 if i < 10 else 1.1) for i in range(len(steps))]
    charges = [charge(i, step, noise) for i, (step, noise) in enumerate(zip(steps, noises, strict=True))]
    found = spending_of(plan, charges)
    assert found.releases[-1] == plan.steps + 4
    assert len(found.planned) == sum(at <= plan.steps for at in found.releases)
    assert found.planned[-1] == pytest.approx(plan.spent())
    by = dict(zip(found.releases, found.epsilons, strict=True))
    planned = dict(zip(found.releases, found.planned, strict=False))
    assert by[10] == planned[10] == pytest.approx(plan.spent(10))
    assert by[30] < planned[30], "the rest of the run has more noise"
    paid = [Spend(phase.sampling_rate, phase.noise_multiplier, 10)]
    paid.append(Spend(phase.sampling_rate, 1.1 * phase.noise_multiplier, len(steps) - 10))
    assert found.epsilons[-1] == pytest.approx(epsilon_of(paid, 1e-5, "rdp"))


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no run directory"):
        diagnose(tmp_path / "nothing")
    with pytest.raises(FileError, match=r"plan\.json"):
        diagnose(tmp_path)
