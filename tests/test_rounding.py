from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.rounding import rounded_up


@given(st.floats(1e-6, 1e6), st.integers(2, 8))
def test_what_is_stated_is_never_below_the_value_nor_far_above(value: float, digits: int) -> None:
    shown = float(rounded_up(value, digits))
    assert value <= shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.0, "1"), (1.0004, "1.001"), (100.04, "100.1"), (9.9991, "10"), (float("inf"), "inf")],
)
def test_four_digits(value: float, shown: str) -> None:
    assert rounded_up(value) == shown
