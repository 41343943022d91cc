from __future__ import annotations

import pytest

from tacit.data import LOADERS
from tacit.data.features import FEATURES
from tacit.errors import ArgumentError
from tacit.jobs.recipes import RECIPES, Recipe, recipe
from tacit.jobs.settings import experiment_of
from tacit.models.registry import MODELS


@pytest.mark.parametrize("place", RECIPES, ids=str)
def test_every_recipe_describes_an_experiment(place: tuple[str, str]) -> None:
    own = RECIPES[place]
    assert own.dataset == place[0]
    assert own.dataset in LOADERS
    assert own.model in MODELS
    assert own.features is None or own.features in FEATURES
    experiment = experiment_of(own.sections(3))
    assert experiment.privacy.epsilon == 3
    assert experiment.privacy.delta == 1e-5
    assert experiment.training.learning_rate == own.learning_rate(3)


def test_the_learning_rate_lies_between_its_neighbours() -> None:
    own = Recipe("mnist", ((1.0, 10.0), (4.0, 40.0)))
    assert own.learning_rate(1) == 10
    assert own.learning_rate(2) == pytest.approx(20)
    assert own.learning_rate(4) == 40
    assert own.learning_rate(0.5) == 10
    assert own.learning_rate(float("inf")) == 40


def test_bad_recipes_and_names_are_refused() -> None:
    with pytest.raises(ArgumentError, match="rising"):
        Recipe("mnist", ((3.0, 1.0), (1.0, 1.0)))
    with pytest.raises(ArgumentError, match="no recipe 'worst' for 'mnist'; there is best"):
        recipe("mnist", "worst")
    with pytest.raises(ArgumentError, match="no recipe for 'adult'; there are recipes for mnist"):
        recipe("adult")
    with pytest.raises(ArgumentError, match="epsilon"):
        recipe("mnist").learning_rate(-1)
