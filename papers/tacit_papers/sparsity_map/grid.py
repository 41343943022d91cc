"""The settings and methods of the map, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

TUNING_SEEDS = (1000,)
"""Seeds on which learning rates are chosen; figures come from others."""


@dataclass(frozen=True)
class Setting:
    """One column of the map: data, model and budget; everything but the method and its learning rate.

    ``pad`` uninformative columns are added to a table. ``rates`` is the grid of learning rates, in units of
    1 / clip norm, for every method alike. ``seeds`` is the number of runs behind a figure.
    """

    part: str
    data: str
    model: str
    width: int
    pad: int
    examples: int
    batch: int
    steps: int
    epsilon: float
    rates: tuple[float, ...]
    seeds: int = 5

    @property
    def name(self) -> str:
        """The setting in words."""
        width = f" of width {self.width}" if self.width else ""
        pad = f" + {self.pad} columns" if self.pad else ""
        rate = f", rate {self.rates[0]:g}" if len(self.rates) == 1 else ""
        return f"{self.data}{pad}, {self.model}{width}, ε = {self.epsilon:g}{rate}"


@dataclass(frozen=True)
class Arm:
    """One row of the map: a method with its options, as pairs for ``make_plan``."""

    label: str
    method: str
    options: tuple[tuple[str, Any], ...] = ()


def _arm(label: str, method: str, **options: Any) -> Arm:
    return Arm(label, method, tuple(sorted(options.items())))


EVEN = 0.3
"""The warm-up's share of steps, at the noise of the rest."""

DENSE = _arm("dense", "dp-sgd")
AUTO = _arm("auto", "tp-topk", active_ratio="auto", warmup=EVEN, reset=True)
EACH = _arm("auto, each layer", "tp-topk", active_ratio="auto", warmup=EVEN, reset=True, per_layer=True)
SOFT = _arm("soft", "tp-topk", active_ratio="soft", warmup=EVEN, reset=True)
COLUMN = _arm(
    "movement, columns, 0.1",
    "tp-topk",
    active_ratio=0.1,
    warmup=EVEN,
    score="movement",
    reset=True,
    pooling="column",
)
ROW = _arm(
    "movement, rows, 0.1",
    "tp-topk",
    active_ratio=0.1,
    warmup=EVEN,
    score="movement",
    reset=True,
    pooling="row",
)


def rand(ratio: float) -> Arm:
    """TP-Rand as in the paper."""
    return _arm(f"random, {ratio:g}", "tp-rand", active_ratio=ratio)


def paper(ratio: float) -> Arm:
    """TP-TopK as in the paper: mean of squares, 0.3 of the steps and of ε to the warm-up."""
    return _arm(f"squares, {ratio:g}", "tp-topk", active_ratio=ratio)


def moved(ratio: float) -> Arm:
    """TP-TopK by movement with reset, at even noise."""
    return _arm(
        f"movement, {ratio:g}", "tp-topk", active_ratio=ratio, warmup=EVEN, score="movement", reset=True
    )


def warmed(score: str, share: float, budget: float | None) -> Arm:
    """TP-TopK at ratio 0.1 with another warm-up."""
    split = f"{share:g} of steps, " + ("even noise" if budget is None else f"{budget:g} of ε")
    warmup = share if budget is None else (share, budget)
    return _arm(
        f"{score}, {split}",
        "tp-topk",
        active_ratio=0.1,
        warmup=warmup,
        score=score,
        reset=score == "movement",
    )


FULL = (DENSE, rand(0.1), paper(0.1), moved(0.1), rand(0.4), paper(0.4), moved(0.4), AUTO, SOFT)
SHORT = (DENSE, rand(0.1), paper(0.1), moved(0.1), AUTO, SOFT)

FEW = (DENSE, rand(0.1), moved(0.1), AUTO, SOFT)

_FMNIST = Setting("size", "fmnist", "mlp", 12, 0, 20_000, 1024, 60, 0.5, (1, 2, 4, 8, 16))
_ADULT = Setting("padding", "adult", "logistic", 0, 0, 0, 1024, 100, 0.5, (2, 4, 8, 16, 32))
_ADULT_MLP = replace(_ADULT, model="mlp", width=64, rates=(1, 2, 4, 8, 16))
_NHANES = Setting("tables", "nhanes", "logistic", 0, 0, 0, 512, 60, 1.0, (2, 4, 8, 16, 32))
_TEXT = Setting("text", "sst2", "text-mean", 32, 0, 20_000, 1024, 60, 2.0, (16, 32, 64, 128, 256))

_DIABETES = Setting("wide", "diabetes130", "logistic", 0, 0, 15_000, 1024, 60, 0.5, (2, 4, 8, 16, 32), 3)
WIDE_TABLES = ("diabetes130", "adult-pairs", "imdb-words")


def cells() -> tuple[tuple[Setting, tuple[Arm, ...]], ...]:
    """The whole map: every setting with its methods. Costly ones have fewer methods, rates and seeds."""
    wide = replace(_FMNIST, width=1258, rates=(0.5, 1, 2, 4, 8), seeds=3)
    return (
        (_ADULT, FULL),
        (replace(_ADULT, pad=500), SHORT),
        (replace(_ADULT, pad=2000), FULL),
        (replace(_ADULT, pad=2000, epsilon=2.0), SHORT),
        (_ADULT_MLP, SHORT),
        (replace(_ADULT_MLP, pad=500), (*SHORT, COLUMN)),
        (replace(_ADULT_MLP, pad=2000), (*SHORT, COLUMN)),
        (replace(_ADULT_MLP, pad=2000, epsilon=2.0), SHORT),
        (replace(_FMNIST, width=12), SHORT),
        (replace(_FMNIST, width=126), SHORT),
        (replace(_FMNIST, width=126, epsilon=2.0), SHORT),
        (wide, FEW),
        (replace(wide, width=12580, examples=5_000, batch=256, steps=20, rates=(2, 4, 8)), FEW),
        (
            replace(_FMNIST, part="cnn", model="tanh-cnn", width=0, epsilon=1.0, rates=(2, 4, 8), seeds=3),
            FEW,
        ),
        (_NHANES, SHORT),
        (replace(_NHANES, model="mlp", width=512, rates=(2, 4, 8)), FEW),
        (_TEXT, (*FEW, ROW)),
        *((replace(_DIABETES, data=name, epsilon=e), SHORT) for name in WIDE_TABLES for e in (0.5, 2.0)),
        *((replace(_ADULT, part="now", pad=pad), (DENSE, AUTO, SOFT)) for pad in (500, 2000)),
        *((replace(_ADULT_MLP, part="rate", rates=(rate,)), (DENSE, AUTO, EACH)) for rate in (4, 8, 16)),
        (replace(_ADULT, part="warm-up", pad=2000), (DENSE, *_WARMUPS)),
    )


_WARMUPS = tuple(
    warmed(score, share, budget)
    for score, share, budget in (
        ("movement", 0.1, 0.1),
        ("movement", 0.1, None),
        ("movement", 0.3, 0.3),
        ("movement", 0.3, None),
        ("movement", 0.5, None),
        ("squares", 0.3, 0.3),
        ("squares", 0.3, None),
    )
)


def quick(setting: Setting) -> Setting:
    """The setting in a few seconds: two learning rates, two seeds, a fifth of the steps."""
    middle = len(setting.rates) // 2
    return replace(
        setting, rates=setting.rates[middle : middle + 2], seeds=2, steps=max(10, setting.steps // 5)
    )


PARTS = tuple(dict.fromkeys(setting.part for setting, _ in cells()))
