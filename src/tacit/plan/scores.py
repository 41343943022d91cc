"""The scores that choose a support, and what a phase must release for each.

A score of coordinates ranks single coordinates, a score of rows ranks rows (entries of dimension 0) of weights:

``squares``    debiased mean of squared released gradients (TP-TopK)
``movement``   |theta1 - theta0|: how far the released steps have carried a coordinate
``absolute``   row totals of the released sum of |clip(g)| (SPARTA)
``magnitude``  row totals of |released sum of clip(g)| (the public implementation of SPARTA)
``saliency``   row totals of |theta| times the released sum of |clip(g)|
``row-norms``  the released sum of the L2 norms of the rows of clip(g)
"""

from __future__ import annotations

from typing import Literal

CoordinateScore = Literal["squares", "movement"]
RowScore = Literal["absolute", "magnitude", "saliency", "row-norms"]
Score = CoordinateScore | RowScore

COORDINATE_SCORES: tuple[CoordinateScore, ...] = ("squares", "movement")
ROW_SCORES: tuple[RowScore, ...] = ("absolute", "magnitude", "saliency", "row-norms")
SCORES: tuple[Score, ...] = (*COORDINATE_SCORES, *ROW_SCORES)

Statistic = Literal["gradient", "absolute", "row-norms"]
"""What a release sums over examples: clip(g), |clip(g)|, or the L2 norm of every row of clip(g).

Each is a vector of the L2 norm of clip(g), so all three have the sensitivity C.
"""


def statistic_of(score: Score | None) -> Statistic:
    """What a phase that gathers ``score`` releases."""
    if score in ("absolute", "saliency"):
        return "absolute"
    return "row-norms" if score == "row-norms" else "gradient"
