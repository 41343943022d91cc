"""The recipes by data set and name."""

from __future__ import annotations

from tacit.errors import ArgumentError
from tacit.recipes.recipe import Recipe

RECIPES: dict[tuple[str, str], Recipe] = {
    ("mnist", "best"): Recipe(
        "mnist", ((1.0, 100.0), (3.0, 200.0), (8.0, 300.0)), features="scattering-upright", average=0.98
    ),
    ("fmnist", "best"): Recipe(
        "fmnist", ((1.0, 100.0), (3.0, 250.0), (8.0, 600.0)), features="scattering-on-black", average=0.98
    ),
    ("cifar10", "best"): Recipe(
        "cifar10", ((1.0, 100.0), (3.0, 280.0), (8.0, 450.0)), features="patches", average=0.98
    ),
    ("aptos-any", "best"): Recipe(
        "aptos-any", ((1.0, 20.0), (8.0, 80.0)), features="scattering", batch_size=512, epochs=40.0
    ),
    # 3,494 of the 4,708 published training images show pneumonia.
    ("pneumoniamnist", "best"): Recipe(
        "pneumoniamnist",
        ((1.0, 20.0), (8.0, 80.0)),
        features="scattering",
        batch_size=512,
        epochs=40.0,
        prevalence=0.742,
    ),
    # Diagnosed diabetes in the US population: National Diabetes Statistics Report 2020, CDC.
    ("nhanes", "best"): Recipe(
        "nhanes",
        ((1.0, 0.5), (8.0, 0.5)),
        batch_size=1024,
        epochs=40.0,
        clip_norm=4.0,
        momentum=0.0,
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
