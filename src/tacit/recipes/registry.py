"""The recipes by data set and name."""

from __future__ import annotations

from tacit.errors import ArgumentError
from tacit.recipes.recipe import Recipe

RECIPES: dict[tuple[str, str], Recipe] = {
    ("mnist", "best"): Recipe(
        "mnist", ((1.0, 8.0), (3.0, 16.0), (8.0, 30.0)), features="patches-upright"
    ),
    ("fmnist", "best"): Recipe(
        "fmnist", ((1.0, 8.0), (3.0, 16.0), (8.0, 30.0)), features="patches-upright"
    ),
    ("cifar10", "best"): Recipe("cifar10", ((1.0, 8.0), (3.0, 16.0), (8.0, 30.0)), features="patches"),
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
