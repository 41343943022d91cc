"""Files of a run: JSON with every figure, the table in Markdown and the picture, side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figure import draw
from benchmarks.machine import Machine
from benchmarks.results import Result, processor_share
from benchmarks.rounds import BUSY
from benchmarks.table import markdown_table, verdict
from benchmarks.workloads import Workload


def write_atomically(path: Path, text: str) -> None:
    """Write the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def document(machine: Machine, settings: dict[str, Any], results: list[Result]) -> dict[str, Any]:
    """The JSON content of a run."""
    return {"machine": asdict(machine), "settings": settings, "results": [asdict(r) for r in results]}


def short(commit: str) -> str:
    """The first twelve digits of a commit, and whether there were changes."""
    digits, *changes = commit.split(" ", 1)
    return " ".join([digits[:12], *changes])


def caption(machine: Machine, commits: Sequence[str] = ()) -> str:
    """One line that says where the figures come from: the machine's commit, or ``commits`` where they have several."""
    made = commits or [short(machine.commit)]
    threads = "one thread" if machine.threads == 1 else f"{machine.threads} threads"
    return (
        f"{machine.cpu} ({machine.cpu_capability}), {threads}, torch {machine.torch}, "
        f"opacus {machine.opacus}, {'commit' if len(made) == 1 else 'commits'} {', '.join(made)}, {machine.date[:10]}"
    )


def write_run(
    path: Path,
    machine: Machine,
    settings: dict[str, Any],
    results: list[Result],
    workloads: dict[str, Workload],
) -> list[Path]:
    """Write the JSON to `path`, beside it the table (.md) and the figure (.png); return the three paths."""
    table, picture = path.with_suffix(".md"), path.with_suffix(".png")
    write_atomically(
        path, json.dumps(document(machine, settings, results), indent=1, ensure_ascii=False) + "\n"
    )
    share = processor_share(results)
    busy = (
        f"The machine was busy: a step had the processor {100 * share:.0f} % of its time, "
        "so trust the CPU ratios more than the times.\n"
        if machine.threads == 1 and share < BUSY
        else f"A step had the processor at least {100 * share:.0f} % of its time, in the median of its turns.\n"
        if machine.threads == 1
        else ""
    )
    if not any(result.instructions for result in results):
        busy += "This machine shows no counters of the processor, so instructions are not counted.\n"
    heading = f"# The cost of a private step\n\nWritten by `python -m benchmarks.step`. {caption(machine)}.\n"
    write_atomically(
        table,
        f"{heading}At least {settings['rounds']} rounds. {verdict(results).capitalize()}. "
        f"How it is measured: [benchmarks](../results/benchmarks.md).\n{busy}\n"
        + markdown_table(results, workloads),
    )
    draw(results, picture, caption(machine))
    return [path, table, picture]
