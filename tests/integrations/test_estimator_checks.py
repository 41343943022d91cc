"""The estimators pass scikit-learn's own checks.

They run without noise: some demand an accuracy that no private model of thirty rows can have.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.utils.estimator_checks import parametrize_with_checks

from tacit import PrivateClassifier, PrivateRegressor

FEW = {"training": {"epochs": 10.0}}
"""Some twenty steps on the small tables of the checks."""

EXPECTED_TO_FAIL: dict[str, str] = {}
"""Checks that privacy forbids, by name, with the reason. There is none."""


@pytest.mark.filterwarnings("ignore:Types, ranges or classes:UserWarning")
@pytest.mark.filterwarnings("ignore:Classes of the target .* with fewer than:UserWarning")
@pytest.mark.filterwarnings("ignore:Fewer than 10 rows have the answer:UserWarning")
@parametrize_with_checks(
    [PrivateClassifier(math.inf, settings=FEW), PrivateRegressor(math.inf, settings=FEW)],
    expected_failed_checks=lambda estimator: EXPECTED_TO_FAIL,
)
def test_scikit_learns_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)
