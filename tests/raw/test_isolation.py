"""Examples are kept apart: what mixes them, hides from a first look, or is attributed to others is found or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from oracle import assert_close, clipped_sum, per_example_gradients
from raw.comparison import assert_exact, cross_entropy
from tacit.errors import ModelError
from tacit.raw import probe
from tacit.raw.clipping import Clipper
from tacit.raw.inspector import Inspections
from tacit.raw.rehearsal import Stilled
from tacit.support import Support


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def sequences(rows: int = 6, length: int = 5, width: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, length, width, generator=generator)
    return x, torch.randint(3, (rows,), generator=generator)


def refused(model: nn.Module, loss: Any, batch: Any, words: str | None = None) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        with pytest.raises(ModelError, match=words):
            Clipper(model, loss).clipped_sum([batch], Support.all(model), 1.0)


class Function(nn.Module):
    """A model given by its parts and a function of itself and its input."""

    def __init__(self, function: Any, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._function = function

    def forward(self, *given: Any) -> Any:
        return self._function(self, *given)


def zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


# What is asleep -----------------------------------------------------------------------------------------------------


def _folded(self: Any, x: Tensor) -> Tensor:
    """Time-major: position by position in the leading dimension."""
    rows, length, width = x.shape
    flat = torch.tanh(self.inner(x.transpose(0, 1).reshape(length * rows, width)))
    return flat.view(length, rows, -1).mean(0)


ASLEEP: dict[str, Callable[[], nn.Module]] = {
    "a head that starts at zero": lambda: Function(
        lambda s, x: s.head(_folded(s, x)), inner=nn.Linear(4, 4), head=zero(nn.Linear(4, 3))
    ),
    "ReZero": lambda: Function(
        lambda s, x: s.head(x.mean(1) + s.gate(_folded(s, x))),
        inner=nn.Linear(4, 4),
        gate=Scale(1),
        head=nn.Linear(4, 3),
    ),
    "LayerScale": lambda: Function(
        lambda s, x: s.head(x.mean(1) + s.gate(_folded(s, x))),
        inner=nn.Linear(4, 4),
        gate=Scale(4),
        head=nn.Linear(4, 3),
    ),
    "a weight used outside its module": lambda: Function(
        lambda s, x: s.head(F.linear(x, s.inner.weight).mean(1)),
        inner=nn.Linear(4, 4, bias=False),
        head=zero(nn.Linear(4, 3)),
    ),
}


class Scale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


@pytest.mark.parametrize("kind", ASLEEP)
def test_what_sleeps_at_the_start_is_attributed_rightly_once_awake(kind: str) -> None:
    model, batch = ASLEEP[kind]().double(), sequences()
    batch = (batch[0].double(), batch[1])
    support = Support.all(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        clipper = Clipper(model, cross_entropy, inspections=Inspections(0))
        clipper.clipped_sum([batch], support, 0.1)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.3)
        found = clipper.clipped_sum([batch], support, 0.1).values
    expected, _ = clipped_sum(per_example_gradients(model, cross_entropy, batch), support, 0.1)
    assert_close(found, expected, 1e-10)


def test_the_probe_moves_no_weight() -> None:
    model, batch = ASLEEP["ReZero"](), sequences()
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        Clipper(model, cross_entropy).clipped_sum([batch], Support.all(model), 1.0)
    for name, p in model.named_parameters():
        assert p.data_ptr() == before[name][0]
        assert torch.equal(p, before[name][1])
        assert p.dtype is torch.float32
    assert torch.get_default_dtype() is torch.float32


# Sizes and orders ---------------------------------------------------------------------------------------------------


def test_a_loss_divided_by_the_size_of_the_batch_is_refused() -> None:
    model = nn.Linear(4, 3)
    x, y = sequences()
    refused(
        model, lambda m, b: cross_entropy(m, b) / len(b[0]), (x.mean(1), y), "depends on the other examples"
    )


def test_scaling_by_the_largest_value_of_the_batch_is_refused_whoever_comes_first() -> None:
    model = Function(lambda s, x: s.head(x.mean(1) / x.abs().max().clamp(min=3)), head=nn.Linear(4, 3))
    x, y = sequences()
    x[:3] = x[:3] / x[:3].abs().max()
    refused(model, cross_entropy, (x, y), "depends on the other examples")


def _packed(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Sorted by length, packed, and put back in order."""
    order = batch["lengths"].argsort(descending=True, stable=True)
    packed = pack_padded_sequence(batch["x"][order], batch["lengths"][order], batch_first=True)
    _, state = model.layer(packed)
    return F.cross_entropy(model.head(state[0][order.argsort()]), batch["y"], reduction="none")


@pytest.mark.parametrize("sorted_first", [False, True])
def test_sorting_by_length_inside_the_forward_pass_is_refused(sorted_first: bool) -> None:
    model = Function(None, layer=nn.GRU(4, 3, batch_first=True), head=nn.Linear(3, 3))
    x, y = sequences()
    lengths = torch.tensor([5, 4, 3, 1, 2, 5]) if sorted_first else torch.tensor([1, 5, 2, 4, 3, 5])
    refused(model, lambda m, b: _packed(m, b) * 1.0, {"x": x, "lengths": lengths, "y": y})


@pytest.mark.parametrize("equal", [False, True])
def test_unpadding_inside_the_forward_pass_is_refused(equal: bool) -> None:
    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        real = torch.arange(batch["x"].shape[1]) < batch["lengths"][:, None]
        values = torch.tanh(model.inner(batch["x"][real]))
        padded = torch.zeros(*batch["x"].shape[:2], 4, dtype=values.dtype).masked_scatter(
            real[..., None], values
        )
        return F.cross_entropy(model.head(padded.sum(1)), batch["y"], reduction="none")

    model = Function(None, inner=nn.Linear(4, 4), head=nn.Linear(4, 3))
    x, y = sequences()
    lengths = torch.tensor([3, 3, 3, 1, 5, 3] if equal else [1, 5, 2, 4, 3, 3])
    refused(model, loss, {"x": x, "lengths": lengths, "y": y})


def test_examples_are_looked_at_in_every_place_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while random draws are stilled, the company gathers in random order."""
    seen: dict[int, set[int]] = {}
    compose = probe._Look._compose

    def recorded(look: Any, size: int) -> Any:
        batch, places, weights = compose(look, size)
        seen.setdefault(size, set()).update(place for place, whose in enumerate(places) if whose == 1)
        return batch, places, weights

    monkeypatch.setattr(probe._Look, "_compose", recorded)
    x, y = sequences()
    for seed in range(16):
        model = nn.Linear(4, 3)
        clipper = Clipper(model, cross_entropy, inspections=Inspections(seed))
        clipper.clipped_sum([(x.mean(1), y)], Support.all(model), 1.0)
    assert seen[3] == {0, 1, 2}
    assert len(seen[13]) > 6


# Selections ---------------------------------------------------------------------------------------------------------


def _masked_head(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """A head on the chosen tokens of all examples, one row each."""
    chosen = batch["labels"] != -100
    logits = model.head(torch.tanh(model.inner(model.table(batch["ids"])))[chosen])
    losses = F.cross_entropy(logits, batch["labels"][chosen], reduction="none")
    owner = torch.arange(len(chosen))[:, None].expand_as(chosen)[chosen]
    return torch.zeros(len(chosen), dtype=losses.dtype).index_add(0, owner, losses)


@pytest.mark.parametrize("counts", [[2] * 6, [2, 2, 2, 1, 3, 2], [1, 3, 2, 2, 2, 2]])
def test_a_head_on_chosen_tokens_is_refused_however_many_the_first_have(counts: list[int]) -> None:
    ids = torch.randint(7, (6, 5))
    labels = torch.full((6, 5), -100)
    for row, count in enumerate(counts):
        labels[row, :count] = ids[row, :count]
    model = Function(None, table=nn.Embedding(7, 4), inner=nn.Linear(4, 4), head=nn.Linear(4, 7))
    refused(model, _masked_head, {"ids": ids, "labels": labels}, 'isolation="construction"')


class Experts(nn.Module):
    """Every token goes to one of two experts, gathered by index over all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, 4)
        output = torch.zeros_like(tokens)
        second = tokens[:, 0] > 0
        for expert, chosen in ((self.one, ~second), (self.two, second)):
            output = output.index_add(0, chosen.nonzero().flatten(), expert(tokens[chosen]))
        return self.head(torch.tanh(output).view(x.shape).mean(1))


def test_experts_chosen_by_index_are_refused_after_a_balanced_batch() -> None:
    x, y = sequences(length=4)
    x[:, :, 0] = torch.tensor([1.0, -1, 1, -1])
    refused(Experts(), cross_entropy, (x, y))


def test_a_layer_that_begins_to_select_rows_is_noticed_in_that_step() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x, last = x.mean(1), len(x) - 1
        if not self.selecting:
            return self.head(x)
        rows = torch.tensor([0, *(place for place in range(last) for _ in range(2)), last])
        return torch.zeros(len(x), 3, dtype=x.dtype).index_add(0, rows, self.head(x[rows]))

    model = Function(forward, head=nn.Linear(4, 3))
    model.selecting = False
    clipper = Clipper(model, cross_entropy, inspections=Inspections(0))
    clipper.clipped_sum([sequences()], Support.all(model), 1.0)
    model.selecting = True
    with pytest.raises(ModelError, match="examples"):
        clipper.clipped_sum([sequences()], Support.all(model), 1.0)


# Parts of the loss --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [1e-4, 1e-2])
def test_a_small_penalty_inside_the_model_is_part_of_every_gradient(strength: float) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        penalty = strength * self.inner.weight.square().sum()
        return self.head(torch.tanh(self.inner(x)).mean(1)), penalty.expand(len(x))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits, penalty = model(batch[0])
        return F.cross_entropy(logits, batch[1], reduction="none") + penalty

    model = Function(forward, inner=nn.Linear(4, 4), head=nn.Linear(4, 3)).double()
    x, y = sequences()
    assert_exact(model, (x.double(), y), loss)


def test_a_small_penalty_outside_the_model_is_part_of_every_gradient() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        return cross_entropy(model, batch) + 1e-5 * model.weight.square().sum()

    x, y = sequences()
    assert_exact(nn.Linear(4, 3).double(), (x.mean(1).double(), y), loss)


# Random draws -------------------------------------------------------------------------------------------------------


def test_mixing_by_chance_is_found_behind_dropout() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.drop(self.inner(x.mean(1)))
        keep = torch.rand(len(h), 1) < 0.5
        return self.head(torch.where(keep, h, h[torch.rand(len(h)).argsort()]))

    model = Function(forward, inner=nn.Linear(4, 4), drop=nn.Dropout(0.5), head=nn.Linear(4, 3))
    refused(model, cross_entropy, sequences(), "depends on the other examples")


def test_stilled_draws_do_not_depend_on_how_many_there_are() -> None:
    with Stilled():
        for draw in (
            lambda n: torch.rand(n),
            lambda n: torch.randn(n),
            lambda n: torch.randint(2, 9, (n,)),
            lambda n: torch.empty(n).uniform_(1, 2),
            lambda n: F.dropout(torch.ones(n), 0.3),
            lambda n: torch.bernoulli(torch.full((n,), 0.2)),
            lambda n: torch.normal(torch.zeros(n), 1.0),
            lambda n: torch.rand(n, generator=torch.Generator().manual_seed(n)),
        ):
            assert torch.equal(draw(3), draw(40)[:3])
    assert not torch.equal(torch.rand(3), torch.rand(3))


# When to look -------------------------------------------------------------------------------------------------------


def test_every_window_of_steps_holds_a_look() -> None:
    looks = set()
    for seed in range(40):
        inspections = Inspections(seed)
        due = [step for step in range(1, 600) if inspections.due()]
        assert [sum(low <= step < 4 * low for step in due) for low in (2, 8, 32)] == [1, 1, 1]
        assert due == [step for step in range(1, 600) if step in due]
        looks.add(tuple(due))
    assert len(looks) == 40
    secret = [Inspections() for _ in range(8)]
    assert len({tuple(step for step in range(1, 600) if one.due()) for one in secret}) > 1


def test_a_new_support_is_looked_at_unless_the_last_look_is_recent() -> None:
    inspections = Inspections(0)
    due = [inspections.due(changed=step % 5 == 0) for step in range(1, 400)]
    apart = [step for step, now in enumerate(due) if now]
    assert len(apart) > 8
    assert max(b - a for a, b in pairwise(apart)) <= 40


def test_a_model_that_begins_to_mix_is_stopped_at_a_later_look() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.inner(x.mean(1))
        return self.head(h - h.mean(0).detach() if float(self.head.bias.detach()[0]) > 1 else h)

    model = Function(forward, inner=nn.Linear(4, 4), head=zero(nn.Linear(4, 3)))
    clipper = Clipper(model, cross_entropy, inspections=Inspections(0))
    clipper.clipped_sum([sequences()], Support.all(model), 1.0)
    with torch.no_grad():
        model.head.bias[0] = 2.0

    def further() -> None:
        for _ in range(32):
            clipper.clipped_sum([sequences()], Support.all(model), 1.0)

    with pytest.raises(ModelError, match=r"depends on the other examples.*found at step \d.*stays charged"):
        further()


def _products(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return (model(x) * y).flatten(1).sum(1)


@pytest.mark.parametrize("odd", [1, 8])
@pytest.mark.parametrize("seed", range(3))
def test_examples_whose_terms_cancel_to_rounding_are_not_taken_for_mixing(seed: int, odd: int) -> None:
    torch.manual_seed(seed)
    model = nn.Linear(128, 128, bias=False)
    signs = torch.randint(2, (odd, 2, 128)) * 2.0 - 1
    x = torch.tensor([1 + 2.0**-12, 1 + 2.0**-11])[None, :, None] * signs[:, :1] * 1e8
    y = torch.tensor([1 + 2.0**-11, -1 - 2.0**-12])[None, :, None] * signs[:, 1:] * 1e8
    usual = torch.randn(8 - odd, 2, 128), torch.randn(8 - odd, 2, 128)
    clipper, support = Clipper(model, _products), Support.all(model)
    for _ in range(9):  # with two looks at unpredictable steps
        clipped = clipper.clipped_sum([(torch.cat([x, usual[0]]), torch.cat([y, usual[1]]))], support, 1.0)
        assert all(bool(value.isfinite().all()) for value in clipped.values.values())
