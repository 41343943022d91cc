"""Scores are made of released values, each debiased with the noise of its own step."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tacit.support
from tacit.plan import All, Phase, Plan, TopK
from tacit.release.mechanism import Released
from tacit.support import Support
from tacit.support.scores import Scores, movement, pooled
from tacit.support.support import trainable_parameters
from training.small import BATCH, EXAMPLES, mask, network, plan, trainer


def released(support: Support, values: dict[str, Tensor], noise_std: float) -> Released:
    return Released(
        {name: support[name].gather(v) for name, v in values.items() if support[name].size},
        support,
        noise_std,
        BATCH,
    )


def test_each_release_is_debiased_with_its_own_noise_and_averaged_over_the_steps_that_saw_it() -> None:
    model = nn.Linear(4, 3).double()
    scores = Scores(model)
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    seen = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(1)
    supports = [Support.all(model), *(Support.random(model, ratio=0.3, seed=s) for s in range(4))]
    rows = Support.of_rows(model, {"weight": torch.tensor([1])})
    for place, support in enumerate([*supports, rows]):
        noise = 0.5 + place
        values = {
            name: torch.randn(p.shape, generator=generator, dtype=torch.float64)
            for name, p in model.named_parameters()
        }
        scores.add(released(support, values, noise))
        for name, value in values.items():
            total[name] += (value**2 - noise**2) * support[name].mask()
            seen[name] += support[name].mask()
    for name, score in scores.squares().items():
        torch.testing.assert_close(score, total[name] / seen[name])


def test_a_coordinate_never_seen_ranks_last() -> None:
    model = nn.Linear(2, 2)
    scores = Scores(model)
    support = Support.of_coordinates(model, {"weight": torch.tensor([2])})
    scores.add(released(support, {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}, 3.0))
    assert scores.squares()["weight"].flatten().tolist() == [-math.inf, -math.inf, -9.0, -math.inf]


def test_the_score_of_pure_noise_is_zero_on_average_and_of_a_signal_its_square() -> None:
    model = nn.Linear(100, 100, bias=False)
    scores = Scores(model)
    generator = torch.Generator().manual_seed(2)
    signal = torch.zeros(100, 100)
    signal[:50] = 0.5
    for noise in (1.0, 2.0, 0.5) * 4:
        noisy = signal + noise * torch.randn(signal.shape, generator=generator)
        scores.add(released(Support.all(model), {"weight": noisy}, noise))
    found = scores.squares()["weight"]
    error = 3 * math.sqrt(2 * (1 + 16 + 1 / 16) / 3 / 12 / 5000)
    assert abs(float(found[50:].mean())) < error
    assert abs(float(found[:50].mean()) - 0.25) < 2 * error


def test_folds_are_plain_sums_over_every_third_step() -> None:
    model = nn.Linear(2, 1, bias=False)
    scores = Scores(model, folds=trainable_parameters(model))
    for step in range(5):
        scores.add(released(Support.all(model), {"weight": torch.full((1, 2), float(step))}, step + 1.0))
    folds = scores.folds(["weight"])
    assert [fold.gradient_sum.tolist() for fold in folds] == [[3, 3], [5, 5], [2, 2]]
    assert [fold.steps for fold in folds] == [2, 2, 1]
    assert [fold.noise_variance for fold in folds] == [(1 + 16) / 2, (4 + 25) / 2, 9]


def test_a_state_goes_on_as_if_nothing_had_happened() -> None:
    model = nn.Linear(3, 2)
    one, other = (
        Scores(model, folds=trainable_parameters(model)),
        Scores(model, folds=trainable_parameters(model)),
    )
    values = [{"weight": torch.randn(2, 3), "bias": torch.randn(2)} for _ in range(5)]
    for value in values[:2]:
        one.add(released(Support.all(model), value, 1.0))
    other.restore(*one.state())
    for value in values[2:]:
        for scores in (one, other):
            scores.add(released(Support.random(model, ratio=0.5, seed=1), value, 2.0))
    for name, score in one.squares().items():
        assert torch.equal(score, other.squares()[name])
    ours, theirs = one.folds(["weight", "bias"]), other.folds(["weight", "bias"])
    assert all(torch.equal(a.gradient_sum, b.gradient_sum) for a, b in zip(ours, theirs, strict=True))
    assert [f.noise_variance for f in ours] == [f.noise_variance for f in theirs]


def test_movement_is_the_distance_from_the_start() -> None:
    found = movement({"w": torch.tensor([1.0, -4.0])}, {"w": torch.tensor([3.0, -1.0])})
    assert found["w"].tolist() == [2, 3]


def test_pooling_averages_rows_or_columns_and_leaves_vectors() -> None:
    score = torch.tensor([[[1.0, 3.0], [2.0, 6.0]], [[5.0, 7.0], [0.0, 8.0]]])
    assert torch.equal(pooled(score, "row"), torch.tensor([3.0, 5.0])[:, None, None].expand(2, 2, 2))
    assert torch.equal(pooled(score, "column"), torch.tensor([4.0, 4.0])[None, :, None].expand(2, 2, 2))
    assert pooled(score, None) is score
    vector = torch.tensor([1.0, 2.0])
    assert pooled(vector, "row") is vector


@pytest.mark.parametrize("levels", [(0.5, 4.0), (4.0, 0.5)])
def test_the_trainer_ranks_by_what_it_released_with_the_noise_of_the_very_step(
    levels: tuple[float, float],
) -> None:
    """Two noise levels and uneven visits: any other debiasing would choose another third support."""
    first, second = levels
    rate = BATCH / EXAMPLES
    source = TopK(0.3, explore=0.5)
    chosen = Plan(
        "by hand",
        math.inf,
        1e-5,
        EXAMPLES,
        BATCH,
        (
            Phase("all", 4, rate, 1.0, first, All(), score="squares"),
            Phase("some", 4, rate, 1.0, second, source, score="squares"),
            Phase("last", 1, rate, 1.0, first, TopK(0.3)),
        ),
    )
    run = trainer(chosen)
    total = seen = torch.zeros(())
    wrong: dict[str, Tensor] = {}
    for step in run.steps():
        if step.phase.name == "last":
            break
        values = torch.zeros(run.support.dimension, dtype=torch.float64)
        active = mask(step.released.support)
        values[active] = torch.cat([v.flatten() for v in step.released.values.values()])
        variance = (step.phase.noise_multiplier / BATCH) ** 2
        total = total + (values**2 - variance) * active
        seen = seen + active.double()
        for name, other in {"none": 0.0, "first": first, "second": second}.items():
            debiased = (values**2 - (other / BATCH) ** 2) * active
            wrong[name] = wrong.get(name, torch.zeros(())) + debiased
    k = int(0.3 * len(seen))

    def best(score: Tensor) -> Tensor:
        chosen = torch.zeros(len(score), dtype=torch.bool)
        chosen[score.argsort(descending=True, stable=True)[:k]] = True
        return chosen

    assert torch.equal(mask(run.support), best(total / seen))
    for score in wrong.values():
        assert not torch.equal(mask(run.support), best(score / seen))


def test_nothing_that_scores_or_selects_imports_the_raw_side() -> None:
    files = list(Path(tacit.support.__file__).parent.rglob("*.py"))
    assert len(files) >= 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith(("tacit.raw", "tacit.training")) for name in names), file


def test_scores_refuse_what_was_not_released() -> None:
    with pytest.raises(AttributeError):
        Scores(network(), folds=False).add({"0.weight": torch.zeros(4, 1, 3, 3)})  # type: ignore[arg-type]


def test_a_plan_by_movement_needs_no_squares() -> None:
    run = trainer(plan("tp-topk", score="movement"))
    for _ in run.steps():
        pass
    assert run.support.size == int(0.3 * run.support.dimension)
