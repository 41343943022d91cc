"""Σᵢ clip(m ⊙ gᵢ, C): the masked, clipped sum of per-example gradients, exactly, without forming them.

m is the mask of a support; where the support has weights, it holds them in place of ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from tacit import batches
from tacit.errors import ArgumentError, ModelError, Unseen, check_count, check_positive
from tacit.losses import Loss
from tacit.plan.phase import ClipOrder
from tacit.plan.sources import Statistic
from tacit.raw.doubts import Doubts, anywhere, confirmed, put_off
from tacit.raw.exact import FLUSHED, Allowance, full_precision
from tacit.raw.footprint import Footprint, leaves_nothing
from tacit.raw.generators import random_state, restore_random_state
from tacit.raw.gradients import Embedding
from tacit.raw.gradients.base import LARGEST_MASS, Norms
from tacit.raw.inspector import Inspections, Inspector
from tacit.raw.instrumentation import Instrumentation, uncompiled
from tacit.raw.losses import ROUNDING as LOSS_ROUNDING
from tacit.raw.losses import loss_vectors
from tacit.raw.memory import Pieces
from tacit.raw.one_at_a_time import Alone, Singles
from tacit.raw.pipeline import Pipeline
from tacit.raw.probe import Findings
from tacit.raw.recorder import Recorder
from tacit.raw.refusals import refuse_unwatchable
from tacit.raw.row_statistics import (
    differentiable,
    looked_up,
    module_votes_of_one,
    votes_of_each,
    votes_of_one,
)
from tacit.raw.row_tables import RowSum, RowTable, StandIns, embedding_tables
from tacit.raw.units import UnitBatch, UnitLayout, arranged
from tacit.support import Block, Kind, Support
from tacit.support.modules import modules_of
from tacit.warning import warn

Isolation = Literal["probed", "construction"]
Clipping = Literal["flat", "automatic", "per-layer"]
Result = TypeVar("Result")
Work = Callable[[Any, np.ndarray | None], dict[str, Tensor | RowSum]]

ROUNDING = {torch.float64: 2.0**-12, torch.float32: 2.0**-8}
"""Share of the clip norm that rounding may add, in an example's norm and in the sum; the sensitivity covers it.

Three eighths are for the norm. A quarter is for sums that are verified and a sixteenth for sums in double precision,
each twice: with and without the example. docs/concepts/numerics.md proves that they are enough.
"""
MOST_EXAMPLES = 1 << 13
"""Examples worked on at once: sums over more are added up from parts."""

PER_ROW = ("row-norms", "row-counts", "row-votes", "module-votes")
"""Statistics that have one number per row."""

WAITING = ("row-counts", "row-votes", "module-votes")
VOTING = ("row-votes", "module-votes")
"""Statistics for which a device is asked at every chunk."""

HELD = 256 << 20
"""Bytes of chunks that are held on a device until their checks have answered."""
CAREFUL_AFTERWARDS = 16
"""Batches whose checks answer at once after one has found something: it may well find something again."""

_NO_SUCH_ROW = ("index out of range in self", "Expected idx >= 0 && idx < num_embeddings")

NEAR_ZERO = 0.01
"""γ of automatic clipping: what a gradient's norm is large or small against."""

LARGEST, LARGEST_BESIDE_SUMS, FEWEST = 13 << 20, 60 << 20, 16
"""Bytes of the largest layer output of a piece, to save memory. Blocks of 32 MB and more the C
library maps afresh each time, and touching fresh pages costs more than the arithmetic. But every piece also adds to a
sum in double precision, so where that is larger, pieces are as large as it is, up to the second limit, until they hold
FEWEST examples."""
ENOUGH, ENOUGH_BYTES = 128, 2 << 20
"""Examples, and bytes of that output, that a piece need not exceed where the sum is small: a step on twice as many then
takes a few percent less time and up to twice the memory."""


def check_isolation(isolation: str) -> Isolation:
    """Refuse a way to keep examples apart that does not exist."""
    if isolation not in get_args(Isolation):
        raise ArgumentError(f'isolation must be "probed" or "construction", not {isolation!r}.')
    return cast(Isolation, isolation)


def check_clipping(clipping: str) -> Clipping:
    """Refuse a way to clip that does not exist."""
    if clipping not in get_args(Clipping):
        raise ArgumentError(f'clipping must be "flat", "automatic" or "per-layer", not {clipping!r}.')
    return cast(Clipping, clipping)


@dataclass(frozen=True)
class ClippedSum:
    """A sum over examples of vectors of L2 norm at most ``sensitivity``: raw, to be released and nothing else.

    ``values`` holds the compact tensor of each parameter with an active coordinate, or one number per active row
    where the ``statistic`` is that of row norms. Adding or removing one example changes the whole of them by at most
    ``sensitivity`` in L2 norm. Sums may be held in double precision; ``dtypes`` are those of the parameters. ``rows``
    holds the sums of tables that are read row by row, on the rows that occur. ``counts`` has, for those that are
    counted, the sums of clip(uᵢ, 1), where uᵢ is 1 for the rows that an example looks up: another vector, of
    sensitivity 1 and the same slack.
    """

    values: dict[str, Tensor]
    support: Support
    clip_norm: float
    sensitivity: float
    dtypes: dict[str, torch.dtype]
    statistic: Statistic = "gradient"
    rows: dict[str, RowSum] = field(default_factory=dict)
    counts: dict[str, RowSum] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many numbers there are to release."""
        values = sum(v.numel() for v in self.values.values())
        return values + sum(v.numel() for v in (*self.rows.values(), *self.counts.values()))


@dataclass
class _Hope:
    """Chunks that were worked on in the hope that no check finds anything, and how things stood before."""

    state: list[tuple[Any, Any]]
    summed: int
    terms: int
    chunks: list[Any] = field(default_factory=list)
    held: int = 0
    doubts: Doubts = field(default_factory=list)
    total: dict[str, Tensor] = field(default_factory=dict)


class Clipper:
    """Computes clipped sums for one model and loss.

    ``views``: every example comes as that many consecutive rows of a batch (augmented views); its loss is their mean.
    ``autocast``: the type to run the forward pass in, None for the model's own. ``seed``: for the random directions in
    which sums are verified; None draws them from the operating system.
    ``inspections``: when to look at the model again; ``pipeline``: how its batches are made, to be looked at too.
    ``isolation``: whether examples share a batch, and a probe looks for what mixes them, or each is a batch of its own.
    ``tables``: parameters that are read and summed row by row.
    ``clipping``: what becomes of a gradient g. "flat": g·min(1, C/‖g‖). "automatic": g·C/(‖g‖ + γ), so that all count
    alike, whatever C. "per-layer": each of the L modules with active parameters is clipped to C/√L. No example moves
    the sum by more than C in any of them.

    A chunk may be a ``UnitBatch``. Then what is said of examples holds for units: the loss of a unit is the mean over
    its examples, and its gradient is clipped once. The probe still looks at single examples, which is stricter.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        views: int = 1,
        autocast: torch.dtype | None = None,
        seed: int | None = None,
        inspections: Inspections | None = None,
        pipeline: Pipeline | None = None,
        isolation: Isolation = "probed",
        tables: Mapping[str, RowTable] | None = None,
        clipping: Clipping = "flat",
    ) -> None:
        refuse_unwatchable(model)
        self._clipping = check_clipping(clipping)
        self._tables = dict(tables or {})
        self._stand_ins = StandIns(model, list(self._tables))
        if self._tables and isolation == "construction":
            raise ArgumentError(
                'Tables that are read row by row need isolation="probed": examples that are differentiated one by one '
                "have a gradient for every row each."
            )
        self._everything = Support.all(model)  # refuses a model without trainable parameters
        for name in self._everything:
            dtype = model.get_parameter(name).dtype
            if dtype not in ROUNDING:
                raise ModelError(
                    f"The parameter {name!r} is of type {dtype}, too coarse for a sum with a proven bound; keep what "
                    "is trained in float32 and give autocast=torch.bfloat16 for speed."
                )
        self.model = model
        self.views = check_count("views", views)
        self._loss = loss
        self.footprint = Footprint(model, loss=loss)
        self._autocast = autocast
        self._device = next(model.parameters()).device
        self._channels_last = any(isinstance(m, nn.Conv2d) for m in model.modules())
        if self._channels_last:
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.dim() == 4:
                    tensor.data = tensor.data.to(memory_format=torch.channels_last)
        self._inspector = Inspector(
            model,
            self._losses,
            views=self.views,
            reduced_precision=autocast is not None,
            inspections=inspections or Inspections(),
            pipeline=pipeline,
            conditions=self._stand_ins,
        )
        self._alone = (
            Alone(model, self._losses, self.views, self.footprint) if isolation == "construction" else None
        )
        self._instrumentation: tuple[Support, Findings, Instrumentation] | None = None
        self._announced: set[str] = set()
        self._seed = seed
        self._pieces = Pieces(self.views, self._most_examples)
        self._widest: dict[tuple[tuple[int, ...], ...], int] = {}
        self._summed_on = self._everything
        self._votes: int | None = None
        self._allowance: Allowance | None = None
        self._doubts: Doubts | None = None
        self._careful = 0

    @leaves_nothing
    def clipped_sum(
        self,
        chunks: Iterable[Any],
        support: Support,
        clip_norm: float,
        *,
        statistic: Statistic = "gradient",
        clip_order: ClipOrder = "mask-then-clip",
        votes: int | None = None,
    ) -> ClippedSum:
        """The sum over all examples of all chunks; no chunk, or empty chunks, give zeros.

        ``statistic`` "absolute" sums |clip(m ⊙ gᵢ, C)| instead, "row-norms" the L2 norm of every row of clip(m ⊙ gᵢ, C)
        (0 for a row without active coordinates); vectors of the same norm, so the sensitivity is the same.
        "row-counts" sums clip(uᵢ, C), where uᵢ is 1 for every row of an embedding table that the example looks up.
        "row-votes" sums votes: of every active parameter the ``votes`` rows with the largest gradients of the example
        get C/√n each, if n votes is the most that an example has, so that all of them have norm C at most, whatever the
        gradients are. For that every example is worked on alone: what another one does to its rounding could decide
        between rows that are nearly equal, and so turn many votes. "module-votes" sums votes for whole modules: the
        ``votes`` modules with the largest gradients get C/√m each, in the first row of their first active parameter.
        "clip-then-mask" sums m ⊙ clip(gᵢ, C), which is never longer than clip(gᵢ, C).
        """
        check_positive("clip_norm", clip_norm)
        if statistic in PER_ROW and any(
            block.kind in (Kind.ROWS, Kind.COORDINATES) or block.weights is not None
            for block in support.values()
        ):
            raise ArgumentError(
                "Row norms, counts and votes can be summed only on whole parameters, without weights."
            )
        if statistic == "row-counts" and self._alone is not None:
            raise ArgumentError(
                'Counts of rows need isolation="probed", which sees the rows that are looked up.'
            )
        if statistic == "module-votes" and self._alone is not None:
            raise ArgumentError('Votes for modules need isolation="probed".')
        if (votes is not None) != (statistic in VOTING):
            raise ArgumentError("A number of votes belongs to a sum of votes, and to no other.")
        self._votes = None if votes is None else check_count("votes", votes)
        # Plain autograd would form the gradient of a whole embedding table.
        words = any(support[name].size for name in embedding_tables(self.model) if name in support)
        self._votes_plainly = votes is not None and self._alone is None and not words
        active = [name for name, block in support.items() if block.size]
        self._modules = modules_of(self.model, active) if statistic == "module-votes" else None
        clipped_on = support if clip_order == "mask-then-clip" else self._everything
        self._summed_on = clipped_on
        self._parameters = parameters = dict(self.model.named_parameters())
        self._slack = max(ROUNDING[parameters[name].dtype] for name in support)
        # Only sums of gradients are verified; all others are in double precision.
        verified = statistic == "gradient"
        self._allowance = Allowance(self._slack / 4 * clip_norm, self._seed) if verified else None
        self._summed, self._terms = 0, 1
        if self._tables:
            self._check_whole(support, statistic, clip_order)
        total: dict[str, Tensor] = {}
        rows: dict[str, RowSum] = {}
        self._counts: dict[str, RowSum] = {}
        seen: set[Hashable] = set()
        if self._alone is None:
            self._inspector.begin(support)
        work: Work = partial(self._sum, support=clipped_on, clip_norm=clip_norm, statistic=statistic)
        hopeful, hope = self._is_hopeful(statistic), None
        for chunk in chunks:
            _refuse_parted(chunk, seen)
            if self._inspector.pending:
                plain = self._placed(_plain(chunk))
                self._inspector.meet(plain, partial(self._most_examples, plain))
            if not hopeful:
                self._add_up(total, rows, chunk, work)
                continue
            if hope is not None and hope.held > HELD:
                self._settle(hope, total, work, last=False)
                hope = None
            hope = hope or _Hope(random_state(), self._summed, self._terms)
            self._add_in_hope(hope, chunk, work)
        if hope is not None:
            self._settle(hope, total, work, last=True)
        if clipped_on is not support:
            total = {
                name: support[name].scaled(support[name].gather(t))
                for name, t in total.items()
                if support[name].size
            }
        self._check_length()
        values = self._complete(total, support, statistic, parameters)
        for name, table in self._tables.items():
            shape = self.model.get_parameter(name).shape
            rows.setdefault(name, RowSum(shape, [], self._device))
            if table.counted:
                self._counts.setdefault(name, RowSum((shape[0], 1), [], self._device))
        dtypes = {name: parameters[name].dtype for name in values}
        sensitivity = clip_norm * (1 + self._slack)
        return ClippedSum(values, support, clip_norm, sensitivity, dtypes, statistic, rows, self._counts)

    def _add_up(self, total: dict[str, Tensor], rows: dict[str, RowSum], chunk: Any, work: Work) -> None:
        for found in self._parts(chunk, work):
            while found:
                name, part = found.popitem()
                if isinstance(part, RowSum) and name in self._tables:
                    rows[name] = rows[name].plus(part) if name in rows else part
                elif name in total:
                    total[name] = _plus(total[name], part)
                else:
                    total[name] = part.whole() if isinstance(part, RowSum) else part

    def _is_hopeful(self, statistic: Statistic) -> bool:
        """Whether checks of this batch are put off to its end: on a device, unless they found something lately."""
        if self._device.type == "cpu" or self._alone is not None or self._tables or statistic in WAITING:
            return False
        self._careful = max(0, self._careful - 1)
        return not self._careful

    def _add_in_hope(self, hope: _Hope, chunk: Any, work: Work) -> None:
        """Add a chunk, and hold a copy of it, in case that it must be worked on again."""
        placed = self._placed(chunk)
        chunk = (
            UnitBatch(batches.own(placed.batch, chunk.batch), chunk.ids)
            if isinstance(chunk, UnitBatch)
            else batches.own(placed, chunk)
        )
        hope.chunks.append(chunk)
        hope.held += batches.nbytes(_plain(chunk))
        self._doubts = hope.doubts
        try:
            self._add_up(hope.total, {}, chunk, work)
        finally:
            self._doubts = None

    def _settle(self, hope: _Hope, total: dict[str, Tensor], work: Work, *, last: bool) -> None:
        """Add what was hoped for to the total, or what the careful way gives where a check has found something."""
        if self._allowance is not None:
            self._allowance.note(hope.doubts)
        sure = not confirmed(hope.doubts)
        if self._allowance is not None and not (sure and last):
            self._allowance.settle(kept=sure)
        if not sure:
            self._careful = CAREFUL_AFTERWARDS
            hope.total.clear()
            restore_random_state(hope.state)
            self._summed, self._terms = hope.summed, hope.terms
            for chunk in hope.chunks:
                self._add_up(hope.total, {}, chunk, work)
        for name, part in hope.total.items():
            total[name] = _plus(total[name], part) if name in total else part

    @leaves_nothing
    def loss_sum(
        self, chunks: Iterable[Any], candidates: Sequence[Mapping[str, Tensor]], clip_norm: float
    ) -> ClippedSum:
        """The sum over all units of their losses, one for each candidate for the weights, clipped together."""
        seen: set[Hashable] = set()

        def placed() -> Iterator[Any]:
            for chunk in chunks:
                _refuse_parted(chunk, seen)
                yield (
                    Singles(self._placed(single) for single in chunk)
                    if isinstance(chunk, Singles)
                    else self._placed(chunk)
                )

        summed = loss_vectors(self.model, self._loss, candidates, placed(), clip_norm)
        sensitivity = clip_norm * (1 + LOSS_ROUNDING)
        return ClippedSum(
            {"losses": summed}, self._everything, clip_norm, sensitivity, {"losses": torch.float64}
        )

    @leaves_nothing
    def norms(self, batch: Any, support: Support) -> Tensor:
        """The norm of each example's masked gradient: a diagnostic that never leaves the raw side.

        Of a ``UnitBatch``, those of its units, in order of first appearance.
        """
        order = self._arranged(batch)[2]
        self._summed_on = support
        pieces = self._parts(
            batch,
            lambda part, sizes: [o.norms_squared for o, _ in self._passes(part, support, sizes)],
        )
        found = [norms for piece in pieces for norms in piece if norms is not None]
        norms = torch.cat(found).clamp_(min=0).sqrt() if found else torch.zeros(0)
        if order is None or len(norms) != len(order):
            return norms
        return torch.empty_like(norms).index_copy_(0, torch.from_numpy(order).to(norms.device), norms)

    def rehearse(self, batch: Any) -> None:
        """Refuse a model, a loss or a pipeline that cannot be trained with, on a batch of a few examples."""
        if self._alone is not None:
            self._alone.rehearse(batch)
        self.norms(batch, self._everything)
        if self._alone is None:
            self._inspector.look_at_pipeline()

    @property
    def understood(self) -> bool:
        """Whether a look has shown how gradients reach their examples, so that chunks of that form need no other."""
        return bool(self._inspector.findings)

    def _parts(self, chunk: Any, work: Callable[[Any, np.ndarray | None], Result]) -> Iterable[Result]:
        if self._alone is not None:
            return [work(chunk, None)]
        batch, sizes, _ = self._arranged(chunk)
        return self._pieces(batch, work, sizes)

    def _arranged(self, chunk: Any) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
        """A batch, the sizes of its units where one has several examples, and where those units stood."""
        if not isinstance(chunk, UnitBatch) or self._alone is not None:
            return chunk, None, None
        self._check_views(chunk.batch)
        found = arranged(chunk, self.views)
        return (chunk.batch, None, None) if found is None else (found.batch, found.sizes, found.order)

    def _passes(
        self, chunk: Any, support: Support, sizes: np.ndarray | None = None
    ) -> Iterable[tuple[Recorder, Instrumentation]]:
        """Forward and backward over a chunk. Units without a finite gradient are left out: they count as zero.

        A unit is one example, unless there are ``sizes``.
        """
        if self._alone is not None:
            yield from self._alone.passes(chunk, support, self._placed)
            return
        chunk = self._placed(chunk)
        if not batches.rows(chunk):
            return
        layout = None if sizes is None else UnitLayout(sizes, self._device)
        left_out: Tensor | None = None  # nobody: asking the device would make the host wait for it
        state = random_state()
        while left_out is None or not bool(left_out.all()):
            prepared = self._prepared(support, chunk)
            if prepared is None:
                return
            instrumentation, findings = prepared
            self._announce(instrumentation)
            try:
                recorder = self._backward(chunk, instrumentation, findings, left_out, layout)
            except Unseen:
                restore_random_state(state)
                self._inspector.look_further(chunk, findings)
                continue
            if recorder.norms is None:
                return
            finite = torch.isfinite(recorder.norms.square) & torch.isfinite(recorder.norms.above)
            with put_off(self._doubts):
                sure = not anywhere(~finite)
            if sure:
                recorder.left_out = left_out
                yield recorder, instrumentation
                return
            # Again with another example in its place, which does not count, and the same draws for all the others.
            left_out = ~finite if left_out is None else left_out | ~finite
            chunk = _without(chunk, left_out if layout is None else left_out[layout.owner], self.views)
            restore_random_state(state)

    def _backward(
        self,
        chunk: Any,
        instrumentation: Instrumentation,
        findings: Findings,
        left_out: Tensor | None,
        layout: UnitLayout | None,
    ) -> Recorder:
        rows = batches.rows(chunk)
        recorder = Recorder(
            instrumentation.blocks,
            rows // self.views,
            rows,
            self._device,
            layout,
            self._allowance,
            self._doubts,
        )
        with (
            torch.enable_grad(),
            self.footprint.taken_back(),
            instrumentation.watching(recorder, findings.layout),
        ):
            losses = self._losses(chunk)
            if layout is not None:
                losses = layout.shares(losses)
                left_out = None if left_out is None else left_out[layout.owner]
            total = losses.sum() if left_out is None else losses[~left_out].sum()
            if total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]
            recorder.finish()
        self._inspector.count(recorder, chunk, findings)
        return recorder

    def _most_examples(self, chunk: Any) -> int:
        """How many examples to work on at once; a function of public sizes, so that resumed runs sum alike.

        On a CPU the largest layer output should come from memory in use.
        """
        if self._votes is not None:
            return 1
        if self._device.type != "cpu":
            return MOST_EXAMPLES
        self._check_views(chunk)
        shapes = batches.shapes(chunk)
        if shapes not in self._widest:
            findings = self._inspector.about(chunk)
            if findings is None:
                return MOST_EXAMPLES
            _, self._widest[shapes] = self._inspector.measured(
                self._placed(batches.part(chunk, 0, self.views)), findings
            )
        widest = self._widest[shapes]
        return _most_of(widest, self._summed_on) if widest else MOST_EXAMPLES

    def _sum(
        self,
        chunk: Any,
        sizes: np.ndarray | None,
        support: Support,
        clip_norm: float,
        statistic: Statistic,
    ) -> dict[str, Tensor | RowSum]:
        """The clipped sum over one chunk, for parameters that it reaches."""
        total: dict[str, Tensor | RowSum] = {}
        if self._votes_plainly or self._modules is not None:
            total.update(self._votes_alone(chunk, sizes, support, clip_norm))
            return total
        for recorder, instrumentation in self._passes(chunk, support, sizes):
            self._accumulate(total, recorder, instrumentation, support, clip_norm, statistic)
        return total

    def _votes_alone(
        self, chunk: Any, sizes: np.ndarray | None, support: Support, clip_norm: float
    ) -> dict[str, Tensor]:
        """The votes of the one example, or unit, that makes up the chunk."""
        chunk = self._placed(chunk)
        if not batches.rows(chunk) or self._prepared(support, chunk) is None:
            return {}
        assert self._votes is not None
        assert batches.rows(chunk) == self.views if sizes is None else len(sizes) == 1
        self._summed += 1
        unchanged = self.footprint.taken_back()
        with torch.enable_grad(), unchanged, differentiable(self._parameters, support) as parameters:
            losses = self._losses(chunk)
            if sizes is not None:
                losses = UnitLayout(sizes, self._device).shares(losses)
            if not losses.requires_grad:
                return {}
            if self._modules is None:
                return votes_of_one(losses.sum(), parameters, support, self._votes, clip_norm)
            return module_votes_of_one(
                losses.sum(), parameters, support, self._modules, self._votes, clip_norm
            )

    def _accumulate(
        self,
        total: dict[str, Tensor | RowSum],
        recorder: Recorder,
        instrumentation: Instrumentation,
        support: Support,
        clip_norm: float,
        statistic: Statistic,
    ) -> None:
        norms = recorder.norms
        assert norms is not None
        self._summed, self._terms = self._summed + len(norms.square), max(self._terms, norms.terms)
        if statistic == "row-counts":
            tables, given = looked_up(recorder, instrumentation, clip_norm)
            for name, table in tables.items():
                _add(total, name, table.weighted_counts(given))
            return
        if statistic == "row-votes":
            assert self._votes is not None
            assert len(norms.square) == 1 or self._alone is not None
            for name, part in votes_of_each(recorder, instrumentation, support, self._votes, clip_norm):
                _add(total, name, part)
            return
        if counted := [name for name, table in self._tables.items() if table.counted]:
            tables, given = looked_up(recorder, instrumentation, 1.0, counted)
            for name, table in tables.items():
                before, found = self._counts.get(name), table.counts(given)
                self._counts[name] = found if before is None else before.plus(found)
        if self._clipping == "per-layer":
            weights_of = self._layer_weights(recorder, instrumentation, support, clip_norm)
        else:
            weights = self._weights(norms, clip_norm)
            weights_of = dict.fromkeys(map(_layer, support), weights)
        with torch.no_grad(), full_precision(), put_off(self._doubts):
            for key in list(recorder.uses):
                use, name = recorder.uses.pop(key), instrumentation.names[key]
                block = support[name]
                if not block.size:
                    continue
                weights = weights_of[_layer(name)]
                # A device would have to be asked which rows occur.
                by_rows = statistic == "gradient" and block.kind is Kind.ALL and self._device.type == "cpu"
                if name in self._tables or (by_rows and isinstance(use, Embedding)):
                    assert isinstance(use, Embedding)
                    _add(total, name, use.weighted_rows(weights))
                    continue
                if statistic == "gradient":
                    assert self._allowance is not None
                    part = use.weighted_sum(weights, block, self._allowance.of(name))
                elif statistic == "absolute":
                    part = use.weighted_absolute_sum(weights, block)
                else:
                    part = use.weighted_row_norms(weights, block)
                _add(total, name, part)

    def _layer_weights(
        self, recorder: Recorder, instrumentation: Instrumentation, support: Support, clip_norm: float
    ) -> dict[str, Tensor]:
        """The weights of every layer's part, for its share of the clip norm: the shares' squares add up to C²."""
        layers = {_layer(name) for name, block in support.items() if block.size}
        found: dict[str, Norms] = {}
        for key, norms in recorder.norms_of.items():
            layer = _layer(instrumentation.names[key])
            found[layer] = found[layer] + norms if layer in found else norms
        share = clip_norm / math.sqrt(len(layers))
        return {layer: self._weights(norms, share) for layer, norms in found.items()}

    def _weights(self, norms: Norms, clip_norm: float) -> Tensor:
        """What each gradient is multiplied by.

        What is summed is at most as long as the clip norm and its share of the slack, its terms not many times so.
        """
        above = norms.above.sqrt() / (1 + 0.375 * self._slack)
        length = norms.square.sqrt().maximum(above).maximum(norms.mass / LARGEST_MASS)
        if self._clipping == "automatic":
            weights = clip_norm / (length + NEAR_ZERO)
        else:
            weights = (clip_norm / length).clamp_(max=1.0)
        # Masses overflow, or are infinite times nothing, where norms do not: such an example counts as zero.
        return torch.where(length.isfinite(), weights, 0.0)

    def _check_length(self) -> None:
        """Refuse a batch so large that the rounding of its sum is not covered, even in double precision."""
        mass = LARGEST_MASS if self._terms > 1 else 1.0
        depth = MOST_EXAMPLES + self._summed * self._terms / MOST_EXAMPLES
        # What threads do not agree about is at most the share of a mass that stands for it.
        if self._summed * (mass * depth * 2.0**-53 + LARGEST_MASS / FLUSHED) > self._slack / 16:
            raise ModelError(
                "The batch holds too many examples for a sum with a proven bound; lower the sampling rate."
            )

    def _losses(self, chunk: Any) -> Tensor:
        rows = batches.rows(chunk)
        with (
            torch.autocast(
                self._device.type, dtype=self._autocast or torch.bfloat16, enabled=self._autocast is not None
            ),
            uncompiled(),
            self._stand_ins.read(),
        ):
            try:
                losses = self._loss(self.model, chunk)
            except (IndexError, RuntimeError) as error:
                if not any(words in str(error) for words in _NO_SUCH_ROW):
                    raise
                # Which id it was is a secret of an example, so PyTorch's own words must not be seen.
                raise ModelError(
                    "An example asks for a row that an embedding table does not have; ids go from 0 to the number of "
                    "its rows less one. Check the ids, or give the table more rows."
                ) from None
        if not isinstance(losses, Tensor) or losses.shape != (rows,):
            found = (
                f"a tensor of {losses.dim()} dimensions"
                if isinstance(losses, Tensor)
                else type(losses).__name__
            )
            if isinstance(losses, Tensor) and losses.dim() == 1:
                found = "another number of values"
            raise ModelError(
                f"The loss must give one value per example, in one dimension, but gave {found}; use reduction='none'."
            )
        if self.views == 1:
            return losses
        return losses.to(torch.promote_types(losses.dtype, torch.float32)).view(-1, self.views).mean(1)

    def _prepared(self, support: Support, chunk: Any) -> tuple[Instrumentation, Findings] | None:
        """How to watch this chunk, or None if no example of it has a finite gradient."""
        self._check_views(chunk)
        findings = self._inspector.about(chunk)
        if findings is None:
            return None
        if (
            self._instrumentation is None
            or self._instrumentation[0] is not support
            or self._instrumentation[1] is not findings
        ):
            support.check_model(self.model)
            self._instrumentation = (
                support,
                findings,
                Instrumentation(self.model, support, findings.ways, self._tables),
            )
        return self._instrumentation[2], findings

    def _check_views(self, batch: Any) -> None:
        if batches.rows(batch) % self.views:
            raise ModelError(
                f"A batch does not hold {self.views} views of every example: its rows are no multiple of that."
            )

    def _placed(self, chunk: Any) -> Any:
        if isinstance(chunk, UnitBatch):
            return UnitBatch(self._placed(chunk.batch), chunk.ids)
        return batches.place(chunk, self._device, channels_last=self._channels_last)

    def _announce(self, instrumentation: Instrumentation) -> None:
        for module, names in instrumentation.without_rule.items():
            if module not in self._announced:
                self._announced.add(module)
                shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
                warn(
                    f"{module} has no rule; the per-example gradients of {shown} come from the operations that use "
                    f"them, or from torch.func: exact, but slower, and {instrumentation.formed[module]:,} numbers are "
                    "formed per example."
                )

    def _complete(
        self,
        total: dict[str, Tensor],
        support: Support,
        statistic: Statistic,
        parameters: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Zeros for active parameters that no example reached."""

        def shape(block: Block) -> tuple[int, ...]:
            return (block.row_count,) if statistic in PER_ROW else block.compact_shape

        counted = embedding_tables(self.model) if statistic == "row-counts" else support

        return {
            name: total[name] if name in total else parameters[name].new_zeros(shape(block))
            for name, block in support.items()
            if block.size and name not in self._tables and name in counted
        }

    def _check_whole(self, support: Support, statistic: Statistic, clip_order: ClipOrder) -> None:
        """Refuse sums over tables that are read row by row, where they are not those of whole gradients."""
        whole = all(support[name].kind is Kind.ALL and not support[name].weights for name in self._tables)
        if not whole or statistic != "gradient" or clip_order != "mask-then-clip":
            raise ArgumentError(
                "Tables that are read row by row must be active as a whole, and clipped as gradients are."
            )


def _most_of(widest: int, support: Support) -> int:
    """Examples of a piece, if one of them has a layer output of ``widest`` bytes."""
    sums = support.size * torch.float64.itemsize
    enough = max(ENOUGH_BYTES, ENOUGH * widest)
    largest = max(LARGEST, min(LARGEST_BESIDE_SUMS, sums, FEWEST * widest))
    if 4 * sums < enough:
        largest = min(largest, enough)
    return min(MOST_EXAMPLES, max(1, largest // widest))


def _layer(name: str) -> str:
    """The module that holds a parameter."""
    return name.rpartition(".")[0]


def _without(chunk: Any, left_out: Tensor, views: int) -> Any:
    """The chunk with the first of the other examples in place of those that are left out."""
    if bool(left_out.all()):
        return chunk
    examples = torch.arange(len(left_out), device=left_out.device)
    examples = torch.where(left_out, examples[~left_out][0], examples)
    rows = examples[:, None] * views + torch.arange(views, device=left_out.device)
    return batches.take(chunk, rows.flatten())


def _plain(chunk: Any) -> Any:
    return chunk.batch if isinstance(chunk, UnitBatch) else chunk


def _refuse_parted(chunk: Any, seen: set[Hashable]) -> None:
    """Refuse a unit that an earlier chunk of the step has held: it would be clipped twice, and count twice."""
    singles = chunk if isinstance(chunk, Singles) else [chunk]
    for part in singles:
        if not isinstance(part, UnitBatch):
            continue
        ids = set(part.ids.tolist() if isinstance(part.ids, np.ndarray) else part.ids)
        if not seen.isdisjoint(ids):
            raise ModelError(
                "Two chunks of one step hold examples of the same unit, which must be clipped together; put all "
                "examples of a unit into one chunk."
            )
        seen |= ids


def _add(total: dict[str, Tensor | RowSum], name: str, part: Tensor | RowSum) -> None:
    before = total.get(name)
    if isinstance(before, RowSum):
        total[name] = before.plus(part) if isinstance(part, RowSum) else _plus(part, before)
    else:
        total[name] = part if before is None else _plus(before, part)


def _plus(total: Tensor, part: Tensor | RowSum) -> Tensor:
    """The sum in double precision."""
    total = total if total.dtype is torch.float64 else total.double()
    return part.added_to(total) if isinstance(part, RowSum) else total.add_(part)
