"""How many steps there are and where each epoch ends."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from tacit.errors import ArgumentError

MOST_EPOCHS = 100_000
MOST_STEPS = 10**7


@dataclass(frozen=True)
class Schedule:
    """The steps of a run, cut into epochs: an epoch is 1/q steps, rounded at its end."""

    epoch_steps: tuple[int, ...]

    @property
    def steps(self) -> int:
        """The number of steps of the run."""
        return sum(self.epoch_steps)

    @classmethod
    def of(cls, examples: int, batch_size: int, epochs: float) -> Schedule:
        """The schedule of ``epochs`` (a fraction shortens the last) over batches of ``batch_size``."""
        rate = batch_size / examples
        if epochs > MOST_EPOCHS or epochs / rate > MOST_STEPS:
            raise ArgumentError(
                f"{epochs:g} epochs of {examples} examples with batches of {batch_size} are too many; the most are "
                f"{MOST_EPOCHS:,} epochs and {MOST_STEPS:,} steps."
            )
        ends = [round(min(epoch, epochs) / rate) for epoch in range(math.ceil(epochs) + 1)]
        steps = tuple(end - start for start, end in itertools.pairwise(ends))
        steps = tuple(count for count in steps if count)
        if not steps:
            raise ArgumentError(
                f"{epochs:g} epochs of {examples} examples with batches of {batch_size} make no step; "
                "train longer."
            )
        return cls(steps)

    def split(self, share: float) -> tuple[int, int]:
        """The steps of a warm-up with ``share`` of the run, and the steps that are left for the rest."""
        first = round(share * self.steps)
        if not 0 < first < self.steps:
            raise ArgumentError(
                f"A share of {share:g} of {self.steps} steps leaves {first} for the warm-up and "
                f"{self.steps - first} for the rest; both need at least one, so train longer."
            )
        return first, self.steps - first

    def cut(self, *epochs: float) -> tuple[int, ...]:
        """The steps of consecutive parts of so many epochs each, and the steps that are left for the rest.

        A part of more than no epochs gets at least one step.
        """
        parts = []
        end, done = 0.0, 0
        for part in epochs:
            end += part
            whole = min(int(end), len(self.epoch_steps))
            steps = sum(self.epoch_steps[:whole])
            if whole < len(self.epoch_steps):
                steps += round((end - whole) * self.epoch_steps[whole])
            parts.append(max(steps - done, int(part > 0)))
            done += parts[-1]
        if done >= self.steps:
            raise ArgumentError(
                f"{sum(epochs):g} epochs before the last phase leave none of the run's {self.steps} steps for it; "
                "train longer."
            )
        return (*parts, self.steps - done)
