"""Odd rows of data: built by a pattern, or a row that was bad already and is changed a little.

A row is a pair (input, target). Real fields are kept in double precision as (positions, features) and rounded to the
type of the model when they are used; tokens and classes are whole numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Row = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Real:
    """Numbers of any size at positions with features, given to the model in this ``shape``.

    With ``channels_first`` the shape is (features, *positions), as for images.
    """

    shape: tuple[int, ...]
    channels_first: bool = False

    @property
    def features(self) -> int:
        """How many numbers there are at one position."""
        return self.shape[0] if self.channels_first else self.shape[-1]

    @property
    def positions(self) -> int:
        """How many positions there are."""
        return math.prod(self.shape) // self.features

    def stack(self, values: list[Tensor], dtype: torch.dtype) -> Tensor:
        """Rows as a batch."""
        flat = torch.stack(values)
        flat = flat.transpose(1, 2) if self.channels_first else flat
        return flat.reshape(len(values), *self.shape).to(dtype).contiguous()


@dataclass(frozen=True)
class Tokens:
    """Whole numbers below ``vocabulary``, one per position."""

    positions: int
    vocabulary: int

    def stack(self, values: list[Tensor], dtype: torch.dtype) -> Tensor:
        """Rows as a batch."""
        return torch.stack(values)


@dataclass(frozen=True)
class Classes:
    """One class number."""

    count: int

    def stack(self, values: list[Tensor], dtype: torch.dtype) -> Tensor:
        """Rows as a batch."""
        return torch.stack(values)


Field = Real | Tokens | Classes

PATTERNS = ("equal", "pairs", "halves", "centred", "two", "inner", "core", "free")
"""How a part of a field is spread over positions; all but the first and last sum to zero, or nearly."""

SPECIAL = (
    math.nan, math.inf, -math.inf, 0.0, -0.0,
    1e-45, 1.2e-38, 2.6e-23, 1.8e19, 3.4e38, -3.4e38, 1e-162, 5e-324, 1e154, 1.7e308,
)  # fmt: skip


def ordinary(field: Field, rng: random.Random) -> Tensor:
    """A harmless value of a field."""
    generator = _generator(rng)
    if isinstance(field, Real):
        return torch.randn(field.positions, field.features, generator=generator, dtype=torch.float64)
    if isinstance(field, Tokens):
        return torch.randint(field.vocabulary, (field.positions,), generator=generator)
    return torch.randint(field.count, (), generator=generator)


def cancelling(field: Field, rng: random.Random, pattern: str | None = None) -> Tensor:
    """A large common part whose positions cancel by a pattern, and a small signal, free or by a pattern of its own."""
    if not isinstance(field, Real):
        return _repeating(field, rng)
    generator = _generator(rng)
    common, other = torch.randn(2, field.features, generator=generator, dtype=torch.float64)
    if rng.random() < 0.2:
        common = common * (torch.rand(field.features, generator=generator) < 0.2)
    signal = torch.randn(field.positions, field.features, generator=generator, dtype=torch.float64)
    if rng.random() < 0.6:
        signal = signs(rng.choice(PATTERNS), field, generator)[:, None] * other
    depth = rng.choice([math.inf, rng.uniform(0, 9), rng.uniform(2, 5), rng.uniform(3, 4)])
    large = signs(pattern or rng.choice(PATTERNS), field, generator)[:, None] * common
    return 10 ** _moderate(rng) * (large + signal * 10**-depth)


def scaled(field: Field, rng: random.Random) -> Tensor:
    """Extreme scales: of the whole field, of each feature, or of each number."""
    if not isinstance(field, Real):
        return _repeating(field, rng)
    value = ordinary(field, rng)
    exponent = torch.full_like(value, rng.uniform(-45, 38) if rng.random() < 0.7 else rng.uniform(-3, 3))
    width = rng.choice([0.0, 3.0, 20.0, 40.0])
    generator = _generator(rng)
    spread = rng.choice([(1, field.features), (field.positions, 1), (field.positions, field.features)])
    exponent = exponent + width * (torch.rand(spread, generator=generator, dtype=torch.float64) - 0.5)
    return value * 10**exponent


def special(field: Field, rng: random.Random) -> Tensor:
    """A few numbers that arithmetic treats in a way of their own among harmless or cancelling ones."""
    value = rng.choice([ordinary, cancelling, scaled])(field, rng)
    return _with_special(value, rng) if isinstance(field, Real) else value


BUILDERS = {"cancelling": cancelling, "scales": scaled, "special values": special}


def build(fields: tuple[Field, Field], rng: random.Random) -> tuple[Row, str]:
    """A row by one of the builders; now and then the parts come from different ones."""
    name = rng.choice(["cancelling", "cancelling", "scales", "special values"])
    if name == "cancelling":
        parts = _cancelling_pair(fields, rng)
    elif name == "scales" and rng.random() < 0.6 and all(isinstance(field, Real) for field in fields):
        small, large = rng.uniform(-25, -17), rng.uniform(14, 18.5)
        parts = list(opposite(fields, rng, small, large, rng.randrange(2)))
    else:
        parts = [BUILDERS[name](field, rng) for field in fields]
    if rng.random() < 0.2:
        place = rng.randrange(2)
        parts[place] = rng.choice([ordinary, *BUILDERS.values()])(fields[place], rng)
    return (parts[0], parts[1]), name


def _is_image(fields: tuple[Field, Field]) -> bool:
    return isinstance(fields[0], Real) and fields[0].channels_first


def _cancelling_pair(fields: tuple[Field, Field], rng: random.Random) -> list[Tensor]:
    pattern, depth = rng.choice(PATTERNS[1:-1]), rng.choice([rng.uniform(3, 6), rng.uniform(0, 8)])
    row = alternating(fields, rng, pattern, depth, rng.randrange(2))
    parts = [
        part * 10 ** _moderate(rng) if isinstance(field, Real) else part
        for part, field in zip(row, fields, strict=True)
    ]
    place = rng.randrange(2)
    if rng.random() < 0.3:
        parts[place] = cancelling(fields[place], rng)
    return parts


def alternating(
    fields: tuple[Field, Field], rng: random.Random, pattern: str, depth: float, steady: int
) -> Row:
    """Positions whose products of input and output gradient cancel.

    The field number ``steady`` is the same at all positions up to a signal 10^-depth as large, the other alternates by
    the pattern. The signal alternates as well, so that rounding errors of the same kind add up over positions. Where
    only one field is free, it alternates around a small common signal.
    """
    both = all(isinstance(field, Real) for field in fields)
    parts = []
    for place, field in enumerate(fields):
        if not isinstance(field, Real):
            parts.append(_repeating(field, rng))
            continue
        generator = _generator(rng)
        large, small = torch.randn(2, field.features, generator=generator, dtype=torch.float64)
        turns = signs(pattern, field, generator)[:, None]
        if both and place == steady:
            parts.append(large + turns * small * 10**-depth)
        else:
            parts.append(turns * large + small * (0 if both else 10**-depth))
    return parts[0], parts[1]


def residue(fields: tuple[Field, Field], rng: random.Random, factor: float) -> Row:
    """Positions that cancel exactly, so large that what rounding leaves of their sum is of ordinary size."""
    x, target = (ordinary(field, rng) for field in fields)
    if not isinstance(fields[1], Real):
        return (x - x.mean(0)) * factor if isinstance(fields[0], Real) else x, target
    return _mirrored(x, 1), _mirrored(target, -1) * factor


def _mirrored(value: Tensor, sign: int) -> Tensor:
    """The second half of the positions repeats the first, times the sign; a single position stays as it is."""
    half = len(value) // 2
    if not half:
        return value
    return torch.cat([value[:half], sign * value[:half], 0 * value[2 * half :]])


def opposite(fields: tuple[Field, Field], rng: random.Random, small: float, large: float, first: int) -> Row:
    """One field (number ``first``) of size 10^small everywhere, the other of size 10^large: squares leave the range."""
    parts = [ordinary(field, rng) for field in fields]
    for place, field in enumerate(fields):
        if isinstance(field, Real):
            parts[place] = parts[place].sign() * 10 ** (small if place == first else large)
    return parts[0], parts[1]


def drill(fields: tuple[Field, Field], rng: random.Random) -> Iterator[tuple[Row, str, bool, str]]:
    """Rows known to be hard, each with the type, the flushing and the name of the attack it is meant for."""
    for depth in (4.0, 3.5, 4.5, 5.0, 3.8):
        for pattern in ("pairs", "inner", "core") if _is_image(fields) else ("pairs",):
            row = alternating(fields, rng, pattern, depth, 0)
            yield row, "float32", False, "cancelling"
            if isinstance(fields[1], Real):
                yield (row[0], row[1] * 1e5), "float32", False, "cancelling"
            elif isinstance(fields[0], Real):
                yield (row[0] * 1e3, row[1]), "float32", False, "cancelling"
    for depth in (6.5, 7.2):
        for steady in (0, 1):
            yield alternating(fields, rng, "pairs", depth, steady), "float32", False, "cancelling"
    for dtype, factor in (("float32", 1e9), ("float64", 1e18)):
        for _ in range(3):
            yield residue(fields, rng, factor), dtype, False, "residue"
    for pattern in ("pairs", "halves", "two"):
        yield alternating(fields, rng, pattern, 4.2, 1), "float32", False, "cancelling"
        yield alternating(fields, rng, pattern, 8.2, 0), "float64", False, "cancelling"
    for first in (0, 1):
        yield opposite(fields, rng, -22.6, 17.5, first), "float32", False, "scales"
        yield opposite(fields, rng, -19.2, 17.5, first), "float32", True, "scales"
        yield opposite(fields, rng, -162.4, 152.5, first), "float64", False, "scales"
        yield opposite(fields, rng, -154.2, 152.5, first), "float64", True, "scales"


def mutate(row: Row, fields: tuple[Field, Field], rng: random.Random) -> Row:
    """The row with one or two small changes."""
    parts = list(row)
    for _ in range(rng.choice([1, 1, 2])):
        place = rng.randrange(2)
        field = fields[place]
        if not isinstance(field, Real):
            parts[place] = _change_number(parts[place], field, rng)
            continue
        parts[place] = rng.choice(_CHANGES)(parts[place], rng)
    if rng.random() < 0.2 and all(isinstance(field, Real) for field in fields):
        factor = 2.0 ** rng.randint(-30, 30)
        parts = [parts[0] * factor, parts[1] / factor]
    return parts[0], parts[1]


def twin(row: Row, fields: tuple[Field, Field], rng: random.Random) -> Row:
    """A second view of a row that nearly cancels the first where the target is free."""
    x, target = row
    if isinstance(fields[1], Real):
        return x, -target * (1 + rng.choice([0.0, 1e-7, 1e-4, 0.5]))
    return (x.roll(1, 0) if x.dim() else x), target


def signs(pattern: str, field: Real, generator: torch.Generator) -> Tensor:
    """One number per position, by the name of a pattern."""
    positions = field.positions
    place = torch.arange(positions)
    even = torch.where(place % 2 == 0, 1.0, -1.0).double()
    match pattern:
        case "equal":
            return torch.ones(positions, dtype=torch.float64)
        case "pairs":
            return even * (place < positions // 2 * 2)
        case "halves":
            return torch.where(place < positions // 2, 1.0, -1.0).double() * (place < positions // 2 * 2)
        case "two":
            return even * ((place - positions // 2 + 1) // 2 == 0) if positions > 2 else even
        case "inner":
            return even * _inside(field, 1)
        case "core":
            return even * _inside(field, 2)
    free = torch.randn(positions, generator=generator, dtype=torch.float64)
    return free - free.mean() if pattern == "centred" and positions > 1 else free


def _inside(field: Real, margin: int) -> Tensor:
    """1 away from the border of an image, where windows of a convolution are full; everywhere else 0."""
    if not field.channels_first or min(field.shape[1:]) < 2 * margin + 2:
        return torch.ones(field.positions)
    inside = torch.zeros(field.shape[1:])
    inside[tuple(slice(margin, size - margin) for size in field.shape[1:])] = 1
    return inside.flatten()


def _repeating(field: Tokens | Classes, rng: random.Random) -> Tensor:
    value = ordinary(field, rng)
    if isinstance(field, Tokens):
        few = [rng.randrange(field.vocabulary) for _ in range(rng.choice([1, 1, 2, 3]))]
        return torch.tensor([few[place % len(few)] for place in range(field.positions)])
    return value


def _moderate(rng: random.Random) -> float:
    return rng.choice([0.0, rng.uniform(-3, 4), rng.uniform(0, 9), rng.uniform(-20, 20)])


def _some(value: Tensor, rng: random.Random) -> Tensor:
    """A mask of a number, a position, a feature or a random part."""
    mask = torch.zeros(value.shape, dtype=torch.bool)
    position, feature = rng.randrange(value.shape[0]), rng.randrange(value.shape[1])
    match rng.randrange(4):
        case 0:
            mask[position, feature] = True
        case 1:
            mask[position] = True
        case 2:
            mask[:, feature] = True
        case _:
            mask = torch.rand(value.shape, generator=_generator(rng)) < rng.choice([0.02, 0.5])
    return mask


def _rescale(value: Tensor, rng: random.Random) -> Tensor:
    return value * 10 ** rng.choice([rng.uniform(-1, 1), rng.uniform(-6, 6)])


def _rescale_some(value: Tensor, rng: random.Random) -> Tensor:
    factor = 2.0 ** rng.choice([1, -1, rng.randint(-10, 10), rng.randint(-100, 100)])
    return torch.where(_some(value, rng), value * factor, value)


def _flip_some(value: Tensor, rng: random.Random) -> Tensor:
    return torch.where(_some(value, rng), -value, value)


def _clear_some(value: Tensor, rng: random.Random) -> Tensor:
    return torch.where(_some(value, rng), torch.zeros_like(value), value)


def _copy_position(value: Tensor, rng: random.Random) -> Tensor:
    value = value.clone()
    source, target = rng.randrange(len(value)), rng.randrange(len(value))
    value[target] = value[source] * rng.choice([1.0, -1.0, -1.0, -(1 + 2.0**-20)])
    return value


def _disturb(value: Tensor, rng: random.Random) -> Tensor:
    noise = torch.randn(value.shape, generator=_generator(rng), dtype=torch.float64)
    return value * (1 + noise * 10 ** -rng.uniform(0, 8))


def _centre(value: Tensor, rng: random.Random) -> Tensor:
    return value - value.mean(0) * rng.choice([1.0, 1.0, 0.5])


def _with_special(value: Tensor, rng: random.Random) -> Tensor:
    value = value.clone()
    for _ in range(rng.choice([1, 1, 3])):
        value[_some(value, rng)] = rng.choice(SPECIAL)
    return value


_CHANGES = (
    _rescale,
    _rescale_some,
    _rescale_some,
    _flip_some,
    _clear_some,
    _copy_position,
    _disturb,
    _disturb,
    _centre,
    _with_special,
)


def _change_number(value: Tensor, field: Tokens | Classes, rng: random.Random) -> Tensor:
    if isinstance(field, Classes):
        return torch.tensor(rng.randrange(field.count))
    value = value.clone()
    value[rng.randrange(len(value))] = rng.randrange(field.vocabulary)
    return value


def _generator(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(32))
