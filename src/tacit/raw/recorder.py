"""The operations that layers are made of, run forward without weight gradients and watched for book-keeping.

Every operation takes parameters as they stand in the model. Where one of them is active it keeps the layer's input
and waits for the output gradient; where none is, it is the plain operation and costs nothing more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.errors import ModelError
from tacit.raw.doubts import Doubts, put_off
from tacit.raw.exact import Allowance, full_precision
from tacit.raw.gradients import Convolution, Depthwise, Direct, Embedding, Linear, PerExampleGradient, Several
from tacit.raw.gradients.base import Norms
from tacit.raw.gradients.convolution import Geometry
from tacit.raw.gradients.units import of_units
from tacit.raw.products import linear
from tacit.raw.row_tables import RowTable, misused
from tacit.raw.units import UnitLayout
from tacit.support import Block, Kind


class Recorder:
    """The book-keeping of one forward and backward pass over ``rows`` stacked inputs of ``examples`` examples.

    ``rows`` is a multiple of ``examples``: with several augmented views, or with examples folded into the leading
    dimension, an example owns consecutive rows, and its gradient is the sum over them. ``largest_bytes`` is the size
    of the largest output that was watched; ``entered`` tells how many rows each call of each layer was given.
    ``units`` says which examples belong together, where they do: ``norms`` and ``uses`` are then those of units.
    ``tables`` are parameters that are read row by row, with their names. ``left_out`` marks the examples, or units,
    that do not count: others stand in their places. ``allowance`` is what sums will be verified against, if they are.
    ``doubts`` is where checks are put off to, if they are.
    """

    def __init__(
        self,
        blocks: Mapping[int, Block],
        examples: int,
        rows: int,
        device: torch.device,
        units: UnitLayout | None = None,
        allowance: Allowance | None = None,
        doubts: Doubts | None = None,
    ) -> None:
        self.examples = examples
        self._units, self._allowance, self._doubts = units, allowance, doubts
        self.rows = rows
        self._blocks = blocks
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._calls: dict[int, int] = defaultdict(int)
        self._waiting: dict[int, list[PerExampleGradient]] = defaultdict(list)
        self._deferred: list[Callable[[], None]] = []
        self.entered: list[tuple[str, int, int]] = []
        self.uses: dict[int, PerExampleGradient] = {}
        self.norms: Norms | None = None
        self.left_out: Tensor | None = None
        self.norms_of: dict[int, Norms] = {}
        self.largest_bytes = 0
        self.on_spread: Callable[[Tensor, Tensor], Tensor] | None = None
        self.tables: Mapping[int, tuple[str, RowTable]] = {}

    def is_active(self, parameter: Tensor | None) -> bool:
        """Whether any coordinate of the parameter is active."""
        if parameter is None:
            return False
        block = self._blocks.get(id(parameter))
        return block is not None and block.kind is not Kind.SILENT

    # Operations ---------------------------------------------------------------------------------------------------

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, batch: int = 0, transposed: bool = False
    ) -> Tensor:
        """y = x Wᵀ + b over the last dimension (x W + b if transposed); ``batch`` is the examples' dimension of x."""
        output = linear(x, weight.t() if transposed else weight, bias)
        held = _Held(x)

        def on_gradient(b: Tensor) -> None:
            b = self._positions(b, batch)
            if self.is_active(weight):
                a = self._positions(held.take(), batch).to(weight.dtype)
                b = b.to(weight.dtype)
                self.add(weight, Linear(b, a) if transposed else Linear(a, b))
            if bias is not None and self.is_active(bias):
                self.add(bias, Direct(_over_positions(b.to(bias.dtype))))

        return self.watch(output, (weight, bias), on_gradient, contiguous=True)

    def convolution(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, *, batch: int = 0
    ) -> Tensor:
        """A convolution in one, two or three dimensions with zero padding."""
        function: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 3]
        output = function(
            x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups
        )
        held = _Held(x)

        def on_gradient(b: Tensor) -> None:
            if bias is not None and self.is_active(bias):
                self.add(bias, Direct(self._positions(b.movedim(1, -1), 0).to(bias.dtype).sum(1)))
            if self.is_active(weight):
                a = held.take().to(weight.dtype)
                depthwise = 1 < geometry.groups == a.shape[1] == b.shape[1]
                use = Depthwise if depthwise else Convolution
                self.add(weight, use(a, b.to(weight.dtype), geometry, weight.shape[2:], self.examples))

        return self.watch(output, (weight, bias), on_gradient)

    def transposed_convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        output_padding: Sequence[int],
    ) -> Tensor:
        """A transposed convolution: the weight's gradient is that of a convolution from the output to the input."""
        function: Callable[..., Tensor] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[
            weight.dim() - 3
        ]
        output = function(
            x,
            weight,
            bias,
            geometry.stride,
            geometry.padding,
            tuple(output_padding),
            geometry.groups,
            geometry.dilation,
        )
        held = _Held(x)

        def on_gradient(b: Tensor) -> None:
            if bias is not None and self.is_active(bias):
                self.add(bias, Direct(self._positions(b.movedim(1, -1), 0).to(bias.dtype).sum(1)))
            if self.is_active(weight):
                a = held.take().to(weight.dtype)
                depthwise = 1 < geometry.groups == a.shape[1] == b.shape[1]
                use = Depthwise if depthwise else Convolution
                self.add(weight, use(b.to(weight.dtype), a, geometry, weight.shape[2:], self.examples))

        return self.watch(output, (weight, bias), on_gradient)

    def embedding(
        self, ids: Tensor, weight: Tensor, padding: int | None, *, batch: int = 0, blank: bool = False
    ) -> Tensor:
        """Rows of a table, by token id; the row ``padding`` receives no gradient, and reads as zero if ``blank``."""
        table = self.tables.get(id(weight))
        output = F.embedding(ids, weight, padding) if table is None else table[1].read(ids)
        if blank and padding is not None:
            output = output.masked_fill_((ids == padding).unsqueeze(-1), 0.0)

        def on_gradient(b: Tensor) -> None:
            tokens = self._positions(ids.unsqueeze(-1), batch).squeeze(-1)
            b = self._positions(b, batch).to(weight.dtype)
            self.add(weight, Embedding(tokens, b, weight.shape[0], padding))

        return self.watch(output, (weight,), on_gradient)

    def direct(
        self,
        x: Tensor,
        output: Tensor,
        parameters: Sequence[Tensor | None],
        gradients: Callable[[Tensor, Tensor], Sequence[Tensor | None]],
    ) -> Tensor:
        """An output whose layer knows how to find its parameters' gradients from its input and output gradient.

        ``gradients(x, b)`` gives, for each parameter, its gradient for every row: a tensor (rows, *parameter shape).
        """
        held = _Held(x)

        def on_gradient(b: Tensor) -> None:
            for parameter, rows in zip(parameters, gradients(held.take(), b), strict=True):
                if parameter is not None and rows is not None and self.is_active(parameter):
                    self.add(parameter, Direct(self._sum_views(rows.to(parameter.dtype))))

        return self.watch(output, parameters, on_gradient)

    # Book-keeping -------------------------------------------------------------------------------------------------

    def watch(
        self,
        output: Tensor,
        parameters: Sequence[Tensor | None],
        on_gradient: Callable[[Tensor], None],
        *,
        contiguous: bool = False,
    ) -> Tensor:
        """Call ``on_gradient`` with the gradient of ``output`` if one of the parameters is active.

        ``contiguous``: it is needed in that form, here and further down, so one copy of it serves both.
        """
        active = [p for p in parameters if p is not None and self.is_active(p)]
        if not active:
            return output
        for parameter in active:
            self._calls[id(parameter)] += 1
        return self.hook(output, on_gradient, contiguous=contiguous)

    def hook(
        self, output: Tensor, on_gradient: Callable[[Tensor], None], *, contiguous: bool = False
    ) -> Tensor:
        """Call ``on_gradient`` with the gradient of ``output``, which takes part in the backward pass from here on."""
        self.largest_bytes = max(self.largest_bytes, output.nbytes)
        if not torch.is_grad_enabled():
            return output
        if not output.requires_grad:
            output = _Anchored.apply(output, self._anchor)  # type: ignore[no-untyped-call]
        output.register_hook(lambda b: self._meet(on_gradient, b, contiguous))  # type: ignore[no-untyped-call]
        return output

    def _meet(self, on_gradient: Callable[[Tensor], None], b: Tensor, contiguous: bool) -> Tensor | None:
        copied = contiguous and not b.is_contiguous()
        b = b.contiguous() if copied else b
        with torch.no_grad(), full_precision(), put_off(self._doubts):
            on_gradient(b)
        return b if copied else None

    def add(self, parameter: Tensor, use: PerExampleGradient) -> None:
        """Take the gradients of a parameter that a layer has found in its own way."""
        weights = self._blocks[id(parameter)].weights
        self._waiting[id(parameter)].append(use if weights is None else use.weighted(weights))
        if self._calls[id(parameter)] == 1:
            self._settle(id(parameter))

    def defer(self, parameters: Sequence[Tensor], work: Callable[[], None]) -> None:
        """Let ``work`` add the gradients of active parameters after the backward pass."""
        for parameter in parameters:
            self._calls[id(parameter)] += 1
        self._deferred.append(work)

    def finish(self) -> None:
        """After the backward pass: do what was deferred, settle the parameters that were used more than once."""
        with torch.no_grad(), full_precision(), put_off(self._doubts):
            for work in self._deferred:
                work()
            for key in list(self._waiting):
                self._settle(key)

    def _settle(self, key: int) -> None:
        """All uses of a parameter are known: add its masked norms to those of the whole gradient."""
        found = self._waiting.pop(key)
        if all(isinstance(use, Linear) for use in found):
            use: PerExampleGradient = Linear.joined([u for u in found if isinstance(u, Linear)])
        elif all(isinstance(use, Embedding) for use in found):
            use = Embedding.joined([u for u in found if isinstance(u, Embedding)])
        elif key in self.tables:
            raise misused(self.tables[key][0])
        else:
            use = found[0] if len(found) == 1 else Several(found)
        if self._units is not None:
            use = of_units(use, self._units)
        if isinstance(use, Convolution):
            use.allowance = self._allowance
        self.uses[key] = use
        norms = self.norms_of[key] = use.norms(self._blocks[key])
        self.norms = norms if self.norms is None else self.norms + norms

    @property
    def norms_squared(self) -> Tensor | None:
        """The squared norm of every example's masked gradient, as computed."""
        return None if self.norms is None else self.norms.square

    # Shapes -------------------------------------------------------------------------------------------------------

    def spread(self, x: Tensor) -> Tensor:
        """Give an input that all examples share (positions, say) a leading dimension of rows, a copy for each."""
        single = x[0] if x.dim() and x.shape[0] == 1 else x
        output = single.expand(self.rows, *single.shape)
        return output if self.on_spread is None else self.on_spread(x, output)

    def _positions(self, x: Tensor, batch: int) -> Tensor:
        """(examples, positions, features) from features last and examples in the dimension ``batch``."""
        if batch:
            x = x.movedim(batch, 0)
        if x.shape[0] % self.examples:
            raise ModelError(
                f"A layer saw {x.shape[0]} rows for {self.examples} examples; every example must own the same number."
            )
        return x.reshape(self.examples, -1, x.shape[-1])

    def _sum_views(self, rows: Tensor) -> Tensor:
        if len(rows) == self.examples:
            return rows
        return rows.view(self.examples, -1, *rows.shape[1:]).sum(1)


def _over_positions(b: Tensor) -> Tensor:
    """The sum over the positions of (examples, positions, features); of a single one itself, which takes no memory."""
    return b[:, 0] if b.shape[1] == 1 else b.sum(1)


class _Held:
    """A layer input, held from the forward to the backward pass and given up once read."""

    def __init__(self, x: Tensor) -> None:
        self._x: Tensor | None = x.detach()
        self._version = x._version

    def take(self) -> Tensor:
        x, self._x = self._x, None
        if x is None or x._version != self._version:
            raise ModelError(
                "A layer's input was changed in place after the layer had read it, or its gradient was asked for "
                "twice, as by a model or a loss that calls torch.autograd itself; make the operation out-of-place, or "
                'train with isolation="construction".'
            )
        return x


class _Anchored(torch.autograd.Function):
    """Makes an output that needs no gradient take part in the backward pass, so that its gradient can be seen."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        # The same memory in a tensor of its own, not a view: ``output`` may be a view itself (of a matrix product),
        # and autograd crashes or refuses in-place operations where a custom function meets one.
        if type(output) is not Tensor and not isinstance(output, torch.nn.Parameter):
            return output.detach().clone()  # tensors of other classes cannot change their shape
        alias = output.new_empty(0)
        alias.set_(output.detach())  # type: ignore[call-overload]
        return alias

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None
