"""Any ``torch.optim`` optimizer, confined to the active coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.errors import ArgumentError, check_share
from tacit.release.mechanism import Released
from tacit.support import Block, Kind, Support

OptimizerFactory = Callable[[list[tuple[str, nn.Parameter]]], Optimizer]
"""Makes an optimizer from named parameters, e.g. ``lambda named: torch.optim.Adam(named, lr=1e-3)``."""
_UNFIT = (torch.optim.LBFGS, torch.optim.SparseAdam)


class ActiveUpdate:
    """Moves the active coordinates of a model and no others.

    The optimizer never sees the model's parameters but their compact tensors: one vector (or stack of rows)
    per parameter, holding the active values. Momentum, moments and weight decay exist for active coordinates
    only. ``rates`` are the learning rates of the optimizer's groups as the factory set them.
    """

    def __init__(self, model: nn.Module, factory: OptimizerFactory, support: Support) -> None:
        self._model = model
        self._factory = factory
        self._compact: dict[str, nn.Parameter] = {}
        self.support = support
        self._try_factory()
        self.optimizer = self._build(support)

    def step(self, released: Released) -> None:
        """One optimizer step with a released gradient as the gradient."""
        if released.support not in (self.support, self.support.unweighted()):
            raise ArgumentError("The released gradient belongs to another support than the optimizer.")
        if released.statistic != "gradient":
            raise ArgumentError(
                f"A release of {released.statistic} is no gradient; weights cannot follow it."
            )
        # Most optimizers may write into their gradients, and what was released must stay as it was.
        only_reads = _only_reads_gradients(self.optimizer)
        for name, compact in self._compact.items():
            if name in released.moved:
                compact.grad = None  # one that somebody's backward pass has left there was never released
                continue
            value = self.support[name].scaled(released.values[name])
            owned = value is not released.values[name]
            compact.grad = value if only_reads or owned else value.clone()
        self.optimizer.step()
        for compact in self._compact.values():
            compact.grad = None
        self._write_back()

    def set_rates(self, factor: float) -> None:
        """Let the learning rates be those of the factory times ``factor``."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def change_support(self, support: Support) -> None:
        """Go on with another support: state of coordinates that stay active is kept, of others dropped.

        A coordinate that becomes active starts with zeros for its state. Step counts are kept per parameter,
        as ``torch.optim`` keeps them, for as long as one of its coordinates stays in training.
        """
        support.check_model(self._model)
        old_support, old_compact, old = self.support, self._compact, self.optimizer
        before = {name: old.state.get(compact) for name, compact in old_compact.items()}
        self.support, self._compact = support, {}
        fresh = self._build(support)
        if len(fresh.param_groups) == len(old.param_groups):
            # The optimizer stays the same object, so that schedulers that hold it keep steering it.
            for group, new in zip(old.param_groups, fresh.param_groups, strict=True):
                group.update({key: new[key] for key in ("params", "param_names") if key in new})
            old.state.clear()
            fresh = old
        elif hasattr(old.step, "_wrapped_by_lr_sched"):
            raise ArgumentError(
                "The optimizer has another number of parameter groups on the new support, so the scheduler that holds "
                "it cannot follow; let the factory make the same groups for every support."
            )
        self.optimizer = fresh
        for name, compact in self._compact.items():
            state = before.get(name)
            if state:
                self.optimizer.state[compact] = {
                    key: _carried(value, old_support[name], support[name], compact)
                    for key, value in state.items()
                }

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Optimizer state as tensors and plain numbers."""
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        for name, compact in self._compact.items():
            for key, value in self.optimizer.state.get(compact, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{name}/{key}"] = value
                else:
                    numbers[f"{name}/{key}"] = value
        return tensors, numbers

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from a state of the same support, after the model's parameters were restored."""
        self.refresh()
        self.optimizer.state.clear()
        for full, value in [*tensors.items(), *numbers.items()]:
            name, _, key = full.rpartition("/")
            if name not in self._compact:
                raise ArgumentError(f"The checkpoint holds optimizer state of {name!r}, which is not active.")
            compact = self._compact[name]
            value = value.to(compact.device) if isinstance(value, Tensor) and value.dim() else value
            self.optimizer.state[compact][key] = value

    def settings(self) -> list[dict[str, Any]]:
        """The numbers of the optimizer's groups, as schedulers have left them."""
        return [
            {key: value for key, value in group.items() if isinstance(value, int | float)}
            for group in self.optimizer.param_groups
        ]

    def set(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Go on with such numbers."""
        for group, numbers in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(numbers)

    def reset_state(self) -> None:
        """Forget all optimizer state, as at the start."""
        self.optimizer.state.clear()

    def refresh(self) -> None:
        """Read the active values again after the model's parameters were changed from outside."""
        with torch.no_grad():
            for name, compact in self._compact.items():
                block = self.support[name]
                if block.kind is not Kind.ALL:
                    compact.copy_(block.gather(self._model.get_parameter(name)))

    def _build(self, support: Support) -> Optimizer:
        support.check_model(self._model)
        parameters = dict(self._model.named_parameters())
        for name, block in support.items():
            if block.kind is Kind.ALL:
                self._compact[name] = parameters[name]
            elif block.kind is not Kind.SILENT:
                self._compact[name] = nn.Parameter(block.gather(parameters[name].detach()).clone())
        # A process may hold no active coordinate of a sharded model; an optimizer must have something to hold.
        optimizer = self._made(list(self._compact.items()) or [("", nn.Parameter(torch.zeros(0)))])
        self.rates = [group["lr"] for group in optimizer.param_groups]
        return optimizer

    def _try_factory(self) -> None:
        """Refuse a factory that uses the model's parameters, which on the whole support look like those it is given."""
        self._made([(name, nn.Parameter(self._model.get_parameter(name).detach())) for name in self.support])

    def _made(self, named: list[tuple[str, nn.Parameter]]) -> Optimizer:
        optimizer = self._factory(named)
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(
                "The optimizer factory must return an optimizer of torch.optim or one like it, not "
                f"{type(optimizer).__name__}."
            )
        if isinstance(optimizer, _UNFIT):
            raise ArgumentError(
                f"{type(optimizer).__name__} cannot train on released gradients: it asks for the loss several times a "
                "step, or for sparse gradients. Take another optimizer, such as SGD or Adam."
            )
        known = {id(p) for _, p in named}
        if any(id(p) not in known for p in _parameters_of(optimizer)):
            raise ArgumentError(
                "The optimizer factory must build its optimizer from the parameters it is given, not from "
                "model.parameters(); write lambda named: torch.optim.SGD(named, lr=...)."
            )
        return optimizer

    def _write_back(self) -> None:
        with torch.no_grad():
            for name, compact in self._compact.items():
                if self.support[name].kind is not Kind.ALL:
                    self.support[name].scatter_(self._model.get_parameter(name), compact)


def _only_reads_gradients(optimizer: Optimizer) -> bool:
    if type(optimizer) is not torch.optim.SGD:
        return False
    return not any(group["nesterov"] or group["maximize"] for group in optimizer.param_groups)


def _parameters_of(optimizer: Optimizer) -> Iterable[Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _carried(value: Any, old: Block, new: Block, compact: Tensor) -> Any:
    """Optimizer state of one parameter for its new active coordinates; step counts go over as they are."""
    if not isinstance(value, Tensor) or tuple(value.shape) != old.compact_shape:
        return value
    full = torch.zeros(new.shape, dtype=value.dtype, device=value.device)
    old.scatter_(full, value)
    carried = new.gather(full)
    return carried.clone() if new.kind is Kind.ALL else carried.to(compact.device)


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
        """Everything needed to continue."""
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
