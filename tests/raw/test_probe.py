"""What mixes examples is found by looking, and nothing is changed by the look."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raw.comparison import assert_exact, cross_entropy, traces
from tacit.errors import ModelError
from tacit.raw.clipping import Clipper
from tacit.raw.inspector import Inspections
from tacit.raw.instrumentation import Ways
from tacit.support import Support


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def batch(rows: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 4, generator=generator), torch.randint(3, (rows,), generator=generator)


class Model(nn.Module):
    """A linear classifier with something done to its hidden values."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self._between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self._between(self, self.inner(x)))


def _mixup(self: Any, h: Tensor) -> Tensor:
    return 0.7 * h + 0.3 * h[torch.randperm(len(h))]


def _numpy_mixup(self: Any, h: Tensor) -> Tensor:
    return 0.7 * h + 0.3 * h[torch.from_numpy(np.random.permutation(len(h)))]  # noqa: NPY002


def _mean_loss(model: nn.Module, batch: Any) -> Tensor:
    losses = cross_entropy(model, batch)
    return losses / losses.mean().detach()


def _ranked_loss(model: nn.Module, batch: Any) -> Tensor:
    losses = cross_entropy(model, batch)
    return losses * (losses.detach() > losses.detach().median())


MIXING = {
    "batch norm": (Model(lambda s, h: s.norm(h), norm=nn.BatchNorm1d(4)), cross_entropy),
    "batch norm without parameters": (
        Model(lambda s, h: s.norm(h), norm=nn.BatchNorm1d(4, affine=False, track_running_stats=False)),
        cross_entropy,
    ),
    "functional batch norm": (
        Model(lambda s, h: F.batch_norm(h, None, None, training=True)),
        cross_entropy,
    ),
    "mean over the batch": (Model(lambda s, h: h - h.mean(0)), cross_entropy),
    "detached mean": (Model(lambda s, h: h - h.mean(0).detach()), cross_entropy),
    "faint detached mean": (Model(lambda s, h: h - 1e-3 * h.mean(0).detach()), cross_entropy),
    "relative to the first": (Model(lambda s, h: h - h[0].detach()), cross_entropy),
    "relative to the one before": (Model(lambda s, h: h + h.detach().cumsum(0)), cross_entropy),
    "mixup": (Model(_mixup), cross_entropy),
    "numpy mixup": (Model(_numpy_mixup), cross_entropy),
    "attention over examples": (
        Model(lambda s, h: torch.softmax(h @ h.t(), -1) @ h),
        cross_entropy,
    ),
    "loss over mean loss": (Model(lambda s, h: h), _mean_loss),
    "loss of the worst half": (Model(lambda s, h: h), _ranked_loss),
}


def state(model: nn.Module) -> dict[str, Any]:
    return {
        "tensors": {name: value.clone() for name, value in model.state_dict().items()},
        "traces": traces(model),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),  # type: ignore[union-attr,index]  # noqa: NPY002
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["traces"] == after["traces"]
    assert before["python"] == after["python"]
    assert before["numpy"] == after["numpy"]
    assert torch.equal(before["torch"], after["torch"])
    for name, value in before["tensors"].items():
        assert torch.equal(value, after["tensors"][name]), name


@pytest.mark.parametrize("name", MIXING)
def test_mixing_is_refused_and_nothing_changes(name: str) -> None:
    model, loss = MIXING[name]
    before = state(model)
    norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules())
    way_out = r"without_batch_norm.*\.eval\(\)" if norms else 'isolation="construction".*nothing to compare'
    with pytest.raises(ModelError, match=f"depends on the other examples.*{way_out}"):
        Clipper(model, loss).clipped_sum([batch()], Support.all(model), 1.0)
    assert_same(before, state(model))


def test_batch_norm_is_named() -> None:
    model = MIXING["batch norm"][0]
    with pytest.raises(ModelError, match=r"through norm \(BatchNorm1d\), in training mode"):
        Clipper(model, cross_entropy).clipped_sum([batch()], Support.all(model), 1.0)


def test_mixing_is_found_when_only_the_last_examples_differ() -> None:
    model, _ = MIXING["detached mean"]
    x, y = batch(6)
    x[:5], y[:5] = x[0].clone(), y[0].clone()
    with pytest.raises(ModelError, match="depends on the other examples"):
        Clipper(model, cross_entropy).clipped_sum([(x, y)], Support.all(model), 1.0)


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_a_first_batch_of_few_examples_does_not_blind_the_probe(rows: int) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, ids: Tensor) -> Tensor:
            h = self.table(ids).mean(1)
            return self.head(h - h.mean(0).detach())

    model = Tokens()
    ids, y = torch.randint(9, (6, 5)), torch.randint(3, (6,))
    with pytest.raises(ModelError, match="depends on the other examples"):
        Clipper(model, cross_entropy).clipped_sum([(ids[:rows], y[:rows])], Support.all(model), 1.0)


def test_batch_norm_is_refused_on_a_batch_of_one() -> None:
    model = nn.Sequential(
        nn.Embedding(9, 4), nn.Flatten(), nn.BatchNorm1d(20, affine=False), nn.Linear(20, 3)
    )
    with pytest.raises(ModelError, match=r"2 \(BatchNorm1d\)"):
        Clipper(model, cross_entropy).clipped_sum(
            [(torch.randint(9, (1, 5)), torch.tensor([1]))], Support.all(model), 1.0
        )


def test_a_module_put_back_into_training_mode_is_looked_at_again() -> None:
    norm = nn.BatchNorm1d(4, affine=False)
    model = Model(lambda s, h: s.norm(h), norm=norm).train()
    norm.eval()
    clipper = Clipper(model, cross_entropy)
    clipper.clipped_sum([batch()], Support.all(model), 1.0)
    model.train()
    statistics = norm.running_mean.clone()  # type: ignore[union-attr]
    with pytest.raises(ModelError, match=r"through norm \(BatchNorm1d\)"):
        clipper.clipped_sum([batch()], Support.all(model), 1.0)
    assert torch.equal(norm.running_mean, statistics)  # type: ignore[arg-type]


def test_a_buffer_that_follows_the_data_is_refused() -> None:
    def remember(self: Any, h: Tensor) -> Tensor:
        self.seen.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h

    model = Model(remember, seen=torch.zeros(4))
    before = state(model)
    with pytest.raises(ModelError, match=r"buffer 'seen' changes in a forward pass.*\.eval\(\)"):
        Clipper(model, cross_entropy).clipped_sum([batch()], Support.all(model), 1.0)
    assert_same(before, state(model))


def test_instance_norm_with_moving_statistics_is_refused() -> None:
    norm = nn.InstanceNorm1d(4, track_running_stats=True)
    model = Model(
        lambda s, h: s.norm(h[..., None].expand(-1, -1, 2) * torch.tensor([1.0, 2.0])).sum(2), norm=norm
    )
    with pytest.raises(ModelError, match=r"buffer 'norm\.running_mean'|depends on the other"):
        Clipper(model, cross_entropy).clipped_sum([batch()], Support.all(model), 1.0)


def test_a_table_that_rewrites_its_rows_is_refused_untouched() -> None:
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.1), nn.Flatten(), nn.Linear(20, 3))
    given = (torch.randint(9, (6, 5)), torch.randint(3, (6,)))
    before = state(model)
    with pytest.raises(ModelError, match="0: an embedding with max_norm"):
        Clipper(model, cross_entropy).clipped_sum([given], Support.all(model), 1.0)
    assert_same(before, state(model))


def test_a_parameter_changed_by_the_forward_pass_is_refused() -> None:
    def drift(self: Any, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.inner.bias.add_(0.0)
        return h

    model = Model(drift)
    with pytest.raises(ModelError, match=r"'inner\.bias' is changed by the forward pass"):
        Clipper(model, cross_entropy).clipped_sum([batch()], Support.all(model), 1.0)


def test_a_loss_that_goes_around_the_model_is_followed() -> None:
    model = Model(lambda s, h: h).double()

    def loss(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(F.linear(model.inner(batch[0]), model.head.weight), batch[1], reduction="none")

    x, y = batch()
    assert_exact(model, (x.double(), y), loss)


@pytest.mark.parametrize("kind", ["dropout", "frozen batch norm", "group norm", "python random"])
def test_a_sound_model_is_accepted_and_not_changed(kind: str) -> None:
    def coin(self: Any, h: Tensor) -> Tensor:
        return h * (2.0 if random.random() < 0.5 else 0.5)

    model = {
        "dropout": Model(lambda s, h: s.drop(h), drop=nn.Dropout(0.5)),
        "frozen batch norm": Model(lambda s, h: s.norm(h), norm=nn.BatchNorm1d(4)),
        "group norm": Model(lambda s, h: s.norm(h), norm=nn.GroupNorm(2, 4)),
        "python random": Model(coin),
    }[kind].train()
    if kind == "frozen batch norm":
        model.norm.eval()  # type: ignore[union-attr,operator]
    before = state(model)
    clipper = Clipper(model, cross_entropy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared = clipper._prepared(Support.all(model), batch())
    assert prepared is not None
    assert prepared[1].ways == Ways()
    assert_same(before, state(model))


def test_a_nan_example_does_not_blind_the_probe() -> None:
    class Escaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.tanh(self.inner(x)), self.inner.weight)

    model = Escaping().double()
    x, y = batch()
    x = x.double()
    x[1] = float("nan")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        clipper = Clipper(model, cross_entropy)
        clipper.clipped_sum([(x, y)], Support.all(model), 1.0)
    assert [findings.ways for findings in clipper._inspector.findings.values()] == [
        Ways(followed=frozenset({"inner.weight"}))
    ]
    assert_exact(model, (x[2:], y[2:]))

    mixing = Model(lambda s, h: h - h.mean(0).detach()).double()
    with pytest.raises(ModelError, match="depends on the other examples"):
        Clipper(mixing, cross_entropy).clipped_sum([(x, y)], Support.all(mixing), 1.0)


@pytest.mark.parametrize("draw", range(12))
def test_an_infinite_input_with_a_finite_loss_is_not_taken_for_mixing(draw: int) -> None:
    """tanh hides the infinity from the loss, not from the gradient, in whose sum zero times infinity is NaN."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x, y = batch(16)
    x[::3, 1] = float("inf")
    inspections = Inspections(draw)
    clipped = Clipper(model, cross_entropy, inspections=inspections).clipped_sum(
        [(x, y)], Support.all(model), 1.0
    )
    assert all(value.isfinite().all() for value in clipped.values.values())


class AskingForItsInput(nn.Module):
    """As Wav2Vec2 does: the input is made to require a gradient, which torch refuses if it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        x.requires_grad = True
        return self.head(x).squeeze(1)  # type: ignore[no-any-return]


def _assert_norms(clipper: Clipper, model: nn.Module) -> None:
    """Norms are those of autograd for every example."""
    found = clipper.norms(batch(), Support.all(model))
    for place in range(6):
        model.zero_grad()
        cross_entropy(model, batch())[place].backward()
        norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
        assert float(found[place]) == pytest.approx(float(norm), rel=1e-5)


def test_a_model_that_asks_for_gradients_of_its_input_is_served() -> None:
    model = AskingForItsInput()
    clipper = Clipper(model, cross_entropy)
    clipper.rehearse(batch())
    _assert_norms(clipper, model)


class Descending(nn.Module):
    """One step down an energy, by autograd within the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            [slope] = torch.autograd.grad(self.inner(x).tanh().sum(), x, create_graph=True)
            return self.head(x - slope)  # type: ignore[no-any-return]


class DescendingWithItsGraph(Descending):
    """The same, without a thought for passes that need no gradients."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        [slope] = torch.autograd.grad(self.inner(x).tanh().sum(), x, create_graph=True)
        return self.head(x - slope)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Descending, DescendingWithItsGraph])
def test_a_model_that_differentiates_something_itself_trains_one_example_at_a_time(
    kind: type[nn.Module],
) -> None:
    model = kind()
    with pytest.raises(ModelError, match=r'calls torch\.autograd itself.*isolation="construction"'):
        Clipper(model, cross_entropy).rehearse(batch())
    clipper = Clipper(model, cross_entropy, isolation="construction")
    clipper.rehearse(batch())
    _assert_norms(clipper, model)
