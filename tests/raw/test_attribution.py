"""Each example gets its own gradient, however the model arranges examples, parameters and modules."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from oracle import assert_close, clipped_sum, per_example_gradients
from raw.comparison import assert_exact, cross_entropy, traces
from tacit.errors import ModelError
from tacit.raw import fallback, following
from tacit.raw.clipping import Clipper
from tacit.raw.instrumentation import Ways
from tacit.raw.rules import registry
from tacit.support import Support


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def sequences(rows: int = 6, length: int = 5, width: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, length, width, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (rows,), generator=generator)


class Function(nn.Module):
    """A model given by its parts and a function of itself and its input."""

    def __init__(self, function: Any, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._function = function
        self.double()

    def forward(self, x: Any) -> Any:
        return self._function(self, x)


def positioned(kind: str) -> nn.Module:
    """A table of positions that all examples share, looked up and added in different ways."""

    def forward(self: Any, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        match kind:
            case "positions":
                x = x + self.table(place)
            case "leading one":
                x = x + self.table(place[None])
            case "one added after":
                x = x + self.table(place)[None]
            case "sequence first":
                x = (x.transpose(0, 1) + self.table(place)[:, None]).transpose(0, 1)
            case "sequence first by ids":
                x = (x.transpose(0, 1) + self.table(place[:, None])).transpose(0, 1)
            case "expanded":
                x = x + self.table(place.expand(len(x), -1))
        return self.head(torch.tanh(self.inner(x)).mean(1))

    return Function(forward, table=nn.Embedding(6, 4), inner=nn.Linear(4, 4), head=nn.Linear(4, 3))


POSITIONS = [
    "positions",
    "leading one",
    "one added after",
    "sequence first",
    "sequence first by ids",
    "expanded",
]


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize(("rows", "length"), [(6, 5), (3, 3), (5, 5), (4, 1), (1, 5)])
def test_shared_positions_belong_to_every_example(kind: str, rows: int, length: int) -> None:
    assert_exact(positioned(kind), sequences(rows, length))


@pytest.mark.parametrize("kind", ["positions", "leading one", "expanded"])
def test_the_usual_ways_to_add_positions_need_no_fallback(kind: str) -> None:
    model = positioned(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Clipper(model, cross_entropy).clipped_sum([sequences()], Support.all(model), 1.0)


def folded(interleaved: bool) -> nn.Module:
    """Positions folded into the leading dimension, example by example or position by position."""

    def forward(self: Any, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        if interleaved:
            flat = x.transpose(0, 1).reshape(length * rows, width)
            return torch.tanh(self.inner(flat)).view(length, rows, -1).mean(0)
        return torch.tanh(self.inner(x.reshape(rows * length, width))).view(rows, length, -1).mean(1)

    return Function(forward, inner=nn.Linear(4, 3))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("length", [1, 3, 5])
def test_positions_folded_into_the_leading_dimension(interleaved: bool, length: int) -> None:
    assert_exact(folded(interleaved), sequences(6, length))


def test_what_was_learned_from_single_positions_is_not_used_for_more() -> None:
    model, batch = folded(interleaved=True), sequences(6, 5)
    support = Support.all(model)
    expected, norms = clipped_sum(per_example_gradients(model, cross_entropy, batch), support, 0.1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        clipper = Clipper(model, cross_entropy)
        clipper.clipped_sum([sequences(6, 1)], support, 0.1)
        assert_close(clipper.clipped_sum([batch], support, 0.1).values, expected, 1e-10)
        torch.testing.assert_close(clipper.norms(batch, support), norms)


@pytest.mark.parametrize("rows", [2, 5])
def test_sequence_first_encoder(rows: int) -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=False),
        1,
        enable_nested_tensor=False,
    )
    model = Function(
        lambda self, x: self.head(self.encoder(x.transpose(0, 1)).mean(0)),
        encoder=encoder,
        head=nn.Linear(4, 3),
    )
    assert_exact(model, sequences(rows, 5))
    assert_exact(model.eval(), sequences(rows, 5))


def test_tied_weight_used_outside_its_module() -> None:
    model = Function(
        lambda self, x: F.linear(torch.tanh(self.table(x)).mean(1), self.table.weight[:3]),
        table=nn.Embedding(7, 4),
    )
    ids = torch.randint(7, (6, 5))
    assert_exact(model, (ids, torch.randint(3, (6,))))


def test_tied_modules_and_repeated_calls_sum_before_the_norm() -> None:
    inner = nn.Linear(4, 4)
    model = Function(
        lambda self, x: self.head(self.b(torch.tanh(self.a(torch.tanh(self.a(x))))).mean(1)),
        a=inner,
        b=inner,
        head=nn.Linear(4, 3),
    )
    assert_exact(model, sequences())


@pytest.mark.parametrize("vector", [False, True])
def test_a_layer_called_once_per_example(vector: bool) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.mean(1)
        if vector:
            return torch.stack([self.head(row) for row in x])
        return torch.cat([self.head(x[i : i + 1]) for i in range(len(x))])

    assert_exact(Function(forward, head=nn.Linear(4, 3)), sequences())


def test_parameters_without_gradient_give_zeros() -> None:
    model = Function(
        lambda self, x: self.head(x.mean(1)),
        unused=nn.Linear(3, 3),
        spare=nn.Parameter(torch.ones(2)),
        head=nn.Linear(4, 3),
    )
    assert_exact(model, sequences())


def test_no_reachable_active_parameter_gives_zeros() -> None:
    model = Function(lambda self, x: self.head(x.mean(1)), unused=nn.Linear(3, 3), head=nn.Linear(4, 3))
    support = Support.matching(model, ["unused.*"])
    clipped = Clipper(model, cross_entropy).clipped_sum([sequences()], support, 1.0)
    assert set(clipped.values) == {"unused.weight", "unused.bias"}
    assert not any(value.any() for value in clipped.values.values())


def test_a_loss_that_reaches_no_parameter_gives_zeros() -> None:
    model = nn.Linear(4, 3).double()
    clipped = Clipper(model, lambda _, batch: batch[0].square().sum((1, 2))).clipped_sum(
        [sequences()], Support.all(model), 1.0
    )
    assert not any(value.any() for value in clipped.values.values())


def test_frozen_parameters_stay_out() -> None:
    model = Function(
        lambda self, x: self.head(torch.tanh(self.inner(x)).mean(1)),
        inner=nn.Linear(4, 4),
        head=nn.Linear(4, 3),
    )
    model.inner.weight.requires_grad_(False)
    assert set(Support.all(model)) == {"inner.bias", "head.weight", "head.bias"}
    before = traces(model)
    assert_exact(model, sequences())
    assert traces(model) == before


def test_in_place_activations() -> None:
    model = Function(
        lambda self, x: self.layers(x).mean(1),
        layers=nn.Sequential(
            nn.Linear(4, 6),
            nn.ReLU(inplace=True),
            nn.Linear(6, 6, bias=False),
            nn.LeakyReLU(inplace=True),
            nn.LayerNorm(6),
            nn.ReLU(inplace=True),
            nn.Linear(6, 3),
        ),
    )
    assert_exact(model, sequences())


def test_an_input_changed_after_it_was_read_is_reported() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.mean(1)
        y = self.head(x)
        x.zero_()
        return y

    model = Function(forward, head=nn.Linear(4, 3))
    with pytest.raises((ModelError, RuntimeError), match=r"in place|inplace"):
        Clipper(model, cross_entropy).clipped_sum([sequences()], Support.all(model), 1.0)


class Gate(nn.Module):
    """A layer Tacit knows nothing about, giving its results in several forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.form = form

    def forward(self, x: Tensor, *, strength: float = 1.0) -> Any:
        h = torch.tanh(x * self.scale * strength)
        match self.form:
            case "tuple":
                return h, h * 2
            case "dict":
                return {"nested": [h, {"other": h.mean(1)}], "number": 3, "none": None}
            case "twice":
                return h, h
            case "slice":
                return h, h[:, 0]
            case "own input":
                return h, x
            case _:
                return h


@pytest.mark.parametrize("form", ["tuple", "dict", "twice", "slice", "own input"])
@pytest.mark.parametrize("deeper", [False, True])
def test_unknown_modules_with_structured_outputs(form: str, deeper: bool) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        if deeper:
            x = torch.tanh(self.inner(x))
        result = self.gate(x, strength=0.7)
        one, other = (result["nested"][0], result["nested"][1]["other"]) if form == "dict" else result
        other = other.mean(1) if other.dim() == 3 else other
        return self.head(one.mean(1)) + self.head(other * 0.5)

    model = Function(forward, inner=nn.Linear(4, 4), gate=Gate(form), head=nn.Linear(4, 3))
    batch = sequences()
    assert_exact(model, batch)
    assert not batch[0].requires_grad
    assert batch[0].grad_fn is None


@pytest.mark.parametrize("hold", [0, 1 << 24])
def test_unknown_modules_in_pieces(hold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "HOLD", hold)
    monkeypatch.setattr(following, "HOLD", hold)
    model = Function(
        lambda self, x: self.head(self.gate(x).mean(1)), gate=Gate("plain"), head=nn.Linear(4, 3)
    )
    assert_exact(model, sequences())
    assert_exact(model, sequences(), views=2)


def test_three_views() -> None:
    model = Function(lambda self, x: self.head(x.mean(1)), head=nn.Linear(4, 3))
    assert_exact(model, sequences(6), views=3)
    with pytest.raises(ModelError, match="does not hold 3 views of every example"):
        Clipper(model, cross_entropy, views=3).clipped_sum([sequences(5)], Support.all(model), 1.0)


def test_an_unknown_module_is_announced_once_by_name() -> None:
    model = Function(
        lambda self, x: self.head(self.gate(x).mean(1)), gate=Gate("plain"), head=nn.Linear(4, 3)
    )
    clipper = Clipper(model, cross_entropy)
    with pytest.warns(UserWarning, match=r"gate \(Gate\) has no rule.*scale"):
        clipper.clipped_sum([sequences()], Support.all(model), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipper.clipped_sum([sequences()], Support.all(model), 1.0)
        clipper.clipped_sum([sequences()], Support.random(model, ratio=0.5, seed=0), 1.0)
    head_only = Support.matching(model, ["head.*"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Clipper(model, cross_entropy).clipped_sum([sequences()], head_only, 1.0)


def test_a_registered_rule_replaces_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_type", dict(registry._by_type))

    @registry.register(Gate)
    def gate(module: Gate, layer: Any, x: Tensor) -> Tensor:
        output = torch.tanh(x * module.scale)

        def gradients(x: Tensor, b: Tensor) -> tuple[Tensor]:
            return ((b * (1 - torch.tanh(x * module.scale).square()) * x).sum(1),)

        return layer.direct(x, output, (module.scale,), gradients)

    model = Function(
        lambda self, x: self.head(self.gate(self.inner(x)).mean(1)),
        inner=nn.Linear(4, 4),
        gate=Gate("plain"),
        head=nn.Linear(4, 3),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Clipper(model, cross_entropy).clipped_sum([sequences()], Support.all(model), 1.0)


def test_a_subclass_with_its_own_forward_does_not_get_its_parents_rule() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert_exact(Function(lambda self, x: self.head(x.mean(1)), head=Doubled(4, 3)), sequences())


def test_a_forward_set_on_the_instance_is_respected() -> None:
    model = Function(lambda self, x: self.head(torch.tanh(self.inner(x)).mean(1)), inner=nn.Linear(4, 4))
    model.head = nn.Linear(4, 3).double()
    inner = model.inner
    inner.forward = lambda x: 3 * nn.Linear.forward(inner, x)  # type: ignore[method-assign]
    replaced = inner.forward
    assert_exact(model, sequences())
    assert inner.forward is replaced


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_reparametrised_weights() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    assert_exact(Function(lambda self, x: self.head(x.mean(1)), head=normed), sequences())


def test_dropout_beside_a_bare_parameter_is_exact() -> None:
    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.randn(4))
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.dropout(x + self.token)

    model = Function(lambda self, x: self.head(self.add(x).mean(1)), add=Token(), head=nn.Linear(4, 3))
    model = model.double().train()
    before = traces(model)
    batch = sequences()
    parameters = dict(model.named_parameters())
    gradients: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for place in range(len(batch[0])):
        torch.manual_seed(3)
        found = torch.autograd.grad(cross_entropy(model, batch)[place], list(parameters.values()))
        for name, gradient in zip(parameters, found, strict=True):
            gradients[name].append(gradient)
    stacked = {name: torch.stack(rows) for name, rows in gradients.items()}
    support = Support.random(model, ratio=0.5, seed=0)
    expected, _ = clipped_sum(stacked, support, 0.1)
    clipper = Clipper(model, cross_entropy)
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        summed = clipper.clipped_sum([batch], support, 0.1)
    assert_close(summed.values, expected, 1e-12)
    assert traces(model) == before


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences(layer: Any, enforce_sorted: bool) -> None:
    lengths = torch.tensor([5, 4, 2, 2, 1]) if enforce_sorted else torch.tensor([2, 5, 1, 4, 2])
    generator = torch.Generator().manual_seed(1)
    batch = {
        "x": torch.randn(5, 5, 4, generator=generator, dtype=torch.float64),
        "lengths": lengths,
        "y": torch.randint(3, (5,), generator=generator),
    }

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        packed = pack_padded_sequence(
            batch["x"], batch["lengths"], batch_first=True, enforce_sorted=enforce_sorted
        )
        output, state = model.layer(packed)
        state = state[0] if isinstance(state, tuple) else state
        padded, _ = pad_packed_sequence(output, batch_first=True)
        return F.cross_entropy(
            model.head(padded.sum(1) + state.sum(0).repeat(1, 2)), batch["y"], reduction="none"
        )

    model = Function(None, layer=layer(4, 3, num_layers=2, bidirectional=True), head=nn.Linear(6, 3))
    assert_exact(model, batch, loss)


@pytest.mark.parametrize("packed", [False, True])
def test_dropout_between_recurrent_layers_is_followed(packed: bool) -> None:
    """The probe compares with the layer's own kernel, so it fails unless both drop the same units."""
    x, y = sequences()

    def forward(self: Any, x: Tensor) -> Tensor:
        if not packed:
            return self.head(self.layer(x)[0].mean(1))
        lengths = 2 + (x[:, :3, 0] > 0).sum(1)
        given = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.layer(given)[0], batch_first=True)[0].sum(1))

    layer = nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True)
    model = Function(forward, layer=layer, head=nn.Linear(3, 3))
    clipper = Clipper(model, cross_entropy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clipper.norms((x, y), Support.all(model)).min() > 0


def test_nested_batches() -> None:
    x, y = sequences()
    batch = {"inputs": [x, {"mask": x[..., 0] > 0}], "target": (y,)}

    def loss(model: Any, batch: Any) -> Tensor:
        given, mask = batch["inputs"][0], batch["inputs"][1]["mask"]
        return F.cross_entropy(model((given * mask[..., None]).mean(1)), batch["target"][0], reduction="none")

    assert_exact(nn.Linear(4, 3).double(), batch, loss)


def test_sparse_embedding_gradients() -> None:
    ids, y = torch.randint(7, (6, 5)), torch.randint(3, (6,))
    table = nn.Embedding(7, 4, sparse=True)
    model = Function(lambda self, ids: self.head(self.table(ids).mean(1)), table=table, head=nn.Linear(4, 3))
    found = Clipper(model, cross_entropy).clipped_sum([(ids, y)], Support.all(model), 0.1)
    table.sparse = False
    gradients = per_example_gradients(model, cross_entropy, (ids, y))
    assert_close(found.values, clipped_sum(gradients, Support.all(model), 0.1)[0], 1e-10)


def test_a_layer_used_for_the_first_time_later_is_learnt_and_exact() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.mean(1)
        return self.head(self.extra(x) if self.use_extra else x)

    model = Function(forward, extra=nn.Linear(4, 4), head=nn.Linear(4, 3))
    model.use_extra = False
    clipper = Clipper(model, cross_entropy)
    clipper.clipped_sum([sequences()], Support.all(model), 1.0)
    model.use_extra = True
    found = clipper.clipped_sum([sequences()], Support.all(model), 1.0)
    expected, _ = clipped_sum(
        per_example_gradients(model, cross_entropy, sequences()), Support.all(model), 1.0
    )
    assert_close(found.values, expected, 1e-12)


def test_autocast_is_close_to_full_precision() -> None:
    model = nn.Sequential(
        nn.Linear(4, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3)
    )
    x, y = sequences(64)
    batch = (x.float().mean(1), y)
    support = Support.random(model, ratio=0.5, seed=0)
    exact = Clipper(model, cross_entropy).clipped_sum([batch], support, 0.3)
    clipper = Clipper(model, cross_entropy, autocast=torch.bfloat16)
    fast = clipper.clipped_sum([batch], support, 0.3)
    assert set(fast.dtypes.values()) == {torch.float32}
    assert_close(fast.values, exact.values, 0.05)
    assert all(findings.ways == Ways() for findings in clipper._inspector.findings.values())


def test_coarse_parameters_are_refused() -> None:
    with pytest.raises(ModelError, match=r"'weight' is of type torch.bfloat16.*float32.*autocast"):
        Clipper(nn.Linear(4, 3).bfloat16(), cross_entropy)
    model = nn.Sequential(nn.Linear(4, 4).bfloat16().requires_grad_(False), nn.Linear(4, 3))
    Clipper(model, cross_entropy)


def test_group_norm_first_on_images() -> None:
    model = nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(27, 3)).double()
    batch = (torch.randn(4, 4, 5, 5, dtype=torch.float64), torch.randint(3, (4,)))
    assert_exact(model, batch)
