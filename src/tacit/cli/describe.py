"""From options on the command line, over a configuration file, to the description of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.experiments.config import Experiment


def described(
    config: Path | None,
    changes: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> Experiment:
    """The experiment of a TOML file, if there is one, with what the command line says in place of its own.

    Both go before ``defaults``.
    """
    from tacit.experiments.config_file import experiment_of, merged, read_experiment

    record = read_experiment(config) if config is not None else {}
    if config is not None:
        _beside(record, config.parent)
    return experiment_of(merged(merged(defaults or {}, record), changes))


def _beside(record: dict[str, dict[str, Any]], folder: Path) -> None:
    """Paths in a configuration file are meant as seen from where the file lies."""
    places = {"data": ("source", "schema", "data_dir", "tokenizer"), "model": ("name", "weights")}
    for section, keys in places.items():
        values = record.get(section, {})
        for key in keys:
            if key in values and (folder / values[key]).exists():
                values[key] = str(folder / values[key])
