from __future__ import annotations

import torch
from torch import Tensor

from tacit.data.features import figures_on_black
from tacit.data.features.silhouettes import upright


def moments(image: Tensor) -> tuple[float, float, float]:
    """Row and column of the centre of mass, from the middle and in pixels, and the slope of columns on rows."""
    at = torch.arange(28) - 13.5
    mass = image[0] / image.sum()
    row, column = float((mass * at[:, None]).sum()), float((mass * at[None]).sum())
    down, across = at[:, None] - row, at[None] - column
    return row, column, float((mass * down * across).sum() / (mass * down * down).sum())


def bar(slope: float, column: float) -> Tensor:
    """A soft bar of five rows' width that leans."""
    at = torch.arange(28.0)
    middle = column + slope * (at - 13)
    ink = (3 - (at[None] - middle[:, None]).abs()).clamp(0, 1)
    return (ink * ((at > 5) & (at < 21))[:, None])[None]


def test_a_slanted_bar_is_set_upright_in_the_middle() -> None:
    slanted = torch.stack([bar(0.6, 16), bar(-0.4, 11), bar(0.0, 13)])
    for before, after in zip(slanted, upright(slanted), strict=True):
        row, column, slope = moments(after)
        assert abs(row) < 0.1
        assert abs(column) < 0.1
        assert abs(slope) < 0.08
        assert abs(float(after.sum() / before.sum()) - 1) < 0.05


def test_each_image_is_treated_by_itself_and_an_empty_one_stays_empty() -> None:
    images = torch.cat([figures_on_black(6, 28), torch.zeros(1, 1, 28, 28)])
    together = upright(images)
    torch.testing.assert_close(together, torch.cat([upright(one[None]) for one in images]))
    assert float(together[-1].abs().max()) == 0
    assert bool(torch.isfinite(together).all())
