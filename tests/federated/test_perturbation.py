from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chisquare

from tacit.errors import ArgumentError
from tacit.federated.lattice import STEP, STEPS_PER_UNIT
from tacit.federated.perturbation import (
    HYBRID_THRESHOLD,
    LEAST_EPSILON2,
    MOST_EPSILON2,
    Duchi,
    Hybrid,
    Laplace,
    Perturbation,
    Piecewise,
    clip,
    perturbation,
)
from tacit.federated.sampling import SystemUniforms

LATTICE = ("duchi", "pm", "hm")
NAMES = (*LATTICE, "laplace")
EPSILONS = (LEAST_EPSILON2, 0.05, 0.3, HYBRID_THRESHOLD, 0.7, 1.0, 2.0, 5.0, 8.0, MOST_EPSILON2)
VALUES = (-1.0, -0.62, 0.0, 0.3, 1.0)

Law = list[tuple[int, int, Fraction]]


def lattice_mechanism(name: str, epsilon: float) -> Duchi | Piecewise | Hybrid:
    mechanism = perturbation(name, epsilon)
    assert isinstance(mechanism, Duchi | Piecewise | Hybrid)
    return mechanism


def law(mechanism: Duchi | Piecewise | Hybrid, value: float) -> Law:
    """The whole law as runs (first step, last step, probability of each step), over every possible output."""
    marks = {int(x) for x in np.rint(mechanism.landmarks(value) * STEPS_PER_UNIT)}
    edges = sorted(marks | {m + 1 for m in marks} | {m - 1 for m in marks})
    runs = [(a, b - 1, mechanism.probability(a, value)) for a, b in pairwise(edges)]
    for first, last, chance in runs:
        assert (
            mechanism.probability(last, value) == mechanism.probability((first + last) // 2, value) == chance
        )
    return [run for run in runs if run[2]]


def at_most_exp(ratio: Fraction, epsilon: float) -> bool:
    """Whether ``ratio`` ≤ e^ε, proven by the first terms of its series, which are below it."""
    exact, term, total = Fraction(epsilon), Fraction(1), Fraction(1)
    for n in range(1, 200):
        if ratio <= total:
            return True
        term = term * exact / n
        total += term
    return False


def moments(mechanism: Duchi | Piecewise | Hybrid, value: float) -> tuple[Fraction, float, float]:
    """(mass, mean, variance) of the output, exact until the end."""
    mass = mean = second = Fraction(0)
    for first, last, chance in law(mechanism, value):
        below, above = first - 1, last
        mass += chance * (last - first + 1)
        mean += chance * (Fraction(above * (above + 1), 2) - Fraction(below * (below + 1), 2))
        second += chance * (_squares(above) - _squares(below))
    mean, second = mean / STEPS_PER_UNIT, second / STEPS_PER_UNIT**2
    return mass, float(mean), float(second - mean**2)


def _squares(n: int) -> Fraction:
    return Fraction(n * (n + 1) * (2 * n + 1), 6)


@pytest.mark.parametrize("name", LATTICE)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_law_has_mass_one_mean_v_and_the_stated_variance(name: str, epsilon: float) -> None:
    mechanism = lattice_mechanism(name, epsilon)
    for value in VALUES:
        mass, mean, variance = moments(mechanism, value)
        assert mass == 1
        assert mean == pytest.approx(value, abs=STEP / 2 + 1e-12)
        assert variance == pytest.approx(
            float(mechanism.variance(value)), rel=2e-3 if epsilon > 8 else 1e-4, abs=1e-11
        )


@pytest.mark.parametrize("name", LATTICE)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_ratio_of_exact_probabilities_is_above_e_to_the_epsilon(name: str, epsilon: float) -> None:
    mechanism = lattice_mechanism(name, epsilon)
    values = [-1.0, 1.0, 0.0, *(float(v) for v in np.random.default_rng(0).uniform(-1, 1, 8))]
    worst = Fraction(0)
    for value in values:
        for other in values:
            marks = np.concatenate([mechanism.landmarks(value), mechanism.landmarks(other)])
            for step in {int(x) for x in np.rint(marks * STEPS_PER_UNIT)}:
                ratio = mechanism.probability(step, value) / mechanism.probability(step, other)
                worst = max(worst, ratio)
    assert at_most_exp(worst, epsilon)
    assert at_most_exp(worst, mechanism.epsilon)
    assert mechanism.epsilon <= epsilon
    assert math.log(worst) == pytest.approx(epsilon, abs=2e-9)


@pytest.mark.parametrize("name", LATTICE)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_which_outputs_are_possible_does_not_depend_on_the_value(name: str, epsilon: float) -> None:
    mechanism = lattice_mechanism(name, epsilon)
    reach = round(mechanism.bound * STEPS_PER_UNIT)
    steps = [*range(-reach - 2, -reach + 3), *range(-2, 3), *range(reach - 2, reach + 3)]
    steps += [int(s) for s in np.random.default_rng(1).integers(-reach, reach, 50)]
    possible = {tuple(mechanism.probability(step, value) > 0 for step in steps) for value in VALUES}
    assert len(possible) == 1


@pytest.mark.parametrize("name", LATTICE)
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_logarithm_of_the_law_is_that_of_its_probabilities(name: str, epsilon: float) -> None:
    mechanism = lattice_mechanism(name, epsilon)
    drawn = mechanism.sample(np.full(200, 0.3), np.random.default_rng(2))
    outputs = np.concatenate([drawn, mechanism.landmarks(-0.4), [mechanism.bound + STEP, -9.0]])
    for value in (-0.4, 0.3):
        chances = [mechanism.probability(round(x * STEPS_PER_UNIT), value) for x in outputs]
        expected = [math.log(chance) if chance else -math.inf for chance in chances]
        np.testing.assert_allclose(mechanism.log_law(outputs, value), expected, rtol=1e-12)


@pytest.mark.parametrize("name", LATTICE)
def test_every_draw_is_a_whole_number_of_steps(name: str) -> None:
    for epsilon in (LEAST_EPSILON2, 1.0, MOST_EPSILON2):
        drawn = perturbation(name, epsilon).sample(np.linspace(-1, 1, 5_000), SystemUniforms())
        np.testing.assert_array_equal(drawn * STEPS_PER_UNIT, np.rint(drawn * STEPS_PER_UNIT))


@pytest.mark.parametrize("name", LATTICE)
def test_low_bits_of_the_output_say_nothing_at_the_least_epsilon(name: str) -> None:
    """The attack of a small ε: a grain coarser than the lattice lets only some low bits through, by value."""
    mechanism = perturbation(name, LEAST_EPSILON2)
    rng = np.random.default_rng(3)
    table = [
        np.bincount(
            np.rint(mechanism.sample(np.full(40_000, value), rng) * STEPS_PER_UNIT).astype(np.int64) % 64,
            minlength=64,
        )
        for value in (-1.0, 0.123, 1.0)
    ]
    if name == "pm":
        assert min(chisquare(row).pvalue for row in table) > 1e-4
    else:
        assert all(np.array_equal(row > 0, table[0] > 0) for row in table)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize("value", [-1.0, 0.4])
def test_samples_follow_the_law(name: str, epsilon: float, value: float) -> None:
    assert sampling_p_value(perturbation(name, epsilon), perturbation(name, epsilon), value) > 1e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_the_chi_square_rejects_a_wrong_epsilon(name: str, factor: float) -> None:
    assert sampling_p_value(perturbation(name, 2.0), perturbation(name, 2.0 * factor), 0.4) < 1e-9


def sampling_p_value(drawn_from: Perturbation, judged_by: Perturbation, value: float) -> float:
    """Chi-square p-value of draws from one mechanism in 40 cells of another's law."""
    n = 60_000
    drawn = drawn_from.sample(np.full(n, value), np.random.default_rng(5))
    span = judged_by.bound if math.isfinite(judged_by.bound) else 1 + 30 / judged_by.epsilon
    if np.abs(drawn).max() > span + 1e-12:
        return 0.0
    edges = np.linspace(-span - STEP / 2, span + STEP / 2, 41)
    if isinstance(judged_by, Laplace):
        scale = 2 / judged_by.epsilon
        tail = np.exp(-np.abs(edges - value) / scale) / 2
        expected = np.diff(np.where(edges < value, tail, 1 - tail))
    else:
        assert isinstance(judged_by, Duchi | Piecewise | Hybrid)
        runs = law(judged_by, value)
        expected = np.array(
            [
                sum(
                    float(chance) * max(0, min(last, math.floor(b)) - max(first, math.floor(a) + 1) + 1)
                    for first, last, chance in runs
                )
                for a, b in zip(edges * STEPS_PER_UNIT, edges[1:] * STEPS_PER_UNIT, strict=False)
            ]
        )
    seen = np.histogram(drawn, edges)[0]
    if seen[expected == 0].sum():
        return 0.0
    expected, seen = expected[expected > 0] / expected.sum(), seen[expected > 0]
    rare = expected * n < 5
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        seen = np.append(seen[~rare], seen[rare].sum())
    return float(chisquare(seen, expected * seen.sum()).pvalue)


def test_sample_moments_agree_with_the_formulas() -> None:
    n, value = 400_000, -0.37
    for name in NAMES:
        mechanism = perturbation(name, 1.7)
        drawn = mechanism.sample(np.full(n, value), np.random.default_rng(17))
        deviation = math.sqrt(float(mechanism.variance(value)))
        assert drawn.mean() == pytest.approx(value, abs=4 * deviation / math.sqrt(n))
        assert drawn.std() == pytest.approx(deviation, rel=0.02)


def test_hybrid_never_has_a_larger_worst_variance_than_its_parts() -> None:
    grid = np.linspace(-1, 1, 201)
    for epsilon in (0.2, 0.61, 0.62, 1.0, 3.0, 6.0):
        worst = {name: perturbation(name, epsilon).variance(grid).max() for name in ("hm", "pm", "duchi")}
        assert worst["hm"] <= min(worst["pm"], worst["duchi"]) + 1e-5


def test_hybrid_threshold_is_the_published_one() -> None:
    assert pytest.approx(0.61, abs=5e-3) == HYBRID_THRESHOLD


def test_ranges_are_the_published_ones() -> None:
    e = math.exp(1.0)
    assert Piecewise(2.0).bound == pytest.approx((e + 1) / (e - 1), abs=4 * STEP)
    assert Duchi(1.0).bound == pytest.approx((e + 1) / (e - 1), abs=STEP)
    assert Piecewise(LEAST_EPSILON2).bound == pytest.approx(400, abs=0.01)


def test_inputs_are_clipped_and_not_numbers_count_as_zero() -> None:
    np.testing.assert_array_equal(clip([3.0, -math.inf, math.nan, 0.2]), [1.0, -1.0, 0.0, 0.2])
    for name in NAMES:
        mechanism = perturbation(name, 1.0)
        inside = mechanism.sample(np.array([1.0, -1.0, 0.0]), np.random.default_rng(1))
        outside = mechanism.sample(np.array([9.0, -math.inf, math.nan]), np.random.default_rng(1))
        np.testing.assert_array_equal(inside, outside)


def test_outputs_stay_within_the_bound() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 50_000)
    for name in LATTICE:
        mechanism = perturbation(name, 0.8)
        assert np.abs(mechanism.sample(values, SystemUniforms())).max() <= mechanism.bound


def test_no_perturbation_is_marked_as_not_private() -> None:
    mechanism = perturbation("none", 1.0)
    assert mechanism.epsilon == math.inf
    np.testing.assert_array_equal(mechanism.sample([0.3, 7.0], SystemUniforms()), [0.3, 1.0])


@pytest.mark.parametrize("name", LATTICE)
@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-12, 0.0099, 16.1, math.inf, math.nan, "1", True])
def test_bad_epsilon_is_refused(name: str, epsilon: float) -> None:
    with pytest.raises(ArgumentError, match=r"epsilon2 must lie in \[0.01, 16\]"):
        perturbation(name, epsilon)


def test_unknown_perturbation_names_the_choices() -> None:
    with pytest.raises(ArgumentError, match="laplace"):
        perturbation("gauss", 1.0)
