from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from tacit.errors import ArgumentError
from tacit.federated.sampling import (
    BOTTOM,
    SystemUniforms,
    Uniforms,
    sample_by_proposal,
    sample_by_rank,
    sample_coordinates,
)
from tacit.federated.selection import RankLaw, calibrated_logit, output_probabilities, selection_law

Sampler = Callable[[RankLaw, NDArray[np.floating], Uniforms], NDArray[np.int64]]

VECTOR = np.array([0.3, -5.0, 0.0, 2.0, -0.1, 0.7, 4.0, -1.0, 0.0, 0.0])
DRAWS = 60_000


def p_value(observed: NDArray[np.int64], law: RankLaw, vector: NDArray[np.float64] = VECTOR) -> float:
    """Chi-square p-value of drawn coordinates (⊥ = -1) against the exact law on ``vector``."""
    expected = output_probabilities(law, vector[None, :])[0]
    counts = np.bincount(np.where(observed == BOTTOM, law.d, observed), minlength=law.d + 1)
    possible = expected > 0
    if counts[~possible].sum():
        return 0.0
    scaled = expected[possible] / expected[possible].sum() * counts.sum()
    return float(chisquare(counts[possible], scaled).pvalue)


def draw(sampler: Sampler, law: RankLaw, seed: int = 3) -> NDArray[np.int64]:
    magnitudes = np.broadcast_to(np.abs(VECTOR), (DRAWS, VECTOR.size))
    return sampler(law, np.ascontiguousarray(magnitudes), np.random.default_rng(seed))


@pytest.mark.parametrize("sampler", [sample_by_rank, sample_by_proposal, sample_coordinates])
@pytest.mark.parametrize("name", ["exp", "pe", "pe-paper", "ps", "random", "topk"])
def test_frequencies_follow_the_exact_law(name: str, sampler: Sampler) -> None:
    law = selection_law(name, VECTOR.size, 3, 0.9)
    assert p_value(draw(sampler, law), law) > 1e-3


@pytest.mark.parametrize("sampler", [sample_by_rank, sample_by_proposal])
@pytest.mark.parametrize("name", ["exp", "pe", "ps"])
@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_the_chi_square_rejects_a_wrong_epsilon(name: str, sampler: Sampler, factor: float) -> None:
    drawn = draw(sampler, selection_law(name, VECTOR.size, 3, 0.9))
    assert p_value(drawn, selection_law(name, VECTOR.size, 3, 0.9 * factor)) < 1e-9


def test_the_chi_square_tells_calibrated_from_published_encoding() -> None:
    drawn = draw(sample_by_rank, selection_law("pe-paper", VECTOR.size, 1, 1.0))
    assert p_value(drawn, selection_law("pe", VECTOR.size, 1, 1.0)) < 1e-9


@pytest.mark.parametrize("k", [1, 3])
def test_coin_by_coin_encoding_follows_the_same_law(k: int) -> None:
    """The mechanism as published, one coin per coordinate, against the closed form that the samplers use."""
    rng = np.random.default_rng(8)
    d, epsilon = VECTOR.size, 1.0
    keep = 1 / (1 + np.exp(-calibrated_logit(d, k, epsilon)))
    truth = np.zeros(d, bool)
    truth[np.argsort(np.abs(VECTOR), kind="stable")[d - k :]] = True
    marks = truth ^ (rng.random((DRAWS, d)) >= keep)
    drawn = np.full(DRAWS, BOTTOM)
    for i, row in enumerate(marks):
        if row.any():
            drawn[i] = rng.choice(np.flatnonzero(row))
    assert p_value(drawn, selection_law("pe", d, k, epsilon)) > 1e-3


@pytest.mark.parametrize("name", ["exp", "pe", "ps"])
@pytest.mark.parametrize("sampler", [sample_by_rank, sample_by_proposal])
def test_long_rows_follow_the_law_by_rank(name: str, sampler: Sampler) -> None:
    d, n, epsilon = 700, 4_000, 1.5
    rng = np.random.default_rng(11)
    magnitudes = rng.integers(0, 300, (n, d)).astype(np.float32)  # many ties
    law = selection_law(name, d, 70, epsilon)
    drawn = sampler(law, magnitudes, rng)
    answered = np.flatnonzero(drawn != BOTTOM)
    order = np.argsort(magnitudes, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(d)[None, :], axis=1)
    groups = rank[answered, drawn[answered]] // 70
    expected = law.by_rank.reshape(10, 70).sum(axis=1)
    counts = np.bincount(groups, minlength=10)
    assert chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 1e-3


def test_clients_are_drawn_independently() -> None:
    law = selection_law("ps", VECTOR.size, 3, 0.9)
    drawn = draw(sample_coordinates, law).reshape(-1, 2)
    top = np.isin(drawn, np.argsort(np.abs(VECTOR))[-3:])
    p = law.by_rank[-3:].sum()
    both = np.count_nonzero(top.all(axis=1))
    pairs = len(top)
    assert abs(both - pairs * p * p) < 4 * np.sqrt(pairs * p * p * (1 - p * p))


def test_the_system_source_serves_as_well() -> None:
    law = selection_law("pe", VECTOR.size, 3, 0.9)
    magnitudes = np.tile(np.abs(VECTOR), (20_000, 1))
    assert p_value(sample_coordinates(law, magnitudes, SystemUniforms()), law) > 1e-6


@pytest.mark.parametrize("count", [1, 2, 3, 16, 1_000, 2**53 + 1, 2**62])
def test_system_numbers_are_uniform_below_their_bound(count: int) -> None:
    drawn = SystemUniforms().integers(5, 5 + count, 20_000)
    assert drawn.min() >= 5
    assert drawn.max() < 5 + count
    if count > 1:
        cells = min(count, 16)
        share = np.bincount([int(x - 5) * cells // count for x in drawn], minlength=cells)
        size = [-(-(c + 1) * count // cells) - -(-c * count // cells) for c in range(cells)]
        assert chisquare(share, np.array(size) / count * len(drawn)).pvalue > 1e-6


def test_no_clients_is_no_work() -> None:
    law = selection_law("ps", 10, 1, 1.0)
    assert sample_coordinates(law, np.empty((0, 10)), np.random.default_rng(0)).shape == (0,)


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ArgumentError, match="n × 10"):
        sample_coordinates(selection_law("ps", 10, 1, 1.0), np.ones((3, 9)), np.random.default_rng(0))
