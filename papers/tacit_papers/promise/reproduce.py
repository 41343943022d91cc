"""Measures the promise and writes its JSON, its tables and the tables of a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tacit.files import write_json, write_text
from tacit_papers.promise.measure import Question, measure
from tacit_papers.promise.page import broken, filled, summary, tables
from tacit_papers.promise.tables import chosen

NAME = "promise"


def reproduce(
    out: Path,
    *,
    names: Sequence[str],
    epsilons: Sequence[float],
    seeds: int,
    data_dir: str | None,
    page: Path | None,
    started: Callable[[int], Callable[[], None]],
) -> list[str]:
    """Ask what ``out`` does not hold yet; write everything; return what came out in lines.

    ``started`` is told the number of comparisons and returns what to call after each.
    """
    questions = [
        Question(table, model, epsilon, seeds)
        for table in chosen(tuple(names))
        for model in table.models
        for epsilon in epsilons
    ]
    record = measure(questions, out / "answers", data_dir, started(len(questions)))
    write_json(out / f"{NAME}.json", record)
    write_text(out / f"{NAME}.md", "\n".join(f"## {part}\n\n{text}" for part, text in tables(record).items()))
    if page is not None:
        write_text(page, filled(page.read_text(encoding="utf-8"), record))
    return [summary(record), *broken(record)]
