"""A plan as plain text, and the differences between two plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tacit.plan.codec import plan_to_record
from tacit.plan.record import Plan

_HEADER = ("phase", "steps", "sigma", "clip", "support", "updates", "score", "silent")


def plan_text(plan: Plan) -> str:
    """The plan as a few lines and a table, readable without markup. Equal neighbouring rows are folded."""
    lines = [
        f"{plan.method}: epsilon {plan.epsilon:g}, delta {plan.delta:g}, {plan.relation}, {plan.accountant}",
        f"{plan.examples} examples, batch {plan.batch_size} (sampling rate {plan.sampling_rate:.6g}), "
        f"{plan.steps} steps",
    ]
    rows = [
        (
            phase.name,
            str(phase.steps),
            f"{phase.noise_multiplier:.5g}",
            f"{phase.clip_norm:g}",
            str(phase.support),
            "yes" if phase.updates else "no",
            phase.score or "-",
            "reset" if phase.reset else "kept",
        )
        for phase in plan.phases
    ]
    folded: list[tuple[str, ...]] = []
    last = ""
    for row in rows:
        if folded and folded[-1][1:] == row[1:]:
            first = folded[-1][0].split(" .. ")[0]
            last = row[0]
            folded[-1] = (f"{first} .. {last}", *row[1:])
        else:
            folded.append(row)
    widths = [max(len(row[column]) for row in (_HEADER, *folded)) for column in range(len(_HEADER))]
    table = [_HEADER, tuple("-" * width for width in widths), *folded]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Difference:
    """One field in which two plans differ; ``None`` stands for a field that only one of them has."""

    where: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.where}: {self.left!r} -> {self.right!r}"


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{where}[{index}]")
    else:
        yield where, value


def compare(left: Plan, right: Plan) -> tuple[Difference, ...]:
    """The fields in which two plans differ, in the order of the plan; empty if the plans are equal."""
    first = dict(_leaves(plan_to_record(left), ""))
    second = dict(_leaves(plan_to_record(right), ""))
    return tuple(
        Difference(where, first.get(where), second.get(where))
        for where in dict.fromkeys((*first, *second))
        if first.get(where) != second.get(where)
    )
