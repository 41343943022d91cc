"""Where in the model an operation runs: its layer, and which dimension of the layer's input holds the examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tacit.errors import Unseen
from tacit.raw.following import Operations, Sightings
from tacit.raw.gradients.convolution import Geometry
from tacit.raw.recorder import Recorder
from tacit.raw.refusals import selected


@dataclass
class Layout:
    """For each layer and call, the dimension that grows with the batch; None where all examples share the input.

    Found by watching two forward passes of different size, never guessed from one: a sequence may be as long as a
    batch is large.
    """

    dimensions: dict[str, list[int | None]] = field(default_factory=dict)
    operations: Operations | Sightings = field(default_factory=Operations)

    def of(self, name: str, call: int) -> int | None:
        """The examples' dimension of a layer's input; a layer called more often than seen repeats its last call."""
        known = self.dimensions.get(name)
        if not known:
            raise Unseen(
                f"{name}: this layer was not used when the model was first looked at, so it is not known which of "
                "its inputs belong to which example; use the same layers in every pass."
            )
        return known[min(call, len(known) - 1)]

    def joined(self, other: Layout) -> Layout:
        """This layout, and what another tells of layers that this one does not know."""
        operations = self.operations
        if isinstance(operations, Operations) and isinstance(other.operations, Operations):
            operations = operations.joined(other.operations)
        return Layout({**other.dimensions, **self.dimensions}, operations)

    @staticmethod
    def compare(small: Shapes, large: Shapes, sizes: tuple[int, int]) -> Layout:
        """The layout, from the input shapes seen with two batch sizes."""
        layout = Layout()
        for name, shapes in small.seen.items():
            layout.dimensions[name] = [
                _growing(name, a, b, sizes) for a, b in zip(shapes, large.seen[name], strict=False)
            ]
        if isinstance(small.operations, Sightings) and isinstance(large.operations, Sightings):
            layout.operations = Sightings.compare(small.operations, large.operations, sizes)
        return layout

    def shared(self) -> frozenset[str]:
        """Names of the layers whose input all examples share, in some call."""
        return frozenset(name for name, dimensions in self.dimensions.items() if None in dimensions)


@dataclass
class Shapes(Layout):
    """Records input shapes in place of knowing the layout."""

    seen: dict[str, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    operations: Operations | Sightings = field(default_factory=Sightings)

    def see(self, name: str, x: Tensor) -> None:
        """Note the shape of one input."""
        self.seen[name].append(tuple(x.shape))


def _growing(name: str, small: tuple[int, ...], large: tuple[int, ...], sizes: tuple[int, int]) -> int | None:
    grown = [i for i, (a, b) in enumerate(zip(small, large, strict=False)) if a != b]
    if not grown and len(small) == len(large):
        return None
    if len(grown) == 1 and small[grown[0]] * sizes[1] == large[grown[0]] * sizes[0]:
        return grown[0]
    raise selected(name, f"is given shape {small} for {sizes[0]} examples and {large} for {sizes[1]}")


class WatchedLayer:
    """One layer during one pass: the watched operations, told which dimension holds the examples."""

    def __init__(self, name: str, recorder: Recorder, layout: Layout) -> None:
        self.name = name
        self.recorder = recorder
        self._layout = layout
        self._call = 0

    @property
    def probing(self) -> bool:
        """Whether this pass only looks at shapes."""
        return isinstance(self._layout, Shapes)

    def dimension(self, what: str, x: Tensor) -> int | None:
        """The examples' dimension of a tensor that a module without a rule takes or gives."""
        name = f"{self.name} {what}"
        if isinstance(self._layout, Shapes):
            self._layout.see(name, x)
            return 0
        return self._layout.of(name, 0)

    def enter(self, x: Tensor) -> tuple[Tensor, int]:
        """The next input of this layer and its examples' dimension; a shared input is spread over the rows first."""
        if isinstance(self._layout, Shapes):
            self._layout.see(self.name, x)
            return x, 0
        batch = self._layout.of(self.name, self._call)
        if batch is not None and x.shape[batch] % self.recorder.examples:
            raise selected(self.name, f"is given {x.shape[batch]} rows for {self.recorder.examples} examples")
        if batch is not None:
            self.recorder.entered.append((self.name, self._call, x.shape[batch]))
        self._call += 1
        return (self.recorder.spread(x), 0) if batch is None else (x, batch)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool = False) -> Tensor:
        """``Operations.linear`` at this layer."""
        x, batch = self.enter(x)
        return self.recorder.linear(x, weight, bias, batch=batch, transposed=transposed)

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """``Operations.convolution`` at this layer."""
        x, _ = self.enter(x)
        return self.recorder.convolution(x, weight, bias, geometry)

    def embedding(self, ids: Tensor, weight: Tensor, padding: int | None, *, blank: bool = False) -> Tensor:
        """``Operations.embedding`` at this layer."""
        ids, batch = self.enter(ids)
        return self.recorder.embedding(ids, weight, padding, batch=batch, blank=blank)

    def direct(
        self,
        x: Tensor,
        output: Tensor,
        parameters: Sequence[Tensor | None],
        gradients: Callable[[Tensor, Tensor], Sequence[Tensor | None]],
    ) -> Tensor:
        """``Operations.direct`` at this layer."""
        return self.recorder.direct(x, output, parameters, gradients)
