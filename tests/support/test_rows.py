"""Whole rows by score: the counts that were asked for, per layer, and nothing that does not exist."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tacit import ArgumentError, Support
from tacit.models.low_rank import add_low_rank
from tacit.plan import Named, TopRows
from tacit.plan.sources import source_from_record, source_to_record
from tacit.release.mechanism import Released
from tacit.support.modules import modules_of
from tacit.support.rows import RowScores
from tacit.support.selection import Evidence, check_source, select


class Model(nn.Module):
    """Weights of two, four and one dimensions, and a parameter without any."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = nn.Linear(6, 10)
            self.convolution = nn.Conv2d(3, 7, 2)
            self.scale = nn.Parameter(torch.ones(()))
            self.head = nn.Linear(10, 3)


def evidence(gathered: RowScores | None = None, seed: int = 3) -> Evidence:
    return Evidence(None, None, 1.0, 1, seed, gathered)


def released(model: nn.Module, values: dict[str, torch.Tensor], statistic: str = "absolute") -> Released:
    return Released(values, Support.matching(model, list(values)), 1.0, 8, statistic)  # type: ignore[arg-type]


@pytest.mark.parametrize("ratio", [0.05, 0.2, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("score", ["weights", "random"])
def test_every_layer_keeps_exactly_the_rows_that_were_asked_for(ratio: float, score: str) -> None:
    model = Model()
    source = TopRows(ratio, score=score, always_active=("head.*",))  # type: ignore[arg-type]
    support = select(source, model, evidence()).support
    for name, parameter in model.named_parameters():
        rows = parameter.shape[0] if parameter.dim() else 1
        row_size = parameter.numel() // rows
        expected = rows if name.startswith("head") else max(1, math.floor(ratio * rows + 1e-9))
        assert support.counts()[name] == (expected * row_size, parameter.numel())
        kept = support[name].mask().reshape(rows, -1)
        assert bool((kept.all(1) == kept.any(1)).all()), "rows are whole"


def test_over_all_layers_the_number_of_rows_is_what_was_asked_for() -> None:
    model = Model()
    support = select(TopRows(rows=9, score="weights", per_layer=False), model, evidence()).support
    rows = [
        support[n].mask().reshape(p.shape[0] if p.dim() else 1, -1)[:, 0] for n, p in model.named_parameters()
    ]
    assert int(torch.cat(rows).sum()) == 9


def test_rows_by_public_weights_are_the_largest_in_absolute_sum() -> None:
    model = Model()
    with torch.no_grad():
        model.linear.weight.copy_(torch.full((10, 6), 0.01))
        model.linear.weight[[2, 7]] = torch.tensor([1.0, -1.0] * 3)
    support = select(TopRows(0.2, score="weights"), model, evidence()).support
    assert support["linear.weight"].index.tolist() == [2, 7]


def test_random_rows_follow_the_public_seed_and_favour_none() -> None:
    model, count, draws = Model(), torch.zeros(10), 300
    for seed in range(draws):
        chosen = select(TopRows(0.3, score="random"), model, evidence(seed=seed)).support["linear.weight"]
        count[chosen.index] += 1
    assert float((count / draws - 0.3).abs().max()) < 5 * math.sqrt(0.3 * 0.7 / draws)
    first, again = (select(TopRows(0.3, score="random"), model, evidence(seed=5)).support for _ in range(2))
    assert first == again


@pytest.mark.parametrize(
    ("score", "expected"),
    [("absolute", [6.0, -2.0]), ("magnitude", [6.0, 6.0]), ("saliency", [12.0, 0.0])],
)
def test_a_row_scores_the_mean_over_lots_of_its_total(score: str, expected: list[float]) -> None:
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, -2.0, 2.0], [1.0, 1.0, 1.0]]))
        if score == "saliency":
            model.weight[1] = 0
    scores = RowScores(model, score)  # type: ignore[arg-type]
    statistic = "gradient" if score == "magnitude" else "absolute"
    for factor in (0.5, 1.5):
        values = torch.tensor([[1.0, 2.0, 3.0], [-4.0, 2.0, 0.0]]) * factor
        scores.add(released(model, {"weight": values}, statistic))
    assert scores.means()["weight"].tolist() == expected


def test_row_norms_are_taken_as_released() -> None:
    model = nn.Linear(3, 2, bias=False)
    scores = RowScores(model, "row-norms")
    scores.add(released(model, {"weight": torch.tensor([1.0, 4.0])}, "row-norms"))
    scores.add(released(model, {"weight": torch.tensor([2.0, 0.0])}, "row-norms"))
    assert scores.means()["weight"].tolist() == [1.5, 2.0]
    chosen = select(TopRows(0.5, score="row-norms"), model, evidence(scores)).support
    assert chosen["weight"].index.tolist() == [1]


def test_a_score_takes_no_release_of_another_kind_and_no_part_of_a_parameter() -> None:
    model = nn.Linear(3, 2, bias=False)
    with pytest.raises(ArgumentError, match="gradient says nothing about absolute"):
        RowScores(model, "absolute").add(released(model, {"weight": torch.zeros(2, 3)}, "gradient"))
    part = Support.of_rows(model, {"weight": torch.tensor([1])})
    with pytest.raises(ArgumentError, match="all of 'weight'"):
        RowScores(model, "absolute").add(Released({"weight": torch.zeros(1, 3)}, part, 1.0, 8, "absolute"))


def test_rows_by_a_score_that_was_not_gathered_are_refused() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match="need a phase before"):
        select(TopRows(0.5), model, evidence())
    with pytest.raises(ArgumentError, match="need a phase before"):
        select(TopRows(0.5), model, evidence(RowScores(model, "magnitude")))


def test_more_rows_than_there_are_is_refused_with_the_layer() -> None:
    with pytest.raises(ArgumentError, match=r"'linear.weight' has 10 rows, fewer than the 11"):
        check_source(TopRows(rows=11, score="random", always_active=("scale",)), Model())
    check_source(TopRows(rows=7, score="random", always_active=("head.*", "scale")), Model())
    with pytest.raises(ArgumentError, match="has 41 rows to choose from, fewer than 42"):
        check_source(TopRows(rows=42, score="random", per_layer=False), Model())


def test_a_named_support_is_what_matches_and_is_not_excepted() -> None:
    support = select(Named(("linear.*", "head.*"), ("*.bias",)), Model(), evidence()).support
    assert {name for name, block in support.items() if block.size} == {"linear.weight", "head.weight"}
    with pytest.raises(ArgumentError, match=r"matches the pattern 'tail\.\*'"):
        check_source(Named(("tail.*",)), Model())
    with pytest.raises(ArgumentError, match="nothing is left"):
        check_source(Named(("head.*",), ("*",)), Model())


@pytest.mark.parametrize(
    "source",
    [
        Named(("a*",), ("b",)),
        TopRows(0.1),
        TopRows(rows=3, score="weights", per_layer=False, always_active=("h",)),
    ],
)
def test_descriptions_of_rows_come_back_from_json(source: Named | TopRows) -> None:
    assert source_from_record(source_to_record(source), "here") == source


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "either active_ratio"),
        ({"ratio": 0.1, "rows": 3}, "either active_ratio"),
        ({"ratio": 0.0}, "active_ratio"),
        ({"rows": 0}, "rows"),
        ({"ratio": 0.1, "score": "squares"}, "score must be one of"),
        ({"ratio": 0.1, "per_layer": 1}, "per_layer"),
        ({"ratio": 0.1, "always_active": "head"}, "list of parameter-name patterns"),
    ],
)
def test_a_description_of_rows_that_makes_no_sense_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        TopRows(**wrong)  # type: ignore[arg-type]


def test_modules_are_kept_or_left_as_a_whole_and_those_with_most_votes_are_kept() -> None:
    model = Model()
    scores = RowScores(model, "module-votes")
    values = {name: torch.zeros(p.shape[0] if p.dim() else 1) for name, p in model.named_parameters()}
    values["scale"][0], values["linear.weight"][0] = 0.5, 0.2
    values["convolution.weight"][1] = 9.0  # noise in a row that stands for nothing
    values["convolution.bias"][0] = 9.0
    scores.add(released(model, values, "module-votes"))
    source = TopRows(rows=2, score="module-votes", choose="modules", always_active=("head.*",))
    found = select(source, model, evidence(scores))
    active = [name for name, (count, total) in found.support.counts().items() if count == total]
    assert active == ["scale", "linear.weight", "linear.bias", "head.weight", "head.bias"]
    assert sum(count for count, _ in found.support.counts().values()) == 1 + 70 + 33
    assert "2 modules with the highest module-votes" in found.reason


def test_modules_by_scores_of_rows_are_those_with_the_largest_sum_and_no_more_than_there_are() -> None:
    model = Model()
    scores = RowScores(model, "absolute")
    scores.add(released(model, {n: torch.ones_like(p) for n, p in model.named_parameters()}))
    found = select(TopRows(rows=1, choose="modules"), model, evidence(scores)).support
    assert [name for name, (count, _) in found.counts().items() if count] == [
        "convolution.weight",
        "convolution.bias",
    ]
    with pytest.raises(ArgumentError, match="4 modules to choose from"):
        check_source(TopRows(rows=5, choose="modules"), model)


def test_the_factors_of_a_low_rank_correction_are_one_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    add_low_rank(model, 2, ["0", "1"])
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert modules_of(model, names) == {
        "0": ["0.down.weight", "0.up.weight"],
        "1": ["1.down.weight", "1.up.weight"],
        "2": ["2.weight", "2.bias"],
    }
