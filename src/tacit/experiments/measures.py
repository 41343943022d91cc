"""Figures of merit on held-out data, by kind of task."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.stats import rankdata
from torch import Tensor

from tacit.data.task import Kind
from tacit.errors import check_share
from tacit.training.evaluation import Metric, accuracy


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


def measures(kind: Kind, prevalence: float | None = None) -> Mapping[str, Metric]:
    """The measures of a kind of task; the first is the one that runs are compared by."""
    if kind == "multiclass":
        return {"accuracy": accuracy}
    if kind == "regression":
        return {"r2": explained}
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
