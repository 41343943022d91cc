"""Products of single-precision matrices, by the faster of the two libraries that PyTorch carries.

PyTorch multiplies matrices with MKL, which runs its code for AVX2 on processors that Intel did not make. Where such a
processor has AVX-512, oneDNN, PyTorch's library for convolutions, takes about half the time. The choice depends on
the processor and on the shape of the weights, never on time measured or on the number of rows: what an example gets
must not depend on its company.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.processor import vendor

LEAST = 1 << 15
"""Numbers of a matrix of weights from which oneDNN is worth its call, and the memory of a compiled kernel per shape."""
LEAST_PRODUCT = 1 << 21
"""Multiplications of a product of two matrices for which it is; sides shorter than THIN are better left alone."""
THIN = 16


@cache
def prefers_onednn() -> bool:
    """Whether this machine's products are faster by oneDNN."""
    return (
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and vendor() not in ("", "GenuineIntel")
        and _agrees()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b over the last dimension, as ``F.linear``; its gradient goes to x alone where the weights need none."""
    plain = weight.numel() >= LEAST and _is_plain(x, weight, bias) and _fits(x, weight, bias)
    if not plain or not prefers_onednn():
        return F.linear(x, weight, bias)
    output: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return output


def product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """The product of two matrices, in ``out``; for sums over examples, since its size decides who computes it."""
    if not _is_worth_it(left, right):
        return torch.mm(left, right, out=out)
    return _in_parts(left, right, out)


def products(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """The product of every pair of two stacks of matrices, in ``out``."""
    if not len(left) or not _is_worth_it(left[0], right[0]):
        return torch.bmm(left, right, out=out)
    for one, other, place in zip(left, right, out, strict=True):
        _in_parts(one, other, place)
    return out


class _Linear(torch.autograd.Function):
    """x Wᵀ + b with a gradient for x, which is all that a watched pass asks for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _filled_up(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (weight,) = ctx.saved_tensors
        # Where a loss differentiates once more, the gradient is an expression like any other.
        again = torch.is_grad_enabled()
        return gradients[0] @ weight if again else _filled_up(gradients[0], weight.t(), None), None, None


def _filled_up(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b over the last dimension, with rows of zeros up to one of a few numbers of rows.

    oneDNN compiles a kernel for every number of rows and never gives its memory back.
    """
    rows = x.numel() // x.shape[-1]
    missing = _not_below(rows) - rows
    if not missing:
        return _onednn(x, weight, bias)
    found = _onednn(F.pad(x.reshape(rows, -1), (0, 0, 0, missing)), weight, bias)
    output = x.new_empty(*x.shape[:-1], weight.shape[0])  # no view, which a model could not change in place
    output.view(rows, -1).copy_(found[:rows])
    return output


def _in_parts(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """The product in ``out``, as the sum of one or two whose lengths are among a few, for the same reason."""
    inner = len(right)
    first = _not_above(inner)
    out.copy_(_onednn(left[:, :first], right[:first].t(), None))
    if first < inner:
        zeros = (0, 0, 0, _not_below(inner - first) - (inner - first))
        rest, others = F.pad(left[:, first:].t(), zeros), F.pad(right[first:], zeros)
        out.add_(_onednn(rest.t(), others.t(), None))
    return out


def _not_below(count: int) -> int:
    """The next of the lengths 16, 20, 24, 28, 32, 40, 48, …: four between a power of two and the next."""
    step = 1 << max(2, (count - 1).bit_length() - 3)
    return max(16, -(-count // step) * step)


def _not_above(count: int) -> int:
    """The one of these lengths before it, or the number itself if it is small."""
    step = 1 << max(0, count.bit_length() - 3)
    return count // step * step


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not weight.is_contiguous() and not weight.t().is_contiguous():
        # oneDNN reads weights with gaps one number at a time, a thousand times slower.
        weight = weight.contiguous()
    if bias is not None:
        # It reads a bias with gaps as if it had none, beyond the end of its memory.
        bias = bias.contiguous()
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return output


def _is_plain(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether these are ordinary single-precision tensors of the processor, of which only ``x`` needs a gradient."""
    return (
        _is_single(x)
        and x.dim() > 1
        and x.numel() > 0
        and all(w is None or (_is_single(w) and not w.requires_grad) for w in weights)
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
    )


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether nothing is spread or refused for its shape, which oneDNN does not do as the library does."""
    return (
        weight.dim() == 2
        and x.shape[-1] == weight.shape[1]
        and (bias is None or bias.shape == weight.shape[:1])
    )


def _is_single(x: Tensor) -> bool:
    return (
        x.dtype is torch.float32
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and type(x) in (Tensor, torch.nn.Parameter)
    )


def _is_worth_it(left: Tensor, right: Tensor) -> bool:
    rows, inner, columns = *left.shape, right.shape[1]
    return (
        min(rows, inner, columns) >= THIN
        and rows * inner * columns >= LEAST_PRODUCT
        and _is_single(left)
        and _is_single(right)
        and prefers_onednn()
    )


def _agrees() -> bool:
    """Whether oneDNN can be called so and gives what MKL does."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((33, 70), (40, 70), (40,)))
    try:
        with torch.no_grad():
            found, turned = _onednn(x, weight, bias), _onednn(x.t(), weight[:33].t(), None)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    expected, other = (
        F.linear(x.double(), weight.double(), bias.double()),
        x.t().double() @ weight[:33].double(),
    )
    return bool((found - expected).abs().max() < 1e-4 and (turned - other).abs().max() < 1e-4)
