"""Ranges, quantiles and categories from noisy counts."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.data.measure import (
    GRID,
    ROUNDS,
    NumberFacts,
    category_names,
    class_shares,
    counted,
    number_facts,
    places,
    refined,
)

RNG = np.random.default_rng(0)
ROWS = 30_000


def measured(values: np.ndarray, deviation: float, seed: int = 0) -> NumberFacts:
    noise = np.random.default_rng(seed)
    edges = GRID
    for turn in range(ROUNDS):
        at, bins = places(values, edges)
        seen = counted(
            edges, list(np.bincount(at, minlength=bins) + noise.normal(0, deviation, bins)), deviation
        )
        if turn < ROUNDS - 1:
            edges = refined(seen, len(values))
    return number_facts(seen, len(values))


COLUMNS = {
    "ages": RNG.gamma(6, 6.5, ROWS).round() + 17,
    "years": RNG.integers(1990, 2021, ROWS).astype(float),
    "small": RNG.uniform(0, 1e-4, ROWS),
    "times": 1.6e9 + RNG.uniform(0, 3e7, ROWS),
    "normal": RNG.normal(size=ROWS),
    "negative": -RNG.lognormal(3, 1, ROWS),
}


@pytest.mark.parametrize("name", sorted(COLUMNS))
@pytest.mark.parametrize("deviation", [0.0, 30.0, 100.0])
def test_parts_hold_about_equally_many_rows_whatever_the_scale(name: str, deviation: float) -> None:
    values = COLUMNS[name]
    facts = measured(values, deviation)
    assert len(facts.cuts) >= 12
    counts = np.histogram(values, [-np.inf, *facts.cuts, np.inf])[0]
    assert counts.max() < 0.16 * ROWS
    assert facts.low <= facts.typical <= facts.high
    below = (values < facts.typical).mean()
    assert 0.4 < below < 0.6
    assert not facts.missing


def test_a_code_and_outliers_leave_the_rest_its_cuts() -> None:
    values = RNG.normal(120, 15, ROWS)
    values[: ROWS // 50] = -999
    values[-20:] = 1e12
    facts = measured(values, 50.0)
    assert sum(80 < cut < 160 for cut in facts.cuts) >= 11
    assert facts.high < 1e4


def test_a_value_that_fills_most_rows_leaves_cuts_for_the_others() -> None:
    values = np.where(RNG.random(ROWS) < 0.9, 0.0, RNG.lognormal(8, 1, ROWS))
    facts = measured(values, 30.0)
    assert sum(cut > 100 for cut in facts.cuts) >= 5


def test_with_more_noise_than_rows_the_facts_are_few_and_valid() -> None:
    for seed in range(20):
        facts = measured(RNG.normal(size=50), 100.0, seed)
        assert facts.low < facts.high
        assert all(facts.low < cut < facts.high for cut in facts.cuts)


def test_missing_values_are_told_from_numbers() -> None:
    values = RNG.normal(size=ROWS)
    values[:3000] = np.nan
    assert measured(values, 50.0).missing
    at, bins = places(np.array([np.nan, 0.0, 1e300, -1e300]), GRID)
    assert (at[0], at[2], at[3]) == (bins - 1, len(GRID), 0)


def test_shares_of_classes_are_positive_and_add_up() -> None:
    shares = class_shares([9000.0, 950.0, -40.0], 20.0)
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert min(shares) > 0
    assert shares[1] == pytest.approx(0.095, abs=0.01)


def test_of_two_spellings_the_frequent_one_is_kept() -> None:
    normal = {"Yes": "yes", "yes": "yes", "no": "no"}
    assert category_names({"yes": 10.0, "Yes": 30.0, "no": 20.0}, normal) == ("Yes", "no")


@pytest.mark.parametrize("name", ["ages", "normal", "small"])
@pytest.mark.parametrize("deviation", [10.0, 30.0])
def test_noise_far_outside_never_passes_for_rows(name: str, deviation: float) -> None:
    values = COLUMNS[name]
    spans = [facts.high - facts.low for facts in (measured(values, deviation, seed) for seed in range(60))]
    assert max(spans) < 2.1 * (values.max() - values.min())
    assert min(spans) > 0.6 * (np.quantile(values, 0.998) - np.quantile(values, 0.002))
