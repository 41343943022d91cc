"""What a plan says about itself: what-if, text, files, comparison."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import ArgumentError, FileError
from tacit.plan import (
    All,
    Named,
    Phase,
    Plan,
    Random,
    Soft,
    Spend,
    SupportSource,
    TopK,
    TopRows,
    active_count,
    compare,
    epsilon_of,
    load_plan,
    make_plan,
    plan_digest,
    plan_from_record,
    plan_to_record,
    save_plan,
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(
        "tp-topk",
        epsilon=3.0,
        delta=1e-5,
        examples=10_000,
        batch_size=500,
        epochs=10,
        active_ratio=0.25,
        clip_norm=(1.0, 0.5),
        pooling="row",
        reset=True,
        always_active=["*.bias", "head.*"],
    )


def test_epsilon_after_t_steps(plan: Plan) -> None:
    warm_up, sparse = plan.phases
    assert plan.spent(0) == 0
    inside = epsilon_of([Spend(0.05, warm_up.noise_multiplier, 20)], 1e-5)
    assert plan.spent(20) == inside
    across = [Spend(0.05, warm_up.noise_multiplier, 60), Spend(0.05, sparse.noise_multiplier, 15)]
    assert plan.spent(75) == epsilon_of(across, 1e-5)
    assert plan.spent(75) < plan.spent(200) == plan.spent() <= 3
    assert plan.spent(accountant="theorem-4.1") > 3
    with pytest.raises(ArgumentError, match="has 200 steps"):
        plan.spent(201)


def test_noise_energy_is_d_nu_squared_against_k_nu_squared(plan: Plan) -> None:
    dense, sparse = plan.noise_energy(1000)
    nu1 = plan.phases[0].noise_multiplier * 1.0 / 500
    nu2 = plan.phases[1].noise_multiplier * 0.5 / 500
    assert (dense.active, sparse.active) == (1000, 250)
    assert dense.dense == dense.sparse == pytest.approx(1000 * nu1**2)
    assert sparse.dense == pytest.approx(1000 * nu2**2)
    assert sparse.sparse == pytest.approx(250 * nu2**2)


def test_expected_snr(plan: Plan) -> None:
    ratios = plan.expected_snr(0.01, 1000, captured=0.8)
    energies = {energy.phase: energy.sparse for energy in plan.noise_energy(1000)}
    assert ratios["warm-up"] == pytest.approx(0.01 / energies["warm-up"])
    assert ratios["sparse"] == pytest.approx(0.008 / energies["sparse"])


def test_an_automatic_ratio_needs_the_active_count(plan: Plan) -> None:
    support = TopK("auto")
    auto = dataclasses.replace(
        plan, phases=(plan.phases[0], dataclasses.replace(plan.phases[1], support=support))
    )
    with pytest.raises(ArgumentError, match="is chosen during the run"):
        auto.noise_energy(1000)
    assert auto.noise_energy(1000, active=77)[1].active == 77


def test_locate(plan: Plan) -> None:
    assert [plan.locate(step) for step in (0, 59, 60, 199)] == [(0, 0), (0, 59), (1, 0), (1, 139)]
    with pytest.raises(ArgumentError, match="no step number 200"):
        plan.locate(200)


def test_active_count_is_the_floor_without_binary_rounding() -> None:
    assert active_count(0.29, 100) == 29
    assert active_count(0.299, 100) == 29
    assert active_count(1e-9, 100) == 1
    assert active_count(1, 7) == 7


def test_text_shows_every_phase_and_folds_equal_ones(plan: Plan) -> None:
    text = str(plan)
    assert "epsilon 3" in text
    assert f"{plan.phases[1].noise_multiplier:.5g}" in text
    assert "the top 25 % by mean squared gradient so far, averaged by row; always *.bias head.*" in text
    online = make_plan(
        "on-rand", epsilon=1.0, delta=1e-5, examples=1000, batch_size=100, epochs=5, active_ratio=0.5
    )
    assert "epoch 1 .. epoch 5" in str(online)
    assert len(str(online).splitlines()) == 5


def test_a_plan_survives_a_file(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    assert load_plan(path) == plan
    assert plan_digest(load_plan(path)) == plan_digest(plan)
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "support",
    [
        All(),
        Random(0.2),
        Random(1, ("a.*",)),
        TopK("auto"),
        TopK(0.1, "movement", "column", True, 0.2, ("b",)),
    ],
)
def test_every_support_source_survives_json(plan: Plan, support: All | Random | TopK) -> None:
    changed = dataclasses.replace(
        plan, phases=(plan.phases[0], dataclasses.replace(plan.phases[1], support=support))
    )
    assert plan_from_record(json.loads(json.dumps(plan_to_record(changed)))) == changed


def test_an_infinite_epsilon_survives_json() -> None:
    silent = make_plan("dp-sgd", epsilon=math.inf, delta=1e-5, examples=100, batch_size=10, epochs=1)
    assert plan_from_record(json.loads(json.dumps(plan_to_record(silent), allow_nan=False))) == silent


def test_any_change_changes_the_digest(plan: Plan) -> None:
    digests = {plan_digest(plan)}
    digests.add(plan_digest(dataclasses.replace(plan, epsilon=3.1)))
    digests.add(plan_digest(dataclasses.replace(plan, method="other")))
    for change in ({"noise_multiplier": 9.0}, {"reset": False}, {"support": All()}, {"steps": 141}):
        phase = dataclasses.replace(plan.phases[1], **change)
        digests.add(plan_digest(dataclasses.replace(plan, phases=(plan.phases[0], phase))))
    assert len(digests) == 7


def corrupt(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        record = record[key]
    if value is ...:
        del record[path[-1]]
    else:
        record[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "other", "not a Tacit plan"),
        (("version",), 2, "version 2"),
        (("delta",), ..., "lacks the field 'delta'"),
        (("mood",), "good", "unknown field 'mood'"),
        (("phases",), [], "at least one phase"),
        (("phases",), {}, "list of phases"),
        (("phases", 0, "clip_norm"), ..., "phase 1, lacks the field 'clip_norm'"),
        (("phases", 0, "colour"), 1, "phase 1, has the unknown field 'colour'"),
        (("phases", 0, "steps"), "many", "steps of phase 'warm-up'"),
        (("phases", 0, "noise_multiplier"), "loud", "cannot be used"),
        (("phases", 0, "name"), "sparse", "different names"),
        (("phases", 1, "support", "kind"), "magic", "kind out of all, random, top-k"),
        (("phases", 1, "support", "ratio"), ..., "must have the fields"),
        (("phases", 1, "support", "ratio"), 2.0, r"must lie in \(0, 1\]"),
        (("phases", 1, "sampling_rate"), 0.025, "batch_size / examples"),
        (("phases", 1, "noise_multiplier"), 0.5, "above the promised"),
        (("epsilon",), 2.0, "above the promised"),
        (("relation",), "neighbourly", "Unknown relation"),
        (("relation",), "replace-one", "above the promised"),
        (("accountant",), "abacus", "Unknown accountant"),
    ],
)
def test_a_damaged_plan_is_refused(
    plan: Plan, tmp_path: Path, path: tuple[Any, ...], value: Any, message: str
) -> None:
    record = copy.deepcopy(plan_to_record(plan))
    corrupt(record, path, value)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(record))
    with pytest.raises(FileError, match=message):
        load_plan(file)


def test_files_that_are_no_plans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be read"):
        load_plan(tmp_path / "absent.json")
    (tmp_path / "half.json").write_text('{"format": "tacit-pl')
    with pytest.raises(FileError, match="is not JSON"):
        load_plan(tmp_path / "half.json")
    with pytest.raises(FileError, match="cannot be written"):
        save_plan(
            Plan("m", 1.0, 1e-5, 10, 10, (Phase("p", 1, 1.0, 1.0, 1.0, All()),)),
            tmp_path / "half.json" / "plan.json",
        )


def test_compare_lists_what_differs(plan: Plan) -> None:
    assert compare(plan, plan) == ()
    phase = dataclasses.replace(plan.phases[1], noise_multiplier=2.5, support=Random(0.1))
    other = dataclasses.replace(plan, epsilon=4.0, phases=(plan.phases[0], phase))
    lines = [str(difference) for difference in compare(plan, other)]
    assert lines[0] == "epsilon: 3.0 -> 4.0"
    assert any(line.startswith("phases[1].noise_multiplier: ") and line.endswith("-> 2.5") for line in lines)
    assert "phases[1].support.kind: 'top-k' -> 'random'" in lines
    assert "phases[1].support.pooling: 'row' -> None" in lines


def test_a_plan_cannot_be_changed(plan: Plan) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.epsilon = 8.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("source", "words", "short"),
    [
        (All(), "all coordinates", "all"),
        (Random(0.25), "25 % of the coordinates at random", "random 0.25"),
        (
            TopK("auto", "movement"),
            "chosen automatically by how far the warm-up moved each coordinate",
            "top auto by movement",
        ),
        (
            TopK(0.1, per_layer=True, always_active=("*.bias",)),
            "the top 10 % by mean squared gradient so far, in each parameter; always *.bias",
            "top 0.1 by squares, per layer, always *.bias",
        ),
        (
            Soft(),
            "all coordinates, each column weighted by how surely the warm-up moved it",
            "all, weighted by column",
        ),
        (Named(("*",), ("head.*",)), "all parameters except head.*", "* but head.*"),
        (
            TopRows(0.1),
            "the top 10 % of the rows by summed absolute gradients, in each parameter",
            "0.1 of rows by absolute, per layer",
        ),
        (TopRows(None, 3, "random", False), "3 rows at random", "3 rows at random"),
        (
            TopRows(0.25, score="module-votes", choose="modules", always_active=("head.*",)),
            "the top 25 % of the modules by noisy votes of the examples for the modules of their largest gradients; "
            "always head.*",
            "0.25 of modules by module-votes, always head.*",
        ),
    ],
)
def test_sources_say_how_they_choose_in_plain_words_and_keep_the_form_of_old_certificates(
    source: SupportSource, words: str, short: str
) -> None:
    assert (source.words, str(source)) == (words, short)


def test_sources_know_what_they_need() -> None:
    auto, squares, soft = TopK("auto", "movement"), TopK(0.1), Soft()
    assert [s.needs_folds for s in (auto, squares, soft, All())] == [True, False, True, False]
    assert [s.needs_origin for s in (auto, squares, soft)] == [True, False, False]
    assert [s.chosen_in_run for s in (auto, squares, soft)] == [True, False, False]
    assert [s.dense for s in (All(), soft, Random(0.5))] == [True, True, False]
    assert [s.share for s in (auto, squares, Named(("*",)), TopRows(0.2))] == [None, 0.1, None, 0.2]
    fixed = (All(), Random(0.5), Named(("*",)), TopRows(0.2, score="random"))
    assert not any(source.follows_releases for source in fixed)
    assert all(source.follows_releases for source in (auto, squares, soft, TopRows(0.2, score="weights")))


def test_votes_are_in_the_record_of_a_plan_that_has_them_and_in_no_other(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "examples": 500, "batch_size": 50, "epochs": 4}
    voting = make_plan("sparta", score="votes", votes=7, rows=2, **settings)
    other = make_plan("sparta", rows=2, **settings)
    assert voting.phases[0].votes == 7
    assert voting.phases[1].votes is None
    assert "7 votes" in str(voting)
    save_plan(voting, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == voting
    assert "votes" not in json.dumps(plan_to_record(other))
    record = plan_to_record(voting)
    for wrong in ({"votes": 0}, {"votes": None}, {"votes": 2.5}, {"score": "absolute"}):
        edited = {**record, "phases": [{**record["phases"][0], **wrong}, *record["phases"][1:]]}
        with pytest.raises(FileError):
            plan_from_record(edited)
    with pytest.raises(ArgumentError, match="score votes"):
        make_plan("sparta", votes=7, rows=2, **settings)
    with pytest.raises(ArgumentError, match="votes"):
        make_plan("sparta", score="votes", votes=0, rows=2, **settings)


def test_a_choice_of_modules_is_in_the_record_of_a_plan_that_has_it_and_in_no_other(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "examples": 500, "batch_size": 50, "epochs": 4}
    modules = make_plan("sparta", score="votes", choose="modules", active_ratio=0.5, **settings)
    assert (modules.phases[0].score, modules.phases[0].votes) == ("module-votes", 4)
    save_plan(modules, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == modules
    assert "choose" not in json.dumps(plan_to_record(make_plan("sparta", rows=2, **settings)))
    record = plan_to_record(modules)
    last = record["phases"][-1]
    for wrong in ({"choose": "layers"}, {"score": "votes"}, {"choose": "rows"}, {"score": "counts"}):
        edited = {**last, "support": {**last["support"], **wrong}}
        with pytest.raises(FileError):
            plan_from_record({**record, "phases": [*record["phases"][:-1], edited]})
    with pytest.raises(ArgumentError, match="rows or modules"):
        make_plan("random-rows", choose="layers", rows=2, **settings)
