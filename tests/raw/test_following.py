"""Parameters without a rule are followed through the operations that use them, and nothing else of their module."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.families.family import Family
from benchmarks.families.judging import judge_tacit
from benchmarks.families.layers import FAMILIES
from benchmarks.families.page import as_expected
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from raw.comparison import cross_entropy
from tacit.errors import ModelError
from tacit.raw.clipping import Clipper
from tacit.raw.gradients import Linear
from tacit.raw.instrumentation import Ways
from tacit.raw.replay import Growth, Operation
from tacit.support import Block, Support

SLOW = ("torch.compile", "model.compile", "nn.Transformer")


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if not f.name.startswith(SLOW)], ids=lambda family: family.name
)
def test_a_family_is_exact_or_refused_in_time_for_its_own_reason(family: Family) -> None:
    verdict = judge_tacit(family)
    row = {"tacit": {"word": verdict.word, "sentence": verdict.sentence}, "refusal expected": family.refused}
    assert as_expected(row), verdict


class Positions(nn.Module):
    """Parameters of its own around layers with rules: only the former are followed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.positions, self.head = (
            nn.Linear(4, 4),
            nn.Parameter(torch.randn(5, 4)),
            nn.Linear(4, 3),
        )
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(torch.tanh(self.inner(x) + self.positions))
        logits: Tensor = self.head(hidden.mean(1))
        return logits


def batch(rows: int = 6) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    return torch.randn(rows, 5, 4, generator=draw), torch.randint(3, (rows,), generator=draw)


def quiet_sum(clipper: Clipper, given: Any, support: Support) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        return clipper.clipped_sum([given], support, 1.0)


def test_one_parameter_without_a_rule_leaves_the_rules_of_all_other_layers() -> None:
    clipper = Clipper(Positions(), cross_entropy)
    quiet_sum(clipper, batch(), Support.all(clipper.model))
    (findings,) = clipper._inspector.findings.values()
    assert findings.ways == Ways()
    assert set(findings.layout.dimensions) == {"inner", "head"}
    (instrumentation,) = [clipper._instrumentation[2]]  # type: ignore[index]
    assert instrumentation.without_rule == {"The model itself (Positions)": ["positions"]}


def test_the_announcement_says_how_many_numbers_an_example_costs() -> None:
    clipper = Clipper(Positions(), cross_entropy)
    with pytest.warns(
        UserWarning, match=r"The model itself \(Positions\) has no rule.*positions.*20 numbers"
    ):
        clipper.clipped_sum([batch()], Support.all(clipper.model), 1.0)


def test_modules_without_a_rule_are_announced_once_together() -> None:
    class Scale(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.slope, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.slope + self.shift

    model = nn.Sequential(Scale(4), nn.Linear(4, 3), Scale(3))
    clipper = Clipper(model, cross_entropy)
    given = (torch.randn(6, 4), torch.arange(6) % 3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        clipper.clipped_sum([given], Support.all(model), 1.0)
        few = Support({**Support.all(model), "0.slope": Block.silent((4,)), "0.shift": Block.silent((4,))})
        clipper.clipped_sum([given], few, 1.0)
    told = [str(one.message) for one in seen if "has no rule" in str(one.message)]
    assert len(told) == 1, told
    assert told[0].startswith("The use of 2 modules, 0 (Scale) first, has no rule")
    assert "0.slope, 0.shift, 2.slope, 2.shift" in told[0]
    assert "14 numbers" in told[0]


def test_a_tied_parameter_without_a_rule_is_announced_by_its_first_name() -> None:
    class Shift(nn.Module):
        def __init__(self, by: nn.Parameter) -> None:
            super().__init__()
            self.by = by

        def forward(self, x: Tensor) -> Tensor:
            return x + self.by

    by = nn.Parameter(torch.zeros(4))
    model = nn.Sequential(Shift(by), nn.Linear(4, 4), Shift(by))
    clipper = Clipper(model, cross_entropy)
    with pytest.warns(UserWarning, match=r"has no rule; the per-example gradients of 0\.by"):
        clipper.clipped_sum([(torch.randn(6, 4), torch.arange(6) % 4)], Support.all(model), 1.0)


def test_an_operation_that_draws_and_uses_a_parameter_is_refused_by_name() -> None:
    growth = Growth((0, None), frozenset(), (0,), (2,))

    def noisy(x: Tensor, slope: Tensor) -> Tensor:
        return x * slope * float(torch.rand(()))

    leaves, structure = pytree.tree_flatten(((torch.rand(6, 4), torch.rand(4)), {}))
    operation = Operation(noisy, leaves, structure, [1], growth, 6, ("cpu", torch.bfloat16, False))
    with pytest.raises(ModelError, match="noisy draws random numbers and uses parameters"):
        operation.replayed({0: torch.ones(6, 4)}, 0, 6)


def test_a_pass_that_takes_another_path_is_learnt_and_checked() -> None:
    """Whether there is padding decides which operation a parameter meets the examples in."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias, self.head = nn.Parameter(torch.randn(5, 1)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            mask = (x[..., :1] > -9).to(x.dtype)
            weight = self.bias * 2.0
            weight = weight * mask if not bool(mask.all()) else weight
            logits: Tensor = self.head((torch.tanh(x) * weight).mean(1))
            return logits

    torch.manual_seed(0)
    model = Masked().double()
    clipper = Clipper(model, cross_entropy)
    plain, padded = (batch()[0].double(), batch()[1]), (batch()[0].double(), batch()[1])
    padded[0][1, 2] = -10.0
    from oracle import assert_close, clipped_sum, per_example_gradients

    support = Support.all(model)
    for given in (plain, padded, plain):
        expected, _ = clipped_sum(per_example_gradients(model, cross_entropy, given), support, 1.0)
        assert_close(quiet_sum(clipper, given, support).values, expected, 1e-12)


def test_large_shared_values_are_carried_back_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from oracle import assert_close, clipped_sum, per_example_gradients

    monkeypatch.setattr("tacit.raw.following.HOLD", 0)

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.rand(3, 1))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x.mean(1), F.normalize(self.weight) * self.scale)

    torch.manual_seed(0)
    model = Normalised().double()
    x, y = batch()
    given = (x.double(), y)
    support = Support.random(model, ratio=0.5, seed=1)
    expected, _ = clipped_sum(per_example_gradients(model, cross_entropy, given), support, 0.1)
    clipper = Clipper(model, cross_entropy)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        assert_close(clipper.clipped_sum([given], support, 0.1).values, expected, 1e-12)


def test_a_path_on_which_examples_mix_is_refused_when_it_is_taken() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.rand(4)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.tanh(x.mean(1)) * self.scale
            if bool((x == 10.125).any()):
                hidden = hidden + (hidden * self.scale.square()).mean(0)
            logits: Tensor = self.head(hidden)
            return logits

    torch.manual_seed(0)
    model = Mixing()
    clipper = Clipper(model, cross_entropy)
    quiet_sum(clipper, batch(), Support.all(model))
    x, y = batch()
    x[2, 1] = 10.125
    with pytest.raises(ModelError):
        quiet_sum(clipper, (x, y), Support.all(model))


@pytest.mark.parametrize("ratio", [0.05, 0.5])
def test_masses_of_single_coordinates_are_never_below_those_of_their_terms(ratio: float) -> None:
    draw = torch.Generator().manual_seed(4)
    a, b = (torch.randn(3, 7, width, generator=draw) for width in (6, 5))
    flat = torch.randperm(30, generator=draw)[: max(2, int(30 * ratio))]
    block = Block.coordinates((5, 6), flat.sort().values)
    error, mass = Linear(a, b).masked_error(block)
    terms = torch.einsum("ntp,ntq->ntpq", b.double(), a.double()) * block.mask()
    exact = terms.flatten(2).norm(dim=2).sum(1)
    assert bool((mass >= exact).all())
    assert bool((mass <= 1.001 * exact + 1e-9).all())
    assert bool((error >= 7 * 2.0**-24 * exact).all())
