"""Poisson sampling: in every step, every unit of privacy takes part independently with probability q.

A unit is one example, unless examples are grouped: by person, say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as numbers
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from tacit import batches
from tacit.errors import ArgumentError, LoaderError, check_count, check_share
from tacit.randomness import Keyed, Keystream, Seeded
from tacit.raw.generators import Generators
from tacit.raw.mishaps import told_apart
from tacit.raw.one_at_a_time import Singles
from tacit.raw.units import UnitBatch
from tacit.units import Units, check_rows_per_unit

Collate = Callable[[list[Any]], Any]
_APART = 2**62
"""The number, beyond those of all steps, under which a seed decides which examples are apart."""


class PoissonSampler:
    """Draws the examples of each step: each one with probability ``rate``, independent of all others and all steps.

    ``units`` groups the examples of a data set; then units are drawn and brought along whole, or, of one that has more,
    ``rows_per_unit`` of its examples, chosen at random in every step.

    Without a seed the draws come from a cryptographic keystream and cannot be repeated. With a seed a step's draw
    depends on the seed and the step's number alone, so the number of the next step is all the state there is.

    Of several samplers that draw together, number ``rank`` of ``size`` takes one of as many equal parts of one draw
    over all: each example that is drawn belongs to exactly one of them, and each reads a part of the data of its own.
    They draw alike because of a common seed or, without one, a common ``key`` of 32 random bytes, under which no step's
    number may be used for two releases.

    ``apart`` is the share of examples, or whole units, that no step draws: each belongs to them independently, by a
    coin that stays secret, so that another one more or less moves none of them over.
    """

    def __init__(
        self,
        examples: int,
        rate: float,
        *,
        seed: int | None = None,
        key: bytes | None = None,
        rank: int = 0,
        size: int = 1,
        units: Units | None = None,
        rows_per_unit: int | None = None,
        apart: float = 0.0,
    ) -> None:
        self.examples = check_count("The number of examples", examples)
        if units is not None and units.count != examples:
            raise ArgumentError(f"The sampler is for {examples} units, but there are {units.count}.")
        self.units, self._rows_per_unit = units, check_rows_per_unit(rows_per_unit)
        self.rate = check_share("The sampling rate", rate)
        self._seed, self._key = seed, key
        self._keystream = Keystream()
        if size > 1 and seed is None and key is None:
            raise ArgumentError("Samplers that draw together need a seed or a key in common.")
        self._rank, self._size = rank, size
        self.apart: np.ndarray | None = None
        if apart:
            coins = Keystream() if seed is None else Seeded(seed, _APART)
            self.apart = coins.uniform(examples) < apart

    def draw(self, step: int) -> np.ndarray:
        """The positions of the examples that take part in a step, in order; of them, this sampler's share."""
        drawn = self._successes(self._source(step))
        if self.apart is not None:
            drawn = drawn[~self.apart[drawn]]
        ends = [len(drawn) * (self._rank + last) // self._size for last in (0, 1)]
        return drawn[slice(*ends)]

    def draw_units(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The units that take part in a step, small ones first, how many examples of each, and their positions.

        Of several samplers, this one's share: whole units.
        """
        source = self._source(step)
        drawn = self._successes(source)
        if self.apart is not None:
            drawn = drawn[~self.apart[drawn]]
        return self._brought_along(drawn, source)

    def units_apart(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The units that no step draws, in the form of ``draw_units``, as step number ``step`` meets them."""
        assert self.apart is not None
        return self._brought_along(np.flatnonzero(self.apart), self._source(step))

    def _brought_along(
        self, drawn: np.ndarray, source: Keystream | Keyed | Seeded
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert self.units is not None
        whole = self.units.sizes[drawn]
        sizes = whole if self._rows_per_unit is None else np.minimum(whole, self._rows_per_unit)
        order = np.argsort(sizes, kind="stable")
        drawn, whole, sizes = drawn[order], whole[order], sizes[order]
        places, within = _all_places(whole)
        rank = within
        if (sizes < whole).any():
            # Every sampler chooses for all units, from one stream: they draw alike however many there are.
            rank = _shuffled(places, source.uniform(len(places)), within)
        taken = (rank < np.repeat(sizes, whole)) & (places % self._size == self._rank)
        positions = np.repeat(self.units.starts[drawn], whole) + within
        mine = slice(self._rank, None, self._size)
        return drawn[mine], sizes[mine], self.units.order[positions[taken]]

    def _source(self, step: int) -> Keystream | Keyed | Seeded:
        if self._seed is not None:
            return Seeded(self._seed, step)
        return self._keystream if self._key is None else Keyed(self._key, step)

    def _successes(self, source: Keystream | Keyed | Seeded) -> np.ndarray:
        """One independent trial per example: which succeed, each with probability ``rate``."""
        trials = self.examples
        if self.rate == 1:
            return np.arange(trials)
        # The gaps between successes of independent trials are geometric: O(batch) draws instead of one per example.
        mean = trials * self.rate
        count = int(mean + 6 * math.sqrt(mean) + 16)
        parts, reached = [], -1
        while reached < trials:
            gaps = np.log1p(-source.uniform(count)) / math.log1p(-self.rate)
            positions = reached + np.cumsum(np.minimum(gaps, trials).astype(np.int64) + 1)
            parts.append(positions)
            reached = int(positions[-1])
        chosen = np.concatenate(parts)
        return chosen[chosen < trials]


@dataclass(frozen=True)
class _Request:
    """What to load for one chunk: positions in the data set, and the unit of each where units are drawn."""

    step: int
    indices: np.ndarray
    ids: np.ndarray | None = None


ALL_AT_ONCE = 2048
"""Examples in a chunk of those that are apart."""


class PoissonBatches:
    """The logical batches of a run, each as physical chunks of at most ``chunk_size`` examples.

    Where units are drawn, chunks are ``UnitBatch``es. A unit is never in two chunks: one of more than ``chunk_size``
    examples is a chunk of its own.

    Works with any map-style dataset; with ``workers`` the chunks are prepared by other processes. An empty draw is a
    step without chunks, not a step left out. What the data set draws while it makes a chunk comes from generators
    under keys of that chunk: secret ones or, with a ``seed``, ones that follow from it and from the chunk.
    ``isolated``: every example is fetched and collated by itself, and a chunk is a list of batches of one.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: PoissonSampler,
        *,
        chunk_size: int | None = None,
        workers: int = 0,
        collate: Collate | None = None,
        seed: int | None = None,
        isolated: bool = False,
    ) -> None:
        check_dataset(dataset, sampler.examples if sampler.units is None else len(sampler.units.codes))
        self._generators = Generators(dataset, collate, seed=seed)
        self._fetch = _Fetch(dataset, collate or default_collate, self._generators, isolated)
        self._sampler = sampler
        self._chunk_size = check_count("chunk_size", chunk_size) if chunk_size is not None else None
        self._workers = check_count("workers", workers, least=0)
        if isinstance(dataset, batches.Stored) and (
            collate is not None or workers or sampler.units is not None
        ):
            raise ArgumentError(
                f"{type(dataset).__name__} reads and collates the examples of many steps at once; leave out collate, "
                "workers and units."
            )

    def items(self, positions: Sequence[int]) -> list[Any]:
        """The examples at some positions of the data set."""
        found = self._fetch.items(positions)
        batches.check_strided(found[:1])
        return found

    def apart(self, step: int) -> Iterator[Any]:
        """The examples that no step draws, in chunks, as step number ``step`` would fetch them."""
        if self._sampler.apart is None:
            return
        size = self._chunk_size or ALL_AT_ONCE
        if self._sampler.units is None:
            positions = np.flatnonzero(self._sampler.apart)
            parts = np.split(positions, range(size, len(positions), size))
            requests: Iterable[_Request] = (_Request(step, part) for part in parts)
        else:
            requests = _unit_by_unit(step, self._sampler.units_apart(step), size)
        for request in requests:
            _, batch = self._fetch[request]
            if batch is not None:
                yield batch

    def steps(self, first: int, count: int) -> Iterator[tuple[int, Iterator[Any]]]:
        """For each of ``count`` steps from ``first``: its number and its chunks, to be read before the next step."""
        requests = _Requests(self._sampler, first, count, self._chunk_size)
        loader: Iterable[tuple[int, Any]]
        if self._fetch.stored is not None:
            loader = self._fetch.ahead(requests)
        else:
            loader = DataLoader(
                self._fetch,
                batch_size=None,
                sampler=requests,
                num_workers=self._workers,
                collate_fn=_as_is,
                generator=self._generators.loader(first),
            )
        for step, chunks in groupby(_told(loader, first, self._workers > 0), key=lambda chunk: chunk[0]):
            yield step, (batch for _, batch in chunks if batch is not None)


def _told(loader: Iterable[tuple[int, Any]], first: int, workers: bool) -> Iterator[tuple[int, Any]]:
    """What a loader gives; an example that the data set or collate does not take is told in a sentence."""
    chunks = iter(loader)
    for number in numbers():
        with told_apart(None, charged=first + number > 0, workers=workers):
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk


@contextmanager
def dead_workers_named() -> Iterator[None]:
    """A worker of a loader that dies is one sentence: PyTorch tells of it at any moment, in several ways."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker (pid"):
            raise
        raise LoaderError(
            "A process that loads data has died, by a signal or for lack of memory; resume the run, with fewer workers "
            "if it happens again."
        ) from error


class _Requests:
    """What to load, in order; boundaries between steps travel with the data."""

    def __init__(self, sampler: PoissonSampler, first: int, count: int, chunk_size: int | None) -> None:
        self._sampler, self._first, self._count, self._chunk_size = sampler, first, count, chunk_size

    def __iter__(self) -> Iterator[_Request]:
        for step in range(self._first, self._first + self._count):
            if self._sampler.units is not None:
                yield from _unit_by_unit(step, self._sampler.draw_units(step), self._chunk_size)
                continue
            drawn = self._sampler.draw(step)
            size = self._chunk_size or max(1, len(drawn))
            for start in range(0, max(1, len(drawn)), size):
                yield _Request(step, drawn[start : start + size])


def _unit_by_unit(
    step: int, drawn: tuple[np.ndarray, np.ndarray, np.ndarray], chunk_size: int | None
) -> Iterator[_Request]:
    """Chunks of whole units; at least one, for a step without units."""
    units, sizes, rows = drawn
    ends, start = np.cumsum(sizes), 0
    while True:
        stop = len(units)
        if chunk_size is not None and start < stop:
            reached = ends[start] - sizes[start] + chunk_size
            stop = max(start + 1, int(np.searchsorted(ends, reached, side="right")))
        part = slice(start, stop)
        own = slice(ends[start] - sizes[start], ends[stop - 1]) if start < stop else slice(0)
        yield _Request(step, rows[own], np.repeat(units[part], sizes[part]))
        if stop >= len(units):
            return
        start = stop


class _Fetch(Dataset[Any]):
    """Loads one chunk at a time from a dataset of single examples."""

    def __init__(
        self, dataset: Dataset[Any], collate: Collate, generators: Generators, isolated: bool
    ) -> None:
        self._dataset, self._collate, self._generators = dataset, collate, generators
        self._isolated = isolated
        self.stored = dataset if isinstance(dataset, batches.Stored) else None

    def ahead(self, requests: Iterable[_Request]) -> Iterator[tuple[int, Any]]:
        """Chunks of a data set that is not in memory, read together as far as it can hold them."""
        assert self.stored is not None
        waiting: list[_Request] = []
        held = 0
        for request in requests:
            if waiting and held + len(request.indices) > self.stored.rows_ahead:
                yield from self._together(waiting)
                waiting, held = [], 0
            waiting.append(request)
            held += len(request.indices)
        yield from self._together(waiting)

    def _together(self, requests: Sequence[_Request]) -> Iterator[tuple[int, Any]]:
        assert self.stored is not None
        batch = self.stored.gather(np.concatenate([request.indices for request in requests]))
        start = 0
        for request in requests:
            stop = start + len(request.indices)
            if start == stop:
                yield request.step, None
            elif self._isolated:
                every = (batch(place, place + 1) for place in range(start, stop))
                singles = Singles(single for single in every if single is not None)
                yield request.step, singles or None
            else:
                yield request.step, batch(start, stop)
            start = stop

    def __getitem__(self, request: _Request) -> tuple[int, Any]:
        try:
            return self._chunk(request)
        except StopIteration as error:
            # To a loader it would be the end of the data: an example that raises it would take others with it.
            raise RuntimeError("The data set or collate has raised StopIteration.") from error

    def _chunk(self, request: _Request) -> tuple[int, Any]:
        if not len(request.indices):
            return request.step, None
        if self._isolated:
            batch: Any = self._keyed(request, lambda: Singles(self._singles(request)))
            return request.step, batch
        if type(self._dataset) is TensorDataset and self._collate is default_collate:
            index = torch.from_numpy(request.indices)
            batch = tuple(tensor.index_select(0, index) for tensor in self._dataset.tensors)
        else:
            batch = self._keyed(request, lambda: self._collate(self.items(request.indices.tolist())))
        return request.step, batch if request.ids is None else UnitBatch(batch, request.ids)

    def _keyed(self, request: _Request, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, with everything that it draws under keys of this chunk."""
        with self._generators.keyed(request.step, int(request.indices[0])):
            return make()

    def _singles(self, request: _Request) -> Iterator[Any]:
        if request.ids is None:
            yield from (self._collate(self.items([i])) for i in request.indices.tolist())
            return
        edges = np.flatnonzero(np.diff(request.ids)) + 1
        for rows, ids in zip(np.split(request.indices, edges), np.split(request.ids, edges), strict=True):
            batch = self._collate(self.items(rows.tolist()))
            yield batch if len(ids) == 1 else UnitBatch(batch, ids)

    def items(self, indices: Sequence[int]) -> list[Any]:
        """The examples at some positions, as the data set gives them."""
        several = getattr(self._dataset, "__getitems__", None)
        return several(list(indices)) if callable(several) else [self._dataset[i] for i in indices]


def _all_places(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every example of units of these sizes, the place of its unit and its own place within the unit."""
    ends = np.cumsum(sizes)
    return np.repeat(np.arange(len(sizes)), sizes), np.arange(sizes.sum()) - np.repeat(ends - sizes, sizes)


def _shuffled(units: np.ndarray, keys: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Places within units, in a random order for each unit: every order is equally likely."""
    shuffled = np.empty_like(within)
    shuffled[np.lexsort((keys, units))] = within
    return shuffled


def check_dataset(dataset: object, examples: int) -> None:
    """Refuse what is not a map-style dataset of the given size."""
    if isinstance(dataset, DataLoader):
        raise ArgumentError(
            "A DataLoader draws batches in its own way, which no accountant knows; give its dataset and collate_fn "
            "instead, or tacit.PoissonLoader.like(loader) to a PrivateLoop."
        )
    if (
        isinstance(dataset, tuple)
        and dataset
        and all(isinstance(part, Tensor | np.ndarray) for part in dataset)
    ):
        raise ArgumentError(
            "The data is a tuple of arrays, which has no examples of its own; give TensorDataset(inputs, targets)."
        )
    if isinstance(dataset, Mapping):
        raise ArgumentError(
            "The data is a dictionary of columns, which has no examples of its own; give TensorDataset(inputs, "
            "targets), or a list with a dictionary per example."
        )
    if hasattr(dataset, "iloc"):  # a data frame, without importing pandas
        raise ArgumentError(
            "The data is a data frame, whose rows are not numbered examples; give TensorDataset(inputs, targets) of "
            "its values, or fit tacit.integrations.scikit_learn's PrivateClassifier or PrivateRegressor on it."
        )
    if hasattr(dataset, "draws") and hasattr(dataset, "dataset"):
        raise ArgumentError(
            f"A {type(dataset).__name__} is for a PrivateLoop; a trainer draws batches itself, so give its dataset."
        )
    iterable = isinstance(dataset, IterableDataset)
    if iterable or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise ArgumentError(
            f"Poisson sampling needs a map-style dataset with __len__ and __getitem__; {type(dataset).__name__} is "
            "none. Load an iterable dataset into a list first."
        )
    if isinstance(dataset, TensorDataset):
        batches.check_strided(dataset.tensors)
    if len(dataset) != examples:
        raise ArgumentError(
            f"The dataset has {len(dataset)} examples but the plan is for {examples}; make a plan for this dataset."
        )


def _as_is(chunk: Any) -> Any:
    return chunk
