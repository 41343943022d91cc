"""Objects named by an import path, ``module:object``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, TypeVar

from tacit.errors import ArgumentError

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
