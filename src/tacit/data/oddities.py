"""What looks odd in a table's rows, in sentences for their owner: to be read before ε is spent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.data.infer import ID_NAME
from tacit.data.schema import Number, Schema, Skip, Target
from tacit.data.table_file import Table
from tacit.data.task import OfRows
from tacit.data.values import is_missing, parse_numbers, sentinels
from tacit.name_lists import listed

_PERSON = re.compile(
    r"(patient|subject|person|people|customer|client|member|user|author|account|household|student|employee|resident"
    r"|participant|respondent|mrn)$"
)
_LEAST_OWNERS = 20
_FEW_ROWS = 10


def oddities(
    table: Table, schema: Schema, labels: NDArray[np.generic], known: NDArray[np.bool_], unit: str | None
) -> tuple[str, ...]:
    """Sentences on answers that are missing or rare, on codes among numbers, and on rows that may share an owner.

    ``labels`` are those of all rows, ``known`` says which rows have one.
    """
    return (
        *without_answer(schema.target, known),
        *rare_classes(schema.target, labels[known]),
        *suspicious_numbers(table, schema),
        *(shared_owners(table, _used(schema)) if unit is None else ()),
    )


def without_answer(target: Target, known: NDArray[np.bool_]) -> list[str]:
    """How many rows are left out because their answer is missing, where there are such rows."""
    missing = int((~known).sum())
    if not missing:
        return []
    have, are = ("have", "are") if missing > 1 else ("has", "is")
    return [
        OfRows(
            f"{missing:,} of {len(known):,} rows {have} no answer in the target {target.name!r} and {are} left out."
        )
    ]


def rare_classes(target: Target, labels: NDArray[np.generic]) -> list[str]:
    """The classes that so few rows have that no model with noise can learn them."""
    if target.kind == "regression":
        return []
    rare = _rare(target.classes, labels)
    if not rare:
        return []
    if target.kind == "binary":
        return [
            OfRows(
                f"Fewer than {_FEW_ROWS} rows have the answer {listed(rare, 2)} in the target {target.name!r}: too few "
                "to learn it with noise, and to measure whether it is learnt. Bring more rows of it."
            )
        ]
    return [
        OfRows(
            f"Classes of the target {target.name!r} with fewer than {_FEW_ROWS} rows cannot be learnt: "
            f"{listed(rare, 4)}. Correct or merge them, or leave these rows out."
        )
    ]


def rare_folders(classes: Sequence[str], labels: NDArray[np.generic]) -> list[str]:
    """The same of folders of images, one per class."""
    rare = _rare(classes, labels) if len(classes) > 2 else []
    if not rare:
        return []
    return [
        OfRows(
            f"Classes with fewer than {_FEW_ROWS} images cannot be learnt: {listed(rare, 4)}. Add images to these "
            "folders, merge them with others, or take them away."
        )
    ]


def _rare(classes: Sequence[str], labels: NDArray[np.generic]) -> list[str]:
    counts = np.bincount(labels.reshape(-1).astype(np.int64), minlength=len(classes))
    return [name for name, count in zip(classes, counts, strict=True) if count < _FEW_ROWS]


def suspicious_numbers(table: Table, schema: Schema) -> list[str]:
    """Sentences on columns in which a code such as 999 seems to stand among the numbers."""
    sentences: list[str] = []
    for name, column in schema.columns.items():
        if isinstance(column, Number):
            codes = sentinels(parse_numbers(table.column(name), column.missing_values, column.decimal))
            if codes:
                shown = " and ".join(f"{code:g}" for code in codes)
                sentences.append(
                    OfRows(
                        f"Column {name!r} holds {shown} far from all its other values: if that is a code for a missing "
                        "value, declare it in missing_values of a schema."
                    )
                )
    return sentences


def _used(schema: Schema) -> list[str]:
    return [name for name, column in schema.columns.items() if not isinstance(column, Skip)]


def shared_owners(table: Table, names: Iterable[str]) -> list[str]:
    """Columns that are named like ids and repeat: their values may say whose row it is, and then ε is about less."""
    return [
        OfRows(
            f"Column {name!r} is named like an id, and its values repeat. If it says whose row it is, say --unit "
            f"{name!r} (groups in scikit-learn): as it is, ε protects one row, and all rows of one owner together less."
        )
        for name in names
        if _named_like_an_id(name) and _repeats(table, name)
    ]


def _named_like_an_id(name: str) -> bool:
    return any(ID_NAME.search(text) or _PERSON.search(text) for text in (name, name.lower()))


def _repeats(table: Table, name: str) -> bool:
    """Whether many different values are there, none is a real number, and some stand in several rows."""
    cells = table.column(name)
    counts = cells.counts()
    used = [
        (value, int(count))
        for value, count in zip(cells.values, counts, strict=True)
        if count and not is_missing(value)
    ]
    return (
        len(used) >= _LEAST_OWNERS
        and any(count > 1 for _, count in used)
        and not any("." in value or "," in value for value, _ in used)
    )
