"""Lazy noise: the noise of a table's rows is drawn when a row is next read, or when the table is given up.

With plain SGD a row that no example touches moves by lr · noise in every step. The sum of n such moves is one Gaussian,
so it can be drawn at once, later, and a step costs what the batch touches. What anyone can read has the distribution
that noise for all rows in every step would have given it.

Two things make that exact. First, rows are held as whole numbers of a lattice (``codes``): sums of whole numbers do not
round, so how moves are grouped leaves no trace in the low bits. A move is rounded to the lattice after its noise was
added, and n moves at once get the variance that n roundings would have added. Second, nobody reads a row that is owed
noise: while noise is owed, the model's parameter holds no numbers, and the codes are in here, behind the door, in
memory that nobody else holds. A table whose move was interrupted halfway never gets numbers again: some of its rows
have the noise of the step, and others do not. docs/concepts/numerics.md has the proof.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tacit.errors import ArgumentError, ModelError
from tacit.raw.row_tables import RowSum, check_ids
from tacit.release.noise import Noise, read_rows
from tacit.warning import warn

FINE = 2.0**10
"""Lattice steps in the deviation of a step's noise, where the table's range allows it."""

COARSE = 2.0**8
"""Where a deviation has fewer lattice steps, moves are not grouped: every row gets its noise in that step."""

ROOM = 8.0
"""Times the largest weight that the lattice has room for."""

_CODES = 2.0**31
_GRAIN = 2.0**4
"""Variances are rounded up to multiples of its inverse, so that their sums are exact in double precision."""
_MOST_VARIANCE = 2.0**48
_ROWS = 1 << 15
"""Rows that are worked on at once, where all are."""


class LazyTable:
    """A table of rows with what each is owed.

    ``rate`` is the learning rate of the table in the step that is being made. ``settle`` draws all noise that is owed;
    until then the parameter reads as not-a-number.
    """

    counted = False

    def __init__(self, name: str, parameter: nn.Parameter, noise: Noise, rate: Callable[[], float]) -> None:
        if parameter.dtype is not torch.float32 or parameter.dim() != 2:
            raise ArgumentError(
                f"Lazy noise is for tables of float32 in two dimensions, which {name!r} is not."
            )
        self.name = name
        self._parameter, self._noise, self._rate = parameter, noise, rate
        self._codes: Tensor | None = None
        self._weights = torch.zeros(0)
        self._broken = False
        self._step = 0.0
        self._paid = torch.zeros(0, dtype=torch.int32)
        self._variances = torch.zeros(1, dtype=torch.float64)
        self._moves = 0
        self._warned = False

    @property
    def owes(self) -> bool:
        """Whether the parameter reads as not-a-number until ``settle``."""
        return self._codes is not None

    def read(self, ids: Tensor) -> Tensor:
        """The rows ``ids`` with all the noise that they are owed: what the dense mechanism has released of them."""
        ids = ids.long()  # compiled code takes rows as 64 bits
        check_ids(self.name, ids, len(self._parameter))
        self._refuse_broken()
        if self._codes is None:
            return nn.functional.embedding(ids, self._parameter.detach())
        asked = ids.flatten()
        with self._unbroken():
            self._pay(self._codes, torch.unique(asked[self._paid[asked] < self._moves]))
        return read_rows(self._codes, asked, self._step).view(*ids.shape, self._codes.shape[1])

    @torch.no_grad()
    def move(self, total: RowSum, scale: float, batch_size: int) -> None:
        """Table ← table − rate · (total + N(0, scale²)) / batch_size in every element; untouched rows are owed it."""
        self._refuse_broken()
        rate = self._rate()
        deviation = abs(rate) * scale / batch_size
        if self._codes is not None and 0 < deviation < COARSE * self._step:
            self.settle()
        codes = self._open(deviation)
        variance = math.ceil((deviation / self._step) ** 2 * _GRAIN) / _GRAIN
        factor = -rate / batch_size / self._step
        with _after_interrupts():
            with self._unbroken():
                self._pay(codes, total.index)  # most were paid when they were read
                for index, values in total.tiles():
                    deviations = torch.full(
                        (len(index),), math.sqrt(variance), dtype=torch.float64, device=index.device
                    )
                    self._noise.move(codes, index, deviations, values, factor)
                if variance:
                    self._owe(variance)
                    self._paid[total.index] = self._moves
            if 0 < deviation < COARSE * self._step or float(self._variances[self._moves]) > _MOST_VARIANCE:
                self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        """Draw all noise that is owed; the parameter then holds the weights that the dense mechanism releases."""
        self._refuse_broken()
        if self._codes is None:
            return
        flat = self._weights
        with self._unbroken():
            for start in range(0, len(flat), _ROWS):
                rows = torch.arange(start, min(start + _ROWS, len(flat)), device=flat.device)
                self._pay(self._codes, rows)
                part = slice(start, start + _ROWS)
                flat[part] = self._codes[part].to(torch.float32).mul_(self._step)
            self._parameter.data, self._weights, self._codes = flat, torch.zeros(0), None

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """What leaves this before its end leaves rows that have their noise beside rows that do not; Ctrl-C waits."""
        with _after_interrupts():
            self._broken = True
            yield
            self._broken = False

    def _refuse_broken(self) -> None:
        """Refuse a table that was left halfway, until it has been given other weights."""
        if not self._broken:
            return
        if self._codes is not None:
            self._parameter.data = self._weights.fill_(math.nan)
            self._weights, self._codes = torch.zeros(0), None
        if not bool(self._parameter.detach().isfinite().all()):
            raise ModelError(
                f"A step was interrupted while the rows of {self.name!r} got their noise. Which of them have it would "
                "tell which rows examples look up, so the table is lost; go on from the last checkpoint."
            )
        self._broken = False

    def _open(self, deviation: float) -> Tensor:
        """The table on a lattice that the size of its weights and of the noise decide: both are public."""
        if self._codes is not None:
            return self._codes
        weights = self._parameter.data
        if not weights.is_contiguous():
            weights = weights.contiguous()
        largest = max(float(weights.max()), -float(weights.min())) if weights.numel() else 0.0
        if not math.isfinite(largest):
            raise ModelError(f"{self.name!r} holds weights that are not finite; lower the learning rate.")
        self._step = max(_power(deviation / FINE), 2 * _power(ROOM * largest / _CODES)) or 1 / _CODES
        if 0 < deviation < COARSE * self._step and not self._warned:
            self._warned = True
            warn(
                f"The noise of a step is so small beside the weights of {self.name!r} that it is drawn for every row "
                "in each such step; raise the learning rate, or start with smaller weights, for lazy noise to pay."
            )
        # Whoever holds the weights by another name goes on to see what was released: codes have other memory then.
        own = 2 if weights.data_ptr() == self._parameter.data_ptr() else 1
        shared = _holders(weights) > own or _is_foreign(weights)
        codes = torch.empty_like(weights, dtype=torch.int32) if shared else weights.view(torch.int32)
        with self._unbroken():
            self._weights, self._codes = weights, codes
            # Nobody reads a row that is owed noise: the parameter has no numbers of its own until they are right.
            self._parameter.data = weights.new_full((), math.nan).expand(weights.shape)
            for start in range(0, len(weights), _ROWS):
                part = slice(start, start + _ROWS)
                codes[part] = (weights[part].double() / self._step).round_().to(torch.int32)
            self._paid = torch.zeros(len(weights), dtype=torch.int32, device=weights.device)
            self._variances = torch.zeros(64, dtype=torch.float64)
            self._moves = 0
        return codes

    def _owe(self, variance: float) -> None:
        self._moves += 1
        if self._moves == len(self._variances):
            self._variances = torch.cat([self._variances, torch.zeros_like(self._variances)])
        self._variances[self._moves] = self._variances[self._moves - 1] + variance

    def _pay(self, codes: Tensor, rows: Tensor) -> None:
        """Draw the noise that rows, which differ, are owed: n moves at once, with the variance of the n − 1 roundings
        saved.
        """
        paid = self._paid[rows].long()
        if not bool((paid < self._moves).any()):
            return
        moves = (self._moves - paid).double()
        variances = self._variances.to(paid.device)
        owed = variances[self._moves] - variances[paid]
        owing = owed > 0
        deviations = (owed + (moves - 1) / 12)[owing].sqrt()
        self._noise.move(codes, rows[owing], deviations)
        self._paid[rows] = self._moves


def _power(value: float) -> float:
    """The largest power of two that is not above a positive value; 0 for 0."""
    return 2.0 ** math.floor(math.log2(value)) if value > 0 else 0.0


@contextmanager
def _after_interrupts() -> Iterator[None]:
    """A context at whose end Ctrl-C does what it would have done within."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if asked.is_set():
            signal.raise_signal(signal.SIGINT)


def _holders(tensor: Tensor) -> int:
    """How many tensors share the memory of ``tensor``, itself included."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) - 1  # one is the question's own


def _is_foreign(tensor: Tensor) -> bool:
    """Whether its memory may be that of an array, a file or another process, whose holders nobody counts.

    PyTorch cannot change the size of memory that others gave it.
    """
    storage = tensor.untyped_storage()
    return not storage.resizable() or (tensor.device.type == "cpu" and storage.is_shared())
