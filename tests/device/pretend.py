"""A pretend accelerator: it computes on the CPU, has a name of its own, and keeps CUDA's rules about devices.

Operands on different devices are refused, except numbers (tensors of no dimensions) on the CPU in arithmetic and index
tensors where CUDA takes them from the CPU. Every copy between the devices is counted with its size, and every operation
that makes the host wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten = torch.ops.aten
NAME = "pretend"


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(NAME, _Backend())  # once per process, and for good
DEVICE = torch.device(NAME, 0)

_JOINING = {aten.stack.default, aten.cat.default}
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._unsafe_index.Tensor,
    aten._index_put_impl_.default,
}
_WAITING = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
}


@dataclass
class Traffic:
    """What went between host and device: sizes of copies in numbers, and operations that wait."""

    to_device: list[int] = field(default_factory=list)
    to_host: list[int] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)


traffic = Traffic()


class OnDevice(Tensor):
    """A tensor on the pretend device: its numbers are in an ordinary tensor that only operations of the device see."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            # Sparse ones look dense from outside: PyTorch has no sparse tensors that are made in Python.
            strides=inner.stride() if inner.layout is torch.strided else None,
            storage_offset=inner.storage_offset() if inner.layout is torch.strided else None,
            dtype=inner.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @property
    def data(self) -> Tensor:
        """The same numbers, without a history."""
        return self.detach()

    @data.setter
    def data(self, other: OnDevice) -> None:
        self.inner = other.inner
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]

    def data_ptr(self) -> int:
        """Where the numbers are."""
        return self.inner.data_ptr()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.inner})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An operation with an operand or a result on the device."""
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    away = [x for x in tensors if isinstance(x, OnDevice)]
    asked = kwargs.get("device")
    target = None if asked is None else torch.device(asked).type
    if func is aten._to_copy.default:
        return _copied(args[0], kwargs, target)
    if func in (aten.copy_.default, aten._copy_from.default):
        return _written(args, kwargs)
    if func in _WAITING and away:
        traffic.waits.append(str(func))
    if func is aten._local_scalar_dense.default:
        traffic.to_host.append(1)
        return args[0].inner.item()
    if (
        func in _INDEXING
        and away
        and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    ):
        traffic.waits.append(str(func))
    _check_devices(func, args, tensors, away)
    plain_args, plain_kwargs = pytree.tree_map(
        lambda x: x.inner if isinstance(x, OnDevice) else x, (args, kwargs)
    )
    plain_kwargs.pop("pin_memory", None)
    if target == NAME:
        plain_kwargs["device"] = "cpu"
    result = func(*plain_args, **plain_kwargs)
    if target == "cpu":
        return result
    return _wrapped(result, args, plain_args) if away or target == NAME else result


def _check_devices(func: Any, args: Sequence[Any], tensors: list[Tensor], away: list[OnDevice]) -> None:
    if not away:
        return
    # Numbers on the CPU join in arithmetic, element by element, but are not put together with others into one tensor.
    here = [x for x in tensors if not isinstance(x, OnDevice) and (x.dim() or func in _JOINING)]
    if func in _INDEXING and isinstance(args[0], OnDevice):
        indices = {id(x) for x in args[1] if x is not None}
        here = [x for x in here if id(x) not in indices]
    if here:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(pretend device, in {func}, shapes {[tuple(x.shape) for x in tensors]})"
        )


def _wrapped(result: Any, args: Sequence[Any], plain: Sequence[Any]) -> Any:
    """Results on the device; an operand that was written to is given back itself."""
    known = {
        id(p): a
        for a, p in zip(pytree.tree_leaves(args), pytree.tree_leaves(plain), strict=True)
        if isinstance(a, OnDevice)
    }

    def wrap(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return known[id(x)] if id(x) in known else OnDevice(x)

    return pytree.tree_map(wrap, result)


def _copied(x: Tensor, kwargs: dict[str, Any], target: str | None) -> Tensor:
    from_device = isinstance(x, OnDevice)
    to_device = from_device if target is None else target == NAME
    rest = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
    made = aten._to_copy.default(x.inner if from_device else x, **rest)
    if to_device and not from_device:
        traffic.to_device.append(x.numel())
    if from_device and not to_device:
        traffic.to_host.append(x.numel())
        traffic.waits.append("copy to the host")
    return OnDevice(made) if to_device else made


def _written(args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    target, source = args[:2]
    if isinstance(target, OnDevice) and not isinstance(source, OnDevice):
        traffic.to_device.append(source.numel())
    elif isinstance(source, OnDevice) and not isinstance(target, OnDevice):
        traffic.to_host.append(source.numel())
        traffic.waits.append("copy to the host")
    inner = [x.inner if isinstance(x, OnDevice) else x for x in (target, source)]
    inner[0].copy_(inner[1])
    return target  # type: ignore[no-any-return]


class PretendDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this mode ``device=NAME`` is the pretend device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        asked = kwargs.get("device")
        if (asked is not None and torch.device(asked).type == NAME) or any(
            isinstance(x, OnDevice) for x in pytree.tree_leaves((args, kwargs))
        ):
            return run(func, args, kwargs)
        return func(*args, **kwargs)


@contextmanager
def pretend_device() -> Iterator[Traffic]:
    """The pretend device, with fresh counts."""
    global traffic
    traffic = Traffic()
    with PretendDevice():
        yield traffic
