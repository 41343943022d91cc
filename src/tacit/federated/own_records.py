"""Clients with records of their own: a table, coded by the public schema that clients and server share.

The coding is that of sites (`tacit.data.records`), with one feature more that is always 1: the models here have no
intercept besides. So the number of features is a fact of the schema, and the server can compute it without a row.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tacit.data.encode import empty_table, encode
from tacit.data.records import check_public, read_records
from tacit.data.schema import Schema, read_schema, schema_text
from tacit.errors import ArgumentError, FileError
from tacit.federated.client import RECORDS_FILE, write_records
from tacit.federated.data import FederatedData
from tacit.files import write_bytes

SCHEMA_FILE = "schema.toml"
INTERCEPT = "intercept"


def read_client_schema(path: str | Path, target: str | None = None) -> Schema:
    """Read a schema that clients can answer by: public facts only, and a ``target`` of two classes.

    Raises:
        TacitError: If it says something that comes from private rows, or its target is another one.
    """
    schema = read_schema(path)
    check_public(schema)
    if target not in (None, schema.target.name):
        raise ArgumentError(f"The target of the schema is {schema.target.name!r}, not {target!r}.")
    check_two_classes(schema)
    return schema


def check_two_classes(schema: Schema) -> None:
    """Refuse a target that local clients cannot answer about."""
    goal = schema.target
    if goal.kind != "binary":
        what = "is a number" if goal.kind == "regression" else f"has {len(goal.classes)} classes"
        raise ArgumentError(
            f"Local clients (FedSel) predict one of two classes, and the target {goal.name!r} {what}; use "
            "--guarantee sites, with tacit fed init and tacit site init."
        )


def feature_names(schema: Schema) -> tuple[str, ...]:
    """What the weights of a model belong to, in their order; there are d of them."""
    return (*encode(empty_table(schema), schema).names, INTERCEPT)


def read_own_records(source: str | Path, schema: Schema) -> FederatedData:
    """The rows of a CSV, Parquet or Excel file, coded by ``schema`` alone; rows without a target are left out."""
    records = read_records(source, schema, least=1)
    x = records.x.numpy()
    y = np.where(records.y.numpy()[:, 0] > 0, np.float32(1), np.float32(-1))
    return FederatedData(Path(source).name, np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1), y)


def make_client(folder: Path, records: FederatedData, schema: Schema) -> None:
    """Make the folder of a client with its records and the schema; only its owner can enter it.

    Raises:
        FileError: If there is anything in the folder: it may be a client that has answered.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(f"{folder} already exists, and is never overwritten; choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        write_bytes(folder / SCHEMA_FILE, schema_text(schema).encode(), mode=0o600)
        write_records(folder / RECORDS_FILE, records)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
