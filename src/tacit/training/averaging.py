"""An exponential moving average of the weights, on active coordinates only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tacit.errors import check_share
from tacit.support import Kind, Support


class WeightAverage:
    """ā ← βₜ ā + (1 − βₜ) θ with βₜ = min(β, (1 + t)/(10 + t)); what is silent has its value as average."""

    def __init__(self, model: nn.Module, decay: float, support: Support) -> None:
        self._model = model
        self._decay = check_share("The decay of the weight average", decay, one_allowed=False)
        self._support = support
        self._steps = 0
        self._average = self._active_values()

    @torch.no_grad()
    def update(self) -> None:
        """Take in the current weights."""
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        self._steps += 1
        for name, value in self._active_values().items():
            self._average[name].lerp_(value, 1 - decay)

    @torch.no_grad()
    def change_support(self, support: Support) -> None:
        """Go on with another support; what becomes active starts at its current value."""
        for name, average in self._average.items():
            before, after = self._support[name], support[name]
            if after.kind is Kind.SILENT:
                continue
            full = self._model.get_parameter(name).detach().clone(memory_format=torch.contiguous_format)
            before.scatter_(full, average)
            self._average[name] = after.gather(full).clone()
        fresh = dict(self._average)
        self._support = support
        self._average = self._active_values()
        for name in self._average:
            if name in fresh:
                self._average[name] = fresh[name]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within this context the model has the averaged weights."""
        with torch.no_grad():
            own = self._active_values()
            self._write(self._average)
            try:
                yield
            finally:
                self._write(own)

    def state(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """Everything needed to go on."""
        return dict(self._average), {"steps": self._steps}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, object]) -> None:
        """Go on from a state of the same support."""
        for name, average in self._average.items():
            average.copy_(tensors[name])
        self._steps = int(numbers["steps"])  # type: ignore[call-overload]

    def _active_values(self) -> dict[str, Tensor]:
        values = {}
        for name, block in self._support.items():
            if block.kind is not Kind.SILENT:
                values[name] = block.gather(self._model.get_parameter(name).detach()).clone()
        return values

    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._support[name].scatter_(self._model.get_parameter(name).data, value)
