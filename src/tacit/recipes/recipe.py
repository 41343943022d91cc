"""A recipe: settings for one data set that were tried and measured, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tacit.errors import ArgumentError, check_positive


@dataclass(frozen=True)
class Recipe:
    """Everything that a run on ``dataset`` needs besides ε and a seed.

    ``rates`` are pairs (ε, learning rate) with ε rising, chosen on a part of the training data; between them
    the rate is interpolated geometrically, beyond them it stays.
    """

    dataset: str
    rates: tuple[tuple[float, float], ...]
    features: str | None = None
    model: str = "logistic"
    method: str = "dp-sgd"
    active_ratio: float | None = None
    delta: float = 1e-5
    batch_size: int = 4096
    epochs: float = 20.0
    clip_norm: float = 0.1
    momentum: float = 0.9
    average: float | None = None
    chunk_size: int | None = 1024
    prevalence: float | None = None

    def __post_init__(self) -> None:
        budgets = [epsilon for epsilon, _ in self.rates]
        if not budgets or budgets != sorted(set(budgets)):
            raise ArgumentError(
                f"The recipe for {self.dataset!r} needs rates by rising ε, got {self.rates!r}."
            )

    def learning_rate(self, epsilon: float) -> float:
        """The learning rate at ``epsilon``."""
        check_positive("epsilon", min(epsilon, self.rates[-1][0]))
        below = [pair for pair in self.rates if pair[0] <= epsilon]
        above = [pair for pair in self.rates if pair[0] >= epsilon]
        if not below or not above:
            return (below or above)[-1 if below else 0][1]
        (low, first), (high, second) = below[-1], above[0]
        if low == high:
            return first
        share = (math.log(epsilon) - math.log(low)) / (math.log(high) - math.log(low))
        return float(f"{math.exp((1 - share) * math.log(first) + share * math.log(second)):.3g}")

    def sections(self, epsilon: float) -> dict[str, dict[str, Any]]:
        """The recipe as sections of an experiment; what it leaves open is not in them."""
        sections: dict[str, dict[str, Any]] = {
            "data": {"source": self.dataset, "features": self.features, "prevalence": self.prevalence},
            "model": {"name": self.model},
            "method": {"name": self.method, "active_ratio": self.active_ratio},
            "privacy": {"epsilon": float(epsilon), "delta": self.delta},
            "training": {
                "batch_size": self.batch_size,
                "epochs": self.epochs,
                "clip_norm": self.clip_norm,
                "momentum": self.momentum,
                "average": self.average,
                "chunk_size": self.chunk_size,
                "learning_rate": self.learning_rate(epsilon),
            },
        }
        return {
            section: {key: value for key, value in values.items() if value is not None}
            for section, values in sections.items()
        }
