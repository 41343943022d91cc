"""How far one example moves a clipped sum, against the sensitivity that the noise is scaled by."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.errors import TacitError
from tacit.raw.clipping import Clipper
from tacit.raw.inspector import Inspections
from tacit.raw.units import UnitBatch
from tacit.support import Support
from tools.attack.rows import Row, mutate, ordinary, twin
from tools.attack.settings import Setting, support_of
from tools.attack.targets import Target, model_of

COMPANIONS = 3
COPIES, SPACE = 6, 8
Values = Mapping[str, Tensor]


@dataclass(frozen=True)
class Found:
    """One measurement: dS / sensitivity and dS. A sum that is not finite gives inf, a refused batch 0 and why."""

    ratio: float
    moved: float
    refused: str = ""


class Subject(Protocol):
    """Something that clips and sums."""

    def sum(self, chunks: list[Any], setting: Setting) -> tuple[Values, float]:
        """The clipped sum over chunks of (inputs, targets), and its sensitivity."""


class Tacit:
    """Tacit's clipped sums for one target, with models and clippers kept for every type and kind of pieces."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._clippers: dict[tuple[str, str], tuple[Clipper, dict[str, Support]]] = {}

    def sum(self, chunks: list[Any], setting: Setting) -> tuple[Values, float]:
        """The clipped sum over chunks, and its sensitivity."""
        clipper, supports = self._clipper(setting)
        support = supports.get(setting.support)
        if support is None:
            support = supports[setting.support] = support_of(clipper.model, setting.support)
        clipped = clipper.clipped_sum(
            chunks,
            support,
            setting.clip_norm,
            statistic=setting.statistic,  # type: ignore[arg-type]
            clip_order=setting.clip_order,  # type: ignore[arg-type]
        )
        return clipped.values, clipped.sensitivity

    def _clipper(self, setting: Setting) -> tuple[Clipper, dict[str, Support]]:
        mode = setting.pieces if setting.pieces in ("views", "autocast") else "plain"
        key = (setting.dtype, mode)
        if key not in self._clippers:
            dtype = getattr(torch, setting.dtype)
            clipper = Clipper(
                model_of(self._target, dtype),
                self._target.loss,
                views=2 if mode == "views" else 1,
                autocast=torch.bfloat16 if mode == "autocast" else None,
                seed=0,  # seeds only so that the same search finds the same
                inspections=Inspections(0),
            )
            # A run starts with harmless rows: the model is looked at before the odd one comes.
            rng = random.Random(0)
            rows = [tuple(ordinary(f, rng) for f in self._target.fields) for _ in range(6)]
            first = batch(rows, self._target, setting.dtype)  # type: ignore[arg-type]
            clipper.clipped_sum([first], Support.all(clipper.model), 1.0)
            self._clippers[key] = clipper, {}
        return self._clippers[key]


def batch(rows: list[Row], target: Target, dtype: str) -> tuple[Tensor, Tensor]:
    """Rows as the model takes them."""
    inputs, targets = (
        field.stack([row[place] for row in rows], getattr(torch, dtype))
        for place, field in enumerate(target.fields)
    )
    return inputs, targets


def measure(subject: Subject, target: Target, row: Row, setting: Setting, seed: int) -> Found:
    """dS / sensitivity for one odd row, or one odd unit of several rows, among its companions."""
    rng = random.Random(seed)
    others = _companions(row, target, setting, rng)
    odd = [row]
    if setting.pieces == "views":
        odd = [row, twin(row, target.fields, rng)]
        others = [view for other in others for view in (other, other)]
    if setting.pieces == "units":
        odd = [row, *(_same_unit(row, target, rng) for _ in range(rng.choice((1, 2, 4, 12))))]
    owners = [COMPANIONS + place // 2 for place in range(len(others))]
    together = [*odd, *others] if setting.place == "first" else [*others, *odd]
    owned = [*[0] * len(odd), *owners] if setting.place == "first" else [*owners, *[0] * len(odd)]
    try:
        with _arithmetic(setting.flush):
            more = subject.sum(_chunks(together, owned, target, setting), setting)
            less = subject.sum(_chunks(others, owners, target, setting), setting) if others else ({}, more[1])
    except TacitError as error:
        return Found(0.0, 0.0, str(error))
    moved = distance(more[0], less[0])
    return Found(moved / min(more[1], less[1]), moved)


def distance(more: Values, less: Values) -> float:
    """‖more − less‖₂ in extended precision; what ``less`` lacks is zero; inf where a number is not finite."""
    total = np.longdouble(0)
    for name, value in more.items():
        difference = _extended(value)
        if name in less:
            difference = difference - _extended(less[name])
        if not np.isfinite(difference).all():
            return float("inf")
        total += np.square(difference).sum()
    return float(np.sqrt(total))


def _extended(value: Tensor) -> np.ndarray:
    return value.detach().double().numpy().astype(np.longdouble)


def _companions(row: Row, target: Target, setting: Setting, rng: random.Random) -> list[Row]:
    match setting.companions:
        case "none":
            return []
        case "same":
            return [row] * COMPANIONS
        case "opposite":
            return [twin(row, target.fields, rng) for _ in range(COMPANIONS)]
        case "similar":
            return [mutate(row, target.fields, rng) for _ in range(2 * COMPANIONS + 1)]
        case "spaced":
            # One place further, every copy lies otherwise in memory, and its products may be rounded otherwise.
            silent = [(torch.zeros_like(row[0]), torch.zeros_like(row[1]))] * (SPACE - 1)
            return [one for _ in range(COPIES) for one in (row, *silent)]
    return [tuple(ordinary(field, rng) for field in target.fields) for _ in range(COMPANIONS)]  # type: ignore[misc]


def _same_unit(row: Row, target: Target, rng: random.Random) -> Row:
    """Another row of the odd one's unit: the same, one that cancels it, a similar or an ordinary one."""
    return rng.choice(
        (
            lambda: row,
            lambda: twin(row, target.fields, rng),
            lambda: mutate(row, target.fields, rng),
            lambda: tuple(ordinary(field, rng) for field in target.fields),
        )
    )()


def _chunks(rows: list[Row], owners: list[int], target: Target, setting: Setting) -> list[Any]:
    if setting.pieces == "units":
        return [UnitBatch(batch(rows, target, setting.dtype), owners)] if rows else []
    size = 2 if setting.pieces == "chunks" else max(1, len(rows))
    return [batch(rows[start : start + size], target, setting.dtype) for start in range(0, len(rows), size)]


@contextmanager
def _arithmetic(flush: bool) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.set_flush_denormal(flush)
            yield
        finally:
            torch.set_flush_denormal(False)
