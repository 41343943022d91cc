"""What training on images starts from: a pretrained network, or features that no data set went into.

Which is better depends on the images, and private images must not be asked without paying. So the choice is made on
public images where the user names some, by training on them from each start. Otherwise a rule decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.data.row_groups import parquet_files
from tacit.errors import ArgumentError
from tacit.jobs.budget import find_budget
from tacit.jobs.problem import IMAGE_SIZE
from tacit.jobs.recipes import RECIPES
from tacit.jobs.settings import DataConfig, Experiment
from tacit.models.pretrained import MOBILENET

FEATURES = "scattering"
PATCHES = "patches-full"
FEATURE_SIZE = 32
"""Side of the images that data-free features are computed from: larger ones have too many coefficients."""
SEEDS = (0, 1)
"""Runs on public images per start, whose mean decides."""
MOST_EPSILON = 100.0


@dataclass(frozen=True)
class Start:
    """A network by name, or features by name, to train a last layer on."""

    model: str | None = None
    features: str | None = None

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.model or f"the features {self.features}"

    def of(self, experiment: Experiment) -> Experiment:
        """``experiment`` from this start."""
        data = replace(experiment.data, features=self.features, public=None)
        if self.features is not None and data.image_size is None:
            data = replace(data, image_size=FEATURE_SIZE)
        return replace(experiment, data=data, model=replace(experiment.model, name=self.model))


STARTS = (Start(model=MOBILENET), Start(features=FEATURES))
"""What is compared on public images. Without any, ``by_rule`` decides."""


def by_rule(experiment: Experiment) -> tuple[Experiment, str]:
    """``experiment`` on features where public facts speak for them, and a sentence that says so.

    Grey images are unlike the photographs that networks are pretrained on, and built-in data sets have recipes.
    Whoever names a network, a part of one, features or another way than a last layer has chosen already.
    """
    data, model = experiment.data, experiment.model
    network = [value for name, value in vars(model).items() if value is not None and name != "image_size"]
    if (
        network
        or data.features is not None
        or experiment.method.name != "last-layer"
        or experiment.method.given
    ):
        return experiment, ""
    known = RECIPES.get((data.source, "best"))
    if known is not None and known.features is not None:
        features, reason = known.features, f"the recipe for {data.source} has them"
    elif data.grey and Path(data.source).is_dir():
        features, reason = FEATURES, "the images are grey"
    else:
        return experiment, ""
    why = f"Start: the features {features}, because {reason}; --model {MOBILENET} takes a pretrained network."
    return replace(experiment, data=replace(data, features=features)), why


LARGEST_ON_PATCHES = 64
"""Side of images beyond which patches would take too long: the time grows with the area."""


def for_folder(experiment: Experiment) -> tuple[Experiment, str]:
    """``experiment`` on features if it trains on an image folder and nothing was said about how, and a sentence.

    Private networks from scratch stay far behind a linear layer on features (docs/results/tp-topk.md).
    """
    data, model = experiment.data, experiment.model
    named = [value for value in vars(model).values() if value is not None]
    source = Path(data.source)
    if named or data.features is not None or experiment.method.chosen or data.tokenizer or data.text:
        return experiment, ""
    if not source.is_dir() or parquet_files(source):
        return experiment, ""
    side = data.image_size or IMAGE_SIZE
    if 16 <= side <= LARGEST_ON_PATCHES and not data.grey:
        features = PATCHES
    elif side % 4 == 0 and side <= FEATURE_SIZE:
        features = FEATURES
    else:
        return experiment, ""
    why = (
        f"Model: a linear layer on the features {features}, which no data set went into; "
        "--model tanh-cnn trains a network from scratch."
    )
    return replace(experiment, data=replace(data, features=features)), why


def on_public(experiment: Experiment) -> Experiment:
    """The same job on the public images that ``experiment`` names."""
    public = experiment.data.public
    assert public is not None
    data = replace(experiment.data, source=public, public=None, unit=None, fold=None, validation=None)
    return replace(experiment, data=data)


def epsilon_on_public(epsilon: float, private: int, public: int) -> float:
    """ε that leaves of ``public`` images what ``epsilon`` leaves of ``private`` ones: that goes with their product."""
    return min(MOST_EPSILON, epsilon * private / public)


def best_start(scores: Mapping[Start, float], public: str) -> tuple[Start, str]:
    """The start that does best, and a sentence that says so."""
    best = max(scores, key=lambda start: scores[start] if math.isfinite(scores[start]) else -math.inf)
    told = ", ".join(f"{start.name} {score:.3f}" for start, score in scores.items())
    return best, f"Start: {best.name}, chosen on the public images in {public} ({told})."


def check_public(data: DataConfig) -> None:
    """Refuse public images that are private ones: those that are trained on, or that have a budget."""
    assert data.public is not None
    public, source = Path(data.public).resolve(), Path(data.source).resolve()
    if not public.is_dir() or not source.is_dir():
        raise ArgumentError(
            "public names a folder of images, for a SOURCE that is one: a subfolder per class."
        )
    if public == source or public.is_relative_to(source) or source.is_relative_to(public):
        raise ArgumentError(f"public names the private images themselves, or a part of them: {data.public}.")
    budget = find_budget(str(public))
    if budget is not None:
        raise ArgumentError(f"{data.public} has the budget {budget.name!r}, so it is not public.")
