"""Data sets and their preparation from public facts.

``load`` gives the built-in tasks, ``read_table`` and ``read_images`` those that a user brings. A ``Task``
says what was taken from private rows and is not covered by epsilon.
"""

from __future__ import annotations

from tacit.data.images import read_images
from tacit.data.infer import infer_schema
from tacit.data.load import LOADERS, load, resolve, resolve_as
from tacit.data.schema import Category, Date, Number, Schema, Skip, Target, Text, read_schema, write_schema
from tacit.data.tables import read_table
from tacit.data.task import Kind, Task

__all__ = [
    "LOADERS",
    "Category",
    "Date",
    "Kind",
    "Number",
    "Schema",
    "Skip",
    "Target",
    "Task",
    "Text",
    "infer_schema",
    "load",
    "read_images",
    "read_schema",
    "read_table",
    "resolve",
    "resolve_as",
    "write_schema",
]
