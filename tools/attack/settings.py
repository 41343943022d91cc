"""What a run may vary besides the data: type, pieces, statistic, clip order, clip norm, companions."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
from torch import nn

from tacit.support import Block, Support

SUPPORTS = ("all", "rows", "sparse", "dense", "soft 0", "soft 1")
"""Whole parameters; half the rows; 10 % and 40 % of the coordinates; soft weights along either dimension."""

CHOICES: dict[str, tuple[object, ...]] = {
    "dtype": ("float32", "float32", "float32", "float64"),
    "pieces": ("one", "one", "one", "chunks", "views", "autocast", "units"),
    "statistic": ("gradient", "gradient", "gradient", "absolute", "row-norms"),
    "clip_order": ("mask-then-clip", "mask-then-clip", "mask-then-clip", "clip-then-mask"),
    "companions": ("none", "none", "ordinary"),
    "place": ("last", "first"),
    "flush": (False, False, True),
    "clip_norm": (1.0, 1.0, 1e-3, 0.1, 10.0, 1e3),
}
"""Values by field; what is repeated is drawn more often."""

HOSTILE = ("same", "opposite", "similar", "spaced")
"""Companions that an attacker chose too."""

EXTREME_CLIP_NORMS = (1e-30, 1e-20, 1e-9, 1e9, 1e20, 1e30)


@dataclass(frozen=True)
class Setting:
    """One way to run. ``companions`` are the rest of the batch: none, harmless rows, or rows made of the odd one.

    ``place`` is where the odd row stands among them; ``flush`` sets subnormals to zero as the arithmetic goes.
    """

    support: str
    dtype: str = "float32"
    pieces: str = "one"
    statistic: str = "gradient"
    clip_order: str = "mask-then-clip"
    companions: str = "none"
    place: str = "last"
    flush: bool = False
    clip_norm: float = 1.0

    @property
    def short(self) -> str:
        """What is not the default, in a few words."""
        told = [
            "" if self.dtype == "float32" else self.dtype,
            "" if self.pieces == "one" else self.pieces,
            "" if self.statistic == "gradient" else self.statistic,
            "" if self.clip_order == "mask-then-clip" else self.clip_order,
            "" if self.companions == "none" else f"{self.companions} companions, {self.place}",
            "flushed" if self.flush else "",
            f"C = {self.clip_norm:g}",
        ]
        return ", ".join(word for word in told if word)


def choices(crowd: bool) -> dict[str, tuple[object, ...]]:
    """The values of every field; in a crowd the companions are hostile as well."""
    return CHOICES | {"companions": HOSTILE} if crowd else CHOICES


def draw(support: str, rng: random.Random, *, crowd: bool = False) -> Setting:
    """A setting at random."""
    chosen = {name: rng.choice(values) for name, values in choices(crowd).items()}
    if rng.random() < 0.05:
        chosen["clip_norm"] = rng.choice(EXTREME_CLIP_NORMS)
    return possible(Setting(support, **chosen))  # type: ignore[arg-type]


def change(setting: Setting, rng: random.Random, *, crowd: bool = False) -> Setting:
    """The setting with one field drawn afresh."""
    name, values = rng.choice(list(choices(crowd).items()))
    return possible(replace(setting, **{name: rng.choice(values)}))  # type: ignore[arg-type]


def possible(setting: Setting) -> Setting:
    """The nearest setting that Tacit accepts: row norms on whole parameters, autocast in single precision."""
    if setting.statistic == "row-norms" and setting.support != "all":
        setting = replace(setting, statistic="absolute")
    if setting.pieces == "autocast":
        setting = replace(setting, dtype="float32")
    return setting


def support_of(model: nn.Module, name: str) -> Support:
    """The support of a model by its short name."""
    match name:
        case "all":
            return Support.all(model)
        case "rows":
            return Support.random_rows(model, ratio=0.5, seed=1)
        case "sparse":
            return Support.random(model, size=max(1, _size(model) // 10), seed=2)
        case "dense":
            return Support.random(model, size=max(1, _size(model) * 2 // 5), seed=3)
    axis = int(name.removeprefix("soft "))
    generator = torch.Generator().manual_seed(4)
    return Support(
        {
            n: Block.weighted(p.shape, torch.rand(p.shape[axis], generator=generator) * 0.999 + 1e-3, axis)
            if p.dim() > axis
            else Block.all(p.shape)
            for n, p in model.named_parameters()
            if p.requires_grad
        }
    )


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
