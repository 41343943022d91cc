"""A stand-in for model and data whose gradients are canaries: each one worst-case, alone on its coordinate.

The model is one linear layer W of n × n coordinates. An example is a pair of unit vectors (a, b) with the
loss s · bᵀWa, so its gradient is s · baᵀ: nothing but s at one coordinate. s is far above the clip norm, so
what enters the sum is exactly the clip norm. An example that is not there has the loss 0. Clipping,
sampling, support, noise and ledger are those of real training, and no private data is involved.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tacit.plan import Plan
from tacit.plan.sources import VOTING, Statistic
from tacit.release.mechanism import Released

WEIGHT = "weight"
EXCESS = 1e4
"""How far above the clip norm the canaries' gradients are: the smallest soft weight, 1e-3, leaves them above it."""


class StandIn:
    """A square linear layer with ``canaries`` coordinates or a few more, and one canary for each of the first ones."""

    def __init__(self, canaries: int) -> None:
        self.canaries = canaries
        self.side = math.isqrt(canaries - 1) + 1
        self.model = nn.Linear(self.side, self.side, bias=False)

    def batch(self, canaries: Tensor, magnitude: Tensor | float) -> tuple[Tensor, Tensor]:
        """Examples for these canaries, with gradients of the given magnitudes."""
        inputs = torch.zeros(len(canaries), self.side)
        outputs = torch.zeros(len(canaries), self.side)
        rows = torch.arange(len(canaries))
        inputs[rows, canaries % self.side] = 1.0
        outputs[rows, canaries // self.side] = torch.as_tensor(magnitude, dtype=outputs.dtype)
        return inputs, outputs

    def read(self, released: Released) -> tuple[Tensor, Tensor]:
        """What was released about each canary, and whether anything was."""
        full = torch.zeros(self.side, self.side)
        active = released.support[WEIGHT].mask()
        if released.statistic == "row-norms":
            full[:, 0] = released.values[WEIGHT]
            active = active & self._first_column
        else:
            released.support[WEIGHT].scatter_(full, released.values[WEIGHT])
        return full.flatten()[: self.canaries], active.flatten()[: self.canaries]

    def alone(self, statistic: Statistic) -> Tensor:
        """The canaries of which each has a released number for itself: of a row's norm, one per row."""
        if statistic != "row-norms":
            return torch.ones(self.canaries, dtype=torch.bool)
        return self._first_column.flatten()[: self.canaries]

    @property
    def _first_column(self) -> Tensor:
        return (torch.arange(self.side) == 0).expand(self.side, self.side)

    def plan(self, plan: Plan) -> Plan:
        """The plan with supports for this one layer, whose names and number of rows are others. The claim stays."""
        return replace(
            plan,
            phases=tuple(
                replace(
                    phase,
                    support=phase.support.for_one_layer(self.side),
                    # Counts of rows and votes have the norm of a gradient, which the one layer has in their place.
                    score=None if phase.score in ("counts", *VOTING) else phase.score,
                    votes=None,
                )
                for phase in plan.phases
            ),
        )


def linear_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """bᵀWa of every example."""
    found: Tensor = (model(batch[0]) * batch[1]).sum(1)
    return found


class CanaryData(Dataset[int]):
    """``examples`` places, the first of which hold the canaries that are ``present``; all others hold nothing.

    Where a unit of privacy has several examples, every place is a unit of ``rows`` equal ones, and ``units`` says so.
    """

    def __init__(self, standin: StandIn, examples: int, magnitude: float, rows: int = 1) -> None:
        self.present = torch.zeros(standin.canaries, dtype=torch.bool)
        self.units = None if rows == 1 else np.repeat(np.arange(examples), rows)
        self._standin, self._examples, self._magnitude, self._rows = standin, examples, magnitude, rows

    def __len__(self) -> int:
        return self._examples * self._rows

    def __getitem__(self, place: int) -> int:
        return place

    def collate(self, places: list[Any]) -> tuple[Tensor, Tensor]:
        """The examples at these places."""
        place = torch.tensor(places) // self._rows
        canary = place.clamp(max=self._standin.canaries - 1)
        there = (place < self._standin.canaries) & self.present[canary]
        return self._standin.batch(canary, there * self._magnitude)
