"""What a page is made of: runs and comparisons, read from their directories and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tacit.errors import ArgumentError, FileError, TacitError
from tacit.files import read_json
from tacit.jobs.diagnosis import Diagnosis, Spending, diagnose, spending_of
from tacit.jobs.held_out import HeldOutCounts, read_held_out
from tacit.jobs.summary import COMPARISON_FILE, Comparison, read_comparison
from tacit.plan import Plan, load_plan
from tacit.release.ledger_file import read_ledger
from tacit.runs import Certificate, Verdict, load_certificate, verify
from tacit.runs.layout import (
    AUDIT_FILE,
    CERTIFICATE_FILE,
    EXPERIMENT_FILE,
    LEDGER_FILE,
    PLAN_FILE,
    RESULT_FILE,
)
from tacit.runs.metrics import read_metrics

Read = TypeVar("Read")


def as_number(value: object) -> float | None:
    """A finite number from a file, or ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


@dataclass(frozen=True)
class RunView:
    """One run, as its directory shows it: released, public or held-out figures only.

    ``certificate`` is there once the run is finished. What could not be read is ``None``, and the reason
    stands in ``troubles``; files that a run need not have are ``None`` without one.
    """

    name: str
    plan: Plan
    verdict: Verdict
    certificate: Certificate | None
    spending: Spending | None
    diagnosis: Diagnosis | None
    metrics: tuple[Mapping[str, Any], ...]
    result: Mapping[str, Any]
    held_out: HeldOutCounts | None
    settings: Mapping[str, Mapping[str, Any]]
    audit: Mapping[str, Any] | None
    troubles: tuple[str, ...]

    @property
    def data(self) -> str | None:
        """The name of the data; of a file or folder of the user's without the way to it."""
        source = self.settings.get("data", {}).get("source")
        return Path(source).name if isinstance(source, str) and source else None

    @property
    def model(self) -> str | None:
        """The name of the model, where the run was started from a description."""
        name = self.settings.get("model", {}).get("name")
        return name if isinstance(name, str) else None

    @property
    def measured(self) -> dict[str, float]:
        """The last figures on held-out data, the one that runs are compared by first; the loss last."""
        found = self.result.get("measured")
        if not isinstance(found, Mapping):
            found = _last_row(self.metrics)
        figures = {str(k): v for k, item in found.items() if (v := as_number(item)) is not None}
        loss = figures.pop("loss", None)
        return figures if loss is None else {**figures, "loss": loss}

    @property
    def finished(self) -> bool:
        """Whether the run reached its end."""
        return self.certificate is not None


@dataclass(frozen=True)
class Material:
    """Everything on one page, in the order in which it was asked for."""

    runs: tuple[RunView, ...]
    comparisons: tuple[tuple[str, Comparison], ...]


def read_material(paths: Sequence[Path]) -> Material:
    """Read run directories, comparisons, and folders that hold some of them."""
    found: dict[Path, None] = {}
    for path in paths:
        for place in _places(path):
            found[place] = None
    runs = [place for place in found if (place / PLAN_FILE).is_file()]
    names = dict(zip(runs, _names(runs), strict=True))
    return Material(
        tuple(replace(read_run(place), name=names[place]) for place in runs),
        tuple(
            (place.name, read_comparison(place / COMPARISON_FILE)) for place in found if place not in names
        ),
    )


def _places(path: Path) -> list[Path]:
    """The runs and comparisons that ``path`` is or holds; a folder of runs is looked into one level deep."""
    path = path.absolute()
    if not path.is_dir():
        raise FileError(f"There is no directory {path}.")
    if _is_place(path):
        return [path]
    below = [place for place in sorted(path.iterdir()) if place.is_dir() and _is_place(place)]
    if not below:
        raise ArgumentError(
            f"{path} holds no run ({PLAN_FILE}), no comparison ({COMPARISON_FILE}) and no folder with one; "
            "give the directory that tacit train or tacit compare wrote."
        )
    return below


def _is_place(path: Path) -> bool:
    return (path / PLAN_FILE).is_file() or (path / COMPARISON_FILE).is_file()


def _names(runs: Sequence[Path]) -> list[str]:
    """The name of each directory, with its parent's where it says too little."""
    plain = [run.name for run in runs]
    return [
        f"{run.parent.name}/{run.name}" if run.name == "run" or plain.count(run.name) > 1 else run.name
        for run in runs
    ]


def read_run(run_dir: Path) -> RunView:
    """Read one run and verify it. Damaged files are told on the page, except for the plan, which is needed."""
    plan = load_plan(run_dir / PLAN_FILE)
    troubles: list[str] = []
    certificate = None
    if (run_dir / CERTIFICATE_FILE).exists():
        certificate = _attempt(lambda: load_certificate(run_dir / CERTIFICATE_FILE), troubles)
    diagnosis = _attempt(lambda: diagnose(run_dir), troubles)
    if diagnosis is not None:
        spending: Spending | None = diagnosis.spending
    else:
        spending = _attempt(lambda: spending_of(plan, read_ledger(run_dir / LEDGER_FILE).charges), troubles)
    verdict = verify(run_dir)
    return RunView(
        name=run_dir.absolute().name,
        plan=plan,
        verdict=replace(verdict, problems=tuple(_without_way(p, run_dir) for p in verdict.problems)),
        certificate=certificate,
        spending=spending,
        diagnosis=diagnosis,
        metrics=tuple(read_metrics(run_dir)),
        result=_record(run_dir / RESULT_FILE, troubles) or {},
        held_out=_attempt(lambda: read_held_out(run_dir), troubles),
        settings=_settings(_record(run_dir / EXPERIMENT_FILE, troubles)),
        audit=_record(run_dir / AUDIT_FILE, troubles),
        troubles=tuple(dict.fromkeys(_without_way(trouble, run_dir) for trouble in troubles)),
    )


def _without_way(sentence: str, run_dir: Path) -> str:
    """A page travels; where its run lay on somebody's disk is nobody's business."""
    return sentence.replace(f"{run_dir}/", "").replace(str(run_dir), run_dir.absolute().name)


def _attempt(read: Callable[[], Read], troubles: list[str]) -> Read | None:
    try:
        return read()
    except TacitError as error:
        troubles.append(str(error))
        return None


def _record(path: Path, troubles: list[str]) -> Mapping[str, Any] | None:
    if not path.exists():
        return None
    found = _attempt(lambda: read_json(path), troubles)
    return found if isinstance(found, Mapping) else None


def _settings(record: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    sections = {} if record is None else record.get("experiment")
    if not isinstance(sections, Mapping):
        return {}
    return {str(name): values for name, values in sections.items() if isinstance(values, Mapping)}


def _last_row(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = [row for row in metrics if any(key.startswith("held_out_") for key in row)]
    last = rows[-1] if rows else {}
    return {key.removeprefix("held_out_"): v for key, v in last.items() if key.startswith("held_out_")}
