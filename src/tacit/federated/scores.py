"""How good a binary classifier is, beside one that looks at nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from tacit.errors import ArgumentError

CONSTANT_AUC = 0.5
CONSTANT_BALANCED = 0.5


@dataclass(frozen=True)
class Judgement:
    """Accuracy, area under the ROC curve and balanced accuracy (the mean of both classes' accuracies).

    ``constant_accuracy`` is what one gets for always naming the larger class; its AUC and its balanced accuracy are ½.
    """

    accuracy: float
    auc: float
    balanced_accuracy: float
    constant_accuracy: float


def judge(margins: NDArray[np.floating], y: NDArray[np.floating]) -> Judgement:
    """Judge ``margins`` (positive for the label +1) by the labels ``y`` (±1); ties count half in the AUC.

    With one class only, AUC and balanced accuracy are not defined and come out as ½.
    """
    if not len(y) or margins.shape != y.shape:
        raise ArgumentError(f"Margins and labels must be as many, at least one: {margins.shape}, {y.shape}.")
    positive = y > 0
    right = (margins >= 0) == positive
    accuracy, positives = float(right.mean()), int(positive.sum())
    negatives = len(y) - positives
    constant = max(positives, negatives) / len(y)
    if not positives or not negatives:
        return Judgement(accuracy, CONSTANT_AUC, CONSTANT_BALANCED, constant)
    ranks = rankdata(margins)
    below = float(ranks[positive].sum()) - positives * (positives + 1) / 2
    balanced = (float(right[positive].mean()) + float(right[~positive].mean())) / 2
    return Judgement(accuracy, below / (positives * negatives), balanced, constant)
