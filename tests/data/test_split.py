from __future__ import annotations

import pytest

from tacit.data.task import held_out_mask
from tacit.errors import ArgumentError

KEYS = [f"row {i}" for i in range(20_000)]


def test_a_row_keeps_its_side_when_another_row_leaves() -> None:
    before = dict(zip(KEYS, held_out_mask(KEYS, 0.2), strict=True))
    fewer = KEYS[:7] + KEYS[8:]
    after = dict(zip(fewer, held_out_mask(fewer, 0.2), strict=True))
    assert all(before[key] == after[key] for key in fewer)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_share_of_held_out_keys(share: float) -> None:
    found = held_out_mask(KEYS, share).mean()
    assert abs(found - share) < 4 * (share * (1 - share) / len(KEYS)) ** 0.5


def test_equal_keys_fall_together_and_larger_shares_contain_smaller_ones() -> None:
    twice = held_out_mask(KEYS[:500] * 2, 0.3)
    assert (twice[:500] == twice[500:]).all()
    assert (held_out_mask(KEYS, 0.3) >= held_out_mask(KEYS, 0.2)).all()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_share_outside_is_refused(share: float) -> None:
    with pytest.raises(ArgumentError, match="held_out"):
        held_out_mask(["a"], share)
