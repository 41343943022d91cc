"""How batches are made, from positions in a data set to tensors: to be looked at as a whole.

The loss of an example must be the same whomever it is fetched, collated and augmented with. The losses are compared,
not the tensors: padding to the longest of a batch is harmless if the model does not read it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.raw.agreement import Losses
from tacit.raw.generators import held_by, random_state, reseed, restore_random_state
from tacit.raw.memory import is_out_of_memory
from tacit.raw.probe_batches import CHANGES, changed_item, resized_item, some_positions
from tacit.raw.rehearsal import Stilled, awake, untouched

COMPANIONS = 4
"""Other examples of the data set that the one looked at is put among."""

TOLERANCE, REDUCED = 1e-4, 2e-2
"""Share of a loss by which it may differ from itself: a pipeline may work in single precision."""


class Pipeline:
    """Fetches, collates and finishes batches.

    ``fetch(positions)`` gives the examples at these positions of the data set, ``collate(items)`` a batch of them, and
    ``finish(batch)`` repeats views and augments. ``owners`` are what the user gave, to find the generators they hold.
    ``in_order``: a batch must hold its examples in the order in which they were fetched, as where their places say
    whose they are.
    """

    def __init__(
        self,
        examples: int,
        fetch: Callable[[Sequence[int]], list[Any]],
        collate: Callable[[list[Any]], Any],
        finish: Callable[[Any], Any],
        owners: Sequence[Any] = (),
        *,
        in_order: bool = False,
    ) -> None:
        self._examples, self.in_order = examples, in_order
        self.fetch, self._collate, self._finish = fetch, collate, finish
        self.held = held_by(*owners)

    def batch(self, positions: Sequence[int]) -> Any:
        """The batch of the examples at these positions."""
        return self.collated(self.fetch(positions))

    def collated(self, items: list[Any]) -> Any:
        """The batch of some items of the data set."""
        return self._finish(self._collate(items))

    def check(self, model: nn.Module, losses: Losses, draw: torch.Generator, *, reduced: bool) -> None:
        """Raise ``ModelError`` if the loss of a random example depends on its company; change nothing."""
        with untouched(model, self.held):
            seed = int(torch.randint(2**31, (), generator=draw))
            look = _Look(self, losses, REDUCED if reduced else TOLERANCE, seed)
            order = some_positions(self._examples, 1 + COMPANIONS, draw)
            for noise in (draw, None):
                with awake(model, noise, double=False):
                    for place, position in enumerate(order):
                        if look.finite(position):
                            self._look(look, [position, *order[:place], *order[place + 1 :]])
                            return

    def _look(self, look: _Look, company: list[int]) -> None:
        """Look at an example among company, or among as much of it as memory suffices for."""
        while True:
            try:
                look.among_others(company)
                look.among_changed(company)
                return
            except (MemoryError, RuntimeError) as error:
                if len(company) <= 2 or not is_out_of_memory(error):
                    raise
                company = company[: len(company) // 2 + 1]


class _Look:
    """One example among different company, every pass from the same random state."""

    def __init__(self, pipeline: Pipeline, losses: Losses, tolerance: float, seed: int) -> None:
        self._pipeline, self._losses, self._tolerance, self._seed = pipeline, losses, tolerance, seed
        self._state = random_state(pipeline.held)
        self._drawn = False
        self._place = -1

    def finite(self, position: int) -> bool:
        """Whether the example has a finite loss by itself."""
        with Stilled():
            return bool(self._of(lambda: self._pipeline.batch([position])).isfinite().all())

    def among_others(self, order: Sequence[int]) -> None:
        """The losses of examples of the data set together, and each alone; torch's random draws give constants.

        They are compared in order of size, for collate may put the examples of a batch in another order, unless their
        places matter.
        """
        target, *others = order
        with Stilled():
            alone = {position: self._of(lambda p=position: self._pipeline.batch([p])) for position in order}  # type: ignore[misc]
            again = self._of(lambda: self._pipeline.batch([target]))
            if not self._close(alone[target], again):
                raise ModelError(
                    "An example is not the same when it is fetched again, though every generator draws the same: what "
                    "the data set, collate or augment draws cannot be repeated, or one of them remembers what came "
                    "before, so nobody can tell whether they mix examples. Let them keep nothing between examples, and "
                    "draw from the generators of PyTorch, NumPy or Python; where nothing is kept, "
                    'isolation="construction" permits other draws.'
                )
            if self._drawn:
                return  # what is fetched depends on chance: only collate and augment can be looked at
            for positions in ([target, target], [target, *others], [*others[:2], target], [*others, target]):
                expected = torch.cat([alone[position] for position in positions])
                found = self._among(lambda p=positions: self._pipeline.batch(p))  # type: ignore[misc]
                self._same(found, expected, anywhere=not self._pipeline.in_order)
            if self._pipeline.in_order:
                return
            if found is not None and not self._close(found[-1], alone[target]):
                self._place = int((found - alone[target]).abs().argmin())

    def among_changed(self, order: Sequence[int]) -> None:
        """The loss of an example whose company changes: in content, with random draws as they come; then in length.

        Only dropout is stilled in the first: how much of it is drawn may depend on the others' lengths.
        """
        restore_random_state(self._state)
        target, *others = self._pipeline.fetch(order)
        others = others or [target]
        with Stilled(only_dropout=True):
            for number, change in enumerate(CHANGES.values()):
                # Other draws for every change: those that leave an example as it is tell nothing.
                reseed(self._seed + number, self._pipeline.held)
                self._state = random_state(self._pipeline.held)
                before = self._of(lambda: self._pipeline.collated([*others, target]))
                if number == 0:
                    self._refuse_hidden_draws(before, lambda: self._pipeline.collated([*others, target]))
                company = [changed_item(item, change) for item in others]
                found = self._among(lambda c=company: self._pipeline.collated([*c, target]))  # type: ignore[misc]
                if found is not None and len(found) == len(before):
                    self._same(found[self._place], before[self._place])
        if self._drawn:
            return
        with Stilled():
            alone = self._of(lambda: self._pipeline.collated([target]))
            for factor in (0.0, 0.5, 2.0):
                company = [*(resized_item(item, factor) for item in others), target]
                found = self._among(lambda c=company: self._pipeline.collated(c))  # type: ignore[misc]
                if found is None or self._close(found[-1:], alone):
                    continue
                # Collate may have put the example elsewhere: then all of them tell.
                each = [self._among(lambda i=item: self._pipeline.collated([i])) for item in company]  # type: ignore[misc]
                known = [value for value in each if value is not None]
                if len(known) == len(each):
                    self._same(found, torch.cat(known), anywhere=not self._pipeline.in_order)

    def _refuse_hidden_draws(self, before: Tensor, make: Callable[[], Any]) -> None:
        if not self._close(before, self._of(make)):
            raise ModelError(
                "What collate and augment draw cannot be repeated, so nobody can tell whether they mix examples; let "
                "them draw from the generators of PyTorch, NumPy or Python, or train with "
                'isolation="construction".'
            )

    def _same(self, found: Tensor | None, expected: Tensor, *, anywhere: bool = False) -> None:
        """Refuse losses that differ; ``anywhere``: they may stand in another order."""
        if found is None:
            return
        ordered = found, expected
        found, expected = found.sort().values, expected.sort().values
        same = found.shape == expected.shape and self._close(found, expected)
        if same and not anywhere and not self._close(*ordered):
            raise ModelError(
                "Collate or augment puts the examples of a batch in another order, so nobody can tell whose is whose; "
                "where a unit of privacy has several examples, keep those of a batch in their order, or train with "
                'isolation="construction".'
            )
        if not same:
            raise ModelError(
                "The loss of one example depends on the other examples that it is fetched, collated or augmented with; "
                "per-example gradients do not exist. Keep batch statistics out of collate and augment, mask padding in "
                'the model, or train with isolation="construction".'
            )

    def _close(self, one: Tensor, other: Tensor) -> bool:
        return torch.allclose(one, other, rtol=self._tolerance, atol=self._tolerance / 10, equal_nan=True)

    def _among(self, make: Callable[[], Any]) -> Tensor | None:
        """The losses of a batch; None if this pipeline does not make it or this model does not take it."""
        try:
            return self._of(make)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None

    def _of(self, make: Callable[[], Any]) -> Tensor:
        restore_random_state(self._state)
        batch = make()
        with torch.no_grad():
            values = self._losses(batch)
        self._drawn = not _same_draws(self._state, random_state(self._pipeline.held))
        return values.double()


def _same_draws(before: list[tuple[Any, Any]], after: list[tuple[Any, Any]]) -> bool:
    """Whether no generator but torch's was drawn from: torch's draws can be stilled, those of others cannot."""

    def others(states: list[tuple[Any, Any]]) -> bytes:
        return pickle.dumps(
            [state for generator, state in states if not isinstance(generator, torch.Generator)]
        )

    return others(before) == others(after)
