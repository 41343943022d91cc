from __future__ import annotations

import json
import math

import pytest

from tacit.errors import ArgumentError
from tacit.federated.plan import LocalPlan, certificate, hyper_parameters_free


def plan(**options: object) -> LocalPlan:
    return LocalPlan(**{"d": 100, "batch": 400, **options})  # type: ignore[arg-type]


def test_budget_is_split_over_epochs_and_stages() -> None:
    p = plan(epsilon=4.0, epochs=2, mu=0.25)
    assert (p.epsilon_per_epoch, p.epsilon1, p.epsilon2) == (2.0, 0.5, 1.5)
    assert p.k == 10
    assert p.exact_epsilon() == pytest.approx(4.0, abs=1e-9)


@pytest.mark.parametrize("select", ["exp", "pe", "ps", "random"])
@pytest.mark.parametrize("perturb", ["pm", "hm", "duchi", "laplace"])
def test_no_plan_costs_more_than_it_says(select: str, perturb: str) -> None:
    p = plan(select=select, perturb=perturb, epsilon=3.0, epochs=3)
    assert p.exact_epsilon() <= 3.0 + 1e-9
    assert certificate(p, "system")["for release"] is True


@pytest.mark.parametrize("solution", ["flat", "compressed"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 9.0])
def test_flat_and_compressed_cost_what_they_say(solution: str, epsilon: float) -> None:
    assert plan(solution=solution, epsilon=epsilon).exact_epsilon() == pytest.approx(epsilon)


def test_flat_splits_a_large_budget_over_coordinates() -> None:
    p = plan(solution="flat", epsilon=9.0)
    assert p.coordinates_sent == 3
    assert p.value_perturbation().epsilon == pytest.approx(3.0)


def test_published_encoding_and_the_extra_budget_are_certified_as_they_are() -> None:
    published = certificate(plan(select="pe-paper", top_share=0.01), "system")
    assert published["epsilon"] > 2.0
    assert published["holds"] is False
    extra = certificate(plan(extra_value_budget=True), "system")
    assert extra["epsilon"] == pytest.approx(2.2)
    assert extra["for release"] is False
    assert "more than the planned" in extra["statement"]


def test_seeded_runs_and_controls_are_not_for_release() -> None:
    assert certificate(plan(), "seeded")["for release"] is False
    assert "not for release" in certificate(plan(), "seeded")["statement"]
    control = certificate(plan(perturb="none"), "system")
    assert control["epsilon"] == "infinite"
    assert control["for release"] is False
    json.dumps(control, allow_nan=False)


def test_hyper_parameters_free_rule() -> None:
    needed = math.sqrt(100 * math.log(100) / 4_000)
    assert hyper_parameters_free(0.4, 100, 4_000) == pytest.approx(1 - needed / 0.4)
    assert hyper_parameters_free(2.0, 100, 4_000) == 0.2
    assert hyper_parameters_free(0.1, 100, 40) == 0.0
    assert hyper_parameters_free(2.0, 100, 4_000, threshold=0.05) == 0.05


def test_no_budget_for_selection_means_a_random_coordinate() -> None:
    p = plan(mu=0.0)
    assert p.selection().epsilon == 0.0
    assert p.exact_epsilon() == pytest.approx(2.0)


@pytest.mark.parametrize(
    "options",
    [
        {"solution": "magic"},
        {"mu": 1.0},
        {"mu": -0.1},
        {"epsilon": 0.0},
        {"epochs": 0},
        {"solution": "flat", "extra_value_budget": True},
        {"solution": "full"},
        {"d": 1},
    ],
)
def test_bad_plans_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        plan(**options)
