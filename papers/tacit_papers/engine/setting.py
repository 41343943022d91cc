"""What the reproductions have in common: how thoroughly to run, where, and how a result is kept."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import ArgumentError, check_count
from tacit.jobs.problem import load_problem
from tacit.jobs.recipes import recipe
from tacit.jobs.settings import Experiment, experiment_of
from tacit_papers.engine.contest import Contestant, Meter, Outcome, contest

FORMAT = "tacit-results-1"
RATE_FACTORS = (0.5, 1.0, 2.0)
"""Every method tries the recipe's learning rate and these multiples of it."""


@dataclass(frozen=True)
class Setting:
    """How thoroughly to run: ``quick`` is a check that everything works, on raw pixels and a few epochs."""

    datasets: tuple[str, ...]
    epsilons: tuple[float, ...]
    seeds: int
    out: Path
    workers: int
    quick: bool = False
    data_dir: str | None = None
    shown: bool = True

    def __post_init__(self) -> None:
        check_count("seeds", self.seeds)
        check_count("workers", self.workers)

    @property
    def rate_factors(self) -> tuple[float, ...]:
        """The multiples of the recipe's rate that every method tries."""
        return (1.0,) if self.quick else RATE_FACTORS

    def experiment(self, dataset: str, epsilon: float, **method: Any) -> Experiment:
        """The recipe of ``dataset`` with another method in place of its own."""
        sections = recipe(dataset).sections(epsilon)
        if sections["method"]["name"] == "centred" and method.get("name") != "centred":
            sections["model"] = {"name": "unit-linear"}  # the same layer, where nothing learns a centre
        sections["method"] = method
        if self.data_dir is not None:
            sections["data"]["data_dir"] = self.data_dir
        if self.quick:
            sections["data"].pop("features", None)
            sections["training"]["epochs"] = 3.0
        return experiment_of(sections)

    def prepare(self, experiments: Sequence[Experiment]) -> None:
        """Load all data once, so that mistakes show at once and features are on disk before workers start."""
        for data in dict.fromkeys(experiment.data for experiment in experiments):
            load_problem(data)

    def outcomes(self, name: str, group: Sequence[Contestant], measure: str) -> list[Outcome]:
        """What all contestants of one table reach, chosen and compared by ``measure``."""
        self.prepare([contestant.experiment for contestant in group])
        with self.meter() as meter:
            return contest(
                name,
                group,
                measure,
                seeds=self.seeds,
                out=self.out / "runs",
                workers=self.workers,
                meter=meter,
            )

    def meter(self) -> Meter:
        """A meter for the runs."""
        return Meter(shown=self.shown)


def choose(option: str, given: Sequence[Any] | None, known: Sequence[Any]) -> tuple[Any, ...]:
    """``given`` if all of it is known, else a refusal; everything where nothing is given."""
    for value in given or ():
        if value not in known:
            raise ArgumentError(
                f"{option} {value} is not in this table; there are {', '.join(map(str, known))}."
            )
    return tuple(given or known)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; the latter is None for a single seed."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return float(np.mean(values)), deviation


def outcome_record(outcome: Outcome, measures: Sequence[str]) -> dict[str, Any]:
    """An outcome in plain values: each measure with its values by seed, mean and deviation."""
    figures = {}
    for measure in measures:
        values = outcome.values(measure)
        mean, deviation = mean_and_deviation(values)
        figures[measure] = {
            "values": [_plain(v) for v in values],
            "mean": _plain(mean),
            "deviation": deviation,
        }
    return {
        "learning_rate": outcome.rate,
        "validation": [[rate, _plain(value)] for rate, value in outcome.tuning],
        "active": outcome.runs[-1].active,
        "coordinates": outcome.runs[-1].coordinates,
        **figures,
    }


def result_record(
    name: str,
    setting: Setting,
    rows: list[dict[str, Any]],
    processor_seconds: float,
    started: float,
    **about: Any,
) -> dict[str, Any]:
    """A whole result with what is needed to judge and repeat it."""
    return {
        "format": FORMAT,
        "name": name,
        "command": command(name, setting),
        "commit": commit(),
        "quick": setting.quick,
        "seeds": setting.seeds,
        "processor_minutes": round(processor_seconds / 60, 1),
        "minutes": round((time.monotonic() - started) / 60, 1),
        **about,
        "rows": rows,
    }


def command(name: str, setting: Setting) -> str:
    """The command that makes this result."""
    parts = ["tacit reproduce", name]
    parts += [f"--dataset {dataset}" for dataset in setting.datasets]
    parts += [f"--epsilon {epsilon:g}" for epsilon in setting.epsilons]
    parts += [f"--seeds {setting.seeds}", *(["--quick"] if setting.quick else [])]
    return " ".join(parts)


def commit() -> str | None:
    """The commit of the code that runs, with a mark if it was changed since; None outside a checkout."""
    place = Path(sys.modules["tacit"].__file__ or "").parent
    try:
        said = [
            subprocess.run(
                ("git", "-C", str(place), *rest), capture_output=True, text=True, check=True
            ).stdout
            for rest in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--", "."))
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return said[0].strip() + (" with changes" if said[1].strip() else "")


def _plain(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
