"""Several runs and a choice among them: trained, charged, crashed, resumed, certified."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tacit import Plan, Trainer
from tacit.errors import ExampleError, ModelError
from tacit.losses import binary_cross_entropy
from tacit.plan import make_plan
from tacit.raw.sampling import PoissonBatches, PoissonSampler
from tacit.release.ledger import read_ledger
from tacit.runs import load_certificate, verify
from tacit.runs.certificate import NO_TUNING
from tacit.units import Units

EXAMPLES, STEPS = 200, 6


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, 3, generator=generator)
    y = (x[:, 0] + 0.3 * torch.randn(EXAMPLES, generator=generator) > 0).float()
    return TensorDataset(x, y)


def network() -> nn.Linear:
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def tuned(epsilon: float = 3.0, rates: tuple[float, ...] = (0.01, 1.0), **options: Any) -> Plan:
    settings: dict[str, Any] = {"delta": 1e-4, "examples": EXAMPLES, "batch_size": 100, "epochs": STEPS / 2}
    return make_plan(
        "dp-sgd", epsilon=epsilon, accountant="rdp", tuning=(rates, 0.3), **{**settings, **options}
    )


def trainer(plan: Plan, run_dir: Path | None = None, **options: Any) -> Trainer:
    def sgd(named: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(named, lr=2.0, momentum=0.5)

    settings = {"optimizer": sgd, "seed": 4, **options}
    return Trainer(network(), data(), binary_cross_entropy, plan, run_dir=run_dir, **settings)


def weights(run: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def ended(run: Trainer) -> list[torch.Tensor]:
    candidates = run._state.candidates
    assert candidates is not None
    return [torch.cat([value.flatten() for value in one.values()]) for one in candidates.ended]


def crash(run: Trainer, steps: int, checkpoint: int) -> None:
    """Take so many steps, with the last checkpoint after ``checkpoint`` of them; then the process is gone."""
    for step in run.steps():
        if step.number == checkpoint:
            run.save()
        if step.number == steps:
            break
    run.close()


@pytest.mark.parametrize("rates", [(0.01, 1.0), (1.0, 0.01)])
def test_without_noise_the_better_run_is_taken(rates: tuple[float, float]) -> None:
    run = trainer(tuned(math.inf, rates))
    run.fit(progress=False)
    assert torch.equal(weights(run), ended(run)[rates.index(1.0)])
    assert not torch.equal(*ended(run))
    assert f"Run {rates.index(1.0) + 1} of 2" in run.selections["choice"]


def test_every_run_is_the_one_that_its_rate_alone_would_have_given() -> None:
    """Where every example is drawn there is no chance: each run equals one by itself, from the same start."""
    both = trainer(tuned(math.inf, batch_size=EXAMPLES, epochs=STEPS))
    both.fit(progress=False)
    apart = torch.from_numpy(both._examples.batches._sampler.apart)
    kept = TensorDataset(*(tensor[~apart] for tensor in data().tensors))
    for rate, found in zip((0.01, 1.0), ended(both), strict=True):
        plan = make_plan(
            "dp-sgd", epsilon=math.inf, delta=1e-4, examples=len(kept), batch_size=len(kept), epochs=STEPS
        )
        scale = len(kept) / EXAMPLES  # the divisor of a step is the planned batch size

        def sgd(named: Any, rate: float = rate * scale) -> torch.optim.Optimizer:
            return torch.optim.SGD(named, lr=2.0 * rate, momentum=0.5)

        alone = Trainer(network(), kept, binary_cross_entropy, plan, optimizer=sgd, seed=9)
        alone.fit(progress=False)
        assert torch.allclose(weights(alone), found, rtol=1e-4)


def test_runs_are_not_trained_on_the_examples_that_they_are_compared_on() -> None:
    sampler = PoissonSampler(1000, 0.5, apart=0.2)
    assert sampler.apart is not None
    assert 120 < sampler.apart.sum() < 280
    drawn = np.unique(np.concatenate([sampler.draw(step) for step in range(40)]))
    assert set(drawn) == set(np.flatnonzero(~sampler.apart))
    x = torch.arange(1000).float()[:, None]
    batches = PoissonBatches(TensorDataset(x), sampler, chunk_size=64)
    seen = torch.cat([chunk[0] for chunk in batches.apart(0)]).flatten().numpy()
    assert set(seen) == set(np.flatnonzero(sampler.apart))
    assert PoissonSampler(1000, 0.5).apart is None


def test_which_examples_are_apart_is_a_secret_coin_of_each() -> None:
    """A rule that went by place would move all examples over when one before them is left out."""
    first, second = (PoissonSampler(1000, 0.5, apart=0.5).apart for _ in range(2))
    assert 350 < (first != second).sum() < 650
    seeded = [PoissonSampler(1000, 0.5, seed=3, apart=0.5).apart for _ in range(2)]
    assert (seeded[0] == seeded[1]).all()


def test_a_unit_is_apart_as_a_whole() -> None:
    ids = np.random.default_rng(0).integers(0, 300, 1000)
    units = Units.of(ids, 1000)
    sampler = PoissonSampler(units.count, 0.5, apart=0.3, units=units, rows_per_unit=3)
    data = TensorDataset(torch.arange(1000).float()[:, None])
    batches = PoissonBatches(data, sampler, chunk_size=16)
    chunks = list(batches.apart(40))
    apart = [int(x) for chunk in chunks for x in chunk.batch[0].flatten()]
    trained = np.concatenate([sampler.draw_units(step)[2] for step in range(40)])
    assert not set(ids[apart]) & set(ids[trained])
    assert set(ids[apart]) | set(ids[trained]) == set(ids)
    assert len(set(apart)) == len(apart)
    assert np.bincount(units.codes[apart]).max() == 3
    assert max(len(chunk.ids) for chunk in chunks) <= 16
    assert len(chunks) > 10
    seen = [set(chunk.ids.tolist()) for chunk in chunks]
    assert sum(map(len, seen)) == len(set().union(*seen)) == int(sampler.apart.sum())  # type: ignore[union-attr]


@pytest.mark.parametrize("isolation", ["probed", "construction"])
def test_units_are_tuned_charged_and_certified_as_units(tmp_path: Path, isolation: str) -> None:
    ids = [place // 2 for place in range(EXAMPLES)]
    plan = make_plan(
        "dp-sgd",
        epsilon=3.0,
        delta=1e-4,
        units=EXAMPLES // 2,
        batch_size=50,
        epochs=STEPS / 2,
        accountant="rdp",
        tuning=((0.01, 1.0), 0.3),
    )
    run = trainer(plan, tmp_path / "run", seed=None, units=ids, isolation=isolation)
    result = run.fit(progress=False)
    assert result.epsilon <= 3.0
    verdict = verify(tmp_path / "run")
    assert verdict.agrees, verdict.problems
    assert verdict.for_release
    certificate = load_certificate(tmp_path / "run" / "certificate.json")
    assert "compared on 20 % of the units" in certificate.tuning


@pytest.mark.parametrize("average", [None, 0.8])
def test_a_tuned_run_is_charged_certified_and_verified(tmp_path: Path, average: float | None) -> None:
    plan = tuned()
    run = trainer(plan, tmp_path / "run", seed=None, average=average)
    result = run.fit(progress=False)
    charges = read_ledger(tmp_path / "run" / "ledger.jsonl").charges
    assert [charge.phase for charge in charges] == ["train"] * 2 * STEPS + ["choice"]
    assert (charges[-1].sampling_rate, charges[-1].active) == (1.0, 2)
    assert charges[-1].noise_multiplier == plan.phases[-1].noise_multiplier
    assert result.epsilon <= plan.epsilon
    verdict = verify(tmp_path / "run")
    assert verdict.agrees, verdict.problems
    assert verdict.for_release
    certificate = load_certificate(tmp_path / "run" / "certificate.json")
    assert certificate.tuning.startswith("2 whole runs, with learning rates times 0.01 and 1")
    assert "tuning                  2 whole runs" in (tmp_path / "run" / "certificate.txt").read_text()


def test_the_noise_of_the_comparison_is_as_wide_as_charged() -> None:
    plan = tuned(3.0, (1.0, 1.0000001), epochs=1)
    _, choice = plan.phases
    found = []
    for seed in range(60):
        run = trainer(plan, seed=seed)
        *_, last = run.steps()
        found.append(last.released.values["losses"] * plan.batch_size)
    spread = float(torch.stack(found).std()) / choice.noise_multiplier
    assert 0.75 < spread < 1.35


def test_without_tuning_the_certificate_says_so_and_an_edit_is_noticed(tmp_path: Path) -> None:
    plain = make_plan(
        "dp-sgd", epsilon=3.0, delta=1e-4, examples=EXAMPLES, batch_size=100, epochs=2, accountant="rdp"
    )
    for name, plan in (("plain", plain), ("tuned", tuned())):
        trainer(plan, tmp_path / name, seed=None).fit(progress=False)
        path = tmp_path / name / "certificate.json"
        record = json.loads(path.read_text())
        assert (record["tuning"] == NO_TUNING) == (name == "plain")
        path.write_text(json.dumps({**record, "tuning": "no tuning at all"}))
        assert any("about tuning" in problem for problem in verify(tmp_path / name).problems)


@pytest.mark.parametrize("stop", [3, STEPS, STEPS + 2, 2 * STEPS])
def test_a_stopped_run_ends_exactly_as_one_that_was_not(tmp_path: Path, stop: int) -> None:
    whole = trainer(tuned(), tmp_path / "whole", average=0.8)
    whole.fit(progress=False)
    crash(trainer(tuned(), tmp_path / "run", average=0.8), stop, stop)
    again = trainer(tuned(), tmp_path / "run", average=0.8)
    again.resume(progress=False)
    assert torch.equal(weights(again), weights(whole))
    assert again.selections == whole.selections


@pytest.mark.parametrize(
    ("steps", "checkpoint"), [(4, 2), (STEPS + 1, 4), (2 * STEPS, STEPS + 3), (2 * STEPS, 1)]
)
def test_steps_that_a_crash_has_lost_are_left_out_and_the_choice_is_kept(
    tmp_path: Path, steps: int, checkpoint: int
) -> None:
    plan = tuned()
    crash(trainer(plan, tmp_path / "run", seed=None), steps, checkpoint)
    again = trainer(plan, tmp_path / "run", seed=None)
    result = again.resume(progress=False)
    charges = read_ledger(tmp_path / "run" / "ledger.jsonl").charges
    assert [charge.step for charge in charges] == list(range(plan.steps))
    assert charges[-1].phase == "choice"
    assert result.finished
    assert result.epsilon <= plan.epsilon
    assert len(ended(again)) == 2
    verdict = verify(tmp_path / "run")
    assert verdict.agrees, verdict.problems


def test_a_choice_that_a_crash_has_lost_is_not_repeated(tmp_path: Path) -> None:
    plan = tuned()
    crash(trainer(plan, tmp_path / "run", seed=None), plan.steps, plan.steps - 1)
    again = trainer(plan, tmp_path / "run", seed=None)
    result = again.resume(progress=False)
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == plan.steps
    assert result.finished
    assert "lost in a crash" in result.selections["choice"]
    assert torch.equal(weights(again), ended(again)[1])  # the rate nearest to 1
    verdict = verify(tmp_path / "run")
    assert verdict.agrees, verdict.problems


def test_a_model_whose_examples_cannot_be_taken_one_by_one_is_refused_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    class Deciding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if bool((x.detach() < 1e9).all()) else -x

    def sgd(named: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(named, lr=1.0)

    model = nn.Sequential(Deciding(), nn.Linear(3, 1))
    run = Trainer(model, data(), binary_cross_entropy, tuned(), optimizer=sgd, run_dir=tmp_path / "run")
    with pytest.raises(ModelError, match="tuning"):
        run.fit(progress=False)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, KeyError])
def test_an_example_that_cannot_be_compared_stays_private(kind: type[Exception]) -> None:
    failing = {"now": False}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if failing["now"] and type(model).__name__ == "Called":
            raise kind("person 7")
        return binary_cross_entropy(model, batch)

    def spoiled() -> None:
        for _ in run.steps():
            failing["now"] = True

    run = Trainer(network(), data(), loss, tuned(), optimizer=lambda named: torch.optim.SGD(named, lr=1.0))
    with pytest.raises(ExampleError, match="What was charged stays charged") as found:
        spoiled()
    assert "person" not in str(found.value)
    assert found.value.__suppress_context__
