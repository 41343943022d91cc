"""Batches that are hostile as a whole: many aligned examples, companions that cancel, companions at a kink.

One ordinary example more must not move what the others contribute: neither by rounding of a long sum, nor because a
matrix product rounds a row differently when there is one row more.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import TacitError
from tacit.raw.clipping import Clipper, Isolation
from tacit.support import Support
from tools.attack.measuring import distance
from tools.attack.rows import Real, alternating, ordinary
from tools.attack.targets import product


@dataclass(frozen=True)
class Crowd:
    """The worst of a kind of crowd: its size, and dS / sensitivity for one example more."""

    name: str
    examples: int
    ratio: float
    what: str
    isolation: Isolation = "probed"

    @property
    def assumed_away(self) -> bool:
        """Whether the proof assumes that this does not happen: companions whose own rounding depends on one more."""
        return self.isolation == "probed" and self.name != "aligned examples"


def aligned(seed: int, sizes: Sequence[int] = (255, 4096, 65_536), tries: int = 60) -> list[Crowd]:
    """Examples that all point one way: the sum is long, and its rounding grows with it.

    Clip norms are drawn at random, so that the last addition is rounded up in some of them.
    """
    rng, found = random.Random(seed), []
    for size in sizes:
        worst = (0.0, "")
        for _ in range(tries):
            width, spread, clip_norm = rng.choice((1, 4, 50)), rng.choice((0.0, 1e-3)), rng.uniform(0.5, 1)
            generator = torch.Generator().manual_seed(rng.getrandbits(32))
            base = torch.rand(1, width, generator=generator) + 1
            rows = base + spread * torch.rand(size + 1, width, generator=generator)
            chunk, odd = rng.choice((size + 1, 997)), rng.choice((0, size))
            model = _seeded(lambda width=width: nn.Linear(width, 1, bias=False))  # type: ignore[misc]
            ratio = _one_more(model, _first_output, (rows,), clip_norm, chunk, odd)
            worst = max(
                worst, (ratio, f"width {width}, spread {spread:g}, C = {clip_norm:.4g}, chunks of {chunk}")
            )
        found.append(Crowd("aligned examples", size, *worst))
    return found


def cancelling(seed: int, sizes: Sequence[int] = (63, 2047)) -> list[Crowd]:
    """Companions whose positions cancel: what is summed is far larger than the sum, and so is its rounding."""
    rng = random.Random(seed)
    found = []
    for size in sizes:
        tried: list[tuple[float, str]] = []
        for width, positions, bias in ((64, 8, False), (16, 64, True)):
            field = Real((positions, width))
            model = _seeded(lambda width=width, bias=bias: nn.Linear(width, width, bias=bias))  # type: ignore[misc]
            for depth, scale in ((4.0, 1e3), (6.0, 1e4), (math.inf, 1e3), (math.inf, 1e6)):
                rows = [alternating((field, field), rng, "pairs", depth, 0) for _ in range(size + 1)]
                x, t = (field.stack([row[place] for row in rows], torch.float32) for place in (0, 1))
                t = t * scale
                x[0], t[0] = ordinary(field, rng), ordinary(field, rng)
                for chunk in (size + 1, 7):
                    ratio = _one_more(model, product, (x, t), 1.0, chunk, odd=0)
                    what = f"Linear {width}→{width}, {positions} positions, depth {depth:g}, scale {scale:g}"
                    tried.append((ratio, f"{what}, chunks of {chunk}"))
        found.append(Crowd("companions that cancel", size, *max(tried)))
        if size < 100:
            x, t = (field.stack([row[place] for row in rows], torch.float32) for place in (0, 1))
            ratio = _one_more(model, product, (x, t * 1e6), 1.0, size + 1, 0, "construction")
            found.append(Crowd("companions that cancel", size, ratio, what, "construction"))
    return found


def kink(seed: int, wanted: int = 20, chunk: int = 7) -> list[Crowd]:
    """Companions at the kink of a ReLU whose product is rounded up in one place of a chunk and down in the next."""
    generator = torch.Generator().manual_seed(seed)
    model = _seeded(
        lambda: nn.Sequential(nn.Linear(300, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    )
    first, last = model[0], model[2]  # type: ignore[index]
    with torch.no_grad():
        last.weight.fill_(1.0)
    w = first.weight.detach()
    silent = (-w[0] / w.norm() * 100).clone()
    for place in range(chunk - 1):
        rows = _at_the_kink(w, place, chunk, wanted, generator)
        if len(rows) >= wanted:
            break
    if not rows:
        return [Crowd("companions at a kink", 0, 0.0, "this machine rounds a row alike in every place")]
    batch = silent.repeat(len(rows) * chunk + 1, 1)
    for number, row in enumerate(rows):
        batch[1 + number * chunk + place] = row
    what = f"chunks of {chunk}, {len(rows)} at the kink"
    ways: tuple[Isolation, ...] = ("probed", "construction")
    return [
        Crowd(
            "companions at a kink",
            len(batch) - 1,
            _one_more(model, _first_output, (batch,), 1.0, chunk, 0, isolation),
            what,
            isolation,
        )
        for isolation in ways
    ]


KINDS: dict[str, Callable[[int], list[Crowd]]] = {
    "aligned": aligned,
    "cancelling": cancelling,
    "kink": kink,
}


def _at_the_kink(w: Tensor, place: int, chunk: int, wanted: int, generator: torch.Generator) -> list[Tensor]:
    """Rows in about the same direction that are silent in one place of a chunk and active in the next."""
    along = torch.randn(300, generator=generator)
    found: list[Tensor] = []
    others = torch.randn(chunk, 300, generator=generator)
    for _ in range(40 * wanted):
        row = along * 30 + torch.randn(300, generator=generator)
        row = (
            row.double() - (row.double() @ w[0].double()) / w.double().square().sum() * w[0].double()
        ).float()
        before, after = others.clone(), others.clone()
        before[place], after[place + 1] = row, row
        if F.linear(before, w)[place, 0] <= 0 < F.linear(after, w)[place + 1, 0]:
            found.append(row)
        if len(found) == wanted:
            break
    return found


def _one_more(
    model: nn.Module,
    loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor],
    batch: tuple[Tensor, ...],
    clip_norm: float,
    chunk: int,
    odd: int,
    isolation: Isolation = "probed",
) -> float:
    """dS / sensitivity when the row number ``odd`` joins the others; 0 if such a batch is refused."""
    clipper, support = Clipper(model, loss, isolation=isolation), Support.all(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clipper.clipped_sum([tuple(torch.randn_like(part[:6]) for part in batch)], support, 1.0)
        kept = torch.arange(len(batch[0])) != odd
        try:
            more, less = (
                clipper.clipped_sum(
                    zip(*(part.split(chunk) for part in parts), strict=True), support, clip_norm
                )
                for parts in (batch, tuple(part[kept] for part in batch))
            )
        except TacitError:
            return 0.0
    return distance(more.values, less.values) / min(more.sensitivity, less.sensitivity)


def _first_output(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return model(batch[0])[:, 0]


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()
