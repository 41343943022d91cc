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

from raw.comparison import cross_entropy
from tacit.errors import ModelError
from tacit.raw.clipping import Clipper
from tacit.raw.instrumentation import Ways
from tacit.support import Support

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
    assert instrumentation.without_rule == {"the model itself (Positions)": ["positions"]}


def test_the_announcement_says_how_many_numbers_an_example_costs() -> None:
    clipper = Clipper(Positions(), cross_entropy)
    with pytest.warns(
        UserWarning, match=r"the model itself \(Positions\) has no rule.*positions.*20 numbers"
    ):
        clipper.clipped_sum([batch()], Support.all(clipper.model), 1.0)


def test_an_operation_that_draws_and_uses_a_parameter_is_refused_by_name() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rate, self.head = nn.Parameter(torch.full((4,), 0.5)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.mean(1)
            logits: Tensor = self.head(x + torch.normal(x * 0 + self.rate.abs(), 0.1))
            return logits

    model = Noisy()
    with pytest.raises(ModelError, match=r"rate|random"):
        quiet_sum(Clipper(model, cross_entropy), batch(), Support.all(model))


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
