"""Choosing whole rows: what releases say about each row of each weight, and the best of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tacit.errors import ArgumentError
from tacit.plan.sources import RowScore, TopRows, statistic_of
from tacit.support.block import Block, Kind
from tacit.support.modules import modules_of
from tacit.support.support import trainable_parameters

if TYPE_CHECKING:
    from tacit.release.mechanism import Released


class RowScores:
    """Running row totals of released values, one number per row (entry of dimension 0).

    The score of a row is the mean over the releases of Σᵢ ṽᵢ over the coordinates i of the row, where ṽ is the
    released value for ``absolute``, its absolute value for ``magnitude`` and |θ| times it for ``saliency``; for
    ``row-norms``, ``votes``, ``module-votes`` and ``counts`` the released value of the row itself.
    """

    def __init__(self, model: nn.Module, score: RowScore) -> None:
        self._parameters = trainable_parameters(model)
        self.score: RowScore = score
        self._totals = {n: p.detach().new_zeros(rows_of(p.shape)) for n, p in self._parameters.items()}
        self._seen = dict.fromkeys(self._parameters, 0)

    @torch.no_grad()
    def add(self, released: Released) -> None:
        """Take in one release of what this score is made from; it must hold whole parameters."""
        if released.statistic != statistic_of(self.score):
            raise ArgumentError(f"A release of {released.statistic} says nothing about {self.score}.")
        for name, values in released.values.items():
            if released.support[name].kind is not Kind.ALL:
                raise ArgumentError(f"Rows can be scored only where all of {name!r} is released.")
            if self.score == "magnitude":
                values = values.abs()
            elif self.score == "saliency":
                values = values * self._parameters[name].abs()
            rows = len(self._totals[name])  # none, where another process holds them all
            self._totals[name] += values.reshape(rows, values.numel() // max(1, rows)).sum(1)
            self._seen[name] += 1

    def means(self) -> dict[str, Tensor]:
        """The score of every row of every parameter that has been released."""
        return {name: total / self._seen[name] for name, total in self._totals.items() if self._seen[name]}

    def state(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """Everything needed to continue, as tensors and plain numbers."""
        return dict(self._totals), dict(self._seen)

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, object]) -> None:
        """Go on from a state."""
        for name, total in self._totals.items():
            total.copy_(tensors[name])
            self._seen[name] = int(numbers[name])  # type: ignore[call-overload]


def rows_of(shape: Sequence[int]) -> int:
    """The number of rows of a parameter; one without dimensions is a single row."""
    return Block.all(shape).row_count


def row_scores(
    source: TopRows, model: nn.Module, names: Sequence[str], gathered: RowScores | None, seed: int
) -> dict[str, Tensor]:
    """One number per row of the named parameters, by which ``source`` ranks them."""
    parameters = trainable_parameters(model)
    if source.score == "random":
        generator = torch.Generator().manual_seed(seed)
        return {
            n: torch.rand(rows_of(parameters[n].shape), generator=generator, dtype=torch.float64)
            for n in names
        }
    if source.score == "weights":
        return {
            n: parameters[n].detach().abs().reshape(rows_of(parameters[n].shape), -1).sum(1) for n in names
        }
    means = gathered.means() if gathered is not None and gathered.score == source.score else {}
    missing = [name for name in names if name not in means]
    if missing:
        raise ArgumentError(f"Rows by {source.score} need a phase before that scores {missing[0]!r} so.")
    return {name: means[name] for name in names}


def best_rows(source: TopRows, model: nn.Module, scores: Mapping[str, Tensor]) -> dict[str, Block]:
    """The blocks of the rows that ``source`` keeps, for the scored parameters; the first win among equals."""
    if source.choose == "modules":
        return _best_modules(source, model, scores)
    shapes = {name: tuple(trainable_parameters(model)[name].shape) for name in scores}
    groups = [[name] for name in scores] if source.per_layer else [list(scores)]
    blocks = {}
    for group in groups:
        flat = torch.cat([scores[name].detach().cpu().double() for name in group])
        order = torch.sort(flat, descending=True, stable=True).indices[: source.count(len(flat))]
        kept = torch.zeros(len(flat), dtype=torch.bool)
        kept[order] = True
        for name, mask in zip(group, torch.split(kept, [len(scores[n]) for n in group]), strict=True):
            blocks[name] = _block(shapes[name], mask)
    return blocks


def _best_modules(source: TopRows, model: nn.Module, scores: Mapping[str, Tensor]) -> dict[str, Block]:
    """The blocks of the modules that ``source`` keeps: all of a parameter, or nothing."""
    modules = modules_of(model, scores)
    if source.score == "module-votes":  # of a module, in the first row of its first parameter
        values = [float(scores[names[0]][0]) for names in modules.values()]
    elif source.score == "random":  # one draw each, whatever the number of its rows
        values = [float(scores[names[0]].flatten()[0]) for names in modules.values()]
    else:
        values = [sum(float(scores[name].double().sum()) for name in names) for names in modules.values()]
    order = sorted(range(len(values)), key=lambda place: -values[place])[: source.count(len(values))]
    kept = {name for place, names in enumerate(modules.values()) if place in order for name in names}
    shapes = {name: tuple(trainable_parameters(model)[name].shape) for name in scores}
    return {name: Block.all(shape) if name in kept else Block.silent(shape) for name, shape in shapes.items()}


def check_rows(source: TopRows, model: nn.Module, names: Sequence[str]) -> None:
    """Refuse a number of rows that the model does not have."""
    if source.rows is None:
        return
    if source.choose == "modules":
        count = len(modules_of(model, names))
        if source.rows > count:
            raise ArgumentError(
                f"The model has {count} modules to choose from, fewer than {source.rows}; ask for fewer."
            )
        return
    available = {name: rows_of(trainable_parameters(model)[name].shape) for name in names}
    if source.per_layer:
        for name, count in available.items():
            if source.rows > count:
                raise ArgumentError(
                    f"{name!r} has {count} rows, fewer than the {source.rows} to keep in every layer; ask for fewer, "
                    "or name it as always active."
                )
    elif source.rows > sum(available.values()):
        raise ArgumentError(
            f"The model has {sum(available.values())} rows to choose from, fewer than {source.rows}; ask for fewer."
        )


def _block(shape: tuple[int, ...], mask: Tensor) -> Block:
    if shape:
        return Block.rows(shape, mask.nonzero().flatten())
    return Block.all(shape) if bool(mask.any()) else Block.silent(shape)
