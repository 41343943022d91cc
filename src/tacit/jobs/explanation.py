"""What a linear or additive model of a table says about each column: shapes by name, their noise, importance.

Everything comes from the run directory: the released weights, the schema by which the table was read, and the public
numbers of plan and ledger. No row is read. So a point of a shape is a value that the schema knows, and in averages
each of them counts once, however many rows have it.

The noise of a weight is known. Release s, with noise of variance νₛ², moves the weights by rate and momentum in its own
and all later steps, by aₛ = Σ ηₜ βᵗ⁻ˢ over t ≥ s in total, so that the noise of a weight has the variance Σ aₛ²νₛ².
This leaves out that later gradients react to earlier noise, which as a rule takes some of it back, and the average of
weights, where there is one, which takes some more: the bands are rather too wide than too narrow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tacit.data.encode import PARTS, encode
from tacit.data.schema import Category, Column, Date, Number, Schema, Skip, Text, read_schema
from tacit.data.table_file import Table
from tacit.errors import FileError, TacitError
from tacit.files import read_json
from tacit.models.additive import Additive, Shapes
from tacit.plan import Plan
from tacit.release.ledger_file import Charge
from tacit.runs.layout import EXPERIMENT_FILE, MODEL_FILE, SCHEMA_FILE
from tacit.support import Support
from tacit.tensors import read_tensors
from tacit.training import schedules

_SCHEDULES = {"constant": schedules.constant, "linear": schedules.linear, "cosine": schedules.cosine}
_DATES = 24
Kind = Literal["number", "category", "date", "text"]
_KINDS: dict[type, Kind] = {Number: "number", Category: "category", Date: "date", Text: "text"}
MISSING = "missing"
"""The point of a shape that stands for rows without a value."""


@dataclass(frozen=True)
class ColumnShape:
    """What the values of one column add to the answer, compared with their mean.

    ``points`` are numbers or words. ``effects[output][point]`` is in units of the answer, ``deviations[output][point]``
    the standard deviation of its noise, 0 where nothing noisy was learned; ``None`` where it is not known.
    ``importance`` is the root mean square of the effects over points, or over hashed words where a text has no points,
    ``noise`` what it would be without any signal.
    """

    column: str
    kind: Kind
    points: tuple[float | str, ...]
    effects: tuple[tuple[float, ...], ...]
    deviations: tuple[tuple[float, ...], ...] | None
    importance: float
    noise: float | None

    @property
    def clear(self) -> bool:
        """Whether the importance is at least twice that of noise alone."""
        return self.noise is not None and self.importance >= 2 * self.noise


@dataclass(frozen=True)
class Explanation:
    """All columns, the most important first. ``answer`` says what effects add up to, ``outputs`` what for."""

    answer: str
    outputs: tuple[str, ...]
    columns: tuple[ColumnShape, ...]


def explain(
    run_dir: Path,
    plan: Plan,
    charges: Sequence[Charge],
    support: Support,
    origin: Mapping[str, Tensor] | None,
) -> Explanation | None:
    """The explanation of a finished run on a table, if its model is a sum over columns; otherwise nothing.

    ``support`` is the last one. ``origin`` are the initial weights where what became silent was reset to them.
    """
    paths = [run_dir / name for name in (SCHEMA_FILE, MODEL_FILE, EXPERIMENT_FILE)]
    if not all(path.is_file() for path in paths):
        return None
    experiment = read_json(paths[2]).get("experiment", {})
    model, training = experiment.get("model", {}), experiment.get("training", {})
    if model.get("name") not in ("additive", "logistic"):
        return None
    schema = read_schema(paths[0])
    weights, _ = read_tensors(paths[1])
    name = "shapes.weight" if model["name"] == "additive" else "1.weight"
    if name not in weights:
        return None
    noise = _noise(plan, charges, training)
    deviation = None
    if noise is not None and name in support:
        deviation = _deviation(support, name, *noise, reset=origin is not None)
    try:
        detail = 1.0 if model.get("detail") is None else float(model["detail"])
        return _explained(schema, model["name"], detail, weights[name].double(), deviation)
    except (TacitError, RuntimeError, ValueError) as error:
        raise FileError(f"The model in {run_dir} does not fit its schema: {error}") from error


def _explained(
    schema: Schema, model: str, detail: float, weight: Tensor, deviation: Tensor | None
) -> Explanation | None:
    used = {name: column for name, column in schema.columns.items() if not isinstance(column, Skip)}
    parts = {name: _part(name, column, schema, model, len(used), detail) for name, column in used.items()}
    # All columns' plain features come first, then the parts of all numbers, then their lines.
    starts = [
        0,
        *itertools.accumulate(sum(part.widths[kind] for part in parts.values()) for kind in range(3)),
    ]
    if starts[-1] != weight.shape[1]:
        return None
    unit = 1.0
    if schema.target.kind == "regression":
        unit = (schema.target.range[1] - schema.target.range[0]) / 2
    shapes = []
    for name, part in parts.items():
        places = torch.cat(
            [torch.arange(start, start + width) for start, width in zip(starts, part.widths, strict=False)]
        )
        starts = [start + width for start, width in zip(starts, (*part.widths, 0), strict=True)]
        own = None if deviation is None else unit * deviation[:, places]
        shapes.append(_shape(name, used[name], part, unit * weight[:, places], own))
    shapes.sort(key=lambda shape: -shape.importance)
    return Explanation(*_answer(schema, weight.shape[0]), tuple(shapes))


@dataclass(frozen=True)
class _Part:
    """The points of one column, and by how much each changes the features that only this column has.

    ``widths`` are the numbers of its plain features, of the parts of its number and of its line.
    """

    points: tuple[float | str, ...]
    added: Tensor
    widths: tuple[int, int, int]


def _part(name: str, column: Column, schema: Schema, model: str, columns: int, detail: float) -> _Part:
    grid = _grid(column)
    cells = [*(cell for _, cell in grid), ""]
    alone = Schema(schema.target, {name: column})
    encoded = encode(Table("the schema", {name: cells}, len(cells), 1), alone)
    x = torch.from_numpy(encoded.x)
    if isinstance(column, Text):  # words are hashed: one word for each of the features that it may fall on
        x = torch.cat([torch.eye(x.shape[1]), torch.zeros(1, x.shape[1])])
    if model == "additive":
        rows = Shapes(x.shape[1], encoded.numbers, detail)
        # A row has norm 1 over all columns together: here each of them counts alike.
        share = 1 - Additive(1, 1, (), columns).constant ** 2
        features = rows.unscaled(x).double() * math.sqrt(share / columns)
        widths = (len(rows.others), len(rows.kept), len(rows.numbers))
    else:
        features, widths = x.double(), (x.shape[1], 0, 0)
    added = features[:-1] - features[-1]
    if isinstance(column, Text):
        return _Part((), added, widths)
    return _Part(tuple(point for point, _ in grid), added - added.mean(0), widths)


def _answer(schema: Schema, outputs: int) -> tuple[str, tuple[str, ...]]:
    target = schema.target
    if target.kind == "regression":
        return target.name, (target.name,)
    if outputs == 1:
        return f"log-odds of {target.name} = {target.classes[1]}", (str(target.classes[1]),)
    return f"logit of each class of {target.name}", tuple(str(name) for name in target.classes)


def _shape(name: str, column: Column, part: _Part, weight: Tensor, deviation: Tensor | None) -> ColumnShape:
    effects = weight @ part.added.T
    spread = None if deviation is None else (deviation.square() @ part.added.square().T).sqrt()
    shown = bool(part.points)
    return ColumnShape(
        name,
        _KINDS[type(column)],
        part.points,
        tuple(tuple(row) for row in effects.tolist()) if shown else (),
        None if spread is None else tuple(tuple(row) for row in spread.tolist()) if shown else (),
        float(effects.square().mean().sqrt()),
        None if spread is None else float(spread.square().mean().sqrt()),
    )


def _grid(column: Column) -> list[tuple[float | str, str]]:
    """The points of a column and how a file would write them."""
    found: list[tuple[float | str, str]] = []
    match column:
        case Number():
            edges = [column.low, *(column.cuts or _even(column)), column.high]
            inner = ((a + b) / 2 for a, b in itertools.pairwise(edges[1:-1]))
            values = dict.fromkeys((column.low, *inner, column.high))
            found = [(value, repr(value).replace(".", column.decimal)) for value in values]
        case Category():
            found = [(value, value) for value in column.values]
        case Date():
            step = (column.high - column.low) / _DATES
            days = [column.low + step * place for place in range(_DATES + 1)]
            found = [(f"{day:%Y-%m-%d}", day.strftime(column.format)) for day in days]
        case _:
            return [("", "")]
    if column.missing:
        found.append((MISSING, ""))
    return found or [("", "")]


def _even(column: Number) -> list[float]:
    """Where a number without cuts is divided: evenly, on its scale."""
    if column.scale == "linear":
        return [column.low + (column.high - column.low) * place / PARTS for place in range(1, PARTS)]
    end = math.log1p(column.high - column.low)
    return [column.low + math.expm1(end * place / PARTS) for place in range(1, PARTS)]


def _noise(plan: Plan, charges: Sequence[Charge], training: Mapping[str, Any]) -> tuple[float, float] | None:
    """The variance of a weight's noise from the first phase and from all later ones; ``None`` if it is not known."""
    rate, momentum = training.get("learning_rate"), training.get("momentum") or 0.0
    schedule = _SCHEDULES.get(training.get("schedule") or "constant")
    if training.get("optimizer", "sgd") != "sgd" or not isinstance(rate, int | float) or schedule is None:
        return None
    if plan.choosing:  # which of the runs the weights come from decides
        return None
    # Of a step that was lost in a crash, the release that counts; counts of columns moved no weight.
    last = {charge.step: charge for charge in charges if charge.step >= plan.counts}
    steps = sorted(last)
    lost = plan.steps - plan.counts - len(steps)
    kept, moved = 0.0, {}
    for step in reversed(steps):
        kept = rate * schedule(step + lost, plan.steps) + momentum * kept
        moved[step] = kept
    parts = [0.0, 0.0]
    first = last[steps[0]].phase if steps else None
    for step, factor in moved.items():
        charge = last[step]
        noise = charge.noise_multiplier * charge.clip_norm / charge.batch_size
        parts[charge.phase != first] += (factor * noise) ** 2
    return parts[0], parts[1]


def _deviation(support: Support, name: str, before: float, after: float, *, reset: bool) -> Tensor:
    """The standard deviation of every weight, given its part in the last support."""
    block = support[name]
    active = block.mask().double()
    if block.weights is not None:
        active = block.scaled(active)
    variance = active.square() * after + (active.square() if reset else torch.ones_like(active)) * before
    return variance.sqrt()
