"""From a method and a budget to a calibrated plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tacit.errors import ArgumentError, check_positive
from tacit.plan.accountants import check_accountant
from tacit.plan.calibration import least_noise, noise_start
from tacit.plan.phase import Draft, Phase
from tacit.plan.record import Plan, check_batch, check_budget
from tacit.plan.schedule import Schedule
from tacit.plan.spends import Spend


def make_plan(
    method: str,
    *,
    epsilon: float,
    delta: float,
    examples: int,
    batch_size: int,
    epochs: float,
    active_ratio: float | str | None = None,
    warmup: float | Sequence[float] | None = None,
    clip_norm: float | Sequence[float] = 1.0,
    accountant: str = "pld",
    **options: object,
) -> Plan:
    """A plan of ``method`` whose composition is (``epsilon``, ``delta``)-DP for add-or-remove-one neighbours.

    Each step samples every example with probability q = batch_size / examples; there are round(epochs / q)
    steps. ``warmup`` = (share of steps, share of epsilon) for methods that have one: the warm-up alone is
    calibrated to its share of epsilon, and the noise of the rest so that their composition meets epsilon. A share
    of steps alone gives all phases the same noise.
    ``clip_norm`` is one number, one per noise level, or one per phase (warm-up, rest). ``options`` are those of
    the method. ``epsilon = inf`` gives the same phases without noise.
    """
    # Methods are built from the parts of this package, so they can be imported only once it is.
    from tacit.methods.registry import draft_phases

    check_budget(epsilon, delta, examples)
    check_batch(batch_size, examples)
    check_positive("epochs", epochs)
    check_accountant(accountant)
    given = {"active_ratio": active_ratio, "warmup": warmup}
    options = {**{name: value for name, value in given.items() if value is not None}, **options}
    drafts = draft_phases(method, Schedule.of(examples, batch_size, epochs), options)
    rate = batch_size / examples
    blocks = [tuple(block) for _, block in itertools.groupby(drafts, key=lambda draft: draft.budget)]
    clips = iter(_clip_norms(clip_norm, [len(block) for block in blocks], method))
    phases: list[Phase] = []
    for block in blocks:
        noise = _block_noise(block, rate, tuple(phase.spend for phase in phases), epsilon, delta, accountant)
        phases += [_phase(draft, rate, next(clips), noise) for draft in block]
    plan = Plan(method, epsilon, delta, examples, batch_size, tuple(phases), accountant)
    plan.check_promise()
    return plan


def _block_noise(
    block: tuple[Draft, ...],
    rate: float,
    before: tuple[Spend, ...],
    epsilon: float,
    delta: float,
    accountant: str,
) -> float:
    """The least noise with which the phases so far and this block keep to the block's share of epsilon."""
    if math.isinf(epsilon):
        return 0.0
    steps = sum(draft.steps for draft in block)
    target = block[0].budget * epsilon

    def spends(noise: float) -> tuple[Spend, ...]:
        return (*before, Spend(rate, noise, steps))

    return least_noise(spends, target, delta, accountant, noise_start(rate, steps, target, delta))


def _phase(draft: Draft, rate: float, clip: float, noise: float) -> Phase:
    return Phase(
        name=draft.name,
        steps=draft.steps,
        sampling_rate=rate,
        clip_norm=clip,
        noise_multiplier=noise,
        support=draft.support,
        updates=draft.updates,
        score=draft.score,
        reset=draft.reset,
        clip_order=draft.clip_order,
    )


def _clip_norms(clip_norm: float | Sequence[float], levels: Sequence[int], method: str) -> tuple[float, ...]:
    """One clip norm per phase, where ``levels`` counts the phases of each noise level."""
    phases = sum(levels)
    norms = (clip_norm,) * phases if isinstance(clip_norm, int | float) else tuple(clip_norm)
    if len(norms) == len(levels):
        norms = tuple(norm for norm, count in zip(norms, levels, strict=True) for _ in range(count))
    if len(norms) != phases:
        raise ArgumentError(
            f"{method} has {len(levels)} noise level{'s' if len(levels) > 1 else ''} and {phases} "
            f"phase{'s' if phases > 1 else ''}, but clip_norm has {len(norms)} numbers; give one number, one per noise "
            "level or one per phase."
        )
    return tuple(check_positive("clip_norm", norm) for norm in norms)
