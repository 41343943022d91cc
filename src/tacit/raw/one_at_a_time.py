"""Isolation by construction: every example is a batch by itself, from the data set to its gradient.

No operation ever sees two examples, so none can mix them, nor round one of them otherwise because of its company. What
the model, the loss or the augmentation keeps in attributes, buffers or closures is put back after every example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tacit import batches
from tacit.raw.agreement import Losses, gradients_of
from tacit.raw.footprint import Footprint
from tacit.raw.gradients import Direct
from tacit.raw.instrumentation import Instrumentation
from tacit.raw.probe import refuse_writes
from tacit.raw.recorder import Recorder
from tacit.raw.refusals import refuse_renormalised_tables
from tacit.raw.rehearsal import untouched
from tacit.raw.units import UnitBatch
from tacit.support import Support
from tacit.units import numbered

HOLD = 1 << 24
"""Elements of per-example gradients that are held at once."""

MOST = 64
"""Examples whose gradients are held at once, at most."""


class Singles(list[Any]):
    """Batches of one example each: what a chunk is where examples are isolated by construction.

    Where units have several examples, the examples of one unit are one ``UnitBatch``.
    """


class Alone:
    """Per-example gradients of examples that never meet."""

    def __init__(self, model: nn.Module, losses: Losses, views: int, footprint: Footprint) -> None:
        self._model, self._losses, self._views, self._footprint = model, losses, views, footprint
        # torch 2.13 has a wrong gradient of instance_norm for a batch of one; each example then comes twice, and the
        # first copy counts.
        self._copies = (
            2 if any(isinstance(m, nn.modules.instancenorm._InstanceNorm) for m in model.modules()) else 1
        )

    def rehearse(self, chunk: Any) -> None:
        """Refuse a model that writes to itself in a forward pass."""
        refuse_renormalised_tables(self._model)
        for single in self._split(chunk)[:1]:
            with untouched(self._model):
                refuse_writes(self._model, self._losses, single.batch)

    def passes(
        self, chunk: Any, support: Support, place: Callable[[Any], Any]
    ) -> Iterator[tuple[Recorder, Instrumentation]]:
        """The gradients of the examples of a chunk, some at a time; those that are not finite are left out."""
        instrumentation = Instrumentation(self._model, support)
        parameters = {
            instrumentation.names[id(p)]: p
            for p in self._model.parameters()
            if id(p) in instrumentation.blocks
        }
        if not parameters:
            return
        most = max(1, min(MOST, HOLD // sum(p.numel() for p in parameters.values())))
        singles = self._split(chunk)
        for start in range(0, len(singles), most):
            found = [
                self._gradients(place(s.batch), s.examples, list(parameters.values()))
                for s in singles[start : start + most]
            ]
            finite = [gradients for gradients in found if all(map(_is_finite, gradients))]
            if finite:
                yield _recorder(finite, list(parameters.values()), instrumentation), instrumentation

    def _split(self, chunk: Any) -> list[_Single]:
        if isinstance(chunk, Singles):
            return [_single(item) for item in chunk]
        if isinstance(chunk, UnitBatch):
            rows = torch.arange(batches.rows(chunk.batch)).view(-1, self._views)
            codes, count = numbered(chunk.ids)
            own = [rows[torch.from_numpy(codes == unit)] for unit in range(count)]
            return [_Single(batches.take(chunk.batch, part.flatten()), len(part)) for part in own]
        return [
            _Single(batches.part(chunk, start, start + self._views), 1)
            for start in range(0, batches.rows(chunk), self._views)
        ]

    def _gradients(self, single: Any, examples: int, parameters: list[nn.Parameter]) -> list[Tensor]:
        """The gradient of one unit, from a copy of it: where its rows lay in memory makes no difference."""
        rows = torch.arange(self._views * examples).repeat(self._copies)
        weights = torch.tensor([1.0, 0.0][: self._copies], dtype=torch.float64).repeat_interleave(examples)
        with self._footprint.taken_back():
            return gradients_of(self._losses, batches.take(single, rows), parameters, weights / examples)[1]


def _is_finite(gradient: Tensor) -> bool:
    """Whether every entry is; by the largest, which needs no memory of the gradient's size, unlike ``isfinite``."""
    return not gradient.numel() or bool(torch.linalg.vector_norm(gradient, math.inf).isfinite())


@dataclass(frozen=True)
class _Single:
    """The examples of one unit, one in most cases."""

    batch: Any
    examples: int


def _single(item: Any) -> _Single:
    return _Single(item.batch, len(item.ids)) if isinstance(item, UnitBatch) else _Single(item, 1)


def _recorder(
    found: list[list[Tensor]], parameters: list[nn.Parameter], instrumentation: Instrumentation
) -> Recorder:
    """The gradients of some examples as uses of their parameters, with their norms."""
    recorder = Recorder(instrumentation.blocks, len(found), len(found), parameters[0].device)
    with torch.no_grad():
        for place, parameter in enumerate(parameters):
            own = [gradients[place] for gradients in found]
            # One gradient may be all that fits into memory: it is not copied.
            stacked = torch.stack(own) if len(own) > 1 else own[0][None]
            recorder.add(parameter, Direct(stacked.to(parameter.dtype)))
        recorder.finish()
    return recorder
