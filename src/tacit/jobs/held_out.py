"""Measures on held-out data, and their record for the report page.

Counts of right and wrong predictions on held-out data: what a confusion matrix and a threshold need.

Held-out rows are never trained on and ε does not cover what is shown about them. So the file keeps counts over a
fixed, public grid of thresholds and no output of a single row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor
from torch.utils.data import TensorDataset

from tacit.data.task import Kind
from tacit.errors import FileError, check_share, is_number
from tacit.files import read_json, without_infinities, write_json
from tacit.jobs.defaults import too_few_rows
from tacit.jobs.problem import Problem
from tacit.runs.layout import HELD_OUT_FILE
from tacit.training.evaluation import Metric, accuracy, outputs_of
from tacit.training.trainer import Trainer


def auc(outputs: Tensor, targets: Tensor) -> float:
    """The probability that a positive example has a higher output than a negative one, ties counting half.

    Not a number where the data holds one class only.
    """
    positive = targets.flatten().numpy() > 0.5
    count, others = int(positive.sum()), int((~positive).sum())
    values = outputs.flatten().double().numpy()
    if not count or not others or not np.isfinite(values).all():
        return math.nan
    rank_sum = float(rankdata(values)[positive].sum())
    return (rank_sum - count * (count + 1) / 2) / (count * others)


def sensitivity(outputs: Tensor, targets: Tensor, threshold: float = 0.0) -> float:
    """Share of positive examples whose output is above ``threshold``."""
    positive = targets.flatten() > 0.5
    return float((outputs.flatten()[positive] > threshold).float().mean())


def specificity(outputs: Tensor, targets: Tensor, threshold: float = 0.0) -> float:
    """Share of negative examples whose output is not above ``threshold``."""
    negative = targets.flatten() <= 0.5
    return float((outputs.flatten()[negative] <= threshold).float().mean())


def explained(outputs: Tensor, targets: Tensor) -> float:
    """R²: the share of the targets' variance that the outputs explain; not a number for constant targets."""
    residual = (outputs.flatten() - targets.flatten()).double().square().sum()
    total = (targets.flatten() - targets.flatten().mean()).double().square().sum()
    return float(1 - residual / total) if float(total) > 0 else math.nan


def threshold_of(prevalence: float | None) -> float:
    """The logit above which an example counts as positive: a public number, never fitted to rows.

    With the publicly known share p of positives it is log(p / (1 - p)), the rule that maximises balanced
    accuracy for calibrated outputs; otherwise it is 0, a probability of one half.
    """
    if prevalence is None:
        return 0.0
    check_share("prevalence", prevalence, one_allowed=False)
    return math.log(prevalence / (1 - prevalence))


def held_out_weights(problem: Problem) -> Tensor | None:
    """A weight per held-out row, so that every unit counts once; None where every row is a unit."""
    units = None if problem.task is None else problem.task.held_out_units
    if units is None or problem.held_out is not problem.task.held_out:  # type: ignore[union-attr]
        return None
    _, codes, counts = np.unique(units, return_inverse=True, return_counts=True)
    return torch.from_numpy(1 / counts[codes.reshape(-1)])


def measures(
    kind: Kind, prevalence: float | None = None, weights: Tensor | None = None
) -> Mapping[str, Metric]:
    """The measures of a kind of task; the first is the one that runs are compared by.

    With ``weights`` of the rows, those per unit follow: each unit counts once, however many rows it has.
    """
    by_row = _measures(kind, prevalence)
    if weights is None or kind == "generate":
        return by_row
    return {**by_row, **_measures_per_unit(kind, threshold_of(prevalence), weights)}


def _measures_per_unit(kind: Kind, threshold: float, weights: Tensor) -> dict[str, Metric]:
    def right(outputs: Tensor, targets: Tensor) -> float:
        return float((weights * (outputs.argmax(1) == targets.flatten())).sum() / weights.sum())

    def explained_per_unit(outputs: Tensor, targets: Tensor) -> float:
        y = targets.flatten().double()
        residual = (weights * (outputs.flatten().double() - y).square()).sum()
        total = (weights * (y - (weights * y).sum() / weights.sum()).square()).sum()
        return float(1 - residual / total) if float(total) > 0 else math.nan

    def balanced(outputs: Tensor, targets: Tensor) -> float:
        positive, above = targets.flatten() > 0.5, outputs.flatten() > threshold
        shares = [
            float((weights * (own & hit)).sum() / (weights * own).sum())
            for own, hit in ((positive, above), (~positive, ~above))
        ]
        return 0.5 * sum(shares)

    if kind == "multiclass":
        return {"accuracy_per_unit": right}
    if kind == "regression":
        return {"r2_per_unit": explained_per_unit}
    return {
        "auc_per_unit": lambda outputs, targets: weighted_auc(outputs, targets, weights),
        "balanced_accuracy_per_unit": balanced,
    }


def weighted_auc(outputs: Tensor, targets: Tensor, weights: Tensor) -> float:
    """The AUC where pairs of rows count by the product of their weights, ties half."""
    positive = targets.flatten().numpy() > 0.5
    values, w = outputs.flatten().double().numpy(), weights.numpy()
    if positive.all() or not positive.any() or not np.isfinite(values).all():
        return math.nan
    _, place = np.unique(values, return_inverse=True)
    up, down = (np.bincount(place, weights=w * own) for own in (positive, ~positive))
    below = np.cumsum(down) - down
    return float((up * (below + down / 2)).sum() / (up.sum() * down.sum()))


def _measures(kind: Kind, prevalence: float | None = None) -> Mapping[str, Metric]:
    if kind == "multiclass":
        return {"accuracy": accuracy}
    if kind == "regression":
        return {"r2": explained}
    if kind == "generate":
        return {}
    threshold = threshold_of(prevalence)

    def sensitive(outputs: Tensor, targets: Tensor) -> float:
        return sensitivity(outputs, targets, threshold)

    def specific(outputs: Tensor, targets: Tensor) -> float:
        return specificity(outputs, targets, threshold)

    def balanced(outputs: Tensor, targets: Tensor) -> float:
        return 0.5 * (sensitive(outputs, targets) + specific(outputs, targets))

    return {
        "auc": auc,
        "balanced_accuracy": balanced,
        "sensitivity": sensitive,
        "specificity": specific,
    }


def warnings_of(problem: Problem, measured: Mapping[str, float], epsilon: float) -> tuple[str, ...]:
    """What speaks against relying on a model, for the owner of its data: what looks odd in the rows, and the rest.

    Before training there are no figures yet.
    """
    about_rows = () if problem.task is None else problem.task.warnings
    return (*about_rows, *warnings_to_share(problem, measured, epsilon))


def warnings_to_share(problem: Problem, measured: Mapping[str, float], epsilon: float) -> tuple[str, ...]:
    """The same for whoever sees the certificate: nothing that was read off training rows.

    It rests on public numbers, and on figures of held-out rows, which a certificate says it does not cover.
    """
    columns = 0 if problem.task is None else problem.task.columns
    return (*too_few_rows(problem.examples, columns, epsilon), *cautions(problem, measured))


def cautions(problem: Problem, measured: Mapping[str, float]) -> list[str]:
    """Sentences for a model whose figures on held-out data are no better than an answer without any model."""
    if not isinstance(problem.held_out, TensorDataset) or not measured:
        return []
    targets = problem.held_out.tensors[1]
    if problem.kind == "regression":
        if not measured.get("r2", math.nan) <= 0:
            return []
        return ["The model is no better than predicting the mean: R² on held-out rows is not above 0."]
    if problem.kind == "multiclass":
        most = float(torch.bincount(targets.flatten().long()).max()) / len(targets)
        least = most + 2 * math.sqrt(most * (1 - most) / len(targets))
        if not measured.get("accuracy", math.nan) <= least:
            return []
        return [
            f"The model is no better than always naming the most frequent class, which is right in {most:.1%} of "
            f"{len(targets):,} held-out rows: its accuracy would have to be above {least:.1%}."
        ]
    positive = int((targets > 0.5).sum())
    negative = len(targets) - positive
    if not positive or not negative:
        which = f"All {len(targets):,} held-out rows are" if len(targets) > 1 else "The only held-out row is"
        return [
            f"{which} of one class, which cannot show whether the model tells classes apart; bring more rows, or "
            "--test with rows of both."
        ]
    sentences = []
    # The deviation of the AUC of guesses, from the Mann-Whitney statistic.
    deviation = math.sqrt((positive + negative + 1) / (12 * positive * negative))
    if measured.get("auc", math.nan) <= 0.5 + 2 * deviation:
        sentences.append(
            f"The model is no better than guessing: on {positive} positive and {negative} negative held-out rows "
            f"its AUC would have to be above {0.5 + 2 * deviation:.3f}."
        )
    elif measured.get("balanced_accuracy", math.nan) < 0.6 and min(positive, negative) < 0.4 * len(targets):
        side = "below" if measured.get("sensitivity", 0) > measured.get("specificity", 1) else "above"
        sentences.append(
            f"The model tells the classes apart, but few predictions are {side} the threshold of one half: say "
            "--prevalence with the publicly known share of positives."
        )
    return sentences


_FORMAT = "tacit-held-out-1"
_ERRORS_FORMAT = "tacit-held-out-errors-1"
_GRID = tuple(round(step / 20, 2) for step in range(-140, 141))


@dataclass(frozen=True)
class Thresholds:
    """Positive predictions by threshold on the logit; a row counts as positive above it.

    ``used`` is the public threshold of the run and one of ``logits``, which increase.
    """

    used: float
    logits: tuple[float, ...]
    true_positives: tuple[int, ...]
    false_positives: tuple[int, ...]


@dataclass(frozen=True)
class HeldOutCounts:
    """``confusion[truth][prediction]`` over held-out rows; with two classes, also by threshold."""

    classes: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    thresholds: Thresholds | None


def count_predictions(
    outputs: Tensor, targets: Tensor, classes: Sequence[str], threshold: float = 0.0
) -> HeldOutCounts:
    """Count outputs (one logit per row, or one per class) against targets (labels from 0)."""
    truth = targets.flatten().long()
    two = len(classes) == 2
    if outputs.dim() == 2 and outputs.shape[1] > 1:
        predicted = outputs.argmax(1)
        logit, threshold = (outputs[:, 1] - outputs[:, 0] if two else None), 0.0
    else:
        logit = outputs.flatten()
        predicted = (logit > threshold).long()
    n = len(classes)
    confusion = torch.bincount(truth * n + predicted, minlength=n * n).view(n, n)
    return HeldOutCounts(
        tuple(classes),
        tuple(tuple(row) for row in confusion.tolist()),
        None if logit is None else _by_threshold(logit, truth == 1, threshold),
    )


def _by_threshold(logit: Tensor, positive: Tensor, used: float) -> Thresholds:
    logits = tuple(sorted({*_GRID, used}))
    grid = torch.tensor(logits, dtype=torch.float64)
    above = [_above(part.double(), grid) for part in (logit[positive], logit[~positive])]
    return Thresholds(used, logits, *above)


def _above(values: Tensor, grid: Tensor) -> tuple[int, ...]:
    """For each entry of the grid, how many values are greater than it; not a number never is."""
    values = values[~values.isnan()].sort().values
    return tuple((len(values) - torch.searchsorted(values, grid, right=True)).tolist())


@dataclass(frozen=True)
class HeldOutErrors:
    """Errors of a regression on ``rows`` held-out rows, in the target's own unit.

    ``squared`` and ``absolute`` are means, with their standard deviations over rows. ``variance`` is that of the
    target: what the squared error of the mean, which needs no model, would be.
    """

    rows: int
    squared: float
    squared_deviation: float
    absolute: float
    absolute_deviation: float
    variance: float


def sum_up_errors(outputs: Tensor, targets: Tensor, scale: float) -> HeldOutErrors:
    """The errors of outputs; ``scale`` is what a difference of 1 means in the target's unit."""
    truth = targets.flatten().double() * scale
    errors = outputs.flatten().double() * scale - truth
    squares, sizes = errors.square(), errors.abs()
    return HeldOutErrors(
        len(errors),
        float(squares.mean()),
        float(squares.std(correction=0)),
        float(sizes.mean()),
        float(sizes.std(correction=0)),
        float(truth.var(correction=0)),
    )


def read_errors(run_dir: Path) -> HeldOutErrors | None:
    """The errors of a run, if it is a regression that held rows out; a file that cannot be is refused."""
    path = run_dir / HELD_OUT_FILE
    record = read_json(path) if path.exists() else None
    if not isinstance(record, dict) or record.get("format") != _ERRORS_FORMAT:
        return None
    try:
        found = HeldOutErrors(**{key: value for key, value in record.items() if key != "format"})
        figures = [value for key, value in asdict(found).items() if key != "rows"]
        if type(found.rows) is not int or found.rows < 1:
            raise ValueError("it counts no rows")
        if not all(is_number(value) and value >= 0 for value in figures):
            raise ValueError("an error is no number")
    except (TypeError, ValueError) as error:
        raise FileError(f"{path} does not hold errors of this version of Tacit: {error}.") from error
    return found


def record_held_out(run_dir: Path, trainer: Trainer, problem: Problem, prevalence: float | None) -> None:
    """Write counts, or for numbers the sizes of errors, of a finished run beside its result."""
    if problem.held_out is None or problem.kind == "generate":
        return
    with trainer.final_weights():
        outputs, targets = outputs_of(trainer.model, problem.held_out)
    if problem.kind == "regression":
        low, high = (-1.0, 1.0) if problem.schema is None else problem.schema.target.range
        errors = sum_up_errors(outputs, targets, (high - low) / 2)
        write_json(run_dir / HELD_OUT_FILE, without_infinities({"format": _ERRORS_FORMAT, **asdict(errors)}))
        return
    if problem.task is not None:
        classes = problem.task.classes
    else:
        labels = outputs.shape[1] if outputs.dim() == 2 and outputs.shape[1] > 1 else 2
        classes = tuple(str(label) for label in range(labels))
    counts = count_predictions(outputs, targets, classes, threshold_of(prevalence))
    write_json(run_dir / HELD_OUT_FILE, {"format": _FORMAT, **asdict(counts)})


def read_held_out(run_dir: Path) -> HeldOutCounts | None:
    """The counts of a run, if it has any; a file that does not add up is refused."""
    path = run_dir / HELD_OUT_FILE
    if not path.exists():
        return None
    record = read_json(path)
    try:
        if record["format"] == _ERRORS_FORMAT:
            return None
        if record["format"] != _FORMAT:
            raise ValueError(f"its format is {record['format']!r}")
        counts = HeldOutCounts(
            tuple(str(name) for name in record["classes"]),
            tuple(tuple(int(n) for n in row) for row in record["confusion"]),
            None if record["thresholds"] is None else _thresholds(record["thresholds"]),
        )
        _check(counts)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} does not hold counts of this version of Tacit: {error}.") from error
    return counts


def _thresholds(record: dict[str, Any]) -> Thresholds:
    return Thresholds(
        float(record["used"]),
        tuple(float(logit) for logit in record["logits"]),
        tuple(int(n) for n in record["true_positives"]),
        tuple(int(n) for n in record["false_positives"]),
    )


def _check(counts: HeldOutCounts) -> None:
    n = len(counts.classes)
    if len(counts.confusion) != n or any(len(row) != n or min(row) < 0 for row in counts.confusion):
        raise ValueError("the confusion matrix does not fit the classes")
    by = counts.thresholds
    if by is None:
        return
    if not len(by.logits) == len(by.true_positives) == len(by.false_positives) or by.used not in by.logits:
        raise ValueError("the counts by threshold do not fit their grid")
    if not all(map(math.isfinite, by.logits)) or list(by.logits) != sorted(by.logits):
        raise ValueError("the thresholds do not increase")
    at = by.logits.index(by.used)
    if [row[1] for row in counts.confusion] != [by.false_positives[at], by.true_positives[at]]:
        raise ValueError("the counts by threshold do not fit the confusion matrix")
