"""Evolution over odd rows and settings, fed by structured rows and by gradient ascent."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field, replace

from tools.attack.ascent import ascend
from tools.attack.measuring import Subject, measure
from tools.attack.rows import Row, build, drill, mutate
from tools.attack.settings import HOSTILE, Setting, change, draw
from tools.attack.targets import Target

ELITE = 8
"""So many of the worst rows so far have offspring."""

ASCENTS = (60, 200, 1000)
"""Gradient ascent takes place before these evaluations."""

UNCLIPPED = 1e30
"""A clip norm that nothing reaches."""


@dataclass(frozen=True)
class Candidate:
    """A row under a setting, with the ratio that it reached and the attack that it came from."""

    ratio: float
    row: Row
    setting: Setting
    attack: str
    seed: int


@dataclass
class Worst:
    """What a search came to."""

    best: Candidate | None = None
    evaluations: int = 0
    refused: int = 0
    refusals: set[str] = field(default_factory=set)
    poisoned: int = 0
    by_setting: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The largest dS / sensitivity."""
        return self.best.ratio if self.best is not None else 0.0


def search(
    subject: Subject,
    target: Target,
    support: str,
    seed: int,
    *,
    crowd: bool = False,
    evaluations: int | None = None,
    seconds: float | None = None,
    limited: bool = False,
) -> Worst:
    """The worst row found. The sequence of candidates depends on the seed and on the ratios alone, not on the clock.

    ``crowd`` makes the companions hostile as well. ``limited`` is for a subject that knows whole parameters and one
    piece only, and does not promise a finite sum: sums that are not finite are counted, not taken for the worst.
    """
    rng = random.Random(f"{seed} {target.name} {support} {crowd}")
    worst, elite = Worst(), list[Candidate]()
    ascended: list[Row] = []
    hard = drill(target.fields, rng)
    end = time.monotonic() + seconds if seconds is not None else None
    while (evaluations is None or worst.evaluations < evaluations) and (
        end is None or time.monotonic() < end
    ):
        if worst.evaluations in ASCENTS:
            ascended += ascend(target, rng)
        known = next(hard, None)
        if known is not None:
            row, dtype, flush, attack = known
            companions, place = (rng.choice(HOSTILE), "first") if crowd else ("none", "last")
            setting = Setting(support, dtype, companions=companions, place=place, flush=flush)
        else:
            row, setting, attack = _next(target, support, elite, ascended, crowd, rng)
        setting = limit(setting) if limited else setting
        noise = rng.getrandbits(32)
        if known is not None or rng.random() < 0.7:
            setting = _matched(subject, target, row, setting, noise, rng)
        found = measure(subject, target, row, setting, noise)
        worst.evaluations += 1
        if found.refused:
            worst.refused += 1
            worst.refusals.add(found.refused)
            continue
        if limited and found.ratio == math.inf:
            worst.poisoned += 1
            continue
        for name in ("dtype", "pieces", "statistic", "clip_order", "companions", "flush"):
            key = f"{name}: {getattr(setting, name)}"
            worst.by_setting[key] = max(worst.by_setting.get(key, 0.0), found.ratio)
        candidate = Candidate(found.ratio, row, setting, attack, noise)
        elite = _selected([*elite, candidate], rng)
        # Where tensors lie in memory changes last digits; they do not decide.
        if worst.best is None or candidate.ratio > worst.best.ratio * (1 + 1e-9):
            worst.best = candidate
    return worst


def _matched(
    subject: Subject, target: Target, row: Row, setting: Setting, noise: int, rng: random.Random
) -> Setting:
    """The setting with a clip norm somewhat below the example's norm, so that the row has to be clipped."""
    lone = replace(setting, clip_norm=UNCLIPPED, companions="none")
    moved = measure(subject, target, row, lone, noise).moved
    clip_norm = float(f"{moved / 10 ** rng.choice([1.0, 3.0, rng.uniform(0, 6)]):.3g}")
    return replace(setting, clip_norm=clip_norm) if 1e-6 <= clip_norm <= 1e6 else setting


def limit(setting: Setting) -> Setting:
    """The setting with only type, companions, place, flushing and an ordinary clip norm free."""
    return Setting(
        "all",
        dtype=setting.dtype,
        companions=setting.companions,
        place=setting.place,
        flush=setting.flush,
        clip_norm=min(max(setting.clip_norm, 1e-3), 1e3),
    )


def _next(
    target: Target,
    support: str,
    elite: list[Candidate],
    ascended: list[Row],
    crowd: bool,
    rng: random.Random,
) -> tuple[Row, Setting, str]:
    chance = rng.random()
    if not elite or chance < 0.4:
        row, attack = build(target.fields, rng)
        return row, draw(support, rng, crowd=crowd), attack
    if ascended and chance < 0.5:
        row = rng.choice(ascended)
        row = mutate(row, target.fields, rng) if rng.random() < 0.7 else row
        return row, draw(support, rng, crowd=crowd), "ascent"
    parent = rng.choice(elite)
    attack = parent.attack.removesuffix(", evolved") + ", evolved"
    if chance < 0.65:
        return parent.row, change(parent.setting, rng, crowd=crowd), attack
    if chance < 0.7:
        return (parent.row[0], rng.choice(elite).row[1]), parent.setting, attack
    return mutate(parent.row, target.fields, rng), parent.setting, attack


def _selected(candidates: list[Candidate], rng: random.Random) -> list[Candidate]:
    """Who has offspring: the worst above 1; below, where a larger ratio says little, a few of every size."""
    above = sorted((c for c in candidates if c.ratio > 1), key=lambda c: -c.ratio)[:ELITE]
    bins: dict[tuple[int, str], list[Candidate]] = {}
    for candidate in candidates:
        if 0 < candidate.ratio <= 1:
            size = max(-8, math.frexp(candidate.ratio * 0.99)[1])
            bins.setdefault((size, candidate.setting.dtype), []).append(candidate)
    below = [candidate for group in bins.values() for candidate in rng.sample(group, min(2, len(group)))]
    return [*above, *below]
