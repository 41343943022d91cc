"""From a method and a budget to a calibrated plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tacit.errors import ArgumentError, check_count, check_positive, check_share
from tacit.plan.accountants import (
    COARSE,
    RELATION,
    REPLACE_ONE,
    Spend,
    check_accountant,
    check_relation,
    epsilon_of,
    merge,
    pld_epsilon,
)
from tacit.plan.methods import Method, method_of
from tacit.plan.phase import Draft, Phase, Schedule
from tacit.plan.plan import Plan, check_batch, check_budget
from tacit.plan.sources import All, Columns, Stops


def make_plan(
    method: str | Method,
    *,
    epsilon: float,
    delta: float,
    examples: int | None = None,
    batch_size: int,
    epochs: float,
    units: int | None = None,
    active_ratio: float | str | None = None,
    warmup: float | Sequence[float] | None = None,
    clip_norm: float | Sequence[float] = 1.0,
    accountant: str = "pld",
    relation: str = RELATION,
    counting: tuple[int, float] | None = None,
    tuning: tuple[Sequence[float], float] | None = None,
    **options: object,
) -> Plan:
    """A plan whose composition is (``epsilon``, ``delta``)-DP.

    Each step samples every example with probability q = batch_size / examples; there are round(epochs / q) steps.

    Args:
        method: A method such as ``TPTopK(active_ratio=0.1)``, or its name, such as ``"tp-topk"``, with its options
            beside it.
        epsilon: The promised ε, above 0. Infinity plans the same phases without noise.
        delta: The promised δ, below 1 / examples.
        examples: The number of training examples, which counts as public. Where a unit of privacy is a group of
            examples, give ``units`` instead.
        batch_size: The expected number of examples, or units, in a step, and the divisor of every step.
        epochs: The expected number of passes over the examples, or units; a fraction is allowed.
        units: The number of units of privacy, which counts as public, where a unit is a group of examples (those of
            one person). Steps then sample units, and ``Trainer`` needs an id per example in its own ``units``.
        active_ratio: Option of many methods: the share of coordinates, or rows, to keep active.
        warmup: Option of methods with a warm-up: (share of steps, share of epsilon). The warm-up alone is calibrated
            to its share of epsilon, and the noise of the main phase so that their composition meets epsilon. A share
            of steps alone gives all phases the same noise.
        clip_norm: The bound on each example's gradient: one number, one per noise level, or one per phase.
        accountant: What computes epsilon: ``pld`` (tight), ``rdp``, or ``theorem-4.1`` (the TP-TopK paper's).
        relation: Which data sets are neighbours: ``add-or-remove-one``; ``replace-one``, of one size and with other
            contents of one example, which needs about twice the noise; or ``zero-out``, of one size, where one example
            counts for nothing.
        counting: (releases, share of epsilon) of a phase before training that counts the columns of a table, for
            ranges, quantiles and lists of categories. It alone is calibrated to its share of epsilon, and the noise of
            the other phases so that the whole meets epsilon. For examples that are rows, added or removed.
        tuning: (factors on the learning rate, share of epsilon). Training then consists of one whole run per factor,
            each of ``epochs`` epochs and from the same start. A fifth of the examples, by secret coins, take part in no
            run; a last phase of one release, which alone is calibrated to its share of epsilon, compares the losses on
            them. The noise of training is such that the whole meets epsilon. For DP-SGD, and for examples that are no
            groups.
        options: The other options of a method given by name: the fields of its class.

    Returns:
        The calibrated plan: its epsilon lies within 0.3 % below the promise, never above it.

    Raises:
        ArgumentError: If an argument is out of range, the method is unknown, or it lacks or does not have an option.
    """
    grouped = units is not None
    if grouped == (examples is not None):
        raise ArgumentError(
            "Give the number of examples, or the number of units where a unit has several examples."
        )
    examples = examples if units is None else check_count("units", units)
    assert examples is not None
    check_budget(epsilon, delta, examples)
    check_batch(batch_size, examples)
    check_positive("epochs", epochs)
    check_relation(relation, check_accountant(accountant))
    common = {"active_ratio": active_ratio, "warmup": warmup}
    given = {**{name: value for name, value in common.items() if value is not None}, **options}
    if isinstance(method, str):
        method = method_of(method, given)
    elif not isinstance(method, Method):
        raise ArgumentError(f"method must be a method or its name, got {method!r}.")
    elif given:
        raise ArgumentError(
            f"{next(iter(given))} is an option of the method; give it to {type(method).__name__}."
        )
    drafts = method.phases(Schedule.of(examples, batch_size, epochs))
    rate = batch_size / examples
    blocks = [tuple(block) for _, block in itertools.groupby(drafts, key=lambda draft: draft.budget)]
    clips = iter(_clip_norms(clip_norm, [len(block) for block in blocks], method.name))
    phases: list[Phase] = []
    if counting is not None:
        phases.append(_counting(*counting, epsilon, delta, accountant))
        delta_left = delta - NAMES_SHARE * delta
    else:
        delta_left = delta
    choice = []
    if tuning is not None:
        rates, share = tuning
        drafts = _repeated(drafts, len(rates), method.name)
        blocks = [tuple(drafts)]
        first = sum(phase.steps for phase in phases)
        choice = [_choice(tuple(rates), share, first, drafts[0], epsilon, delta_left, accountant, relation)]
    for block in blocks:
        before = tuple(phase.spend for phase in (*phases, *choice))
        noise = _block_noise(block, rate, before, epsilon, delta_left, accountant, relation)
        phases += [_phase(draft, rate, next(clips), noise) for draft in block]
    phases += choice
    plan = Plan(
        method.name, epsilon, delta, examples, batch_size, tuple(phases), accountant, relation, grouped
    )
    plan.check_promise()
    return plan


NAMES_SHARE = 0.01
"""The share of delta that a plan which counts columns sets aside for names of categories."""


def _counting(releases: int, share: float, epsilon: float, delta: float, accountant: str) -> Phase:
    """A phase that counts the columns of a table, which alone costs ``share`` of epsilon."""
    check_count("counting releases", releases)
    check_share("The share of epsilon for counting", share, one_allowed=False)
    aside = NAMES_SHARE * delta
    noise = 0.0
    if not math.isinf(epsilon):
        target = share * epsilon
        start = noise_start(1.0, releases, target, delta - aside)
        noise = least_noise(
            lambda sigma: (Spend(1.0, sigma, releases),), target, delta - aside, accountant, start
        )
    return Phase("columns", releases, 1.0, 1.0, noise, Columns(aside), updates=False)


def _repeated(drafts: Sequence[Draft], runs: int, method: str) -> tuple[Draft, ...]:
    """The one phase of a method, as often as there are runs to choose among."""
    if runs < 2:
        raise ArgumentError("Tuning needs at least two learning rates to choose among.")
    if len(drafts) != 1 or drafts[0].support != All():
        raise ArgumentError(f"Tuning is for dp-sgd; {method} has its own phases or supports.")
    return (replace(drafts[0], steps=runs * drafts[0].steps),)


APART = 0.2
"""The share of examples that runs are compared on, and none is trained on."""
CHOICE_CLIP = 1.0
"""The bound on what one example adds to the losses that are compared."""


def _choice(
    rates: tuple[float, ...],
    share: float,
    first: int,
    trained: Draft,
    epsilon: float,
    delta: float,
    accountant: str,
    relation: str,
) -> Phase:
    """The release that compares runs of training, which alone costs ``share`` of epsilon."""
    check_share("The share of epsilon for tuning", share, one_allowed=False)
    noise = 0.0
    if not math.isinf(epsilon):
        target = share * epsilon
        start = noise_start(1.0, 1, target, delta)
        noise = least_noise(lambda sigma: (Spend(1.0, sigma, 1),), target, delta, accountant, start, relation)
    each = trained.steps // len(rates)
    ends = tuple(first + each * place for place in range(1, len(rates) + 1))
    return Phase("choice", 1, 1.0, CHOICE_CLIP, noise, Stops(ends, rates, APART), updates=False)


def _block_noise(
    block: tuple[Draft, ...],
    rate: float,
    before: tuple[Spend, ...],
    epsilon: float,
    delta: float,
    accountant: str,
    relation: str,
) -> float:
    """The least noise with which the phases so far and this block keep to the block's share of epsilon."""
    if math.isinf(epsilon):
        return 0.0
    steps = sum(draft.steps for draft in block)
    target = block[0].budget * epsilon

    def spends(noise: float) -> tuple[Spend, ...]:
        return (*before, Spend(rate, noise, steps))

    start = noise_start(rate, steps, target, delta)
    return least_noise(spends, target, delta, accountant, start, relation)


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
        votes=draft.votes,
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


SLACK = 3e-3
"""A calibrated epsilon lies in [(1 - SLACK) * target, target], as computed by the plan's accountant."""

# Ranges of epsilon / target that end each stage. Only the last one is a promise; the others may overshoot.
_PROMISED = (1 - SLACK, 1.0)
_STEERED = (1 - SLACK, 1 + SLACK)
_GUESSED = (0.95, 1.05)
_LONGEST_STEP = 1.5
_LARGEST_NOISE = 1e7
_SMALLEST_NOISE = 1e-2

SpendsAt = Callable[[float], Sequence[Spend]]


def _search(
    epsilon_at: Callable[[float], float],
    target: float,
    start: float,
    accepted: tuple[float, float],
    slope: float,
) -> tuple[float, float]:
    """Find x with epsilon_at(x) / target in ``accepted``; return it and the last log-log slope.

    Secant steps on log x against log epsilon, kept inside the bracket seen so far.
    """
    least, most = accepted[0] * target, accepted[1] * target
    aim = math.log((least + most) / 2)
    low, high = -math.inf, math.inf
    previous: tuple[float, float] | None = None
    x = math.log(start)
    above = 0
    for _ in range(60):
        epsilon = epsilon_at(math.exp(x))
        if least <= epsilon <= most:
            return math.exp(x), slope
        low, high = (max(low, x), high) if epsilon > most else (low, min(high, x))
        if 0 < epsilon < math.inf:
            y = math.log(epsilon)
            if previous is not None and abs(x - previous[0]) > 1e-12:
                measured = (y - previous[1]) / (x - previous[0])
                slope = measured if measured < -0.05 else slope
            previous = (x, y)
            step = (aim - y) / slope
        else:
            step = _LONGEST_STEP if epsilon > most else -_LONGEST_STEP
        # After a loss most of the target is spent already and epsilon hardly falls: stride out until it does.
        above = above + 1 if epsilon > most and math.isinf(high) else 0
        if above > 3:
            step = max(step, 0.1 * 2 ** (above - 3))
        proposal = x + max(-_LONGEST_STEP, min(_LONGEST_STEP, step))
        x = proposal if low < proposal < high else (low + high) / 2
        if not math.log(_SMALLEST_NOISE) < x < math.log(_LARGEST_NOISE):
            break
    raise ArgumentError(
        f"No noise multiplier between {_SMALLEST_NOISE:g} and {_LARGEST_NOISE:g} reaches "
        f"epsilon = {target:g}; change epsilon, the number of epochs or the batch size."
    )


def least_noise(
    spends_at: SpendsAt, target: float, delta: float, accountant: str, start: float, relation: str = RELATION
) -> float:
    """The least x, up to SLACK, with epsilon of ``spends_at(x)`` at most ``target``.

    ``spends_at`` maps a positive number (a noise multiplier, or a factor on several) to the spends of the
    whole composition; its epsilon must fall as x grows. The returned x has been checked with ``accountant``
    itself: its epsilon is at most ``target``, never above it by a search tolerance.
    """
    if accountant != "pld":
        return _search(
            lambda x: epsilon_of(spends_at(x), delta, accountant), target, start, _PROMISED, slope=-1.0
        )[0]
    slope = -1.0
    # Renyi is quick and close. Where it exceeds the target whatever the noise, it has no root to start from.
    if epsilon_of(spends_at(_LARGEST_NOISE), delta, "rdp") < 0.9 * target:
        start, slope = _search(
            lambda x: epsilon_of(spends_at(x), delta, "rdp"), target, start, _GUESSED, slope
        )
    if relation == REPLACE_ONE:  # about twice the noise of what was guessed
        start = 2 * start
    start, slope = _search(
        lambda x: pld_epsilon(merge(spends_at(x)), delta, COARSE, relation), target, start, _STEERED, slope
    )
    return _search(
        lambda x: epsilon_of(spends_at(x), delta, relation=relation), target, start, _PROMISED, slope
    )[0]


def noise_start(sampling_rate: float, steps: int, epsilon: float, delta: float) -> float:
    """A starting point for the search: the noise of a plain Gaussian with the same total signal."""
    return 0.5 + sampling_rate * math.sqrt(steps) * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
