"""Several processes, found and connected by a gloo group of ``torch.distributed``."""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from tacit import errors
from tacit.distributed.ranks import ALONE, Ranks
from tacit.errors import ArgumentError, RankError, TacitError, check_positive

Value = TypeVar("Value")

_MESSAGE = 512
"""Bytes of the short messages that ranks exchange in every step; longer ones are cut."""

_PACKED = 1 << 20
"""Numbers of a rank that travel in one message at most, if they are of several tensors."""


class Group:
    """The ranks of a gloo process group. Nothing that is exchanged can run code where it arrives.

    Tensors travel through main memory, packed into one message per type. The sum is formed on the first rank
    only.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._root = dist.get_global_rank(group, 0)
        self._buffers: dict[torch.dtype, Tensor] = {}

    def leave(self) -> None:
        """Ends the threads of gloo: one that lets go of a tensor while the interpreter ends aborts the process."""
        if dist.is_initialized():
            del (
                self._group
            )  # the last reference but those of torch.distributed: with it, the threads are joined
            dist.destroy_process_group()

    def new_key(self) -> bytes | None:
        """From the operating system of the first rank; it is in memory and on the wire, and never in a file."""
        return self._share(os.urandom(32))

    def together(self, action: Callable[[], Value]) -> Value:
        """Every rank acts; a failure is raised where it happened, and as RankError elsewhere."""
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:
            failure = error
        said = self._gather("" if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        for rank, words in enumerate(said):
            if words:
                raise RankError(
                    f"Process {rank} of {self.size} has failed, so all stop: {words.rstrip('.')}."
                )
        return result

    def lead(self, action: Callable[[], Value]) -> Value:
        """The first rank acts; its result, or its error, is everybody's."""
        answer: dict[str, Any] = {}
        failure: Exception | None = None
        result: Any = None
        if self.rank == 0:
            try:
                result = action()
                answer = {"result": result}
            except Exception as error:
                failure = error
                answer = {"error": [type(error).__name__, str(error)]}
        answer = json.loads(self._share(json.dumps(answer).encode()))
        if failure is not None:
            raise failure
        if "error" in answer:
            raise _as_raised(*answer["error"])
        return result if self.rank == 0 else answer["result"]  # type: ignore[no-any-return]

    def lead_tensors(
        self, action: Callable[[], tuple[dict[str, Tensor], Any]]
    ) -> tuple[dict[str, Tensor], Any]:
        """The first rank acts; its tensors and numbers are everybody's."""
        tensors: dict[str, Tensor] = {}

        def numbers_only() -> Any:
            nonlocal tensors
            tensors, numbers = action()
            return numbers

        numbers = self.lead(numbers_only)
        packed = self._share(save(tensors) if self.rank == 0 else b"")
        return (tensors if self.rank == 0 else load(packed)), numbers

    def check_same(self, what: str, digest: Callable[[], str]) -> None:
        """Compare SHA-256 digests of ``digest()``; the error names a rank that differs from the first."""
        found = self._gather(hashlib.sha256(digest().encode()).hexdigest(), what)
        for rank, other in enumerate(found):
            if other != found[0]:
                raise RankError(
                    f"{what[0].upper()}{what[1:]} of process {rank} is not that of process 0; every process must be "
                    "started with the same program, settings and data in the same order."
                )

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Whether some rank says so, for each flag."""
        said = self._gather("".join("01"[flag] for flag in flags))
        return tuple("1" in column for column in zip(*said, strict=True))

    def add_up(self, values: Mapping[str, Tensor]) -> None:
        """One reduction per type, over exactly the elements of ``values``."""
        for buffer, parts in self._packed(values):
            with _connected():
                dist.reduce(buffer, self._root, group=self._group)
            if self.rank == 0:
                _unpack(buffer, parts)

    def spread(self, values: Mapping[str, Tensor]) -> None:
        """One broadcast per type, of exactly the elements of ``values``."""
        for buffer, parts in self._packed(values):
            with _connected():
                dist.broadcast(buffer, self._root, group=self._group)
            if self.rank != 0:
                _unpack(buffer, parts)

    def whole(
        self, own: Mapping[str, Tensor], rows: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[str, Tensor]]:
        """Small tensors travel together, large ones alone."""
        waiting: list[str] = []
        for name in own:
            together = [*waiting, name]
            if waiting and not _fit_together({other: own[other] for other in together}, rows):
                yield from self._whole({other: own[other] for other in waiting}, rows)
                together = [name]
            waiting = together
        yield from self._whole({other: own[other] for other in waiting}, rows)

    def _whole(
        self, own: Mapping[str, Tensor], rows: Mapping[str, Sequence[int]]
    ) -> Iterator[tuple[str, Tensor]]:
        """One message of each rank, as long as that of the first, which has the most rows of everything."""
        if not own:
            return
        widths = {name: math.prod(tensor.shape[1:]) for name, tensor in own.items()}
        first = next(iter(own.values()))
        sent = torch.zeros(sum(rows[name][1] * widths[name] for name in own), dtype=first.dtype)
        packed = torch.cat([tensor.detach().reshape(-1) for tensor in own.values()])
        sent[: len(packed)] = packed
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        with _connected():
            dist.all_gather(parts, sent, group=self._group)
        del sent, packed
        for name, tensor in own.items():
            found = torch.empty((rows[name][-1], *tensor.shape[1:]), dtype=tensor.dtype)
            for rank in range(self.size):
                piece = found[rows[name][rank] : rows[name][rank + 1]]
                piece.copy_(parts[rank][: piece.numel()].view(piece.shape))
                parts[rank] = parts[rank][piece.numel() :]
            yield name, found.to(tensor.device)

    def add_up_parts(
        self, values: Mapping[str, Tensor], cuts: Mapping[str, Sequence[int]]
    ) -> dict[str, Tensor]:
        """One reduction for each rank, to that rank."""
        own: dict[str, Tensor] = {}
        for rank in range(self.size):
            parts = {name: value[cuts[name][rank] : cuts[name][rank + 1]] for name, value in values.items()}
            packed = torch.cat([part.detach().reshape(-1).double().cpu() for part in parts.values()])
            if not len(packed):
                own = parts if rank == self.rank else own
                continue
            with _connected():
                dist.reduce(packed, dist.get_global_rank(self._group, rank), group=self._group)
            if rank == self.rank:
                pieces = torch.split(packed, [part.numel() for part in parts.values()])
                own = {
                    name: piece.view(part.shape).to(part.device)
                    for (name, part), piece in zip(parts.items(), pieces, strict=True)
                }
        return own

    def told(self, said: Any) -> list[Any]:
        """One message from each rank to all others."""
        found = []
        for rank in range(self.size):
            content = json.dumps(said).encode() if rank == self.rank else b""
            found.append(json.loads(self._share(content, rank)))
        return found

    def _packed(self, values: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """The elements of all values of one type in one vector, whatever their layout in memory."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for value in values.values():
            kinds.setdefault(value.dtype, []).append(value.detach())
        for dtype, parts in kinds.items():
            count = sum(part.numel() for part in parts)
            held = self._buffers.get(dtype)
            if held is None or held.numel() < count:
                held = self._buffers[dtype] = torch.empty(count, dtype=dtype)
            buffer = held[:count]
            for piece, part in zip(_pieces(buffer, parts), parts, strict=True):
                piece.copy_(part)
            yield buffer, parts

    def _gather(self, words: str, place: str = "") -> list[str]:
        """A short text of every rank; ranks that ask at different places of the program are found out."""
        message = f"{place}\n{words}".encode()[:_MESSAGE]
        own = torch.zeros(_MESSAGE, dtype=torch.uint8)
        own[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        texts = [torch.empty_like(own) for _ in range(self.size)]
        with _connected():
            dist.all_gather(texts, own, group=self._group)
        said = [bytes(text.tolist()).rstrip(b"\0").decode(errors="ignore").split("\n", 1) for text in texts]
        if any(other[0] != place for other in said):
            raise RankError("The processes are at different places of the program, so all stop.")
        return [other[1] for other in said]

    def _share(self, content: bytes, rank: int = 0) -> bytes:
        """The bytes of one rank, the first if no other is named."""
        length, source = torch.tensor([len(content)]), dist.get_global_rank(self._group, rank)
        with _connected():
            dist.broadcast(length, source, group=self._group)
            buffer = torch.empty(int(length), dtype=torch.uint8)
            if self.rank == rank and content:
                buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            if len(buffer):
                dist.broadcast(buffer, source, group=self._group)
        return content if self.rank == rank else buffer.numpy().tobytes()


def _fit_together(tensors: Mapping[str, Tensor], rows: Mapping[str, Sequence[int]]) -> bool:
    """Whether tensors travel in one message: the same answer on every rank, by what the first one holds of them."""
    numbers = sum(rows[name][1] * math.prod(tensor.shape[1:]) for name, tensor in tensors.items())
    return len({tensor.dtype for tensor in tensors.values()}) == 1 and numbers <= _PACKED


@contextmanager
def _connected() -> Iterator[None]:
    """A peer that is gone is one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            "Another process of this training has ended or does not answer, so this one stops as well. What was "
            "charged stays charged; the run can be resumed with any number of processes."
        ) from error


def _pieces(buffer: Tensor, parts: list[Tensor]) -> list[Tensor]:
    split = torch.split(buffer, [part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(split, parts, strict=True)]


def _unpack(buffer: Tensor, parts: list[Tensor]) -> None:
    for piece, part in zip(_pieces(buffer, parts), parts, strict=True):
        part.copy_(piece)


def _as_raised(kind: str, sentence: str) -> TacitError:
    """The error of the first rank, on another: of the same kind where it is one of Tacit's."""
    found = getattr(errors, kind, RankError)
    if isinstance(found, type) and issubclass(found, TacitError):
        return found(sentence) if found is not RankError else RankError(f"Process 0 has failed: {sentence}")
    return RankError(f"Process 0 has failed: {sentence}")


def join(*, timeout_seconds: float = 1800.0) -> Ranks:
    """The ranks that ``torchrun`` has started together with this process; ``ALONE`` if there are no others.

    Where a default process group exists already, its ranks are used. A rank that does not answer for
    ``timeout_seconds`` counts as gone; one whose process ends is noticed at once.
    """
    timeout = timedelta(seconds=check_positive("timeout_seconds", timeout_seconds))
    if processes() == 1:
        return ALONE
    try:
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=timeout)
            group = Group(dist.group.WORLD)  # type: ignore[arg-type]
            atexit.register(group.leave)
            return group
        return Group(dist.new_group(backend="gloo", timeout=timeout))
    except (RuntimeError, ValueError) as error:
        raise RankError(f"The other processes cannot be reached: {' '.join(str(error).split())}.") from error


def processes() -> int:
    """How many processes were started together, this one included."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    text = os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ else "1"
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(
            f"The environment variable WORLD_SIZE must be a whole number above 0, got {text!r}."
        )
    return int(text)


def checked(ranks: Ranks | None) -> Ranks:
    """``ranks``, or ``ALONE`` where none were given and there are no others to be forgotten."""
    if ranks is None and processes() > 1:
        raise ArgumentError(
            f"This process is one of {processes()} that were started together; give ranks=tacit.distributed.join() to "
            "train one model with all of them, or ranks=tacit.distributed.ALONE to train by itself."
        )
    return ALONE if ranks is None else ranks
