"""Examples looked at before anything is spent: do they go through model and loss, and do they count?

An example without a finite gradient counts as zero, and one that model or loss does not take stops the run. Where the
data is in memory, the examples that are likeliest to do so are found in it: the least and the largest labels and ids,
rows with a number that is not finite, rows of another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, Subset, TensorDataset

from tacit import batches
from tacit.errors import ModelError
from tacit.raw.agreement import gradients_of
from tacit.raw.instrumentation import uncompiled
from tacit.raw.memory import is_out_of_memory
from tacit.raw.mishaps import PASSED_ON, explained, stopping
from tacit.raw.pipeline import Pipeline
from tacit.raw.probe import trained, values_of
from tacit.raw.probe_batches import some_positions
from tacit.raw.rehearsal import untouched
from tacit.warning import warn

LOOKED_AT = 64
"""Examples that are looked at where the first few do not count."""

WALKED = 1 << 16
"""Entries of a list that are looked through, at most."""

SHAPES = 4
"""Examples of different shapes that are tried together."""

ROWS_AT_ONCE = 4096

Losses = Callable[[Any], Tensor]


class _Misshapen(Exception):
    """A loss does not give one value per example."""


class FirstLook:
    """Looks at examples of a data set through model and loss.

    ``losses(batch)`` gives one loss per row, of which every example has ``views``. ``isolated``: examples never share a
    batch.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        pipeline: Pipeline,
        *,
        views: int,
        autocast: torch.dtype | None,
        isolated: bool,
    ) -> None:
        self._model, self._pipeline, self._views, self._isolated = model, pipeline, views, isolated
        self._warned = self._connected = self._moves = False
        device = next(model.parameters()).device

        def placed(batch: Any) -> Tensor:
            batch = batches.place(batch, device, channels_last=False)
            with (
                torch.autocast(device.type, dtype=autocast or torch.bfloat16, enabled=autocast is not None),
                uncompiled(),
            ):
                return losses(batch)

        self._losses = placed

    def some(self, examples: int, count: int, draw: torch.Generator) -> list[int]:
        """A few positions of examples that count; refuse data of which none does, and say so if some do not."""
        few = some_positions(examples, count, draw)
        found = self._problems(few)
        if all(found.values()):
            more = [p for p in some_positions(examples, LOOKED_AT, draw) if p not in few]
            found |= self._problems(more[: LOOKED_AT - len(few)])
        counting = [position for position, problem in found.items() if not problem]
        problems = {problem for problem in found.values() if problem}
        if not counting:
            raise ModelError(
                f"None of {len(found)} examples, drawn at random, {' or '.join(sorted(problems))}"
            )
        if NOT_FINITE in problems:
            self._warn()
        self._refuse_comparisons(counting[:count])
        return counting[:count]

    def odd(self, dataset: Dataset[Any]) -> None:
        """Refuse data with an example that model or loss does not take; say so if one has no finite loss."""
        positions = odd_positions(dataset)
        if not positions:
            return
        parts = [[p] for p in positions] if self._isolated else [positions]
        try:
            with untouched(self._model, self._pipeline.held):
                losses = [values_of(self._averaged, self._pipeline.batch(part)) for part in parts]
        except PASSED_ON:
            raise
        except _Misshapen:
            return
        except Exception as error:
            if is_out_of_memory(error):
                return
            raise stopping(error) from None
        if not all(bool(found.isfinite().all()) for found in losses):
            self._warn()

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warn(
                "Some examples have no finite loss or gradient (is there NaN or infinity in the data?); they count as "
                "zero in every step. Fill in or leave out such values."
            )

    def _problem(self, position: int) -> str | None:
        """Why an example counts for nothing, if so."""
        batch = self._pipeline.batch([position] if self._isolated else [position, position])
        rows = batches.rows(batch) // self._views
        try:
            values, found = self._gradients(batch, rows)
        except _Misshapen:
            return None  # the clipper has a sentence about losses of another form
        if not all(bool(part.isfinite().all()) for part in (values, *found)):
            return NOT_FINITE
        self._moves |= any(bool(gradient.any()) for gradient in found)
        return None if self._connected else DETACHED

    def _gradients(self, batch: Any, rows: int) -> tuple[Tensor, Sequence[Tensor]]:
        weights = torch.ones(rows, dtype=torch.float64)
        with untouched(self._model, self._pipeline.held):
            return gradients_of(self._averaged, batch, trained(self._model)[1], weights)

    def _refuse_comparisons(self, few: Sequence[int]) -> None:
        """Refuse a loss that has a gradient only where examples meet, which these never do."""
        if not self._isolated or self._moves or len(few) < 2:
            return
        try:
            _, found = self._gradients(self._pipeline.batch(few), len(few))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return  # they cannot meet
        if any(bool(gradient.any()) for gradient in found):
            raise ModelError(
                "The loss compares the examples of a batch: by itself none of those looked at has a gradient, "
                "together they have, so nothing would be learnt from examples that are kept apart. Only a loss of each "
                "example by itself can be trained privately."
            )

    def _averaged(self, batch: Any) -> Tensor:
        losses = self._losses(batch)
        if not isinstance(losses, Tensor) or losses.shape != (batches.rows(batch),):
            raise _Misshapen
        self._connected |= losses.requires_grad
        return losses.view(-1, self._views).mean(1)

    def _problems(self, positions: Sequence[int]) -> dict[int, str | None]:
        """Why each example counts for nothing, if so; refuse those that do not go through."""
        found: dict[int, str | None] = {}
        failed: list[Exception] = []
        for position in positions:
            try:
                found[position] = self._problem(position)
            except PASSED_ON:
                raise
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                failed.append(error)
        if failed and found:
            raise stopping(failed[0]) from None
        if failed:  # all of them: it is about their form, not about single ones
            raise explained(failed[0], self._model, self._shown(positions[0])) from failed[0]
        return found

    def _shown(self, position: int) -> Any:
        """A batch to be spoken of, if one can be made."""
        try:
            return self._pipeline.batch([position])
        except Exception:
            return None


NOT_FINITE = (
    "has a finite loss and gradient, so nothing can be learnt from them: the data, the initial weights or the loss "
    "give NaN or infinity."
)
DETACHED = (
    "has a gradient, so nothing can be learnt from them: the loss does not depend on the trained parameters; is it "
    "detached from them, or computed under torch.no_grad()?"
)


def odd_positions(dataset: Any) -> list[int]:
    """Positions of the examples in memory that are likeliest not to go through; none where data is not in memory."""
    whole, chosen = dataset, None
    if type(dataset) is Subset:
        whole, chosen = dataset.dataset, torch.as_tensor(np.asarray(dataset.indices))
    if type(whole) is TensorDataset:
        return _odd_rows(whole.tensors, chosen)
    if isinstance(getattr(type(whole), "telling", None), property):  # as of tacit.data.SparseRows
        return _odd_rows(whole.telling, chosen)
    return _odd_items(dataset) if isinstance(dataset, list | tuple) else []


def _odd_rows(tensors: Sequence[Tensor], chosen: Tensor | None) -> list[int]:
    found: dict[int, None] = {}
    for whole in tensors:
        if not whole.numel() or whole.layout is not torch.strided or whole.is_complex():
            continue
        tensor = whole if chosen is None else whole[chosen]
        size = tensor[0].numel()
        if not tensor.is_floating_point():
            wide = tensor if tensor.dtype != torch.bool else tensor.byte()
            found |= {int(wide.argmin()) // size: None, int(wide.argmax()) // size: None}
        elif not all(bool(end.isfinite()) for end in torch.aminmax(tensor)):
            for start in range(0, len(tensor), ROWS_AT_ONCE):
                rows = tensor[start : start + ROWS_AT_ONCE].reshape(-1, size).isfinite().all(1)
                if not bool(rows.all()):
                    found[start + int(rows.byte().argmin())] = None
                    break
    return list(found)


def _odd_items(items: Sequence[Any]) -> list[int]:
    shapes: dict[Any, int] = {}
    ends: dict[tuple[int, bool], tuple[float, int]] = {}
    infinite: int | None = None
    for position, item in enumerate(items[:WALKED]):
        leaves = pytree.tree_leaves(item)
        shapes.setdefault(tuple(tuple(getattr(leaf, "shape", ())) for leaf in leaves), position)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, int) or (
                isinstance(leaf, Tensor) and leaf.dtype == torch.int64 and leaf.numel()
            ):
                low, high = (leaf, leaf) if isinstance(leaf, int) else map(int, torch.aminmax(leaf))
                ends[place, False] = min(ends.get((place, False), (low, position)), (low, position))
                ends[place, True] = max(ends.get((place, True), (high, position)), (high, position))
            elif infinite is None and isinstance(leaf, Tensor | float):
                infinite = None if bool(torch.as_tensor(leaf).isfinite().all()) else position
    different = list(shapes.values())[:SHAPES] if len(shapes) > 1 else []
    found = [
        *different,
        *(position for _, position in ends.values()),
        *([] if infinite is None else [infinite]),
    ]
    return list(dict.fromkeys(found))
