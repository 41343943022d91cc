"""The model card: what a person should know before using a model, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.data import Schema
from tacit.data.schema import Category, Column, Date, Number, Skip, Text
from tacit.jobs.inputs import Inputs
from tacit.jobs.quality import Figure
from tacit.name_lists import shortened
from tacit.runs import Certificate

_MOST_COLUMNS = 200
NO_USE = (
    "Its author has not said what it is for. It can be trusted, if at all, for rows like those it was trained on, and "
    "no decision about a person should rest on it alone."
)


def model_card(
    inputs: Inputs,
    schema: Schema | None,
    certificate: Certificate,
    quality: Sequence[Figure],
    *,
    use: str | None,
    name: str,
) -> str:
    """The card of a model; ``use`` is what its author says that it is for."""
    lines = [f"# {_plain(name)}", ""]
    if not certificate.for_release:
        lines += ["**NOT FOR RELEASE**, because", ""]
        lines += [f"- {_plain(reason)}" for reason in certificate.reasons_against_release]
        lines += [""]
    lines += ["## What it predicts", "", *_task(inputs, schema), ""]
    lines += ["## Intended use", "", _plain(use) if use else NO_USE, ""]
    lines += [
        "## Data",
        "",
        f"Trained on {certificate.examples:,} examples of {_code(inputs.name)}. The data is not in this file.",
        "",
    ]
    if schema is not None:
        lines += [*_columns(schema), ""]
    lines += ["## Privacy", "", *_privacy(certificate), ""]
    lines += ["## Quality on held-out data", "", *_quality(quality), ""]
    lines += [f"**Warning:** {_plain(warning)}" for warning in certificate.warnings]
    lines += [""] if certificate.warnings else []
    lines += ["## How to use and to check it", "", *_commands(Path(name).name), ""]
    return "\n".join(lines)


def _task(inputs: Inputs, schema: Schema | None) -> list[str]:
    what = "" if schema is None else f" the column {_code(schema.target.name)},"
    if inputs.kind == "regression":
        low, high = (-1.0, 1.0) if schema is None else schema.target.range
        return [f"It predicts{what} a number; it was trained on values from {low:g} to {high:g}."]
    names = ", ".join(map(_code, inputs.classes)) or "classes by number"
    extra = (
        f" The positive class is {_code(inputs.classes[1])}."
        if inputs.kind == "binary" and inputs.classes
        else ""
    )
    return [f"It predicts{what} one of {names}.{extra} The model is {_code(inputs.model.name or '')}."]


def _columns(schema: Schema) -> list[str]:
    used = {name: column for name, column in schema.columns.items() if not isinstance(column, Skip)}
    rows = ["| column | what it is | where its facts come from |", "|---|---|---|"]
    for name, column in list(used.items())[:_MOST_COLUMNS]:
        source = "public knowledge" if column.public else "the private rows"
        rows.append(f"| {_cell(name)} | {_about(column)} | {source} |")
    if len(used) > _MOST_COLUMNS:
        rows.append(f"| and {len(used) - _MOST_COLUMNS} more | | |")
    return rows


def _about(column: Column) -> str:
    match column:
        case Number():
            return f"a number from {column.low:g} to {column.high:g}"
        case Category():
            shown = ", ".join(map(_cell, column.values[:8]))
            return f"one of {shown}" + (
                f" and {len(column.values) - 8} more" if len(column.values) > 8 else ""
            )
        case Date():
            return f"a date from {column.low} to {column.high}"
        case Text():
            return "free text"
        case Skip():
            return "not used"


def _privacy(certificate: Certificate) -> list[str]:
    return [
        certificate.statement,
        "",
        f"- ε = {certificate.epsilon:g} promised, {certificate.epsilon_spent:.4g} spent; δ = {certificate.delta:g}; "
        f"{certificate.accountant} accounting",
        f"- unit of privacy: {_plain(certificate.unit)}",
        f"- neighbouring data sets: {certificate.relation}",
        f"- method: {_plain(certificate.method)}",
        "",
        "Not covered by ε:",
        "",
        *(f"- {_plain(shortened(sentence))}" for sentence in certificate.not_covered),
    ]


def _quality(figures: Sequence[Figure]) -> list[str]:
    if not figures:
        return ["Nothing was held out, so its quality is not known."]
    return [
        "| measure | value | 95 % interval | rows |",
        "|---|--:|--:|--:|",
        *(
            f"| {_cell(figure.name, code=False)} | {figure.value:.4g} | {figure.low:.4g} to {figure.high:.4g} | "
            f"{figure.rows:,} |"
            for figure in figures
        ),
        "",
        "The intervals say how much other held-out rows of the same kind would change a figure. ε does not cover these "
        "figures.",
    ]


def _commands(name: str) -> list[str]:
    return [
        "```sh",
        f"tacit verify {name}                 # is this the model that the certificate speaks of?",
        f"tacit predict {name} new.csv --out scores.csv",
        "```",
        "",
        "```python",
        "import tacit",
        "",
        f"tacit.load({name!r}).predict(frame)",
        "```",
    ]


def _plain(text: str) -> str:
    """Text that Markdown and HTML take for nothing but text."""
    flat = " ".join(text.split())
    return "".join(f"\\{mark}" if mark in "\\`*_[]<>#|" else mark for mark in flat)


def _code(text: str) -> str:
    """Text as code, whatever marks it has."""
    flat = " ".join(text.split())
    fence = "`"
    while fence in flat:
        fence += "`"
    return f"{fence} {flat} {fence}" if "`" in flat else f"`{flat}`"


def _cell(text: str, *, code: bool = True) -> str:
    """The same inside a table, where a bar would end the cell."""
    return (_code(text) if code else _plain(text).replace("\\|", "|")).replace("|", "\\|")
