"""Models as a flat weight vector with per-client gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError, check_count, check_non_negative

Floats = NDArray[np.float32]
MODELS = ("logistic", "svm")


class Model(Protocol):
    """A model whose weights are one vector of ``d`` numbers."""

    @property
    def d(self) -> int:
        """The number of weights."""
        ...

    def initial(self) -> Floats:
        """Return the weights that training starts from: public, the same for everyone."""
        ...

    def gradients(self, weights: Floats, x: NDArray[np.generic], y: Floats) -> Floats:
        """Return the gradient of the loss of each record, one row per client."""
        ...

    def margins(self, weights: Floats, x: NDArray[np.generic]) -> Floats:
        """Return one number per record: the larger, the more +1 than −1; at least 0 where +1 is predicted."""
        ...


@dataclass(frozen=True)
class _Linear:
    d: int
    l2: float = 1e-4

    def __post_init__(self) -> None:
        check_count("d", self.d, least=2)
        check_non_negative("l2", self.l2)

    def initial(self) -> Floats:
        """Return zeros."""
        return np.zeros(self.d, np.float32)

    def margins(self, weights: Floats, x: NDArray[np.generic]) -> Floats:
        """Return the distance of each record from the hyperplane, in units of 1/‖w‖."""
        result: Floats = np.asarray(x, np.float32) @ weights
        return result


class Logistic(_Linear):
    """L2-regularised logistic regression: ln(1 + exp(−y w·x)) + λ‖w‖²/2."""

    def gradients(self, weights: Floats, x: NDArray[np.generic], y: Floats) -> Floats:
        """Return −y x / (1 + exp(y w·x)) + λ w for each record."""
        records = np.asarray(x, np.float32)
        with np.errstate(over="ignore"):
            slope = -y / (1 + np.exp(y * (records @ weights)))
        result: Floats = slope[:, None] * records + np.float32(self.l2) * weights
        return result


class LinearSVM(_Linear):
    """L2-regularised linear support vector machine: max(0, 1 − y w·x) + λ‖w‖²/2."""

    def gradients(self, weights: Floats, x: NDArray[np.generic], y: Floats) -> Floats:
        """Return −y x + λ w where the margin is below 1, λ w elsewhere."""
        records = np.asarray(x, np.float32)
        slope = np.where(y * (records @ weights) < 1, -y, np.float32(0))
        result: Floats = slope[:, None] * records + np.float32(self.l2) * weights
        return result


def linear_model(name: str, d: int, l2: float = 1e-4) -> Model:
    """Return the linear model called ``name``."""
    match name:
        case "logistic":
            return Logistic(d, l2)
        case "svm":
            return LinearSVM(d, l2)
    raise ArgumentError(f"There is no model {name!r}; choose one of {', '.join(MODELS)}.")


def predict(model: Model, weights: Floats, x: NDArray[np.generic]) -> Floats:
    """Return the predicted label, −1 or +1, of each record."""
    return np.where(model.margins(weights, x) >= 0, np.float32(1), np.float32(-1))
