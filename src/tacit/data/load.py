"""The built-in data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tacit.data import images, nhanes, tabular, text
from tacit.data.sources import default_data_dir
from tacit.data.table import listed
from tacit.data.task import Task
from tacit.errors import ArgumentError, FileError

Loader = Callable[[Path, bool], Task]


def _without_files(load: Callable[[], Task]) -> Loader:
    return lambda data_dir, download: load()


def _aptos(any_grade: bool) -> Loader:
    return lambda data_dir, download: images.load_aptos(data_dir, any_grade)


LOADERS: dict[str, Loader] = {
    "nhanes": _without_files(nhanes.load_nhanes),
    "digits": _without_files(images.load_digits),
    "mnist": partial(images.load_idx_task, "mnist"),
    "fmnist": partial(images.load_idx_task, "fmnist"),
    "cifar10": images.load_cifar10,
    "pneumoniamnist": images.load_pneumoniamnist,
    "aptos": _aptos(any_grade=False),
    "aptos-any": _aptos(any_grade=True),
    "adult": tabular.load_adult,
    "bank": tabular.load_bank,
    "kdd99": tabular.load_kdd99,
    "sst2": text.load_sst2,
}


def load(name: str, data_dir: str | Path | None = None, *, download: bool = True) -> Task:
    """Return the built-in task ``name``.

    ``nhanes`` and ``digits`` come with installed packages. The files of the others are looked for in
    ``data_dir`` (else in the directory named by TACIT_DATA, else in the user's cache) and, where
    ``download`` allows it, fetched into it from where they are published, with their checksums.
    """
    if name not in LOADERS:
        raise ArgumentError(
            f"There is no data set {name!r}; there are {listed(list(LOADERS), len(LOADERS))}."
        )
    if data_dir is not None and not Path(data_dir).is_dir():
        raise FileError(f"The data directory {data_dir} does not exist.")
    return LOADERS[name](Path(data_dir) if data_dir is not None else default_data_dir(), download)
