"""Several runs of training, one after the other from the same start, among which the last phase of a plan chooses."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacit.plan import Plan
from tacit.plan.sources import Stops
from tacit.training.schedules import Schedule


class Candidates:
    """Which run a step belongs to, and the weights with which runs have ended: released values only."""

    def __init__(self, plan: Plan, origin: Mapping[str, Tensor]) -> None:
        stops = plan.phases[-1].support
        assert isinstance(stops, Stops)
        self.stops = stops
        self.origin = dict(origin)
        self.ended: list[dict[str, Tensor]] = []
        self._edges = (plan.counts, *stops.at)

    def factor(self, step: int, schedule: Schedule) -> float:
        """The factor on the learning rate of step number ``step`` of the plan: every run has the schedule to itself."""
        for place, (start, end) in enumerate(itertools.pairwise(self._edges)):
            if step < end:
                return self.stops.rates[place] * schedule(step - start, end - start)
        raise AssertionError("no run has this step")

    def ends_at(self, done: int) -> bool:
        """Whether a run ends after ``done`` steps."""
        return done in self.stops.at

    @property
    def last(self) -> bool:
        """Whether all runs have ended."""
        return len(self.ended) == len(self.stops.at)

    def chosen(self, losses: Tensor, units: int) -> tuple[int, str]:
        """The place of the run with the lowest of the released ``losses``, and why it was chosen."""
        place = int(torch.argmin(losses))
        told = ", ".join(
            f"{loss / (self.stops.apart * units):+.4f} (learning rate times {rate:g})"
            for loss, rate in zip(losses.tolist(), self.stops.rates, strict=True)
        )
        return place, (
            f"Run {place + 1} of {len(self.stops.at)}, whose noisy loss is the lowest: on average, against their mean, "
            f"{told}."
        )

    def lost(self) -> tuple[int, str]:
        """The place of the run to take without a choice."""
        place = self.stops.otherwise
        return place, (
            f"Run {place + 1} of {len(self.stops.at)}, by plan: the choice was charged and then lost in a crash."
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to continue."""
        tensors = {f"start/{name}": value for name, value in self.origin.items()}
        for place, weights in enumerate(self.ended):
            tensors |= {f"{place}/{name}": value for name, value in weights.items()}
        return tensors, {"ended": len(self.ended)}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from a state of the same plan."""
        device = {name: value.device for name, value in self.origin.items()}

        def part(name: str) -> dict[str, Tensor]:
            return {key: tensors[f"{name}/{key}"].to(place) for key, place in device.items()}

        ended = int(numbers["ended"])
        if not 0 <= ended <= len(self.stops.at):
            raise ValueError("it holds runs that the plan does not have")
        self.origin = part("start")
        self.ended = [part(str(place)) for place in range(ended)]
