"""The random generators that a model, an augmentation or a data set draws from, under keys that nobody knows.

Within ``Generators.keyed`` PyTorch's generators (of every device), Python's and NumPy's have states from the operating
system, and so have those that the model, the loss or the data set hold themselves; afterwards all are as before. So
no seed that was set outside reaches what is drawn inside, and the state outside says nothing about what was drawn.

A state is replaced whole: 19,937 random bits for a Mersenne Twister, where seeding one in PyTorch would set 32.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import random
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand
from torch import Tensor
from torch.utils.data import get_worker_info

from tacit.errors import ModelError
from tacit.raw.reach import reachable, used_globals

Source = Callable[[int], bytes]
"""Gives so many bytes, fresh ones at every call."""

WORDS = 624
"""32-bit words in the state of a Mersenne Twister."""


def random_state(held: Sequence[Any] = ()) -> list[tuple[Any, Any]]:
    """The state of every global generator that a model or a data set may draw from, and of those that they hold."""
    return [(generator, _state(generator)) for generator in (*_global(), *held)]


def restore_random_state(states: list[tuple[Any, Any]]) -> None:
    """Put the generators back to a state."""
    for generator, state in states:
        _set(generator, state)


def drawn_since(states: list[tuple[Any, Any]]) -> bool:
    """Whether anything was drawn since the generators were in these states."""

    def content(state: Any) -> bytes:
        return state.numpy().tobytes() if isinstance(state, Tensor) else pickle.dumps(state)

    return any(content(state) != content(_state(generator)) for generator, state in states)


def reseed(number: int, held: Sequence[Any] = ()) -> None:
    """Put all generators into states that follow from a number."""
    source = _following(number, ())
    for generator in (*_global(), *held):
        _key(generator, source)


class Generators:
    """Keys the global generators, and those that ``users`` hold, for the time of one piece of raw work.

    Without a seed keys are fresh from the operating system, are never written and never come again. With one they
    follow from the seed and the place of the work, so that a resumed run draws as one that was not stopped; then
    generators that ``users`` hold themselves are left alone.
    """

    def __init__(self, *users: Any, seed: int | None = None) -> None:
        self._users, self._seed = users, seed
        self._held: list[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the generators that were found: a worker process has copies of its own."""
        return {**self.__dict__, "_held": None}

    @contextmanager
    def keyed(self, *place: int) -> Iterator[None]:
        """Within this context everything is drawn under new keys; ``place`` decides them where there is a seed."""
        if self._held is None:
            self._held = [] if self._seed is not None else held_by(*self._users)
        source = os.urandom if self._seed is None else _following(self._seed, place)
        before = random_state(self._held)
        try:
            for generator, _ in before:
                _key(generator, source)
            mark = torch.initial_seed()
            with _wide(self._seed is None):
                yield
            if self._seed is None and torch.initial_seed() != mark:
                raise ModelError(
                    "The data set, the augmentation, the model or the loss seeds PyTorch's generator itself "
                    "(torch.manual_seed), so what it draws is no secret; remove that, or give seed= for a run that is "
                    "not for release."
                )
        finally:
            restore_random_state(before)

    def loader(self, place: int) -> torch.Generator:
        """A generator for a loader, from which its workers have the seeds that they show to data sets."""
        generator = torch.Generator()
        _key(generator, os.urandom if self._seed is None else _following(self._seed, (place,)))
        return generator


def _following(seed: int, place: tuple[int, ...]) -> Source:
    """Bytes that follow from a seed and a place."""
    calls = 0

    def draw(count: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_256(f"tacit generators {seed} {place} {calls}".encode()).digest(count)

    return draw


def _global() -> list[Any]:
    """The generators that everybody draws from; in a worker of a loader, those of devices that it uses already."""
    found: list[Any] = [torch.default_generator, random.getstate.__self__, _NUMPY]  # type: ignore[attr-defined]
    for device in (torch.cuda, torch.xpu):
        if device.is_initialized() or (get_worker_info() is None and device.is_available()):
            device.init()
            found += device.default_generators
    if torch.backends.mps.is_available() and get_worker_info() is None:
        found.append(torch.mps._get_default_mps_generator())
    return found


def held_by(*users: Any) -> list[Any]:
    """The generators that users hold, or that their functions name among their global variables."""
    kinds = torch.Generator | random.Random | np.random.Generator | np.random.RandomState
    known = {id(generator) for generator in (*_global(), np.random.get_state.__self__)}  # type: ignore[attr-defined]
    found: dict[int, Any] = {}
    for _, thing in reachable({str(number): user for number, user in enumerate(users)}):
        named = [value for _, value in used_globals(thing)] if isinstance(thing, FunctionType) else []
        for generator in (thing, *named):
            secure = isinstance(generator, random.SystemRandom)
            if isinstance(generator, kinds) and not secure and id(generator) not in known:
                found[id(generator)] = generator
    return list(found.values())


# One generator of any kind ----------------------------------------------------------------------------------------


class _NumPyGlobal:
    """NumPy's global generator. Reading and setting its state is slow, so its engine is exchanged instead."""

    def __init__(self) -> None:
        self._whole: np.random.RandomState = np.random.get_state.__self__  # type: ignore[attr-defined]
        self._engine = np.random.MT19937(0)
        self._memory = self._engine.ctypes.state_address
        self._before: tuple[bytes, dict[str, Any]] | None = None

    def state(self) -> tuple[Any, dict[str, Any]]:
        """The engine, which no key ever changes, and the state of the whole, with the normal number held back."""
        engine = mtrand.get_bit_generator()
        if not isinstance(engine, np.random.MT19937):
            return engine, self._whole.get_state(legacy=False)
        memory = ctypes.string_at(engine.ctypes.state_address, _TWISTER.size)
        if self._before is None or self._before[0] != memory or self._before[1]["has_gauss"]:
            self._before = memory, self._whole.get_state(legacy=False)
        return engine, self._before[1]

    def restore(self, state: tuple[Any, dict[str, Any]]) -> None:
        """Give the engine back. Where it was drawn from meanwhile, or a number is held back, set the whole state."""
        changed = mtrand.get_bit_generator() is state[0]
        mtrand.set_bit_generator(state[0])
        if changed or state[1]["has_gauss"]:
            self._whole.set_state(state[1])

    def key(self, source: Source) -> None:
        """Exchange the engine for one whose whole memory is fresh."""
        if (
            mtrand.get_bit_generator() is self._engine
        ):  # within another key: its engine must come back as it is
            self._engine = np.random.MT19937(0)
            self._memory = self._engine.ctypes.state_address
        ctypes.memmove(self._memory, source(4 * WORDS) + struct.pack("=i", WORDS), _TWISTER.size)
        mtrand.set_bit_generator(self._engine)


_TWISTER = struct.Struct(f"={WORDS}Ii")
_NUMPY = _NumPyGlobal()


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, _NumPyGlobal):
        return generator.state()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def _set(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, _NumPyGlobal):
        generator.restore(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _key(generator: Any, source: Source) -> None:
    """Give a generator a state made of fresh bytes."""
    if isinstance(generator, torch.Generator):
        if generator.device.type == "cpu":
            generator.set_state(twister_state(source))
        else:
            generator.manual_seed(
                int.from_bytes(source(8), "little")
            )  # a counter generator with a 64-bit key
    elif isinstance(generator, random.Random):
        generator.setstate((3, (*struct.unpack(f"={WORDS}I", source(4 * WORDS)), WORDS), None))
    elif isinstance(generator, _NumPyGlobal):
        generator.key(source)
    elif isinstance(generator, np.random.RandomState):
        bits = generator._bit_generator
        generator.set_state({**_keyed_bits(bits, source), "has_gauss": 0, "gauss": 0.0})
    else:
        generator.bit_generator.state = _keyed_bits(generator.bit_generator, source)


def twister_state(source: Source, *, left: int = 1) -> Tensor:
    """PyTorch's form of a CPU generator's state, of fresh bytes: seed, words left, a mark, the next word, all words.

    With one word left the next draw makes a new block of words.
    """
    head = source(8) + struct.pack("=iiQ", left, 1, 0)
    words = np.frombuffer(source(4 * WORDS), np.uint32).astype(np.uint64)
    return torch.frombuffer(bytearray(head + words.tobytes() + bytes(40)), dtype=torch.uint8)


def _keyed_bits(bits: Any, source: Source) -> dict[str, Any]:
    if isinstance(bits, np.random.MT19937):
        key = np.frombuffer(source(4 * WORDS), np.uint32)
        return {"bit_generator": "MT19937", "state": {"key": key, "pos": WORDS}}
    fresh = type(bits)(np.random.SeedSequence(int.from_bytes(source(32), "little"), pool_size=8))
    return fresh.state  # type: ignore[no-any-return]


# Kernels that stretch a short seed --------------------------------------------------------------------------------


def _bernoulli(self: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    return self.copy_(torch.empty(self.shape, dtype=torch.float64).uniform_(generator=generator) < p)


def _exponential(self: Tensor, lambd: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    drawn = torch.empty(self.shape, dtype=torch.float64).uniform_(generator=generator)
    return self.copy_(drawn.neg_().log1p_().div_(-lambd))


_WIDE: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "bernoulli_.float": (_bernoulli, lambda x: x.bernoulli_(0.5)),
    "exponential_": (_exponential, lambda x: x.exponential_()),
}
_narrow: list[str] | None = None


def narrow_kernels() -> list[str]:
    """Kernels that take one or two words from PyTorch's generator and stretch them by a weaker one.

    On Intel processors PyTorch draws dropout masks so: 2³¹ masks for a whole batch, which can be tried one by one.
    Found by two states that agree in their first four words only.
    """
    global _narrow
    if _narrow is None:
        _narrow = []
        states = [twister_state(_following(number, ()), left=WORDS) for number in range(2)]
        states[1][24 : 24 + 4 * 8] = states[0][24 : 24 + 4 * 8]
        for name, (_, draw) in _WIDE.items():
            drawn = []
            for state in states:
                before = torch.get_rng_state()
                torch.set_rng_state(state)
                drawn.append(draw(torch.empty(256)))
                torch.set_rng_state(before)
            if torch.equal(*drawn):
                _narrow.append(name)
    return _narrow


@contextmanager
def _wide(secret: bool) -> Iterator[None]:
    """Within this context narrow kernels are replaced by ones that take every word from the generator."""
    names = narrow_kernels() if secret else []
    if not names:
        yield
        return
    library = torch.library.Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in names:
                library.impl(name, _WIDE[name][0], allow_override=True)  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
