"""What a pass over examples leaves behind: nothing.

A forward pass can write to the model: a running maximum, a cache, a list of activations. What it writes comes from raw
examples, and would leave with the model, or reach the next examples. So everything that the model and the loss hold is
noted before a step and put back after every pass. Attributes, containers and closures are compared by identity, tensors
by version counter and address, small tensors and arrays by value as well; so looking costs microseconds.

A parameter cannot be put back, and a model that relies on a buffer of its ``state_dict`` would not work as meant
without what it writes there; these are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from operator import is_
from types import CellType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tacit.errors import ModelError
from tacit.raw.reach import LARGEST_CONTAINER, reachable
from tacit.warning import warn

SMALL = 1 << 14
"""Bytes of a tensor or array that is compared by value as well: writes through ``.data`` or NumPy change no version."""

COPIED = 1 << 26
"""Bytes of tensors, parameters aside, of which copies are held to be put back; writing to any more is refused."""


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Footprint:
    """Everything that a model and what belongs to it hold, to be put back after a pass."""

    def __init__(self, model: nn.Module, **others: Any) -> None:
        self._model, self._roots = model, {"": model, **others}
        self._holders: list[_Holder] = []
        self._empty: list[Any] = []
        self._empty_names: list[str] = []
        self._tensors: list[_Tensor] = []
        self._arrays: list[tuple[str, np.ndarray, bytes]] = []
        self._told: set[str] = set()

    def include(self, **others: Any) -> None:
        """Watch what else works on examples, besides the model and the loss."""
        self._roots |= others
        self._holders = []

    def note(self) -> None:
        """Take what is there now as what must be there after every pass, until this is called again."""
        if not self._holders or any(self._empty) or any(holder.changed() for holder in self._holders):
            self._walk()
            return
        for tensor in self._tensors:
            if tensor.changed():
                tensor.note()
        if self._arrays:
            self._arrays = [(name, array, array.tobytes()) for name, array, _ in self._arrays]

    def put_back(self, *, refuse: bool = False) -> None:
        """Undo what a pass has written since ``note``.

        What cannot be undone is refused and, where ``refuse`` says so, a written buffer of the ``state_dict`` too.
        """
        if not self._changed():
            return
        found = self._undo()
        for name in found.parameters:
            raise _changed_parameter(name)
        if refuse:
            for name in found.buffers:
                raise ModelError(
                    f"The buffer {name!r} changes in a forward pass and would carry private data out of the training "
                    "step unprotected; freeze it with .eval() on its module."
                )
            return
        new = [name for name in (*found.buffers, *found.others) if name not in self._told]
        if new:
            self._told.update(new)
            shown = ", ".join(new[:4]) + (", …" if len(new) > 4 else "")
            warn(
                f"A pass over examples writes to {shown}; what it wrote is taken back after every pass, so that "
                "nothing computed from examples stays behind."
            )

    @contextmanager
    def kept(self, *, refuse: bool = False) -> Iterator[None]:
        """Whatever happens inside, everything is afterwards as it was before; by value too if it may be refused."""
        self.note()
        before = self._digests() if refuse else {}
        try:
            yield
        except BaseException:
            self._undo()
            raise
        self.put_back(refuse=refuse)
        for name, digest in self._digests().items() if refuse else ():
            if digest != before[name]:
                raise _changed_parameter(name)

    @contextmanager
    def silently_kept(self) -> Iterator[None]:
        """Whatever happens inside, everything that can be put back is afterwards as it was before."""
        self.note()
        try:
            yield
        finally:
            self._undo()

    @contextmanager
    def taken_back(self, *, refuse: bool = False) -> Iterator[None]:
        """Before and after what happens inside, everything is as it was when ``note`` was called."""
        self.put_back(refuse=refuse)
        try:
            yield
        except BaseException:
            self._undo()
            raise
        self.put_back(refuse=refuse)

    def _digests(self) -> dict[str, int]:
        """Of every parameter's values: writes through ``.data`` change no version."""
        return {
            name: int(p.detach().reshape(-1).view(_INTEGERS[p.element_size()]).sum(dtype=torch.int64))
            for name, p in self._model.named_parameters()
        }

    def _changed(self) -> bool:
        """Whether anything has been written: what every pass asks, so it is quick."""
        if any(self._empty):
            return True
        for holder in self._holders:
            if not holder.same(holder.thing, holder.before):
                return True
        for tensor in self._tensors:
            if tensor.changed():
                return True
        return any(array.tobytes() != before for _, array, before in self._arrays)

    def _undo(self) -> _Found:
        found = _Found([], [], [])
        if any(self._empty):
            for name, thing in zip(self._empty_names, self._empty, strict=True):
                if thing:
                    thing.clear()
                    found.sort(name, "others")
        for holder in self._holders:
            if holder.changed():
                for name in holder.undo():
                    found.sort(name, holder.kind)
        for tensor in self._tensors:
            if tensor.changed():
                restored = tensor.undo()
                found.sort(tensor.name, tensor.kind if restored else "parameters")
        for name, array, before in self._arrays:
            if array.tobytes() != before:
                array[...] = np.frombuffer(before, array.dtype).reshape(array.shape)
                found.sort(name, "others")
        return found

    def _walk(self) -> None:
        """Find every holder, tensor and array."""
        known = {id(tensor): old for tensor, old in ((t.tensor, t) for t in self._tensors)}
        kept = {
            id(tensor)
            for tensor in self._model.state_dict(keep_vars=True).values()
            if isinstance(tensor, Tensor)
        }
        stored = {id(module._buffers): module._non_persistent_buffers_set for module in self._model.modules()}
        parameters = {id(module._parameters) for module in self._model.modules()}
        self._holders, self._tensors, self._arrays = [], [], []
        self._empty, self._empty_names = [], []
        room = COPIED
        for name, thing in reachable(self._roots, but=(Dataset, DataLoader)):
            if isinstance(thing, Tensor):
                kind = (
                    "parameters"
                    if isinstance(thing, nn.Parameter)
                    else "buffers"
                    if id(thing) in kept
                    else "others"
                )
                tensor = known.get(id(thing)) or _Tensor(name, thing, kind)
                tensor.note(copy=kind != "parameters" and thing.nbytes <= room)
                room -= 0 if tensor.copy is None else thing.nbytes
                self._tensors.append(tensor)
            elif isinstance(thing, np.ndarray):
                if thing.nbytes <= SMALL and thing.dtype != object:
                    self._arrays.append((name, thing, thing.tobytes()))
            elif isinstance(thing, dict | list | set | deque) and not thing:
                self._empty.append(thing)
                self._empty_names.append(name)
            elif (holder := _holder(name, thing)) is not None:
                if id(thing) in parameters:
                    holder.kind = "parameters"
                elif id(thing) in stored:
                    holder.kind, holder.temporary = "buffers", stored[id(thing)]
                self._holders.append(holder)


class _Passing(Protocol):
    footprint: Footprint


_Self = TypeVar("_Self", bound=_Passing)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def leaves_nothing(
    method: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result]:
    """A method that works on raw examples, after which everything in the ``footprint`` of its object is as before."""

    @wraps(method)
    def kept(self: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with self.footprint.kept():
            return method(self, *args, **kwargs)

    return kept


def _changed_parameter(name: str) -> ModelError:
    return ModelError(
        f"The parameter {name!r} is changed by the forward pass itself, without protection; change it through the "
        "optimizer only."
    )


@dataclass
class _Found:
    """Names of what a pass has written."""

    parameters: list[str]
    buffers: list[str]
    others: list[str]

    def sort(self, name: str, kind: str) -> None:
        getattr(self, kind).append(name)


class _Holder:
    """A dictionary, list, set, queue or closure variable, and what it held."""

    def __init__(self, name: str, thing: Any, same: Callable[[Any, Any], bool]) -> None:
        self.name, self.thing, self.same = name, thing, same
        self.before = _contents(thing)
        self.kind = "others"
        self.temporary: Set[str] = frozenset()

    def changed(self) -> bool:
        return not self.same(self.thing, self.before)

    def undo(self) -> list[str]:
        """Put the contents back; what had changed, by name."""
        thing, before = self.thing, self.before
        if isinstance(thing, dict):
            names = [
                f"{self.name}.{key}" if self.name else str(key)
                for key in dict.fromkeys([*before, *thing])
                if key not in self.temporary and before.get(key, _NOTHING) is not thing.get(key, _NOTHING)
            ]
            thing.clear()
            thing.update(before)
            return names
        if isinstance(thing, CellType):
            thing.cell_contents = before
        elif isinstance(thing, list):
            thing[:] = before
        else:
            thing.clear()
            (thing.update if isinstance(thing, set) else thing.extend)(before)
        return [self.name]


_NOTHING = object()


def _holder(name: str, thing: Any) -> _Holder | None:
    if isinstance(thing, dict):
        return _Holder(name, thing, _same_dict)
    if isinstance(thing, CellType):
        return _Holder(name, thing, _same_cell)
    if isinstance(thing, list | deque):
        return _Holder(name, thing, _same_items)
    return _Holder(name, thing, lambda now, before: now == before) if isinstance(thing, set) else None


def _contents(thing: Any) -> Any:
    if isinstance(thing, CellType):
        return _in_cell(thing)
    if isinstance(thing, dict):
        return dict(thing)
    return set(thing) if isinstance(thing, set) else list(thing)


def _in_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _same_dict(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    return (
        len(now) == len(before)
        and (len(now) > LARGEST_CONTAINER or all(map(is_, now.values(), before.values())))
        and all(map(is_, now, before))
    )


def _same_items(now: Any, before: list[Any]) -> bool:
    return len(now) == len(before) and (len(now) > LARGEST_CONTAINER or all(map(is_, now, before)))


def _same_cell(now: CellType, before: Any) -> bool:
    return _in_cell(now) is before


class _Tensor:
    """A tensor, its version and address and, where it may be put back, a copy."""

    def __init__(self, name: str, tensor: Tensor, kind: str) -> None:
        self.name, self.tensor, self.kind = name, tensor, kind
        self.copy: Tensor | None = None
        self._mark: tuple[int, int] | None = None

    def note(self, *, copy: bool = False) -> None:
        """Take the tensor as it is now; a copy that is still good is kept."""
        if self._mark == _mark(self.tensor) and (self.copy is not None) == copy and not self._differs():
            return
        self.copy = self.tensor.detach().clone() if copy or self.copy is not None else None
        self._mark = _mark(self.tensor)

    def changed(self) -> bool:
        return _mark(self.tensor) != self._mark or (self.copy is not None and self._differs())

    def undo(self) -> bool:
        """Put the copy back, where there is one."""
        if self.copy is None:
            self._mark = _mark(self.tensor)
            return False
        with torch.no_grad():
            if self._mark is not None and _mark(self.tensor)[1] == self._mark[1]:
                self.tensor.detach().copy_(self.copy)
            else:
                self.tensor.data = self.copy.clone()
        self._mark = _mark(self.tensor)
        return True

    def _differs(self) -> bool:
        """By value, where that is cheap."""
        before = self.copy
        if before is None or before.nbytes > SMALL or before.device.type != "cpu":
            return False
        now = self.tensor.detach()
        if now.shape == before.shape and torch.equal(now, before):
            return False
        # A number that is none equals nothing, itself included.
        return now.shape != before.shape or not bool(
            ((now == before) | ((now != now) & (before != before))).all()
        )


def _mark(tensor: Tensor) -> tuple[int, int]:
    try:
        return tensor._version, tensor.data_ptr()
    except RuntimeError:  # sparse tensors have no address, tensors made in inference mode no version
        return 0, 0
