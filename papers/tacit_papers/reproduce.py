"""Makes one table or figure: runs, JSON, Markdown and image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tacit.files import write_json, write_text
from tacit_papers.drawing import DRAWINGS
from tacit_papers.engine.setting import Setting, choose
from tacit_papers.images import table as images
from tacit_papers.pages import PAGES
from tacit_papers.sparta import regime
from tacit_papers.sparta import table as sparta
from tacit_papers.tp_topk import figure1, network_sweeps, networks, table2, table3, table4, table5


class Part(Protocol):
    """A table or figure: a module, or an object like one."""

    @property
    def NAME(self) -> str:
        """The command."""

    @property
    def DATASETS(self) -> tuple[str, ...]:
        """What it can be made for."""

    @property
    def EPSILONS(self) -> tuple[float, ...]:
        """At which ε."""

    def run(self, setting: Setting, /) -> dict[str, Any]:
        """Make it."""


_MODULES: tuple[Part, ...] = (table2, table3, table4, table5, figure1, sparta, regime, images)
_PARTS: tuple[Part, ...] = (*_MODULES, *networks.TABLES, *network_sweeps.SWEEPS)
PARTS: dict[str, Part] = {part.NAME: part for part in _PARTS}
_QUICK_DATASET = {table5.NAME: "nhanes", sparta.NAME: "pneumoniamnist", regime.NAME: "pneumoniamnist"}
_QUICK_EPSILON = {
    sparta.NAME: sparta.TUNED_AT[-1],
    regime.NAME: regime.EPSILONS[-1],
    **{sweep.NAME: sweep.EPSILONS[-1] for sweep in network_sweeps.SWEEPS},
}


QUICK = (
    "Quick run: raw inputs, few steps, one seed. It shows that everything works; its figures say nothing.\n\n"
)


def page(record: dict[str, Any]) -> str:
    """The tables of a result, marked where the run was quick."""
    return (QUICK if record["quick"] else "") + PAGES[record["name"]](record)


def reproduce(
    name: str,
    *,
    datasets: Sequence[str] | None,
    epsilons: Sequence[float] | None,
    seeds: int | None,
    quick: bool,
    out: Path,
    workers: int | None,
    data_dir: str | None,
    shown: bool = True,
) -> dict[str, Any]:
    """Run what ``out`` does not hold yet and write JSON, Markdown and a figure there; return the record.

    ``quick`` takes one small data set, raw inputs, three epochs, one seed and no tuning.
    """
    part = PARTS[name]
    if quick:
        datasets = datasets or [_QUICK_DATASET.get(name, "fmnist")]
        epsilons = epsilons or [_QUICK_EPSILON.get(name, 3.0)]
    setting = Setting(
        choose("--dataset", datasets, part.DATASETS),
        choose("--epsilon", epsilons, part.EPSILONS),
        seeds if seeds is not None else 1 if quick else 3,
        out,
        os.cpu_count() or 1 if workers is None else workers,
        quick,
        data_dir,
        shown,
    )
    record: dict[str, Any] = part.run(setting)
    stem = name.rpartition("/")[2]
    write_json(out / f"{stem}.json", record)
    write_text(out / f"{stem}.md", page(record))
    DRAWINGS[name](record, out / f"{stem}.png")
    return record
