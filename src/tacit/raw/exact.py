"""Norms and sums with a proven rounding error, whatever the numbers: accumulated in double precision.

Products of single-precision numbers are exact in double precision, so a sum of K of them is off by at most K·2⁻⁵³ of
the sum of their magnitudes, in any order of summation. Large matrix products stay in single precision and are
*verified*: see ``Allowance``. The proofs are in docs/concepts/numerics.md.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tacit.raw.doubts import Doubts, noting

UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
"""Unit roundoff: the relative error of one operation."""
SMALLEST = {torch.float32: 2.0**-126, torch.float64: 2.0**-1022}
"""Smallest normal number: what one operation may lose where subnormal numbers are flushed to zero."""
FLUSHED = 2.0**50
"""Times the smallest normal number that every number of an input or an output gradient counts for in a mass. One thread
may take a subnormal number for zero as an example is measured and another one keep it in the sum: times a huge number
that is a long gradient. An example to which that makes a difference has such a mass that it hardly counts."""

PROBES = 8
"""Random directions that are looked at in one go."""
CONFIDENCE = {1: 100.0, 4: 5.0}
"""By goes: an error is below this many times its estimate, except with probability 5.5e-15 (less in four goes)."""
COPIED = 1 << 17
"""Numbers of the factors of a sum that are copied to double precision at once: a megabyte, which stays in the cache."""
LONGEST = 1 << 13
"""Rows of one sum in double precision; longer ones are summed in parts."""


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this context products of single-precision matrices are single-precision, whatever the user has set.

    TF32 and bfloat16 products are far less exact than the bounds on norms allow for. So are those of autocast, which a
    loop of one's own may have around its steps.
    """
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    chosen = [backend.fp32_precision for backend in backends]
    general = (torch.backends.fp32_precision, torch.backends.mkldnn.fp32_precision)  # type: ignore[attr-defined]
    with torch._C._DisableAutocast():
        if {*chosen, *general} <= {"none", "ieee"}:
            yield
            return
        try:
            for backend in backends:
                backend.fp32_precision = "ieee"
            yield
        finally:
            for backend, precision in zip(backends, chosen, strict=True):
                backend.fp32_precision = precision


def squared_norms(rows: Tensor) -> Tensor:
    """The squared norm of every row in double precision, to a relative error of 2⁻⁵³ times the length of a row.

    In single precision nothing under- or overflows: the square of the smallest number is far above double's.
    """
    rows = rows.detach().flatten(1) if rows.dim() > 1 else rows.detach()[:, None]
    if not _runs_natively(rows):
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return norms.square_()
    rows = rows.contiguous()
    out = torch.empty(len(rows), dtype=torch.float64)
    _native["squares", rows.dtype](rows.data_ptr(), *rows.shape, out.data_ptr())
    return out


def norms_above(rows: Tensor, squares: Tensor | None = None) -> Tensor:
    """Upper bounds on the norms of the rows, tight to 2⁻⁴⁰ but for numbers and squares that count as zero.

    A subnormal number does where this thread flushes them, though another thread may not (``FLUSHED``). ``squares`` are
    the squared norms, where they have been computed.
    """
    width = rows[0].numel() if len(rows) else 1
    lost = math.sqrt(width) * (FLUSHED * SMALLEST[rows.dtype] + math.sqrt(SMALLEST[torch.float64]))
    return (squared_norms(rows) if squares is None else squares).sqrt().mul_(1 + 2.0**-40).add_(lost)


def sum_of_rows(weights: Tensor, rows: Tensor, *, absolute: bool = False) -> Tensor:
    """Σᵢ wᵢ xᵢ, or Σᵢ wᵢ |xᵢ|, over the rows xᵢ, in double precision."""
    rows = rows.detach().flatten(1)
    weights = weights.to(rows.device, torch.float64)
    if len(rows) > LONGEST:
        parts = zip(torch.split(weights, LONGEST), torch.split(rows, LONGEST), strict=True)
        return torch.stack([sum_of_rows(w, part, absolute=absolute) for w, part in parts]).sum(0)
    if not _runs_natively(rows):
        total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        step = max(1, (1 << 20) // max(1, rows.shape[1]))
        for w, part in zip(torch.split(weights, step), torch.split(rows, step), strict=True):
            total += w @ (part.abs() if absolute else part).double()
        return total
    rows, weights = rows.contiguous(), weights.contiguous()
    out = torch.zeros(rows.shape[1], dtype=torch.float64)
    _native["add_rows", rows.dtype](
        rows.data_ptr(), *rows.shape, weights.data_ptr(), int(absolute), out.data_ptr()
    )
    return out


def sum_of_products(b: Tensor, a: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σₖ wₖ bₖ aₖᵀ over the rows k, in double precision."""
    total = torch.zeros(b.shape[1], a.shape[1], dtype=torch.float64, device=a.device)
    step = max(1, min(LONGEST, COPIED // max(1, a.shape[1] + b.shape[1])))
    for start in range(0, len(a), step):
        part = slice(start, start + step)
        left = b[part].double()
        total.addmm_((left if weights is None else left * weights[part, None]).t(), a[part].double())
    return total


class Allowance:
    """How much rounding error the sums of one step may add up to, and random directions in which to look for it.

    A matrix S is computed in single precision; it is off by a matrix E. For a Gaussian vector z that the data knows
    nothing of, ‖Ez‖² has the expectation ‖E‖², and Ez is the difference of Sz and a product that is cheap in double
    precision. If the estimate says that S may be too far off, it is computed again, in double precision.
    """

    def __init__(self, limit: float, seed: int | None) -> None:
        self.limit = limit
        self._spent: dict[Hashable, float] = defaultdict(float)
        self._unsure: dict[Hashable, list[Tensor]] = defaultdict(list)
        self._probes: dict[tuple[int, int, torch.device], Tensor] = {}
        self._generator = torch.Generator()
        self._generator.manual_seed(int.from_bytes(os.urandom(7), "little") if seed is None else seed)

    def of(self, parameter: Hashable) -> Share:
        """What is left for the sums of one parameter."""
        return Share(self, parameter)

    def probes(self, width: int, go: int, device: torch.device) -> Tensor:
        """Standard normal numbers (width, PROBES), the same throughout one step."""
        key = (width, go, device)
        if key not in self._probes:
            drawn = torch.randn(width, PROBES, dtype=torch.float64, generator=self._generator)
            self._probes[key] = drawn.to(device)
        return self._probes[key]

    def covers(self, parameter: Hashable, difference: Tensor) -> bool:
        """Whether an error that shows as ``difference`` in the random directions still fits; if so, it is deducted.

        Errors of different parameters lie in different coordinates, so their squares add up; those of one parameter
        add up themselves.
        """
        directions = difference.shape[1]
        factor = CONFIDENCE[directions // PROBES] / math.sqrt(directions)
        if noting() is not None:
            self._unsure[parameter].append(factor * difference.norm())
            return True
        error = factor * float(difference.norm())
        before = self._spent[parameter]
        others = math.fsum(spent**2 for key, spent in self._spent.items() if key != parameter)
        if not math.hypot(before + error, math.sqrt(others)) <= self.limit:
            return False
        self._spent[parameter] = before + error
        return True

    def note(self, doubts: Doubts) -> None:
        """Add to the doubts whether all errors together, which no check has looked at, exceed the allowance."""
        if self._unsure:
            known = [spent for key, spent in self._spent.items() if key not in self._unsure]
            errors = torch.stack([torch.stack(e).sum() + self._spent[key] for key, e in self._unsure.items()])
            doubts.append(~(errors.square().sum() + math.fsum(k**2 for k in known) <= self.limit**2))

    def settle(self, *, kept: bool) -> None:
        """Deduct the errors that were put off, or forget them because their sums were not kept."""
        if kept and self._unsure:
            found = torch.stack([torch.stack(errors).sum() for errors in self._unsure.values()]).tolist()
            for key, error in zip(self._unsure, found, strict=True):
                self._spent[key] += error
        self._unsure.clear()


@dataclass(frozen=True)
class Share:
    """The allowance as the sums of one parameter see it."""

    whole: Allowance
    parameter: Hashable

    def accepts(self, total: Tensor, expected: Callable[[Tensor], Tensor]) -> bool:
        """Whether a matrix is close enough to the true one, whose product with probes is ``expected(probes)``."""
        differences: list[Tensor] = []
        for goes in CONFIDENCE:
            while len(differences) < goes:
                probes = self.whole.probes(total.shape[1], len(differences), total.device)
                differences.append(projected(total, probes) - expected(probes))
            if self.whole.covers(self.parameter, torch.cat(differences, 1)):
                return True
        return False


def through_probes(b: Tensor, a: Tensor, weights: Tensor, probes: Tensor) -> Tensor:
    """Σₖ wₖ bₖ (aₖ · z) over the rows k, for every probe z, in double precision: (columns of b, PROBES)."""
    return spread(b, projected(a, probes).mul_(weights[:, None]))


def spread(b: Tensor, seen: Tensor) -> Tensor:
    """Σₖ bₖ seenₖᵀ over the rows k, in double precision: (columns of b, PROBES)."""
    total = torch.zeros(b.shape[1], PROBES, dtype=torch.float64, device=b.device)
    if not _runs_natively(b):
        step = max(1, (1 << 18) // max(1, b.shape[1]))
        for start in range(0, len(b), step):
            total.addmm_(b[start : start + step].double().t(), seen[start : start + step])
        return total
    b = b.contiguous()
    _native["spread", b.dtype](b.data_ptr(), *b.shape, seen.data_ptr(), total.data_ptr())
    return total


def projected(rows: Tensor, probes: Tensor) -> Tensor:
    """The rows in the directions of the probes, in double precision: (rows, PROBES)."""
    if not _runs_natively(rows):
        step = max(1, (1 << 18) // max(1, rows.shape[1]))
        return torch.cat([part.double() @ probes for part in torch.split(rows, step)])
    rows, turned = rows.contiguous(), probes.t().contiguous()
    seen = torch.empty(len(rows), PROBES, dtype=torch.float64)
    _native["project", rows.dtype](rows.data_ptr(), *rows.shape, turned.data_ptr(), seen.data_ptr())
    return seen


def sampled_products(b: Tensor, a: Tensor, weights: Tensor, pattern: Tensor) -> Tensor:
    """The entries of Σₖ wₖ bₖ aₖᵀ at the places of a CSR matrix, in double precision."""
    if not _runs_natively(a):
        inputs, b = a.double(), b.double() * weights[:, None]
        like = torch.sparse_csr_tensor(
            pattern.crow_indices(),
            pattern.col_indices(),
            pattern.values().double(),
            pattern.shape,
            check_invariants=True,
        )
        sampled: Tensor = torch.sparse.sampled_addmm(like, b.t().contiguous(), inputs, beta=0.0)
        return sampled.values()
    right, starts, columns = a.t().contiguous(), pattern.crow_indices(), pattern.col_indices()
    out = torch.empty(columns.numel(), dtype=torch.float64)
    step = max(1, COPIED // max(1, len(b)))
    for start in range(0, b.shape[1], step):
        part = slice(start, min(b.shape[1], start + step))
        left = torch.empty(len(starts[part]), len(b), dtype=torch.float64).copy_(b[:, part].t()).mul_(weights)
        _native["sample", a.dtype](
            left.data_ptr(),
            right.data_ptr(),
            *left.shape,
            starts[part].data_ptr(),
            columns.data_ptr(),
            out.data_ptr(),
        )
    return out


def add_gathered(total: Tensor, rows: Tensor, sources: Tensor, places: Tensor, weights: Tensor) -> None:
    """total[places[k]] += weights[k] · rows[sources[k]] for every k, in double precision.

    Places are sorted. Terms of one place are added up before they are added to what is there.
    """
    if total.device.type != "cpu" or ("gather", rows.dtype) not in _native:
        vectors = rows.index_select(0, sources).double().mul_(weights[:, None])
        total.add_(torch.zeros_like(total).index_add_(0, places, vectors))
        return
    rows, sources, places, weights = (x.contiguous() for x in (rows, sources, places, weights))
    _native["gather", rows.dtype](
        rows.data_ptr(),
        len(sources),
        rows.shape[1],
        sources.data_ptr(),
        places.data_ptr(),
        weights.data_ptr(),
        total.data_ptr(),
    )


def _runs_natively(x: Tensor) -> bool:
    return x.device.type == "cpu" and ("squares", x.dtype) in _native


def _load_native() -> dict[tuple[str, torch.dtype], ctypes._NamedFuncPointer]:
    """The compiled form of the same computations, where it could be built."""
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    arguments = {
        "squares": [pointer, count, count, pointer],
        "add_rows": [pointer, count, count, pointer, ctypes.c_int, pointer],
        "gather": [pointer, count, count, pointer, pointer, pointer, pointer],
        "project": [pointer, count, count, pointer, pointer],
        "spread": [pointer, count, count, pointer, pointer],
        "sample": [pointer, pointer, count, count, pointer, pointer, pointer],
    }
    for path in Path(__file__).parent.glob("_exact*.so"):
        try:
            library = ctypes.CDLL(str(path))
            found = {}
            for name, types in arguments.items():
                for dtype, suffix in ((torch.float32, "float"), (torch.float64, "double")):
                    function = getattr(library, f"{name}_{suffix}")
                    function.argtypes, function.restype = types, None
                    found[name, dtype] = function
        except (OSError, AttributeError):
            continue
        return found
    return {}


_native = _load_native()
