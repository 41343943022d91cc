"""Runs the comparison and writes its JSON, its page and its figure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tacit.errors import ArgumentError
from tacit.files import write_json, write_text
from tacit_papers.engine.setting import choose
from tacit_papers.tables.cells import EPSILONS, cells_of, run_cells
from tacit_papers.tables.data import TABLES
from tacit_papers.tables.figure import draw
from tacit_papers.tables.methods import METHODS
from tacit_papers.tables.page import page, short_table

NAME = "tables"
QUICK_TABLES = ("breast-cancer", "spam7")
_PLACE = re.compile(r"(<!-- tables -->\n).*?(<!-- end -->)", re.DOTALL)


def reproduce(
    out: Path,
    *,
    tables: Sequence[str] | None,
    methods: Sequence[str] | None,
    epsilons: Sequence[float] | None,
    seeds: int | None,
    again: Sequence[str],
    quick: bool,
    data_dir: str | None,
    readme: Path | None,
    started: Callable[[int], Callable[[], None]],
) -> dict[str, Any]:
    """Run what ``out``/tables.json does not hold yet and write JSON, page and figure beside it."""
    cells = cells_of(
        choose("--table", tables or (QUICK_TABLES if quick else None), tuple(TABLES)),
        choose("--method", methods, tuple(METHODS)),
        choose("--epsilon", epsilons or ((1.0,) if quick else None), EPSILONS),
        seeds if seeds is not None else 1 if quick else 5,
    )
    choose("--again", again, tuple(METHODS))
    path = out / f"{NAME}.json"
    record = run_cells(cells, path, data_dir=data_dir, again=again, done=started(len(cells)))
    record["tables"] = {name: record["tables"][name] for name in TABLES if name in record["tables"]}
    write_json(path, record)
    write_text(out / f"{NAME}.md", page(record))
    draw(record, out / f"{NAME}.png")
    if readme is not None:
        write_text(readme, filled(readme.read_text(encoding="utf-8"), record))
    return record


def filled(text: str, record: dict[str, Any]) -> str:
    """``text`` with the short table between its marks ``<!-- tables -->`` and ``<!-- end -->``."""
    if not _PLACE.search(text):
        raise ArgumentError(
            "The page has no marks <!-- tables --> and <!-- end --> to put the short table between."
        )
    return _PLACE.sub(lambda match: f"{match[1]}{short_table(record)}{match[2]}", text)
