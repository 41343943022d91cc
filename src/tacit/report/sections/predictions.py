"""Right and wrong predictions on held-out data: a confusion matrix, and for two classes a threshold to move."""

from __future__ import annotations

import json
import math

from tacit.jobs.held_out import HeldOutCounts, Thresholds
from tacit.jobs.quality import wilson
from tacit.report.markup import Content, Markup, element, grid, joined, note, section, table
from tacit.report.plot import Dot, Mark, Plot, Series, draw, number, scales, share
from tacit.report.reading import RunView
from tacit.report.sections.calibration import (
    calibration_figure,
    no_better_than_guessing,
    probability,
)

_MOST_CLASSES = 20
_WORST = 15
_PROBABILITIES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
_HEAT = 10
WARNING = (
    "Held-out rows are never trained on, but ε does not cover what is shown about them: these counts are exact. "
    "The threshold of the run is a public number. One that is moved here until the figures please is fitted to "
    "these rows, and its figures will be worse on others."
)


def predictions(run: RunView, key: str, level: int) -> Markup | None:
    """The counts of a finished run on held-out data, where it has kept them."""
    counts = run.held_out
    if counts is None:
        return None
    total = sum(map(sum, counts.confusion))
    right = sum(row[i] for i, row in enumerate(counts.confusion))
    told = f"{right:,} of {total:,} held-out examples are predicted right ({share(right / max(total, 1))})."
    binary = counts.thresholds is not None
    caution = no_better_than_guessing(counts)
    content: Content = (
        _threshold(counts, counts.thresholds, key) if counts.thresholds is not None else _confusion(counts)
    )
    return section(
        f"{key}-predictions",
        "Predictions on held-out data",
        level,
        None if caution is None else element("p", element("strong", caution)),
        None if binary else element("p", told),
        content,
        note(WARNING if binary else WARNING.split(" The threshold", 1)[0]),
    )


def as_percent(p: float) -> str:
    """A probability with as many digits as it takes to tell it from 0 and 1."""
    digits = 0 if 0.1 <= p <= 0.9 else 1 if 0.01 <= p <= 0.99 else 2
    text = f"{100 * p:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} %"


def _threshold(counts: HeldOutCounts, by: Thresholds, key: str) -> Markup:
    positives, negatives = sum(counts.confusion[1]), sum(counts.confusion[0])
    at = by.logits.index(by.used)
    sensitivity = [n / max(positives, 1) for n in by.true_positives]
    fallout = [n / max(negatives, 1) for n in by.false_positives]
    curves = Plot(
        "Sensitivity and specificity by threshold",
        f"At the run's threshold of {as_percent(probability(by.used))} sensitivity is "
        f"{share(sensitivity[at])} and specificity {share(1 - fallout[at])}. Raising the threshold trades "
        "sensitivity for specificity.",
        "threshold (predicted probability)",
        "share predicted right",
        [
            Series("sensitivity", by.logits, sensitivity, 1),
            Series("specificity", by.logits, [1 - share_ for share_ in fallout], 2),
        ],
        verticals=[Mark(by.used, "threshold", 4, dashed=False, key=f"{key}-cut")],
        x_range=(by.logits[0], by.logits[-1]),
        y_range=(0, 1.03),
        x_ticks=[math.log(p / (1 - p)) for p in _PROBABILITIES],
        x_format=lambda logit: as_percent(probability(logit)),
        y_format=lambda value: share(value, 0),
    )
    # A threshold below the grid predicts everything positive, one above it nothing: the ends of the curve.
    roc = Plot(
        "Receiver operating characteristic",
        f"From the strictest to the laxest threshold, sensitivity over the share of false alarms; at the run's "
        f"threshold {share(sensitivity[at])} over {share(fallout[at])}.",
        "false alarms (1 − specificity)",
        "sensitivity",
        [
            Series("model", [0.0, *fallout[::-1], 1.0], [0.0, *sensitivity[::-1], 1.0], 1),
            Series("chance", [0.0, 1.0], [0.0, 1.0], 6, dashed=True),
        ],
        dots=[Dot(fallout[at], sensitivity[at], "threshold", 4, f"{key}-spot")],
        x_range=(0, 1),
        y_range=(0, 1.03),
        x_format=lambda value: share(value, 0),
        y_format=lambda value: share(value, 0),
    )
    (x, _), (rx, ry) = scales(curves), scales(roc)
    data = {
        "start": at,
        "tp": by.true_positives,
        "fp": by.false_positives,
        "positives": positives,
        "negatives": negatives,
        "words": [as_percent(probability(logit)) for logit in by.logits],
        "cut": [round(x(logit), 1) for logit in by.logits],
        "spot": [[round(rx(f), 1), round(ry(s), 1)] for f, s in zip(fallout, sensitivity, strict=True)],
    }
    return element(
        "div",
        _slider(len(by.logits), at, as_percent(probability(by.used)), key),
        grid(_figures(counts, key), _two_by_two(counts, key)),
        grid(
            draw(curves, f"{key}-thresholds"),
            draw(roc, f"{key}-roc"),
            calibration_figure(counts, by, key),
        ),
        class_="threshold",
        id=f"{key}-threshold",
        data_threshold=json.dumps(data, separators=(",", ":"), ensure_ascii=False),
    )


def _slider(count: int, at: int, word: str, key: str) -> Markup:
    """The control; it appears when the page's script runs."""
    name = f"{key}-slider"
    return element(
        "div",
        element("label", "Threshold", for_=name),
        element("output", word, for_=name, class_="at"),
        element(
            "input",
            type="range",
            id=name,
            min=0,
            max=count - 1,
            step=1,
            value=at,
            aria_valuetext=word,
            class_="slider",
        ),
        element("button", "Back to the run's threshold", type="button", class_="reset"),
        class_="control",
        hidden=True,
    )


def _figures(counts: HeldOutCounts, key: str) -> Markup:
    (tn, fp), (fn, tp) = counts.confusion
    rates = {
        "sensitivity": ("Sensitivity", tp, tp + fn, f"of {tp + fn:,} “{counts.classes[1]}”"),
        "specificity": ("Specificity", tn, tn + fp, f"of {tn + fp:,} “{counts.classes[0]}”"),
        "precision": ("Positive predictive value", tp, tp + fp, "of those predicted positive"),
    }
    tiles = [
        element(
            "div",
            element("dt", name),
            element(
                "dd",
                element("span", _rate(hits, total), class_="value", data_figure=figure),
                element("span", _range(hits, total), class_="detail", data_range=figure),
                element("span", about, class_="detail"),
            ),
            class_="tile",
        )
        for figure, (name, hits, total, about) in rates.items()
    ]
    balanced = 0.5 * (tp / max(tp + fn, 1) + tn / max(tn + fp, 1))
    tiles.append(
        element(
            "div",
            element("dt", "Balanced accuracy"),
            element(
                "dd",
                element("span", share(balanced), class_="value", data_figure="balanced"),
                element("span", "mean of sensitivity and specificity", class_="detail"),
            ),
            class_="tile",
        )
    )
    return element("dl", tiles, class_="tiles small", id=f"{key}-rates-now", aria_live="polite")


def _rate(hits: int, total: int) -> str:
    return share(hits / total) if total else "not defined"


def _range(hits: int, total: int) -> str:
    low, high = wilson(hits, total)
    return f"95 % interval {100 * low:.1f} – {100 * high:.1f} %"


def _two_by_two(counts: HeldOutCounts, key: str) -> Markup:
    no, yes = counts.classes
    (tn, fp), (fn, tp) = counts.confusion
    rows = [
        (joined("truly ", element("q", no)), _cell(tn, tn + fp, "tn"), _cell(fp, tn + fp, "fp"), tn + fp),
        (joined("truly ", element("q", yes)), _cell(fn, fn + tp, "fn"), _cell(tp, fn + tp, "tp"), fn + tp),
    ]
    header = ("", joined("predicted ", element("q", no)), joined("predicted ", element("q", yes)), "all")
    title = "Held-out examples by truth and prediction"
    found = table(
        header,
        [(name, a, b, f"{total:,}") for name, a, b, total in rows],
        f"Confusion matrix. {title}",
        kind="confusion two",
    )
    return element(
        "figure", element("figcaption", title), found, class_="plot tabular", id=f"{key}-confusion"
    )


def _cell(count: int, total: int, figure: str | None = None) -> Markup:
    part = count / total if total else 0.0
    return element(
        "span",
        element("span", f"{count:,}", class_="count"),
        element("span", f"{100 * part:.1f} %", class_="part"),
        class_=f"heat h{round(part * _HEAT)}",
        data_cell=figure,
    )


def _confusion(counts: HeldOutCounts) -> Markup:
    if len(counts.classes) > _MOST_CLASSES:
        return _worst(counts)
    rows: list[list[Content]] = []
    for name, row, place in zip(counts.classes, counts.confusion, range(len(counts.classes)), strict=True):
        total = sum(row)
        cells = [_plain_cell(count, total) for count in row]
        rows.append([name, *cells, _rate(row[place], total)])
    return table(
        ["truth \\ prediction", *counts.classes, "predicted right"],
        rows,
        "Confusion matrix: held-out examples by truth (rows) and prediction (columns)",
        kind="confusion",
    )


def _plain_cell(count: int, total: int) -> Markup:
    part = count / total if total else 0.0
    level = max(round(part * _HEAT), 1) if count else 0
    return element("span", f"{count:,}", class_=f"heat h{level}")


def _worst(counts: HeldOutCounts) -> Markup:
    """Too many classes for a matrix: the most frequent confusions."""
    wrong = [
        (count, truth, prediction)
        for truth, row in enumerate(counts.confusion)
        for prediction, count in enumerate(row)
        if count and truth != prediction
    ]
    rows = [
        (
            counts.classes[truth],
            counts.classes[prediction],
            number(count),
            share(count / sum(counts.confusion[truth])),
        )
        for count, truth, prediction in sorted(wrong, key=lambda item: (-item[0], item[1:]))[:_WORST]
    ]
    return table(
        ("Truth", "Prediction", "Examples", "Share of the true class"),
        rows,
        f"The most frequent of all confusions between {len(counts.classes)} classes",
    )
