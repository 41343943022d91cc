"""A whole federation on this machine: a public data set shared out among sites, each with a vault of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.data import Task, load
from tacit.data.records import Records
from tacit.errors import ArgumentError, FileError, TacitError, check_count
from tacit.federated.flower.processes import end_with_parent
from tacit.federated.folder_lock import FolderLock
from tacit.jobs.defaults import default_delta
from tacit.jobs.held_out import measures
from tacit.name_lists import listed
from tacit.plan import load_plan
from tacit.release.ledger_file import read_ledger
from tacit.runs.layout import CHECKPOINT_FILE, LEDGER_FILE, PLAN_FILE
from tacit.sites.coordinator import Coordinator, Progress
from tacit.sites.masks import make_key
from tacit.sites.options import Training
from tacit.sites.records import RECORDS_FILE, load_records
from tacit.sites.reserving import give_back_shared, reserve_shared
from tacit.sites.terms import TERMS_FILE, Terms, read_terms
from tacit.sites.transport import Sockets
from tacit.sites.vault import SITE_FILE, Site, create_site, plan_of, secure_sum_of
from tacit.training.evaluation import accuracy, evaluate

COORDINATOR, LOCK_FILE = "coordinator", "run.lock"
_SECONDS_TO_START, _SECONDS_TO_END = 300.0, 60.0


@dataclass(frozen=True)
class Outcome:
    """How good the model is on rows that no site holds, and what the coordinator wrote about the training."""

    measured: Mapping[str, float]
    constant: float
    summary: Mapping[str, object]
    folders: tuple[Path, ...]


def shared_out(task: Task, sites: int, seed: int, column: str | None = None) -> list[Records]:
    """The training rows of a data set in equal parts: at random or sorted by ``column``, so that sites differ."""
    check_count("sites", sites)
    if not isinstance(task.train, TensorDataset) or task.schema is None:
        raise ArgumentError(f"Sites hold rows of a table with a schema; {task.name!r} is none.")
    records = Records(task.train.tensors[0], task.train.tensors[1])
    if sites > len(records.x) // 2:
        raise ArgumentError(f"{task.name!r} has {len(records.x)} rows; {sites} sites need two each.")
    order = torch.randperm(len(records.x), generator=torch.Generator().manual_seed(seed))
    if column is not None:
        order = order[_sort_key(task, column, records.x)[order].argsort(stable=True)]
    return [records.part(rows) for rows in order.tensor_split(sites)]


def run_on_this_machine(
    folder: Path,
    name: str,
    training: Training,
    *,
    sites: int,
    epsilon: float,
    seed: int = 0,
    column: str | None = None,
    data_dir: str | None = None,
    quorum: int | None = None,
    learning_rate: float | None = None,
    secure_sum: bool = False,
    honest: int | None = None,
    on_round: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Make the sites, start their vaults, train to the end, stop them; the same call continues where it was stopped.

    Where the data set has a budget (``tacit budget``), what a record may lose is reserved there first.
    With ``secure_sum`` only the sum over all sites can be read, and ``honest`` of them make up its noise.
    """
    task = load(name, data_dir)
    parts = shared_out(task, sites, seed, column)
    assert task.schema is not None
    with FolderLock(folder / LOCK_FILE, "The run's folder"):
        folders = [folder / f"site-{number + 1}" for number in range(sites)]
        terms = Terms(training, task.schema)
        if secure_sum:
            terms = _summed(folder, terms, folders, epsilon, honest, max(part.count for part in parts))
        _make_sites(folder, name, terms, dict(zip(folders, parts, strict=True)), epsilon)
        own = folder / COORDINATOR
        if not (own / TERMS_FILE).exists():
            terms.write(own / TERMS_FILE)
        elif (own / TERMS_FILE).read_text(encoding="utf-8") != terms.text:
            raise FileError(
                f"{folder} holds a training with other terms; use the same as before, or another folder."
            )
        with vaults(folders) as sockets:
            coordinator = Coordinator(
                own, list(sockets), Sockets(sockets), quorum=quorum, learning_rate=learning_rate
            )
            coordinator.run(on_round)
        assert task.held_out is not None
        return Outcome(
            judged(coordinator.terms, coordinator.model, task.held_out),
            constant_accuracy(task),
            coordinator.summary(),
            tuple(folders),
        )


def _make_sites(folder: Path, name: str, terms: Terms, parts: Mapping[Path, Records], epsilon: float) -> None:
    """Make the sites that are not there yet, once the budget of the data, if it has one, has let all of them in."""
    missing = {place: part for place, part in parts.items() if not (place / SITE_FILE).is_file()}
    for place in parts.keys() - missing.keys():
        _check_same(place, parts[place], epsilon)
    for place in missing:
        _check_never_asked(place)
    reserved = None
    try:
        reserved = reserve_shared(folder, name, [plan_of(terms, part, epsilon) for part in parts.values()])
        for place, part in missing.items():
            shutil.rmtree(place, ignore_errors=True)
            key = None if terms.sum is None else _key(place)
            create_site(place, terms, part, Site(), epsilon=epsilon, key=key)
    except BaseException:
        if not any((place / SITE_FILE).is_file() for place in parts):
            give_back_shared(folder, reserved)
            if not (folder / COORDINATOR / CHECKPOINT_FILE).exists():  # terms that no site has agreed to
                (folder / COORDINATOR / TERMS_FILE).unlink(missing_ok=True)
        raise


def judged(terms: Terms, model: nn.Module, rows: object) -> dict[str, float]:
    """What a model is worth on rows that are public, or that no site holds."""
    kind = terms.schema.target.kind
    figures = dict(measures(kind))
    if kind == "binary":
        figures = {"accuracy": accuracy, **figures}
    return evaluate(model, terms.loss, rows, figures)  # type: ignore[arg-type]


def constant_accuracy(task: Task) -> float:
    """The accuracy of always naming the class that is most frequent among the held-out rows."""
    assert task.held_out is not None
    _, y = task.held_out.tensors  # type: ignore[attr-defined]
    return float(torch.bincount(y.flatten().long()).max()) / len(y) if task.kind != "regression" else 0.0


@contextmanager
def vaults(folders: list[Path]) -> Iterator[dict[str, Path]]:
    """Start a vault for each folder, in its own process; stop all at the end, which writes their certificates."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as place:
        sockets = {folder.name: Path(place) / f"{folder.name}.sock" for folder in folders}
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for folder in folders:
                command = [sys.executable, "-m", "tacit", "site", "serve", str(folder.resolve())]
                with folder.with_name(f"{folder.name}.log").open("ab") as log:
                    processes[folder.name] = subprocess.Popen(
                        [*command, "--socket", str(sockets[folder.name])],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env={**os.environ, "OMP_NUM_THREADS": "1"},
                        start_new_session=True,
                        preexec_fn=end_with_parent,
                    )
            _wait_for(sockets, processes)
            yield sockets
        finally:
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                try:
                    process.wait(_SECONDS_TO_END)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _summed(
    folder: Path, terms: Terms, sites: list[Path], epsilon: float, honest: int | None, largest: int
) -> Terms:
    """Terms with a secure sum: those of before, or new ones with a new key for each site."""
    before = folder / COORDINATOR / TERMS_FILE
    if before.exists():
        found = read_terms(before)
        if found.sum is None or found != Terms(terms.training, terms.schema, found.sum):
            raise FileError(
                f"{folder} holds a training with other terms; use the same as before, or another folder."
            )
        return found
    for place in sites:
        if place.exists():
            raise FileError(f"{place} belongs to a training whose terms are gone; use another folder.")
        _key(place).unlink(missing_ok=True)
    members = tuple((place.name, make_key(_key(place))) for place in sites)
    made = Terms(
        terms.training,
        terms.schema,
        secure_sum_of(terms.training, members, epsilon, default_delta(largest), honest),
    )
    made.write(before)
    return made


def _key(place: Path) -> Path:
    return place.with_name(f"{place.name}.key")


def _check_same(folder: Path, part: Records, epsilon: float) -> None:
    """Refuse a site of an earlier run whose records are not those of this one: some would be among the test rows."""
    found = load_records(folder / RECORDS_FILE)
    if not (torch.equal(found.x, part.x) and torch.equal(found.y, part.y)):
        raise FileError(
            f"{folder} has other records than this run gives it: another data set, seed, split or number of sites. Use "
            "the same as before, or another folder."
        )
    plan = load_plan(folder / PLAN_FILE)
    if plan.epsilon > epsilon if plan.sites else plan.epsilon != epsilon:
        raise FileError(
            f"{folder} was made with another ε than {epsilon:g}; use the same, or another folder."
        )


def _check_never_asked(folder: Path) -> None:
    """Refuse to make a site anew where one lies that has paid for answers: its ledger would be forgotten."""
    path = folder / LEDGER_FILE
    if path.exists() and read_ledger(path).charges:
        raise FileError(
            f"{folder} lacks {SITE_FILE}, and its ledger holds charges: bring the file back, or use another folder."
        )


def _wait_for(sockets: Mapping[str, Path], processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while not all(path.exists() for path in sockets.values()):
        for name, process in processes.items():
            if process.poll() is not None:
                raise TacitError(
                    f"The vault of {name} has ended with code {process.returncode}; see {name}.log."
                )
        if time.monotonic() > deadline:
            raise TacitError(
                f"Some vaults do not listen after {_SECONDS_TO_START:g} seconds; see their logs."
            )
        time.sleep(0.05)


def _sort_key(task: Task, column: str, x: Tensor) -> Tensor:
    """What rows are sorted by: a number itself, a category by its place in the schema."""
    names = list(task.features)
    own = [
        i for i, name in enumerate(names) if name == column or name.startswith((f"{column} = ", f"{column} "))
    ]
    if not own:
        columns = list(dict.fromkeys(name.split(" = ")[0] for name in names))
        raise ArgumentError(f"There is no column {column!r}; there are {listed(columns)}.")
    return x[:, own[0]] if names[own[0]] == column else x[:, own].argmax(1).float()
