"""Batches for a custom training loop, drawn as the accountant assumes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from tacit.distributed.group import checked
from tacit.distributed.ranks import Ranks
from tacit.errors import ArgumentError, check_count
from tacit.raw.pipeline import Pipeline
from tacit.raw.sampling import Collate, PoissonBatches, PoissonSampler, check_dataset
from tacit.units import ROWS_PER_UNIT, Units


class PoissonLoader:
    """Draws batches of a data set: in every step every example takes part with probability ``sampling_rate``.

    So batches differ in size, around ``batch_size``, and may be empty. ``draws`` gives each as an iterator over chunks
    of at most ``chunk_size`` examples, made by ``collate`` in ``workers`` processes.

    Without a ``seed`` the draws come from a cryptographic source; with one they can be repeated, and a run is not for
    release. ``units`` makes a group of examples the unit of privacy, by an id per example; then units are drawn,
    ``batch_size`` counts them, and chunks hold at most ``rows_per_unit`` examples of each. With several ``ranks`` each
    gets its share of every draw.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        chunk_size: int | None = None,
        workers: int = 0,
        collate: Collate | None = None,
        units: Sequence[Hashable] | np.ndarray | None = None,
        rows_per_unit: int | None = ROWS_PER_UNIT,
        seed: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        rows = len(dataset) if hasattr(dataset, "__len__") else 0
        check_dataset(dataset, rows)
        self.dataset, self.collate, self.rows = dataset, collate, rows
        self.units = None if units is None else Units.of(units, rows)
        self.examples = rows if self.units is None else self.units.count
        self.batch_size = check_count("batch_size", batch_size)
        if not batch_size <= self.examples:
            raise ArgumentError(f"batch_size is {batch_size}, but there are only {self.examples} to draw.")
        self.seed = seed if seed is None else check_count("seed", seed, least=0)
        self.ranks = checked(ranks)
        self.rows_per_unit = rows_per_unit
        self._sampler = PoissonSampler(
            self.examples,
            self.sampling_rate,
            seed=seed,
            key=self.ranks.new_key(),
            rank=self.ranks.rank,
            size=self.ranks.size,
            units=self.units,
            rows_per_unit=rows_per_unit,
        )
        self._chunk_size, self._workers = chunk_size, workers
        self._batches = self.batches()

    @classmethod
    def like(cls, loader: DataLoader[Any], **options: Any) -> PoissonLoader:
        """The data set, collate function, workers and batch size of a ``DataLoader``, drawn by Poisson sampling.

        Its own way to draw, shuffled or in order, is not used. One with a sampler of its own is refused: nothing is
        known about how often an example would come. ``options`` are those of the class, in place of the loader's.
        """
        if isinstance(loader.dataset, IterableDataset):
            check_dataset(loader.dataset, 0)
        if loader.batch_size is None:
            raise ArgumentError(
                "The DataLoader has a batch_sampler of its own, or none; how often an example comes cannot be known. "
                "Give PoissonLoader its dataset and a batch_size."
            )
        plain = type(loader.sampler) is SequentialSampler or (
            type(loader.sampler) is RandomSampler
            and not loader.sampler.replacement
            and loader.sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
        )
        if not plain:
            raise ArgumentError(
                f"The DataLoader draws by {type(loader.sampler).__name__}, which cannot be replaced without changing "
                "how often an example comes; give PoissonLoader its dataset and a batch_size."
            )
        if loader.worker_init_fn is not None:
            raise ArgumentError(
                "The DataLoader has a worker_init_fn, which could seed what must stay secret; leave it out."
            )
        own = {
            "batch_size": loader.batch_size,
            "workers": loader.num_workers,
            "collate": loader.collate_fn,
        }
        return cls(loader.dataset, **{**own, **options})

    @property
    def sampling_rate(self) -> float:
        """The probability with which each example, or unit, takes part in a step: ``batch_size`` by their number."""
        return self.batch_size / self.examples

    def __iter__(self) -> Iterator[Any]:
        """Refused: how many batches there are is the plan's to say."""
        raise ArgumentError(
            "A PoissonLoader is not read batch by batch; give it to a PrivateLoop, or take the chunks of draws(steps) "
            "with PrivateStep.step_over."
        )

    def draws(self, steps: int, first: int = 0) -> Iterator[Iterator[Any]]:
        """The batches of ``steps`` steps, each as its chunks, which ``PrivateStep.step_over`` takes.

        ``first`` is the number of the first of them: for one run, no number may be drawn and released twice, so
        continue with the number of steps charged so far.
        """
        for _, chunks in self._batches.steps(first, check_count("steps", steps)):
            yield chunks

    def pipeline(self, batches: PoissonBatches) -> Pipeline:
        """The way of examples into ``batches``, for a look at it."""
        return Pipeline(
            self.rows,
            batches.items,
            self.collate or default_collate,
            lambda batch: batch,
            owners=(self.dataset, self.collate),
            in_order=self.units is not None,
        )

    def batches(self, *, isolated: bool = False) -> PoissonBatches:
        """The batches by number of step; ``isolated``: every example by itself."""
        return PoissonBatches(
            self.dataset,
            self._sampler,
            chunk_size=self._chunk_size,
            workers=self._workers,
            collate=self.collate,
            seed=self.seed,
            isolated=isolated,
        )
