"""Whether predicted probabilities can be believed, and whether there is a model at all: from held-out counts."""

from __future__ import annotations

import itertools
import math

from tacit.jobs.held_out import HeldOutCounts, Thresholds
from tacit.jobs.quality import wilson
from tacit.report.markup import Markup
from tacit.report.plot import Plot, Series, draw, share

_GROUPS = 10


def probability(logit: float) -> float:
    """The probability of a logit."""
    return 1 / (1 + math.exp(-logit))


def calibration(counts: HeldOutCounts, by: Thresholds) -> list[tuple[float, int, int]]:
    """About ten groups of held-out rows by predicted probability: its middle, the positives and all rows in it.

    The counts by threshold are enough: rows between two thresholds are those above the lower and not above the upper.
    """
    positives, negatives = sum(counts.confusion[1]), sum(counts.confusion[0])
    edges = [-math.inf, *by.logits, math.inf]
    above = [(positives, negatives), *zip(by.true_positives, by.false_positives, strict=True), (0, 0)]
    least = max(1, (positives + negatives) // _GROUPS)
    groups: list[tuple[float, int, int]] = []
    start, summed = 0, 0.0
    for place in range(1, len(edges)):
        (high_p, high_n), (low_p, low_n) = above[place - 1], above[place]
        rows = high_p - low_p + high_n - low_n
        ends = [edge for edge in (edges[place - 1], edges[place]) if math.isfinite(edge)]
        summed += rows * sum(map(probability, ends)) / len(ends)
        hits, total = above[start][0] - low_p, sum(above[start]) - low_p - low_n
        if total and (total >= least or place == len(edges) - 1):
            groups.append((summed / total, hits, total))
            start, summed = place, 0.0
    return groups


def calibration_figure(counts: HeldOutCounts, by: Thresholds, key: str) -> Markup | None:
    """Predicted probabilities against what was found, in groups of held-out rows."""
    groups = calibration(counts, by)
    total = sum(rows for _, _, rows in groups)
    if not total:
        return None
    found = [hits / rows for _, hits, rows in groups]
    ranges = [wilson(hits, rows) for _, hits, rows in groups]
    gap = sum(rows * abs(p - share_) for (p, _, rows), share_ in zip(groups, found, strict=True)) / total
    text = (
        f"Predicted and found shares of “{counts.classes[1]}” differ by {share(gap)} on average over {len(groups)} "
        "groups of held-out rows. Bars are 95 % intervals."
    )
    return draw(
        Plot(
            "Calibration",
            text,
            "predicted probability",
            "share found",
            [
                Series(
                    "model",
                    [p for p, _, _ in groups],
                    found,
                    1,
                    spread=[(high - low) / 2 for low, high in ranges],
                    bars=True,
                ),
                Series("perfect", [0.0, 1.0], [0.0, 1.0], 6, dashed=True),
            ],
            x_range=(0, 1),
            y_range=(0, 1.03),
            x_format=lambda value: share(value, 0),
            y_format=lambda value: share(value, 0),
            note=text,
        ),
        f"{key}-calibration",
    )


def no_better_than_guessing(counts: HeldOutCounts) -> str | None:
    """A sentence for a model that is no better than an answer without any model, as far as the counts show."""
    total = sum(map(sum, counts.confusion))
    by = counts.thresholds
    if by is None:
        right = sum(row[i] for i, row in enumerate(counts.confusion))
        most = max(map(sum, counts.confusion), default=0)
        if not total or right > most:
            return None
        often = share(most / total)
        return (
            f"The model is no better than always naming the most frequent class, which is right in {often}."
        )
    positives, negatives = sum(counts.confusion[1]), sum(counts.confusion[0])
    if not positives or not negatives:
        return None
    tp = [positives, *by.true_positives, 0]
    fp = [negatives, *by.false_positives, 0]
    steps = zip(itertools.pairwise(tp), itertools.pairwise(fp), strict=True)
    area = sum((n0 - n1) * (p0 + p1) / 2 for (p0, p1), (n0, n1) in steps) / (positives * negatives)
    needed = 0.5 + 2 * math.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    if area > needed:
        return None
    return (
        f"The model is no better than guessing: on {positives:,} positive and {negatives:,} negative held-out rows its "
        f"AUC of {area:.3f} would have to be above {needed:.3f}."
    )
