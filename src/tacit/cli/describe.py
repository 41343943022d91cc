"""From options on the command line, over a configuration file, to the description of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.jobs.description import Experiment


def described(
    config: Path | None,
    changes: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    recipe: str | None = None,
) -> Experiment:
    """The experiment of a TOML file, if there is one, with what the command line says in place of its own.

    Both go before what ``recipe`` says for the data set and the ε that they name. ``defaults`` go behind a file.
    """
    from tacit.jobs.description import experiment_of, merged, read_experiment

    record = read_experiment(config) if config is not None else {}
    if config is not None:
        _beside(record, config.parent)
    record = merged(merged(defaults or {}, record), changes)
    if recipe is not None:
        record = merged(_sections(recipe, experiment_of(record)), record)
    return experiment_of(record)


def _sections(name: str, experiment: Experiment) -> dict[str, dict[str, Any]]:
    from tacit.errors import ArgumentError
    from tacit.jobs.recipes import recipe

    if not experiment.data.source:
        raise ArgumentError(f"Name the data set that the recipe {name!r} is for, as in tacit train fmnist.")
    return recipe(experiment.data.source, name).sections(experiment.privacy.epsilon)


def _beside(record: dict[str, dict[str, Any]], folder: Path) -> None:
    """Paths in a configuration file are meant as seen from where the file lies."""
    places = {"data": ("source", "schema", "data_dir", "tokenizer"), "model": ("name", "weights")}
    for section, keys in places.items():
        values = record.get(section, {})
        for key in keys:
            if key in values and (folder / values[key]).exists():
                values[key] = str(folder / values[key])
