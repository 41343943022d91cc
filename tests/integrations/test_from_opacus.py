"""The same small model trained by Opacus and by Tacit: the same ε, and accuracies that no test can tell apart."""

from __future__ import annotations

import statistics
import warnings

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit.losses import cross_entropy

opacus = pytest.importorskip("opacus", reason="Opacus is not installed")

EXAMPLES, BATCH, EPOCHS, DELTA, RATE = 600, 60, 6, 1e-4, 0.5
SEEDS = range(10)


def task(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=generator)
    return TensorDataset(x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long())


TRAIN, HELD_OUT = task(EXAMPLES, 1), task(4000, 2)


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2))


def accuracy(model: nn.Module) -> float:
    x, y = HELD_OUT.tensors
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


PLAN = tacit.make_plan("dp-sgd", epsilon=3, delta=DELTA, examples=EXAMPLES, batch_size=BATCH, epochs=EPOCHS)


def with_tacit(seed: int, plan: tacit.Plan = PLAN) -> float:
    model = network(seed)
    trainer = tacit.Trainer(
        model, TRAIN, cross_entropy, plan, optimizer=lambda named: torch.optim.SGD(named, lr=RATE), seed=seed
    )
    assert trainer.fit(progress=False).finished
    return accuracy(model)


def with_opacus(seed: int) -> tuple[float, float]:
    model = network(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = opacus.PrivacyEngine(accountant="prv")
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
            data_loader=DataLoader(TRAIN, batch_size=BATCH),
            noise_multiplier=PLAN.phases[0].noise_multiplier,
            max_grad_norm=1.0,
        )
        torch.manual_seed(1000 + seed)
        steps = 0
        while steps < PLAN.steps:
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(private(x), y).backward()
                optimizer.step()
                steps += 1
        assert steps == PLAN.steps
        return accuracy(model), float(engine.get_epsilon(DELTA))


@pytest.fixture(scope="module")
def figures() -> dict[str, list[float]]:
    theirs = [with_opacus(seed) for seed in SEEDS]
    return {
        "tacit": [with_tacit(seed) for seed in SEEDS],
        "opacus": [found for found, _ in theirs],
        "epsilon": [epsilon for _, epsilon in theirs],
    }


def test_epsilon_is_the_same(figures: dict[str, list[float]]) -> None:
    """Tacit's PLD bound and Opacus's PRV estimate, whose own error bound is 0.01, agree within 1 %."""
    for epsilon in figures["epsilon"]:
        assert PLAN.spent() == pytest.approx(epsilon, rel=0.01)


def test_accuracy_is_the_same(figures: dict[str, list[float]]) -> None:
    """Welch's test finds no difference, and the means are within two points."""
    assert statistics.mean(figures["tacit"]) > 0.6
    assert stats.ttest_ind(figures["tacit"], figures["opacus"], equal_var=False).pvalue > 0.01
    assert abs(statistics.mean(figures["tacit"]) - statistics.mean(figures["opacus"])) < 0.02


def test_the_comparison_would_see_a_difference(figures: dict[str, list[float]]) -> None:
    """At a tenth of the budget the same test tells the two apart."""
    poorer = tacit.make_plan(
        "dp-sgd", epsilon=0.2, delta=DELTA, examples=EXAMPLES, batch_size=BATCH, epochs=EPOCHS
    )
    found = [with_tacit(seed, poorer) for seed in SEEDS]
    assert stats.ttest_ind(found, figures["opacus"], equal_var=False).pvalue < 0.01
    assert poorer.spent() != pytest.approx(figures["epsilon"][0], rel=0.01)


def test_one_step_on_the_same_batch_without_noise_is_the_same() -> None:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    x, y = TRAIN.tensors[0][:BATCH], TRAIN.tensors[1][:BATCH]
    ours, theirs = network(0), network(0)
    step = tacit.PrivateStep(
        ours,
        cross_entropy,
        support=tacit.Support.all(ours),
        clip_norm=0.5,
        noise_multiplier=0.0,
        batch_size=BATCH,
        optimizer=lambda named: torch.optim.SGD(named, lr=RATE),
    )
    step.step((x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = GradSampleModule(theirs)
        optimizer = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=RATE),
            noise_multiplier=0.0,
            max_grad_norm=0.5,
            expected_batch_size=BATCH,
        )
        nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()

    def flat(model: nn.Module) -> Tensor:
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.allclose(flat(ours), flat(theirs), atol=1e-6)
    assert not torch.allclose(flat(ours), flat(network(0)), atol=1e-3)
