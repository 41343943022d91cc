"""Data sets and their preparation from public facts.

``load`` gives the built-in tasks; ``read_table``, ``read_folder`` and ``read_images`` those that a user brings. A
``Task`` says what was taken from private rows and is not covered by epsilon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit.data.infer import infer_schema
from tacit.data.load import LOADERS, load, resolve, resolve_as
from tacit.data.read_table import read_table
from tacit.data.schema import Category, Date, Number, Schema, Skip, Target, Text, read_schema, write_schema
from tacit.data.sparse_rows import SparseRows
from tacit.data.task import Kind, Task

if TYPE_CHECKING:
    from tacit.data.images import read_images
    from tacit.data.stored_folder import read_folder

__all__ = [
    "LOADERS",
    "Category",
    "Date",
    "Kind",
    "Number",
    "Schema",
    "Skip",
    "SparseRows",
    "Target",
    "Task",
    "Text",
    "infer_schema",
    "load",
    "read_folder",
    "read_images",
    "read_schema",
    "read_table",
    "resolve",
    "resolve_as",
    "write_schema",
]


def __getattr__(name: str) -> Any:
    # Tables in one file do not need what reads images or folders.
    if name == "read_images":
        from tacit.data.images import read_images

        return read_images
    if name == "read_folder":
        from tacit.data.stored_folder import read_folder

        return read_folder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
