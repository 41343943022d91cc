"""Each method returns the phases of the table in the design, and nothing else is needed to run it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Literal

import pytest

from tacit.errors import ArgumentError
from tacit.option_fields import options_of
from tacit.plan import (
    DPSGD,
    RS,
    All,
    Draft,
    Method,
    Named,
    Only,
    OnRand,
    OnTopK,
    Phase,
    Plan,
    Random,
    Schedule,
    Sparta,
    TopK,
    TopRows,
    TPRand,
    TPTopK,
    make_plan,
)
from tacit.plan import methods as registry
from tacit.plan.method_options import method_options
from tacit.plan.methods import METHODS, method_of

SCHEDULE = Schedule.of(1000, 100, 5)


def plan_of(method: str, **options: object) -> Plan:
    return make_plan(
        method,
        epsilon=2.0,
        delta=1e-5,
        examples=1000,
        batch_size=100,
        epochs=5,
        **options,  # type: ignore[arg-type]
    )


def test_the_registry_holds_every_method_by_name() -> None:
    first = ["dp-sgd", "centred", "tp-topk", "tp-rand", "on-rand", "on-topk", "rs"]
    assert list(METHODS) == [
        *first,
        "sparta",
        "counted-rows",
        "adafest",
        "random-rows",
        "magnitude-rows",
        "only",
    ]


def test_a_centre_is_learned_with_its_share_of_epsilon_and_rests_afterwards() -> None:
    centre, train = plan_of("centred", centre_epochs=2, centre_budget=0.2).phases
    assert (centre.steps, centre.support, centre.updates) == (20, Named(("centre.*",)), True)
    assert (train.steps, train.support) == (30, Named(("*",), ("centre.*",)))
    assert centre.noise_multiplier > train.noise_multiplier
    for wrong in ({"centre_epochs": 0}, {"centre_budget": 1.0}, {"centre_epochs": 5}):
        with pytest.raises(ArgumentError, match=r"centre|epochs"):
            plan_of("centred", **wrong)


def test_counted_rows_are_counted_without_updates_and_then_trained() -> None:
    counts, train = plan_of("counted-rows", rows=20, selection_epochs=2, selection_budget=0.2).phases
    assert (counts.steps, counts.support, counts.score, counts.updates) == (20, All(), "counts", False)
    assert counts.statistic == "row-counts"
    assert (train.steps, train.support, train.updates) == (30, TopRows(rows=20, score="counts"), True)
    assert counts.noise_multiplier > train.noise_multiplier
    with pytest.raises(ArgumentError, match="either active_ratio"):
        plan_of("counted-rows")


def test_dp_sgd_is_one_dense_phase() -> None:
    (phase,) = plan_of("dp-sgd").phases
    assert (phase.steps, phase.support, phase.score, phase.updates) == (50, All(), None, True)


def test_tp_topk_is_a_scored_dense_warm_up_and_a_fixed_top_k() -> None:
    warm_up, sparse = plan_of("tp-topk", active_ratio=0.4).phases
    assert (warm_up.steps, warm_up.support, warm_up.score, warm_up.updates) == (15, All(), "squares", True)
    assert (sparse.steps, sparse.support, sparse.score, sparse.reset) == (35, TopK(0.4), None, False)


def test_tp_topk_options_reach_the_phases() -> None:
    warm_up, sparse = plan_of(
        "tp-topk",
        active_ratio="auto",
        score="movement",
        pooling="column",
        per_layer=True,
        reset=True,
        always_active=["head.*"],
    ).phases
    assert warm_up.score == "movement"
    assert sparse.support == TopK("auto", "movement", "column", True, 0.0, ("head.*",))
    assert sparse.reset


def test_tp_rand_has_the_warm_up_and_the_noise_of_tp_topk() -> None:
    chosen = plan_of("tp-topk", active_ratio=0.4).phases
    random = plan_of("tp-rand", active_ratio=0.4).phases
    assert [phase.spend for phase in random] == [phase.spend for phase in chosen]
    assert [phase.support for phase in random] == [All(), Random(0.4)]


def test_on_rand_is_a_fresh_random_support_per_epoch_with_one_noise() -> None:
    plan = plan_of("on-rand", active_ratio=0.4)
    assert [(phase.steps, phase.support) for phase in plan.phases] == [(10, Random(0.4))] * 5
    assert {phase.noise_multiplier for phase in plan.phases} == {plan_of("dp-sgd").phases[0].noise_multiplier}


def test_on_topk_starts_dense_scores_always_and_explores() -> None:
    plan = plan_of("on-topk", active_ratio=0.4, explore=0.2)
    assert [phase.support for phase in plan.phases] == [All(), *[TopK(0.4, explore=0.2)] * 4]
    assert {phase.score for phase in plan.phases} == {"squares"}
    assert plan_of("on-topk", active_ratio=0.4).phases[1].support == TopK(0.4, explore=0.1)


def test_rs_cools_the_ratio_linearly_from_dense() -> None:
    plan = plan_of("rs", active_ratio=0.2, always_active=("b",))
    supports = [phase.support for phase in plan.phases]
    assert supports[0] == All()
    ratios = [support.ratio for support in supports[1:] if isinstance(support, Random)]
    assert ratios == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert all(support.always_active == ("b",) for support in supports[1:] if isinstance(support, Random))
    one = make_plan("rs", epsilon=2.0, delta=1e-5, examples=1000, batch_size=100, epochs=1, active_ratio=0.2)
    assert [phase.support for phase in one.phases] == [Random(0.2)]


def test_epochs_are_cut_where_they_end_even_when_batches_do_not_divide() -> None:
    schedule = Schedule.of(1000, 300, 4)
    assert schedule.steps == round(4 / 0.3) == 13
    assert schedule.epoch_steps == (3, 4, 3, 3)
    assert Schedule.of(1000, 100, 2.5).epoch_steps == (10, 10, 5)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_does(name: str) -> None:
    assert inspect.getdoc(METHODS[name])
    options = {"dp-sgd": {}, "centred": {}, "adafest": {}, "only": {"active": ["*"]}}.get(
        name, {"active_ratio": 0.5}
    )
    drafts = method_of(name, options).phases(SCHEDULE)
    assert sum(draft.steps for draft in drafts) == SCHEDULE.steps
    assert drafts[-1].budget == 1
    assert len({draft.name for draft in drafts}) == len(drafts)


def test_planning_deals_in_public_numbers_only() -> None:
    allowed = ("tacit.plan", "tacit.errors", "tacit.files", "tacit.option_fields")
    sources = sorted(Path(registry.__file__).parent.glob("*.py"))
    assert sources
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith("torch"), source
                assert not name.startswith("tacit") or name.startswith(allowed), source


def test_sparta_scores_without_updating_and_then_trains_the_best_rows() -> None:
    selection, tuning = plan_of("sparta", active_ratio=0.1, always_active=["head.*"]).phases
    assert (selection.steps, selection.updates, selection.score) == (10, False, "absolute")
    assert (selection.support, selection.statistic) == (Named(("*",), ("head.*",)), "absolute")
    assert tuning.support == TopRows(0.1, always_active=("head.*",))
    assert (tuning.steps, tuning.updates, tuning.clip_order) == (40, True, "mask-then-clip")
    assert selection.noise_multiplier == tuning.noise_multiplier


def test_sparta_may_train_the_head_first_and_give_the_choice_a_budget_of_its_own() -> None:
    head, selection, tuning = plan_of(
        "sparta",
        active_ratio=0.1,
        head=["head.*"],
        head_epochs=0.5,
        selection_epochs=1.5,
        selection_budget=0.3,
        clip_order="clip-then-mask",
        clip_norm=(0.5, 2.0),
    ).phases
    assert [phase.steps for phase in (head, selection, tuning)] == [5, 15, 30]
    assert head.support == Named(("head.*",))
    assert head.noise_multiplier == selection.noise_multiplier != tuning.noise_multiplier
    assert (selection.clip_norm, tuning.clip_norm, tuning.clip_order) == (0.5, 2.0, "clip-then-mask")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"active_ratio": 0.1, "selection_epochs": 5.0}, "leave none"),
        ({"active_ratio": 0.1, "selection_epochs": 0.0}, "selection_epochs"),
        ({"active_ratio": 0.1, "head_epochs": 1.0}, "head_epochs needs head"),
        ({"active_ratio": 0.1, "score": "squares"}, "score must be one of"),
        ({"active_ratio": 0.1, "rows": 3}, "either active_ratio"),
        ({}, "either active_ratio"),
        ({"active_ratio": 0.1, "clip_order": "neither"}, "clip_order"),
        ({"active_ratio": 0.1, "selection_budget": 1.5}, "selection_budget"),
    ],
)
def test_sparta_refuses_what_makes_no_plan(options: dict[str, object], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        plan_of("sparta", **options)


def test_a_phase_that_releases_no_gradient_cannot_update() -> None:
    with pytest.raises(ArgumentError, match="cannot update weights"):
        Phase("p", 1, 0.1, 1.0, 1.0, All(), score="absolute")


@pytest.mark.parametrize(
    ("method", "name", "options"),
    [
        (DPSGD(), "dp-sgd", {}),
        (TPTopK(active_ratio=0.1), "tp-topk", {"active_ratio": 0.1}),
        (TPTopK(active_ratio="soft", reset=True), "tp-topk", {"active_ratio": "soft", "reset": True}),
        (OnTopK(active_ratio=0.3, explore=0.2), "on-topk", {"active_ratio": 0.3, "explore": 0.2}),
        (Sparta(rows=3, head=["head.*"]), "sparta", {"rows": 3, "head": ["head.*"]}),
        (Only(active=["*.bias"]), "only", {"active": ["*.bias"]}),
    ],
)
def test_a_method_object_gives_the_plan_of_its_name_and_options(
    method: Method, name: str, options: dict[str, object]
) -> None:
    common = {"epsilon": 2.0, "delta": 1e-5, "examples": 1000, "batch_size": 100, "epochs": 5}
    assert make_plan(method, **common) == make_plan(name, **common, **options)  # type: ignore[arg-type]


def test_options_of_a_method_object_are_given_to_the_object() -> None:
    common = {"epsilon": 2.0, "delta": 1e-5, "examples": 1000, "batch_size": 100, "epochs": 5}
    with pytest.raises(ArgumentError, match="give it to RS"):
        make_plan(RS(active_ratio=0.2), active_ratio=0.3, **common)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a method or its name"):
        make_plan(RS, **common)  # type: ignore[arg-type]


def test_methods_are_checked_when_they_are_made_and_stay_as_they_are() -> None:
    with pytest.raises(ArgumentError, match="explore must lie in"):
        OnTopK(active_ratio=0.3, explore=1.0)
    with pytest.raises(ArgumentError, match="share of epsilon must lie in"):
        TPRand(active_ratio=0.3, warmup=(0.3, 1.0))
    made = OnRand(active_ratio=0.5, always_active=["*.bias"])
    assert (made.always_active, hash(made)) == (
        ("*.bias",),
        hash(OnRand(active_ratio=0.5, always_active=("*.bias",))),
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.active_ratio = 0.1  # type: ignore[misc]


@pytest.mark.parametrize("name", METHODS)
def test_every_option_says_what_it_does(name: str) -> None:
    for option in options_of(METHODS[name]).values():
        assert option.help.endswith("."), option.name


def test_options_of_the_same_name_are_one_option_that_takes_what_any_method_takes() -> None:
    found = method_options()
    assert found["active_ratio"].kind == float | Literal["auto", "soft"]
    words = ("squares", "movement", "absolute", "magnitude", "saliency", "row-norms", "votes")
    assert (found["score"].kind, found["score"].words) == (str, words)
    assert found["explore"].help.startswith("on-topk: ")
    assert found["per_layer"].shown == (
        "whole-model (tp-topk, on-topk); per-layer (sparta, random-rows, magnitude-rows)"
    )


def test_a_new_method_needs_its_class_and_nothing_else() -> None:
    class Halves(Method):
        name = "halves"

        def phases(self, schedule: Schedule) -> tuple[Draft, ...]:
            first, second = schedule.split(0.5)
            return Draft("first", first, All()), Draft("second", second, Random(0.5))

    plan = make_plan(Halves(), epsilon=2.0, delta=1e-5, examples=1000, batch_size=100, epochs=5)
    assert (plan.method, [phase.steps for phase in plan.phases]) == ("halves", [25, 25])
