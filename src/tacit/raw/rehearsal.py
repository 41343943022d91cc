"""Conditions under which a model shows what it does: no random draws, nothing asleep, double precision.

Everything here is undone on leaving the context, also if the pass inside fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.raw.footprint import Footprint
from tacit.raw.generators import random_state, restore_random_state

UNIFORM, NORMAL = 0.43, 0.37
"""What a stilled uniform or normal draw gives: one constant for every element, and not a special value."""

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_NARROWING = {Tensor.float, Tensor.half, Tensor.bfloat16}
aten = torch.ops.aten


# Random draws -----------------------------------------------------------------------------------------------------


def _filled(make: Callable[..., float | Tensor]) -> Callable[..., Tensor]:
    """An in-place draw, as filling with a constant."""

    def draw(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        kwargs.pop("generator", None)
        return x.copy_(torch.as_tensor(make(*args, **kwargs), device=x.device))

    return draw


def _created(value: float) -> Callable[..., Tensor]:
    def draw(size: Any, *, generator: Any = None, **options: Any) -> Tensor:
        return torch.full(size, value, **_plain(options))

    return draw


def _created_between(low: int, high: int, size: Any, options: dict[str, Any]) -> Tensor:
    options = {"dtype": torch.int64, **{k: v for k, v in _plain(options).items() if v is not None}}
    return torch.full(size, low + (high - low) // 3, **options)


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in ("dtype", "device")}


def _native_dropout(x: Tensor, p: float, train: bool | None = None) -> tuple[Tensor, Tensor]:
    kept = 1.0 if train is False else 0.0 if p == 1 else 1 / (1 - p)
    return x * kept, torch.ones_like(x, dtype=torch.bool)


_DROPOUT: dict[Any, Callable[..., Any]] = {
    aten.bernoulli.default: lambda x, **_: x.clone(),
    aten.bernoulli.p: lambda x, p, **_: torch.full_like(x, p),
    aten.bernoulli_.float: _filled(lambda p=0.5: p),
    aten.bernoulli_.Tensor: _filled(lambda p: p),
    aten.native_dropout.default: _native_dropout,
}
_DRAWS: dict[Any, Callable[..., Any]] = {
    **_DROPOUT,
    aten.uniform_.default: _filled(lambda a=0.0, b=1.0: a + UNIFORM * (b - a)),
    aten.normal_.default: _filled(lambda mean=0.0, std=1.0: mean + NORMAL * std),
    aten.exponential_.default: _filled(lambda rate=1.0: 1 / rate),
    aten.random_.default: _filled(lambda: 1),
    aten.random_.to: _filled(lambda to: to // 3),
    getattr(aten.random_, "from"): _filled(lambda low, high=None: low + ((high or low + 3) - low) // 3),
    aten.rand.default: _created(UNIFORM),
    aten.rand.generator: _created(UNIFORM),
    aten.randn.default: _created(NORMAL),
    aten.randn.generator: _created(NORMAL),
    aten.rand_like.default: lambda x, **options: torch.full_like(x, UNIFORM, **_plain(options)),
    aten.randn_like.default: lambda x, **options: torch.full_like(x, NORMAL, **_plain(options)),
    aten.normal.Tensor_float: lambda mean, std=1.0, **_: mean + NORMAL * std,
    aten.normal.Tensor_Tensor: lambda mean, std, **_: mean + NORMAL * std,
    aten.normal.float_Tensor: lambda mean, std, **_: mean + NORMAL * std,
    aten.randint.default: lambda high, size, **options: _created_between(0, high, size, options),
    aten.randint.generator: lambda high, size, **options: _created_between(0, high, size, options),
    aten.randint.low: lambda low, high, size, **options: _created_between(low, high, size, options),
    aten.randint.low_generator: lambda low, high, size, **options: _created_between(low, high, size, options),
    aten.randint_like.default: lambda x, high, **_: torch.full_like(x, high // 3),
    aten.randint_like.low_dtype: lambda x, low, high, **_: torch.full_like(x, low + (high - low) // 3),
    aten.randperm.default: lambda n, **options: torch.arange(n, **_plain(options)),
    aten.randperm.generator: lambda n, *, generator, **options: torch.arange(n, **_plain(options)),
    aten.multinomial.default: lambda p, count, *_, **__: p.topk(count).indices,
    aten.poisson.default: lambda rate, **_: rate.clone(),
}


class Stilled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Torch's random draws give constants, so that a pass depends neither on chance nor on the size of a batch.

    ``only_dropout`` leaves all other draws, permutations among them, to the generator. ``uniform`` is what single
    uniform draws give: models leave out whole layers by them.
    """

    def __init__(self, *, only_dropout: bool = False, uniform: float = UNIFORM) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws = _DROPOUT if only_dropout else _DRAWS
        if uniform != UNIFORM and not only_dropout:
            self._draws = {
                **self._draws,
                aten.rand.default: _created(uniform),
                aten.rand.generator: _created(uniform),
                aten.uniform_.default: _filled(lambda a=0.0, b=1.0: a + uniform * (b - a)),
            }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        draw = self._draws.get(func)
        return func(*args, **kwargs or {}) if draw is None else draw(*args, **kwargs or {})


@contextmanager
def untouched(model: nn.Module, held: Sequence[Any] = ()) -> Iterator[None]:
    """Whatever the model does inside leaves neither what it holds nor the random state changed."""
    state = random_state(held)
    try:
        with Footprint(model).silently_kept():
            yield
    finally:
        restore_random_state(state)


# Weights and precision ----------------------------------------------------------------------------------------------


class _Wide(TorchFunctionMode):
    """Torch functions that are asked for a narrower floating type give double precision."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _NARROWING:
            func = Tensor.double
        args = tuple(torch.float64 if isinstance(a, torch.dtype) and a in _NARROW else a for a in args)
        kwargs = {
            name: torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
            for name, value in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


@contextmanager
def awake(model: nn.Module, draw: torch.Generator | None, *, double: bool) -> Iterator[None]:
    """The model with other weights for a while: in double precision, and away from zero where ``draw`` is given.

    A head that starts at zero, a residual branch or a scale that starts at zero lets no gradient through to what lies
    below; a little noise on every trained weight does. The tensors that the model had are put back as they are.
    """
    weights = [(parameter, parameter.data) for parameter in model.parameters()]
    buffers = [
        (module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()
    ]
    default = torch.get_default_dtype()
    with ExitStack() as modes:
        try:
            for parameter, data in weights:
                wide = data.double() if double and data.is_floating_point() else data
                if draw is not None and parameter.requires_grad:
                    wide = wide + _noise(wide, draw)
                parameter.data = wide
            for module, name, buffer in buffers:
                if double and buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.double()
            if double:
                torch.set_default_dtype(torch.float64)
                modes.enter_context(_Wide())
            yield
        finally:
            torch.set_default_dtype(default)
            for parameter, data in weights:
                parameter.data = data
            for module, name, buffer in buffers:
                module._buffers[name] = buffer


def _noise(weight: Tensor, draw: torch.Generator) -> Tensor:
    """A tenth of a usual initial weight, and of this one."""
    fan_in = max(1, weight[0].numel()) if weight.dim() > 1 else 1
    size = 0.1 * float(weight.detach().square().mean().sqrt()) if weight.numel() else 0.0
    drawn = torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    scaled: Tensor = drawn * (size + 0.1 / fan_in**0.5)
    return scaled.to(weight.device, weight.dtype)
