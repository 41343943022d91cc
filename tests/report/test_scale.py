from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.report.plot import Scale, number, padded, share, ticks


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_are_round_even_and_inside(low: float, span: float, most: int) -> None:
    high = low + span
    if not high > low:
        return
    found = ticks(low, high, most)
    assert len(found) <= most
    assert all(low - 1e-6 * span <= tick <= high + 1e-6 * span for tick in found)
    steps = {round((b - a) / span, 6) for a, b in itertools.pairwise(found)}
    assert len(steps) <= 1


def test_ticks_of_known_ranges() -> None:
    assert ticks(0, 3.24) == [0, 1, 2, 3]
    assert ticks(0, 261, 6) == [0, 50, 100, 150, 200, 250]
    assert ticks(0.8687, 0.8967) == [0.87, 0.88, 0.89]
    assert ticks(1, 1) == [1]


def test_a_scale_maps_its_ends_and_keeps_to_them() -> None:
    scale = Scale(2, 4, 10, 30)
    assert [scale(value) for value in (2, 3, 4, 9, -9)] == [10, 20, 30, 30, 10]
    log = Scale(0.001, 1, 0, 30, log=True)
    assert log(0.01) == pytest.approx(10)
    assert log.ticks() == pytest.approx([0.001, 0.01, 0.1, 1])
    assert len(Scale(1e-9, 1, 0, 1, log=True).ticks(5)) <= 5


def test_a_range_of_no_width_gets_some() -> None:
    assert padded(1, 1)[0] < 1 < padded(1, 1)[1]
    assert padded(0, 0)[0] < 0 < padded(0, 0)[1]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3.0, "3"),
        (2.99644, "2.996"),
        (0.8942186, "0.8942"),
        (-0.5, "−0.5"),
        (12345.678, "12,346"),
        (1e-5, "10⁻⁵"),
        (2.06e-4, "2.06\u00a0·\u00a010⁻⁴"),
        (0.0, "0"),
        (math.inf, "∞"),
        (math.nan, "not defined"),
    ],
)
def test_figures_for_people(value: float, shown: str) -> None:
    assert number(value) == shown


def test_shares() -> None:
    assert share(0.6439) == "64.4 %"
    assert share(1.0, 0) == "100 %"
    assert share(math.nan) == "not defined"
