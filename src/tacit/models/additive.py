"""The additive model: the answer is a sum of one shape per column of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.data.task import NumberFeature
from tacit.errors import ArgumentError, check_count

LEVELS = {2: 1.0, 4: 0.7, 8: 0.5, 16: 0.35}
"""Each number is divided into 2, 4, 8 and all its parts at once, with these weights: neighbouring parts share most of
their features, so that shapes are smooth unless many rows say otherwise."""
LINEAR = 2.0
"""The weight of the number itself beside its parts."""
_LEAST_NORM = 1e-6


class Shapes(nn.Module):
    """Features of rows: numbers as parts and as lines, everything else as it is; every row has Euclidean norm 1.

    A row's features depend on that row alone and on public numbers. Nothing here is trained. ``features`` is their
    number. ``detail`` is the weight of the parts, from 1 down to 0, which leaves only the lines.
    """

    numbers: Tensor
    marks: Tensor
    marked: Tensor
    others: Tensor
    cuts: Tensor
    parts: Tensor
    starts: Tensor
    missing: Tensor
    kept: Tensor
    middles: Tensor
    spans: Tensor
    lines: Tensor

    def __init__(self, inputs: int, numbers: Sequence[NumberFeature], detail: float = 1.0) -> None:
        super().__init__()
        check_count("inputs", inputs)
        if not 0 <= detail <= 1:
            raise ArgumentError(f"detail must lie between 0 and 1, got {detail!r}.")
        taken = {number.at for number in numbers}
        levels = [_levels(number.cuts) if detail else {} for number in numbers]
        totals = torch.tensor([LINEAR + detail * sum(LEVELS[size] for size in own) for own in levels])
        tables = [_table(number.cuts, own) for number, own in zip(numbers, levels, strict=True)]
        most = max((len(number.cuts) for number in numbers), default=0)
        widest = max((table.shape[1] for table in tables), default=0)
        cuts = torch.full((len(numbers), most), math.inf)
        parts = torch.zeros(len(numbers), most + 2, widest)  # the last part is that of a missing number
        kept = torch.zeros(len(numbers), widest, dtype=torch.bool)
        for place, (number, table) in enumerate(zip(numbers, tables, strict=True)):
            cuts[place, : len(number.cuts)] = torch.tensor(number.cuts)
            parts[place, : table.shape[0], : table.shape[1]] = table * (detail / totals[place]).sqrt()
            kept[place, : table.shape[1]] = True
        ends = [(own[0], own[len(own) // 2], own[-1]) for own in (number.cuts for number in numbers)]
        spans = [max(high - middle, middle - low) or 1.0 for low, middle, high in ends]
        stored = {
            "numbers": _positions([number.at for number in numbers]),
            "marks": _positions([number.missing or 0 for number in numbers]),
            "marked": torch.tensor([float(number.missing is not None) for number in numbers]),
            "others": _positions([at for at in range(inputs) if at not in taken]),
            "cuts": cuts,
            "parts": parts,
            "starts": torch.arange(len(numbers), dtype=torch.int32) * (most + 2),
            "missing": (torch.arange(len(numbers), dtype=torch.int32) + 1) * (most + 2) - 1,
            "kept": kept.flatten().nonzero().flatten(),
            "middles": torch.tensor([middle for _, middle, _ in ends]),
            "spans": torch.tensor(spans),
            "lines": (LINEAR / totals).sqrt(),
        }
        for name, value in stored.items():
            self.register_buffer(name, value, persistent=False)  # public facts of the table, not of the model
        self.features = len(self.others) + len(self.kept) + len(self.numbers)

    def forward(self, x: Tensor, norm: float = 1.0) -> Tensor:
        """The features of rows ``x``, each row of Euclidean norm ``norm``."""
        features = self.unscaled(x)
        norms: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        scale = norm / norms.clamp_min(_LEAST_NORM)
        # A second copy of so much costs more than the product.
        return features * scale if features.requires_grad else features.mul_(scale)

    def unscaled(self, x: Tensor) -> Tensor:
        """The features before every row is given norm 1."""
        x = x.flatten(1)
        values = x.index_select(1, self.numbers)
        known = x.index_select(1, self.marks) * self.marked < 0.5
        part = (values.unsqueeze(2) >= self.cuts).sum(2, dtype=torch.int32) + self.starts
        part = torch.where(known, part, self.missing)
        parts = functional.embedding(part, self.parts.flatten(0, 1)).flatten(1)
        if parts.shape[1] > len(self.kept):
            parts = parts.index_select(1, self.kept)
        line = ((values - self.middles) / self.spans).clamp(-1, 1) * self.lines * known
        return torch.cat([x.index_select(1, self.others), parts, line], 1)


def _positions(places: list[int]) -> Tensor:
    return torch.tensor(places, dtype=torch.int64)


def _levels(cuts: tuple[float, ...]) -> dict[int, tuple[float, ...]]:
    """The cuts of each level: evenly chosen among all of them, and all of them at the last."""
    levels: dict[int, tuple[float, ...]] = {}
    for size in LEVELS:
        chosen = cuts
        if size < max(LEVELS) and len(cuts) >= size:
            chosen = tuple(cuts[round(part * (len(cuts) + 1) / size) - 1] for part in range(1, size))
        if chosen not in levels.values():
            levels[size] = chosen
    return levels


def _table(cuts: tuple[float, ...], levels: dict[int, tuple[float, ...]]) -> Tensor:
    """For each part of the finest level, the features of all levels: one-hot, without their mean over equal parts."""
    edges = torch.tensor([-math.inf, *cuts])
    blocks = [torch.zeros(len(edges), 0)]
    for size, own in levels.items():
        count = len(own) + 1
        one_hot = functional.one_hot(torch.bucketize(edges, torch.tensor(own), right=True), count).float()
        blocks.append((one_hot - 1 / count) * math.sqrt(LEVELS[size] / (1 - 1 / count)))
    return torch.cat(blocks, 1)


class Additive(nn.Module):
    """A sum of shapes, one per column, and an intercept, starting at zero.

    Each row has Euclidean norm 1 together with the constant that the intercept multiplies. With a loss whose slope is
    at most 1 no example's gradient is longer than 1, so a clip norm of 1 changes none.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        numbers: Sequence[NumberFeature],
        columns: int,
        detail: float = 1.0,
    ) -> None:
        super().__init__()
        self.rows = Shapes(inputs, numbers, detail)
        self.shapes = nn.Linear(self.rows.features, check_count("outputs", outputs), bias=False)
        self.intercept = nn.Linear(1, outputs, bias=False)
        nn.init.zeros_(self.shapes.weight)
        nn.init.zeros_(self.intercept.weight)
        # The intercept has the weight of one column, or of an eighth of many, or it would be learned too late.
        constant = max(1.0, columns / 8)
        self.constant = math.sqrt(constant / (max(1, columns) + constant))

    def forward(self, x: Tensor) -> Tensor:
        """One answer per row and output."""
        features = self.rows(x, math.sqrt(1 - self.constant**2))
        constant = torch.full_like(features[:, :1], self.constant)
        answer: Tensor = self.shapes(features) + self.intercept(constant)
        return answer

    @torch.no_grad()
    def start_at(self, *answers: float) -> None:
        """Let every row begin with these answers: one per output, or the same for all."""
        self.intercept.weight.copy_(torch.tensor(answers)[:, None] / self.constant)
