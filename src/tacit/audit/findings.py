"""What an audit found: a lower bound on ε beside the claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tacit.audit.guessing import LEAST_TRIALS, RULES, Trials, guess_by_rules
from tacit.audit.one_run import lower_epsilon, lower_scale
from tacit.audit.sequential import explains_sequential
from tacit.audit.tradeoff import Claim
from tacit.errors import ArgumentError

Kind = Literal["release", "phase", "run", "data", "hostile"]
Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Finding:
    """One audited claim.

    ``kind`` says what was audited: one full-batch ``release`` of a phase, all steps of a ``phase``, the
    whole ``run``, or the run on one's own ``data``. With ``confidence`` the mechanism is no more private
    than ``epsilon_lower`` says: than the claimed one with its noise times ``noise_scale``.
    ``epsilon_lower_any`` assumes nothing but (ε, δ)-DP (Steinke et al.). ``sequential`` says whether
    ``epsilon_lower`` rests on every trial having a fair coin and being f-DP given the trials before it, as
    releases and phases are by construction, or on the one-run bound, which allows any dependence.
    """

    kind: Kind
    name: str
    trials: int
    guesses: int
    right: int
    delta: float
    confidence: float
    epsilon_claimed: float
    epsilon_lower: float
    epsilon_lower_any: float
    noise_scale: float
    sequential: bool
    claimed_curve: Curve = field(default=(), repr=False)
    measured_curve: Curve = field(default=(), repr=False)
    lower_curve: Curve = field(default=(), repr=False)

    @property
    def holds(self) -> bool:
        """Whether the claim is consistent with what was measured."""
        return self.noise_scale >= 1.0


def find(
    kind: Kind, name: str, trials: Trials, claim: Claim, *, confidence: float, sequential: bool
) -> Finding:
    """Guess, count and bound: thresholds from one part of the trials, the bound from the others."""
    if len(trials) < LEAST_TRIALS:
        raise ArgumentError(
            f"An audit needs at least {LEAST_TRIALS} trials, {name!r} has {len(trials)}; use more canaries or releases."
        )
    explains = explains_sequential if sequential else None
    each = 1 - (1 - confidence) / len(RULES)
    scale, guesses = math.inf, None
    for made in guess_by_rules(trials):
        found = lower_scale(made, claim, each, explains, below=scale)
        if found < scale or guesses is None:
            scale, guesses = found, made
    assert guesses is not None
    said = math.isfinite(scale)
    return Finding(
        kind=kind,
        name=name,
        trials=len(trials),
        guesses=guesses.made,
        right=guesses.right,
        delta=claim.delta,
        confidence=confidence,
        epsilon_claimed=claim.epsilon(),
        epsilon_lower=claim.epsilon(scale) if said else 0.0,
        epsilon_lower_any=lower_epsilon(guesses, claim.delta, each),
        noise_scale=scale,
        sequential=sequential,
        claimed_curve=tuple(claim.tradeoff().curve()),
        measured_curve=tuple(trials.roc()),
        lower_curve=tuple(claim.tradeoff(scale).curve()) if said else ((0.0, 1.0), (1.0, 0.0)),
    )


def verdict(broken: Sequence[str], count: int) -> str:
    """One sentence on ``count`` findings of which those named are ``broken``."""
    if broken:
        return (
            f"A claim is BROKEN: epsilon is above what is claimed for {', '.join(broken)}; "
            "the noise, the sampling or the accounting is wrong."
        )
    return f"No claim is contradicted: each of {count} lower bounds is at most the claimed epsilon."
