"""Files of what was computed once: constants and vectors. A damaged or edited one is refused."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from tacit.errors import FileError
from tacit.tensors import read_tensors, write_tensors

CACHE_VARIABLE = "TACIT_CACHE"


def cache_dir() -> Path:
    """The directory named by TACIT_CACHE, else a directory in the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit" / "features"


def keep(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write ``tensors`` to ``path``, whole or not at all, with the name under which they belong there."""
    write_tensors(path, tensors, {"name": path.stem})


def read_kept(path: Path) -> dict[str, Tensor]:
    """What ``keep`` wrote to ``path``, mapped into memory: processes that read the same file share it."""
    if path.is_dir():
        raise FileError(f"{path} is a folder where a file of features belongs; move it away.")
    try:
        tensors, about = read_tensors(path)
    except FileError as error:
        raise FileError(f"{str(error).rstrip('.')}; delete it to compute it again.") from error
    if about not in (None, {"name": path.stem}):  # earlier versions noted nothing
        raise FileError(
            f"{path} was made for other images or by another transform, and got its name later; delete it to compute "
            "it again."
        )
    return tensors
