"""A trained model as a scikit-learn estimator that is fitted already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.errors import ArgumentError

if TYPE_CHECKING:
    from tacit.jobs.prediction import Predictor


def fitted_estimator(predictor: Predictor) -> Any:
    """A classifier or regressor for pipelines and scores of scikit-learn. Fitting it again is refused."""
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    except ImportError as error:
        raise ArgumentError("An estimator needs scikit-learn: run pip install 'tacit-dp[data]'.") from error
    if predictor.schema is None:
        raise ArgumentError("Only models of tables become scikit-learn estimators.")
    names = np.array(list(predictor.schema.columns), dtype=object)

    class Fitted(BaseEstimator):  # type: ignore[misc]
        """Predictions of a trained Tacit model."""

        def __init__(self) -> None:
            self.feature_names_in_ = names
            self.n_features_in_ = len(names)

        def __sklearn_is_fitted__(self) -> bool:
            return True

        def __sklearn_clone__(self) -> Fitted:
            return self

        def fit(self, X: Any, y: Any = None) -> Fitted:
            """Refused: training spends ε, and is started with tacit train."""
            raise ArgumentError(
                "This model is trained already; training again would spend ε: use tacit train."
            )

        def predict(self, X: Any) -> Any:
            """The class or the value of every row of a data frame or dictionary of columns."""
            return predictor.predict(X).predicted

    class FittedClassifier(ClassifierMixin, Fitted):  # type: ignore[misc]
        """Classes and probabilities of a trained Tacit model."""

        def __init__(self) -> None:
            super().__init__()
            self.classes_ = np.array(predictor.classes, dtype=object)

        def predict_proba(self, X: Any) -> Any:
            """The probability of every class, in the order of ``classes_``."""
            return predictor.predict(X).probabilities

    class FittedRegressor(RegressorMixin, Fitted):  # type: ignore[misc]
        """Values of a trained Tacit model, in the target's own unit."""

    return FittedRegressor() if predictor.kind == "regression" else FittedClassifier()
