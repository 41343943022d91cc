"""Recipes: settings that were found on public data, by name."""

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
    model: str = "centred-linear"
    method: str = "centred"
    active_ratio: float | None = None
    delta: float = 1e-5
    batch_size: int = 8_192
    epochs: float = 20.0
    clip_norm: float = 0.1
    momentum: float = 0.0
    schedule: str = "constant"
    average: float | None = 0.97
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
                "schedule": self.schedule,
                "average": self.average,
                "chunk_size": self.chunk_size,
                "learning_rate": self.learning_rate(epsilon),
            },
        }
        return {
            section: {key: value for key, value in values.items() if value is not None}
            for section, values in sections.items()
        }


_FEW_IMAGES: dict[str, Any] = {
    "features": "scattering",
    "model": "unit-linear",
    "method": "dp-sgd",
    "batch_size": 512,
    "epochs": 40.0,
    "momentum": 0.9,
    "average": None,
}
"""A few thousand images: the noise of a centre would be too long."""

RECIPES: dict[tuple[str, str], Recipe] = {
    ("mnist", "best"): Recipe(
        "mnist", ((1.0, 1500.0), (3.0, 2200.0), (8.0, 4000.0)), features="scattering-upright"
    ),
    ("fmnist", "best"): Recipe(
        "fmnist", ((1.0, 2200.0), (3.0, 3500.0), (8.0, 5500.0)), features="network-on-black"
    ),
    ("cifar10", "best"): Recipe(
        "cifar10", ((1.0, 1800.0), (3.0, 4000.0), (8.0, 7000.0)), features="patches-network"
    ),
    ("aptos-any", "best"): Recipe("aptos-any", ((1.0, 20.0), (8.0, 80.0)), **_FEW_IMAGES),
    # 3,494 of the 4,708 published training images show pneumonia.
    ("pneumoniamnist", "best"): Recipe(
        "pneumoniamnist", ((1.0, 5.0), (8.0, 40.0)), prevalence=0.742, **_FEW_IMAGES
    ),
    # Diagnosed diabetes in the US population: National Diabetes Statistics Report 2020, CDC.
    ("nhanes", "best"): Recipe(
        "nhanes",
        ((1.0, 0.5), (8.0, 0.5)),
        model="logistic",
        method="dp-sgd",
        batch_size=1024,
        epochs=40.0,
        clip_norm=4.0,
        average=None,
        prevalence=0.082,
    ),
}


def recipe(dataset: str, name: str = "best") -> Recipe:
    """The recipe ``name`` for the built-in data set ``dataset``."""
    if (dataset, name) in RECIPES:
        return RECIPES[dataset, name]
    known = [other for data, other in RECIPES if data == dataset]
    if known:
        raise ArgumentError(f"There is no recipe {name!r} for {dataset!r}; there is {', '.join(known)}.")
    datasets = dict.fromkeys(data for data, _ in RECIPES)
    raise ArgumentError(f"There is no recipe for {dataset!r}; there are recipes for {', '.join(datasets)}.")
