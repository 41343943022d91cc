"""A linear layer on vectors of unit length, with and without a centre that is learned first."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

import tacit
from oracle import assert_close, clipped_sum, per_example_gradients
from tacit.errors import ArgumentError
from tacit.jobs.defaults import worth_centring
from tacit.jobs.settings import TrainingConfig
from tacit.jobs.setup import loss_of, optimizer_of
from tacit.losses import cross_entropy, with_centre
from tacit.models.networks import UnitLinear
from tacit.raw.clipping import Clipper
from tacit.support import Support

INPUTS, CLASSES = 12, 3


def vectors(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors of unit length around a centre far from zero, and the largest of three coordinates."""
    generator = torch.Generator().manual_seed(seed)
    x = F.normalize(torch.randn(count, INPUTS, generator=generator) + 0.8, dim=1)
    return x, x[:, :CLASSES].argmax(1)


def trainer_of(plan: tacit.Plan, data: tuple[Tensor, Tensor], run_dir: Path | None = None) -> tacit.Trainer:
    settings = TrainingConfig(learning_rate=3.0, momentum=0.9, clip_norm=0.1)
    return tacit.Trainer(
        UnitLinear(INPUTS, CLASSES, centred=True),
        TensorDataset(*data),
        loss_of("multiclass", "centred-linear"),
        plan,
        optimizer=optimizer_of(settings, plan),
        seed=0,
        average=0.9,
        run_dir=run_dir,
    )


def centred_plan(epsilon: float = 8.0, examples: int = 2_000) -> tacit.Plan:
    return tacit.make_plan(
        "centred", epsilon=epsilon, delta=1e-5, examples=examples, batch_size=400, epochs=12, clip_norm=0.1
    )


def test_an_untrained_layer_answers_nothing_or_what_it_is_told() -> None:
    x, _ = vectors(4)
    model = UnitLinear(INPUTS, CLASSES)
    assert not model(x).any()
    model.start_at(1.0, -2.0, 0.5)
    torch.testing.assert_close(model(x), torch.tensor([1.0, -2.0, 0.5]).expand(4, -1))


def test_the_bias_hardly_lengthens_a_gradient() -> None:
    x, y = vectors(1)
    model = UnitLinear(INPUTS, CLASSES)
    cross_entropy(model, (x, y)).sum().backward()
    weights = model.layer.weight.grad
    whole = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert weights is not None
    assert float(whole / weights.norm()) == pytest.approx(1.01**0.5, rel=1e-5)


def test_the_loss_of_the_centre_has_no_value_and_the_gradient_of_half_the_squared_distance() -> None:
    x, y = vectors(5)
    model = UnitLinear(INPUTS, CLASSES, centred=True)
    with torch.no_grad():
        model.layer.weight.normal_()
        assert model.centre is not None
        model.centre.weight.normal_(std=0.1)
    plain, with_it = cross_entropy(model, (x, y)), with_centre(cross_entropy)(model, (x, y))
    torch.testing.assert_close(plain, with_it)
    layer = torch.autograd.grad(plain.sum(), model.layer.weight, retain_graph=True)[0]
    torch.testing.assert_close(
        torch.autograd.grad(with_it.sum(), model.layer.weight, retain_graph=True)[0], layer
    )
    centre = model.centre.weight
    added = torch.autograd.grad(with_it.sum(), centre)[0] - torch.autograd.grad(plain.sum(), centre)[0]
    torch.testing.assert_close(added[:, 0], (centre.detach()[:, 0] - x).sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("active", [["centre.*"], ["layer.*", "bias.*"]])
def test_clipped_sums_of_both_phases_equal_those_of_single_examples(active: list[str]) -> None:
    x, y = vectors(6)
    model = UnitLinear(INPUTS, CLASSES, centred=True).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    loss, batch = with_centre(cross_entropy), (x.double(), y)
    support = Support.matching(model, active)
    expected, norms = clipped_sum(per_example_gradients(model, loss, batch), support, 0.3)
    assert (norms > 0.3).any()
    found = Clipper(model, loss).clipped_sum([batch], support, 0.3)
    assert_close(dict(found.values), expected, 1e-12)


def test_the_centre_is_learned_first_and_then_rests() -> None:
    data = vectors(2_000)
    plan = centred_plan()
    assert [phase.name for phase in plan.phases] == ["centre", "train"]
    assert plan.phases[0].noise_multiplier > plan.phases[1].noise_multiplier
    trainer = trainer_of(plan, data)
    trainer.fit(progress=False)
    model = trainer.model
    assert isinstance(model, UnitLinear)
    assert model.centre is not None
    found = model.centre.weight.detach()[:, 0]
    assert float((found - data[0].mean(0)).norm()) < 0.1 * float(data[0].mean(0).norm())
    test = vectors(2_000, seed=1)
    accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
    assert float(accuracy) > 0.8


@pytest.mark.parametrize("stop", [3, 5, 12])
def test_a_run_that_was_stopped_in_either_phase_ends_as_one_that_was_not(tmp_path: Path, stop: int) -> None:
    data, plan = vectors(1_000), centred_plan(examples=1_000)
    assert plan.phases[0].steps < 5
    whole = trainer_of(plan, data)
    whole.fit(progress=False)
    stopped = trainer_of(plan, data, tmp_path / "run")
    for _ in itertools.islice(stopped.steps(), stop):
        pass
    stopped.save()
    stopped.close()
    resumed = trainer_of(plan, data, tmp_path / "run")
    resumed.resume(progress=False)
    found = resumed.model.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in whole.model.state_dict().items())


def test_adam_is_refused_before_anything_is_spent() -> None:
    with pytest.raises(ArgumentError, match="use sgd"):
        optimizer_of(TrainingConfig(learning_rate=0.1, optimizer="adam"), centred_plan())


def test_a_centre_is_worth_learning_where_its_noise_is_short() -> None:
    assert worth_centring(50_000, 6_144, 1.0)
    assert not worth_centring(5_000, 6_144, 1.0)
    assert worth_centring(5_000, 2_048, 8.0)
