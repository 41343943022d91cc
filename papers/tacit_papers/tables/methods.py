"""Everything that is compared.

All at their defaults. Where a method has none, its docstring says where its numbers come from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit_papers.tables.data import Split
from tacit_papers.tables.linear import frank_wolfe, greedy_coordinates

DELTA = 1e-5
WIDE = 60
"""Methods for wide linear problems run where rows have at least so many features."""
Scores = NDArray[np.float64]
Fit = Callable[[Split, float, int], Scores]
"""From rows, ε and a seed to scores of the rows to measure on."""


@dataclass(frozen=True)
class Method:
    """``wide`` methods run on wide tables only."""

    label: str
    fit: Fit
    private: bool = True
    wide: bool = False


def _tacit(**settings: Any) -> Fit:
    def fit(rows: Split, epsilon: float, seed: int) -> Scores:
        from tacit import PrivateClassifier

        model = PrivateClassifier(epsilon, delta=DELTA, settings=settings or None, random_state=seed)
        scores: Scores = model.fit(rows.train.x, rows.train.y).decision_function(rows.test.x)
        return scores

    return fit


def _dp_ebm(rows: Split, epsilon: float, seed: int) -> Scores:
    from interpret.privacy import DPExplainableBoostingClassifier

    model = DPExplainableBoostingClassifier(epsilon=epsilon, delta=DELTA, random_state=seed, n_jobs=1)
    model.fit(_filled(rows.train.x), rows.train.y)
    return np.asarray(model.predict_proba(_filled(rows.test.x))[:, 1], dtype=np.float64)


def _filled(x: pd.DataFrame) -> pd.DataFrame:
    """Missing numbers as the column's mean and missing categories as a word: DP-EBM takes no missing values."""
    texts = [name for name in x if x[name].dtype == object]
    numbers = [name for name in x if name not in texts]
    return x.fillna(dict.fromkeys(texts, "missing") | {name: x[name].mean() for name in numbers}).fillna(0.0)


def _diffprivlib(rows: Split, epsilon: float, seed: int) -> Scores:
    from diffprivlib.models import LogisticRegression

    prepared = _prepared(rows.train.x)
    model = LogisticRegression(epsilon=epsilon, random_state=seed)
    model.fit(prepared.fit_transform(rows.train.x), rows.train.y)
    return np.asarray(model.predict_proba(prepared.transform(rows.test.x))[:, 1], dtype=np.float64)


def _prepared(x: pd.DataFrame) -> Any:
    """Numbers with mean 0 and deviation 1, the median where missing; categories one-hot."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    texts, numbers = _kinds(x)
    return make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False, min_frequency=10), texts),
    )


def _kinds(x: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The columns of texts and those of numbers; a column without any value is in neither."""
    known = [name for name in x if x[name].notna().any()]
    texts = [name for name in known if x[name].dtype == object]
    return texts, [name for name in known if name not in texts]


def _logistic(rows: Split, epsilon: float, seed: int) -> Scores:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(_prepared(rows.train.x), LogisticRegression(max_iter=1000))
    return np.asarray(model.fit(rows.train.x, rows.train.y).decision_function(rows.test.x), dtype=np.float64)


def _boosting(rows: Split, epsilon: float, seed: int) -> Scores:
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    texts, numbers = _kinds(rows.train.x)
    coded = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    model = make_pipeline(
        make_column_transformer(("passthrough", numbers), (coded, texts)),
        HistGradientBoostingClassifier(random_state=seed),
    )
    return np.asarray(model.fit(rows.train.x, rows.train.y).decision_function(rows.test.x), dtype=np.float64)


def _frank_wolfe(rows: Split, epsilon: float, seed: int) -> Scores:
    """The radius, and how steps grow with ε · rows, come from a look at one split of adult-wide."""
    train, test = rows.features
    steps = _steps(epsilon * len(train))
    weights = frank_wolfe(train, rows.train.y, epsilon, DELTA, seed, radius=10.0, steps=steps)
    return np.asarray(test @ weights, dtype=np.float64)


def _greedy(rows: Split, epsilon: float, seed: int) -> Scores:
    """Steps as for Frank–Wolfe."""
    train, test = rows.features
    steps = _steps(epsilon * len(train))
    weights = greedy_coordinates(train, rows.train.y, epsilon, DELTA, seed, steps=steps)
    return np.asarray(test @ weights, dtype=np.float64)


def _steps(paid: float) -> int:
    return int(np.clip(round(paid ** (2 / 3) / 5), 10, 400))


def why_not_diffprivlib() -> str | None:
    """Why diffprivlib cannot be compared here, if it cannot."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import diffprivlib.models
            import sklearn
    except ImportError as error:
        return f"{type(error).__name__}: {error}".split(" (")[0]
    del diffprivlib, sklearn
    return None


METHODS: dict[str, Method] = {
    "tacit": Method("Tacit", _tacit()),
    "tacit-soft": Method("Tacit, soft", _tacit(method={"name": "tp-topk", "active_ratio": "soft"})),
    "dp-ebm": Method("DP-EBM", _dp_ebm),
    "diffprivlib": Method("diffprivlib", _diffprivlib),
    "dp-fw": Method("DP Frank–Wolfe", _frank_wolfe, wide=True),
    "dp-gcd": Method("DP greedy coordinates", _greedy, wide=True),
    "logistic": Method("logistic regression", _logistic, private=False),
    "boosting": Method("boosted trees", _boosting, private=False),
}


def auc_of(scores: Scores, y: NDArray[np.int64]) -> float:
    """The AUC of scores; one half where a score is no number."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, scores)) if np.isfinite(scores).all() else math.nan
