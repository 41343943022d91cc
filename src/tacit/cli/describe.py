"""From options on the command line, over a configuration file, to the description of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.experiments.config import Experiment


def described(config: Path | None, changes: Mapping[str, Mapping[str, Any]]) -> Experiment:
    """The experiment of a TOML file, if there is one, with what the command line says in place of its own."""
    from tacit.experiments.config_file import experiment_of, merged, read_experiment

    record = read_experiment(config) if config is not None else {}
    if config is not None:
        _beside(record, config.parent)
    return experiment_of(merged(record, changes))


def _beside(record: dict[str, dict[str, Any]], folder: Path) -> None:
    """Paths in a configuration file are meant as seen from where the file lies."""
    data = record.get("data", {})
    for key in ("source", "schema", "data_dir"):
        if key in data and (folder / data[key]).exists():
            data[key] = str(folder / data[key])
