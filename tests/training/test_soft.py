"""Soft supports in training: what is clipped, what is noised, what is moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from oracle import clipped_sum, per_example_gradients
from release.statistics import looks_like
from tacit import ArgumentError
from tacit.losses import cross_entropy
from tacit.plan import Soft, make_plan
from tacit.raw.clipping import Clipper
from tacit.release.noise import SecureNoise
from tacit.support import Block, Support
from tacit.support.scores import Scores
from tacit.training.step import PrivateStep
from training.small import data, flat, network, plan, trainer

CLIP, SIGMA, BATCH, RATE = 0.5, 2.0, 8, 3.0


def soft_support(model: nn.Module) -> Support:
    generator = torch.Generator().manual_seed(4)
    return Support(
        {
            name: Block.weighted(p.shape, 10 ** (-3 * torch.rand(p.shape[1], generator=generator)), 1)
            if p.dim() > 1
            else Block.all(p.shape)
            for name, p in model.named_parameters()
        }
    )


def private_step(model: nn.Module, support: Support, sigma: float) -> PrivateStep:
    return PrivateStep(
        model,
        cross_entropy,
        support=support,
        clip_norm=CLIP,
        noise_multiplier=sigma,
        batch_size=BATCH,
        optimizer=lambda named: torch.optim.SGD(named, lr=RATE),
        noise=SecureNoise(),
    )


def test_one_example_moves_the_sum_by_the_clip_norm_and_never_more() -> None:
    model = network()
    x, y = data(12).tensors
    support = soft_support(model)
    clipper = Clipper(model, cross_entropy)
    full = clipper.clipped_sum([(1e4 * x, y)], support, CLIP).values
    for gone in range(len(x)):
        kept = torch.arange(len(x)) != gone
        less = clipper.clipped_sum([(1e4 * x[kept], y[kept])], support, CLIP).values
        moved = sum(float((full[name] - less[name]).square().sum()) for name in full) ** 0.5
        assert moved == pytest.approx(CLIP, rel=1e-9), "every gradient of this batch is clipped"


def test_noise_is_the_same_on_every_coordinate_whatever_its_weight() -> None:
    model = nn.Linear(400, 20).double()
    support = soft_support(model)
    released = private_step(model, support, SIGMA).step(None)
    weights = support["weight"].weights
    assert weights is not None
    small = weights.values < weights.values.median()
    for part in (released.values["weight"][:, small], released.values["weight"][:, ~small]):
        assert looks_like(part, SIGMA * CLIP / BATCH)
        assert not looks_like(part, SIGMA * CLIP / BATCH * 2 / 3)
        assert not looks_like(part, SIGMA * CLIP / BATCH * 3 / 2)


def test_parameters_move_by_the_weights_times_what_was_released() -> None:
    model = network()
    x, y = data(BATCH).tensors
    support = soft_support(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = per_example_gradients(model, cross_entropy, (x, y))
    expected, _ = clipped_sum(gradients, support, CLIP)
    released = private_step(model, support, 0.0).step((x, y))
    for name, p in model.named_parameters():
        torch.testing.assert_close(released.values[name], expected[name] / BATCH)
        step = support[name].scaled(expected[name] / BATCH)
        torch.testing.assert_close(p.detach(), before[name] - RATE * step)


def test_columns_without_signal_do_not_use_up_the_clip_norm() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    support = Support({"weight": Block.weighted((1, 2), torch.tensor([1.0, 1e-3]), 1)})
    x = torch.tensor([[0.5, 100.0]], dtype=torch.float64)
    clipped = Clipper(model, lambda m, b: m(b[0]).flatten()).clipped_sum([(x,)], support, 1.0)
    torch.testing.assert_close(clipped.values["weight"], torch.tensor([[0.5, 0.1]], dtype=torch.float64))


def test_row_norms_and_scores_of_a_soft_support_are_refused() -> None:
    model = network()
    support = soft_support(model)
    with pytest.raises(ArgumentError, match="without weights"):
        Clipper(model, cross_entropy).clipped_sum([], support, 1.0, statistic="row-norms")
    with pytest.raises(ArgumentError, match="cannot be scored"):
        Scores(model).add(private_step(model, support, 1.0).step(None))


def wide() -> nn.Sequential:
    """Its last layer has so many columns that they can be weighted."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 600), nn.Tanh(), nn.Linear(600, 3)).double()


def test_a_soft_run_weights_what_was_released_and_takes_back_what_the_weights_say() -> None:
    run = trainer(plan("tp-topk", active_ratio="soft", epsilon=0.5), wide())
    warm = run.plan.phases[0].steps
    origin = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    at_switch: dict[str, Tensor] = {}
    for step in run.steps():
        if step.number == warm:
            at_switch = {name: p.detach().clone() for name, p in run.model.named_parameters()}
        if step.number == warm + 1:
            break
    assert isinstance(run.plan.phases[1].support, Soft)
    block = run.support["3.weight"]
    assert block.weights is not None
    assert step.released.support == Support.all(run.model), "gradients are clipped and noised as in DP-SGD"
    kept = origin["3.weight"] + block.scaled(at_switch["3.weight"] - origin["3.weight"])
    moved = 0.5 * block.scaled(step.released.values["3.weight"])
    torch.testing.assert_close(run.model.get_parameter("3.weight").detach(), kept - moved)
    assert "weighted by column" in step.selection.reason


def test_a_stopped_soft_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    soft = plan("tp-topk", active_ratio="soft", epsilon=0.5)
    whole = trainer(soft, wide())
    whole.fit(progress=False)
    first = trainer(soft, wide(), run_dir=tmp_path / "run")
    for step in first.steps():
        if step.number == soft.phases[0].steps + 2:
            first.save()
            break
    first.close()
    second = trainer(soft, wide(), run_dir=tmp_path / "run")
    second.resume(progress=False)
    assert second.support == whole.support != Support.all(whole.model)
    assert torch.equal(flat(second.model), flat(whole.model))


@pytest.mark.parametrize("ratio", ["auto", "soft"])
def test_a_run_that_finds_no_reason_to_differ_is_dp_sgd_step_by_step(ratio: str) -> None:
    """The warm-up has the noise of the rest, so finding no reason for sparsity costs nothing."""
    judged = trainer(plan("tp-topk", active_ratio=ratio, epsilon=0.5))
    judged.fit(progress=False)
    assert judged.support == Support.all(judged.model), judged.selections
    dense = trainer(plan("dp-sgd", epsilon=0.5))
    dense.fit(progress=False)
    assert torch.equal(flat(judged.model), flat(dense.model))


def test_a_soft_support_needs_a_scored_phase_and_takes_no_score() -> None:
    with pytest.raises(ArgumentError, match="score is for a choice"):
        plan("tp-topk", active_ratio="soft", score="squares")
    made = plan("tp-topk", active_ratio="soft")
    unscored = type(made)(
        made.method,
        made.epsilon,
        made.delta,
        made.examples,
        made.batch_size,
        made.phases[1:],
        made.accountant,
    )
    with pytest.raises(ArgumentError, match="at least 1 scored steps"):
        trainer(unscored)


def test_a_soft_plan_survives_its_file() -> None:
    from tacit.plan import plan_from_record, plan_to_record

    made = make_plan(
        "tp-topk", epsilon=1.0, delta=1e-5, examples=100, batch_size=10, epochs=2, active_ratio="soft"
    )
    assert plan_from_record(plan_to_record(made), "here") == made
    assert made.phases[0].noise_multiplier == made.phases[1].noise_multiplier
