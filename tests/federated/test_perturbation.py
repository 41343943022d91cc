from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from tacit.errors import ArgumentError
from tacit.federated.perturbation import HYBRID_THRESHOLD, Perturbation, Piecewise, clip, perturbation
from tacit.federated.randomness import SystemUniforms

NAMES = ("duchi", "pm", "hm", "laplace")
EPSILONS = (0.05, 0.3, HYBRID_THRESHOLD, 0.7, 1.0, 2.0, 5.0, 8.0)
VALUES = (-1.0, -0.62, 0.0, 0.3, 1.0)


def moments(mechanism: Perturbation, value: float) -> tuple[float, float, float]:
    """(mass, mean, variance) of the output, from its atoms and a fine midpoint rule over its density."""
    span = mechanism.bound if math.isfinite(mechanism.bound) else 1 + 60 / mechanism.epsilon
    # The published edges of the piecewise plateau, so that no cell straddles a jump.
    c = Piecewise(mechanism.epsilon).bound
    left = (c + 1) / 2 * value - (c - 1) / 2
    edges = np.union1d(np.linspace(-span, span, 100_001), [x for x in (left, left + c - 1) if abs(x) < span])
    x, w = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    density = mechanism.density(x, value)
    atoms = mechanism.atoms(value)
    mass = float((density * w).sum()) + sum(atoms.values())
    mean = float((density * x * w).sum()) + sum(y * p for y, p in atoms.items())
    second = float((density * x**2 * w).sum()) + sum(y * y * p for y, p in atoms.items())
    return mass, mean, second - mean**2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_law_has_mass_one_mean_v_and_the_stated_variance(name: str, epsilon: float) -> None:
    mechanism = perturbation(name, epsilon)
    for value in VALUES:
        mass, mean, variance = moments(mechanism, value)
        stated = float(mechanism.variance(value))
        assert mass == pytest.approx(1.0, abs=1e-6)
        assert mean == pytest.approx(value, abs=1e-6 * max(1.0, math.sqrt(stated)))
        assert variance == pytest.approx(stated, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_ratio_of_the_law_is_exactly_e_to_the_epsilon(name: str, epsilon: float) -> None:
    mechanism = perturbation(name, epsilon)
    span = mechanism.bound if math.isfinite(mechanism.bound) else 3.0
    outputs = np.linspace(-span, span, 3_001)
    worst = -math.inf
    for value in np.linspace(-1, 1, 41):
        for other in (-1.0, 1.0, 0.0, float(value) / 2):
            a, b = mechanism.density(outputs, float(value)), mechanism.density(outputs, other)
            assert np.array_equal(a > 0, b > 0)
            inside = b > 0
            ratios = [np.log(a[inside] / b[inside]).max(initial=-math.inf)]
            left, right = mechanism.atoms(float(value)), mechanism.atoms(other)
            assert left.keys() == right.keys()
            ratios += [math.log(left[x] / right[x]) for x in left]
            worst = max(worst, *ratios)
    assert worst <= epsilon + 1e-9
    assert worst == pytest.approx(epsilon, abs=1e-9)


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
    """Chi-square p-value of draws from one mechanism in cells of another's law; 0 if a draw is impossible."""
    n = 60_000
    drawn = drawn_from.sample(np.full(n, value), np.random.default_rng(5))
    span = judged_by.bound if math.isfinite(judged_by.bound) else 1 + 30 / judged_by.epsilon
    if np.abs(drawn).max() > span + 1e-12:
        return 0.0
    expected, observed = [], []
    remaining = np.ones(n, bool)
    for atom, probability in judged_by.atoms(value).items():
        at = np.isclose(drawn, atom, rtol=0, atol=1e-12)
        expected.append(probability)
        observed.append(np.count_nonzero(at))
        remaining &= ~at
    edges = np.linspace(-span, span, 20_001)
    x, w = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    cells = (judged_by.density(x, value) * w).reshape(40, 500).sum(axis=1)
    counts = np.histogram(drawn[remaining], edges[::500])[0]
    if counts[cells == 0].sum():
        return 0.0
    expected += [c for c in cells if c > 0]
    observed += [int(o) for o, c in zip(counts, cells, strict=True) if c > 0]
    law = np.array(expected) / np.sum(expected)
    seen = np.array(observed)
    rare = law * n < 5
    if rare.any():
        law, seen = np.append(law[~rare], law[rare].sum()), np.append(seen[~rare], seen[rare].sum())
    return float(chisquare(seen, law * seen.sum()).pvalue)


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
        assert worst["hm"] <= min(worst["pm"], worst["duchi"]) + 1e-12


def test_hybrid_threshold_is_the_published_one() -> None:
    assert pytest.approx(0.61, abs=5e-3) == HYBRID_THRESHOLD


def test_piecewise_range_is_the_published_one() -> None:
    e = math.exp(1.0)
    assert Piecewise(2.0).bound == pytest.approx((e + 1) / (e - 1))


def test_inputs_are_clipped_and_not_numbers_count_as_zero() -> None:
    np.testing.assert_array_equal(clip([3.0, -math.inf, math.nan, 0.2]), [1.0, -1.0, 0.0, 0.2])
    for name in NAMES:
        mechanism = perturbation(name, 1.0)
        inside = mechanism.sample(np.array([1.0, -1.0, 0.0]), np.random.default_rng(1))
        outside = mechanism.sample(np.array([9.0, -math.inf, math.nan]), np.random.default_rng(1))
        np.testing.assert_array_equal(inside, outside)


def test_outputs_stay_within_the_bound() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 50_000)
    for name in ("duchi", "pm", "hm"):
        mechanism = perturbation(name, 0.8)
        assert np.abs(mechanism.sample(values, SystemUniforms())).max() <= mechanism.bound


def test_no_perturbation_is_marked_as_not_private() -> None:
    mechanism = perturbation("none", 1.0)
    assert mechanism.epsilon == math.inf
    np.testing.assert_array_equal(mechanism.sample([0.3, 7.0], SystemUniforms()), [0.3, 1.0])


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf])
def test_bad_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(ArgumentError, match="epsilon2"):
        perturbation("pm", epsilon)


def test_unknown_perturbation_names_the_choices() -> None:
    with pytest.raises(ArgumentError, match="laplace"):
        perturbation("gauss", 1.0)
