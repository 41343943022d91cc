"""Examples on their way into a step: drawn by chance, collated, in several views, augmented; and a first look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, default_collate

from tacit.distributed.ranks import Ranks
from tacit.errors import check_count
from tacit.losses import Loss
from tacit.plan import Plan
from tacit.plan.sources import Stops
from tacit.raw.clipping import Clipper, Isolation, check_isolation
from tacit.raw.first_look import FirstLook
from tacit.raw.inspector import Inspections
from tacit.raw.mishaps import told_apart
from tacit.raw.one_at_a_time import Singles
from tacit.raw.pipeline import Pipeline
from tacit.raw.sampling import Collate, PoissonBatches, PoissonSampler
from tacit.raw.units import UnitBatch
from tacit.units import Units


class Examples:
    """The examples that a plan is for, as its steps need them.

    ``batches`` draws them as the plan says. ``pipeline`` makes a batch of any of them, for looks at how that is done;
    ``inspections`` says when such looks are taken. The other arguments are those of ``Trainer``.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        plan: Plan,
        units: Units | None,
        ranks: Ranks,
        *,
        views: int,
        augment: Callable[[Any], Any] | None,
        collate: Collate | None,
        chunk_size: int | None,
        workers: int,
        rows_per_unit: int | None,
        isolation: Isolation,
        seed: int | None,
    ) -> None:
        self._dataset = dataset
        self.count = plan.examples if units is None else len(units.codes)
        self._views, self._augment = check_count("views", views), augment
        self._isolated = check_isolation(isolation) == "construction"
        self.inspections = Inspections(seed)
        last = plan.phases[-1].support
        sampler = PoissonSampler(
            plan.examples,
            plan.sampling_rate,
            seed=seed,
            key=ranks.new_key(),
            rank=ranks.rank,
            size=ranks.size,
            units=units,
            rows_per_unit=rows_per_unit,
            apart=last.apart if isinstance(last, Stops) else 0.0,
        )
        self.batches = PoissonBatches(
            dataset,
            sampler,
            chunk_size=chunk_size,
            workers=workers,
            collate=collate,
            seed=seed,
            isolated=self._isolated,
        )
        self.pipeline = Pipeline(
            self.count,
            self.batches.items,
            collate or default_collate,
            self.viewed,
            owners=(dataset, collate, augment),
            in_order=units is not None,
        )

    def steps(self, first: int, count: int) -> Iterator[Iterator[Any]]:
        """The batches of ``count`` steps from number ``first``, each as its chunks, to be read before the next."""
        for _, chunks in self.batches.steps(first, count):
            # No map: it would end, without a word, where augment raises StopIteration, and leave out other examples.
            yield (self.viewed(chunk) for chunk in chunks)

    def viewed(self, chunk: Any) -> Any:
        """A chunk with every example in all its views, one after the other, and augmented."""
        if isinstance(chunk, Singles):
            return Singles(self.viewed(single) for single in chunk)
        if isinstance(chunk, UnitBatch):
            return UnitBatch(self.viewed(chunk.batch), chunk.ids)
        if self._views > 1:
            chunk = pytree.tree_map(
                lambda leaf: (
                    leaf.repeat_interleave(self._views, 0)
                    if isinstance(leaf, Tensor) and leaf.dim()
                    else leaf
                ),
                chunk,
            )
        return self._augment(chunk) if self._augment is not None else chunk

    def rehearse(self, clipper: Clipper, loss: Loss, autocast: torch.dtype | None) -> list[int]:
        """Refuse a model, loss or data set that cannot be trained; the positions of a few examples that can."""
        return rehearse(
            clipper,
            self.pipeline,
            self._dataset,
            self.count,
            partial(loss, clipper.model),
            self.inspections,
            autocast=autocast,
            isolated=self._isolated,
        )


def rehearse(
    clipper: Clipper,
    pipeline: Pipeline,
    dataset: Dataset[Any],
    examples: int,
    losses: Callable[[Any], Tensor],
    inspections: Inspections,
    *,
    autocast: torch.dtype | None,
    isolated: bool,
) -> list[int]:
    """Take a few examples through model and loss, together or each by itself, before anything is written."""
    look = FirstLook(
        clipper.model, losses, pipeline, views=clipper.views, autocast=autocast, isolated=isolated
    )
    few = look.some(examples, 3, inspections.generator())
    look.odd(dataset)
    with told_apart(clipper.model, charged=False):
        if isolated:
            clipper.rehearse(Singles(pipeline.batch([position]) for position in few))
        else:
            clipper.rehearse(pipeline.batch(few))
    return few
