"""Recipes: the best settings that we measured for a data set, usable by name.

``tacit train fmnist --recipe best --epsilon 1`` trains by one; ``recipe("fmnist").sections(1.0)`` shows it. The
settings were chosen on a part of the same training data, which ε does not cover.
"""

from __future__ import annotations

from tacit.recipes.recipe import Recipe
from tacit.recipes.registry import RECIPES, recipe

__all__ = ["RECIPES", "Recipe", "recipe"]
