"""The results as text: a table for the terminal and the same table in Markdown."""

from __future__ import annotations

from itertools import groupby

from rich.markup import escape
from rich.table import Table

from benchmarks.results import Limit, Result, Spread
from benchmarks.workloads import Workload

HEADINGS = (
    "contender",
    "ms / step",
    "time × SGD",
    "bar",
    "CPU × SGD",
    "instructions × SGD",
    "peak MB",
    "memory × SGD",
    "bar",
    "beyond model",
    "× faster than Opacus",
)


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 20 else f"{value:.0f}"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    return f"{_number(spread.median)} ({_number(spread.low)}–{_number(spread.high)})"


def _limit(limit: Limit | None, sign: str = "≤") -> str:
    return "" if limit is None else f"{sign} {limit.bar:.2f} {'pass' if limit.met else 'MISS'}"


def cells(result: Result) -> tuple[str, ...]:
    """One row; why a contender has no figures is said below the table."""
    if result.failure is not None:
        return (result.title, "no figures", *[""] * (len(HEADINGS) - 2))
    opacus = result.opacus_bar
    return (
        result.title,
        "–" if result.milliseconds is None else f"{result.milliseconds.median:.1f}",
        _spread(result.time_ratio),
        _limit(result.time_bar),
        "–" if result.cpu_ratio is None else _number(result.cpu_ratio.median),
        "–" if result.instruction_ratio is None else _number(result.instruction_ratio.median),
        "–" if result.memory is None else f"{result.memory.total_bytes / 1e6:.0f}",
        "–" if result.memory_ratio is None else _number(result.memory_ratio),
        _limit(result.memory_bar),
        "–" if result.step_memory_ratio is None else _number(result.step_memory_ratio),
        "" if opacus is None else f"{_number(opacus.value)} ({_limit(opacus, '≥')})",
    )


def failures(results: list[Result]) -> list[str]:
    """Who has no figures, and why; one line per reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.failure is not None:
            reasons.setdefault((result.title, result.failure), []).append(result.workload)
    return [f"{title} ({', '.join(names)}): {reason}" for (title, reason), names in reasons.items()]


def _by_workload(results: list[Result]) -> list[tuple[str, list[Result]]]:
    return [(name, list(group)) for name, group in groupby(results, key=lambda result: result.workload)]


def _colour(cell: str) -> str:
    text = escape(cell)
    if "MISS" in cell:
        return f"[red]{text}[/red]"
    return f"[green]{text}[/green]" if "pass" in cell else text


def terminal_table(results: list[Result], workloads: dict[str, Workload]) -> Table:
    """The table for the terminal, one section per workload."""
    table = Table(title="One step, all in the same run", header_style="bold")
    for index, heading in enumerate(HEADINGS):
        table.add_column(
            heading, justify="left" if index == 0 else "right", no_wrap=index in (0, len(HEADINGS) - 1)
        )
    for name, group in _by_workload(results):
        workload = workloads[name]
        table.add_section()
        table.add_row(f"[bold]{name} {workload.title}, {workload.batch_size}[/bold]")
        for result in group:
            style = "yellow" if result.failure is not None else None
            table.add_row(*(_colour(cell) for cell in cells(result)), style=style)
    return table


def markdown_table(results: list[Result], workloads: dict[str, Workload]) -> str:
    """The same in Markdown, one table per workload, then who has no figures."""
    parts = []
    for name, group in _by_workload(results):
        workload = workloads[name]
        lines = [f"## {name}: {workload.title}, batch {workload.batch_size}", ""]
        lines += ["| " + " | ".join(HEADINGS) + " |", "|---" + "|--:" * (len(HEADINGS) - 1) + "|"]
        lines += ["| " + " | ".join(cells(result)) + " |" for result in group]
        parts.append("\n".join(lines))
    without = failures(results)
    if without:
        parts.append("## No figures\n\n" + "\n".join(f"- {line}" for line in without))
    return "\n\n".join(parts) + "\n"


def verdict(results: list[Result]) -> str:
    """How many bars are met."""
    limits = [limit for result in results for limit in result.limits]
    return f"{sum(limit.met for limit in limits)} of {len(limits)} bars met"
