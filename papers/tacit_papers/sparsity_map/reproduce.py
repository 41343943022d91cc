"""Runs the map and writes its JSON, its tables, its figure and the tables of a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tacit.errors import ArgumentError
from tacit.files import read_json, write_json, write_text
from tacit_papers.sparsity_map.figure import draw_map
from tacit_papers.sparsity_map.grid import PARTS, cells, quick
from tacit_papers.sparsity_map.mapping import Grid, make_map, runs_of
from tacit_papers.sparsity_map.page import filled, lines, tables

NAME = "sparsity-map"


def grid_of(parts: Sequence[str], *, fast: bool) -> Grid:
    """The settings of these parts; ``fast`` takes the first of each part, shortened."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ArgumentError(f"There is no part {unknown[0]!r}; choose from {', '.join(PARTS)}.")
    chosen = [(setting, arms) for setting, arms in cells() if setting.part in parts]
    if not fast:
        return chosen
    first = {setting.part: (quick(setting), arms) for setting, arms in reversed(chosen)}
    return [first[part] for part in parts]


def reproduce(
    grid: Grid,
    out: Path,
    *,
    workers: int,
    data_dir: str | None,
    page: Path | None = None,
    started: Callable[[int], Callable[[], None]],
) -> list[str]:
    """Run ``grid`` with its runs kept in ``out``/runs; write everything; return what the map says in lines.

    ``started`` is told the number of runs and returns what to call after each.
    """
    done = started(runs_of(grid))
    record = make_map(grid, out / "runs", workers=workers, data_dir=data_dir, done=done)
    record = with_other_parts(record, out / f"{NAME}.json")
    write_json(out / f"{NAME}.json", record)
    write_text(
        out / f"{NAME}.md", "\n".join(f"## {part}\n\n{table}" for part, table in tables(record).items())
    )
    draw_map(record, out / f"{NAME}.png")
    if page is not None:
        fill(page, out / f"{NAME}.json")
    return list(lines(record))


def with_other_parts(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record with those parts of the one on disk that were not run now, in the order of the map."""
    own = {setting["part"] for setting in record["settings"]}
    kept = read_json(path)["settings"] if path.exists() else []
    settings = [*record["settings"], *(setting for setting in kept if setting["part"] not in own)]
    return {**record, "settings": sorted(settings, key=lambda setting: PARTS.index(setting["part"]))}


def fill(page: Path, record: Path) -> None:
    """Put the tables of a written map into a page."""
    write_text(page, filled(page.read_text(encoding="utf-8"), read_json(record)))
