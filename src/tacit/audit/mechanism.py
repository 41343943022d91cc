"""Audit a plan: each release, each phase and the whole run, with gradient canaries on a stand-in model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from tacit.audit.bounds import CHOOSING, LEAST_TRIALS, Claim, Floats, Trials
from tacit.audit.record import Finding, find
from tacit.audit.standin import EXCESS, WEIGHT, CanaryData, StandIn, linear_loss
from tacit.errors import ArgumentError, check_count, check_share
from tacit.plan import Phase, Plan, Spend, merge
from tacit.release.noise import Noise, SecureNoise, SeededNoise
from tacit.support import Support
from tacit.training.step import PrivateStep
from tacit.training.trainer import Trainer


@dataclass(frozen=True)
class Effort:
    """How much an audit does, and its confidence.

    ``canaries`` per run, ``releases`` per phase, repetitions (``runs``) of the whole run, and releases with a
    ``hostile`` row per scene.
    """

    canaries: int = 4096
    releases: int = 32
    runs: int = 8
    hostile: int = 1000
    confidence: float = 0.999

    def __post_init__(self) -> None:
        check_count("canaries", self.canaries, least=LEAST_TRIALS)
        check_count("releases", self.releases)
        check_count("runs", self.runs)
        check_count("hostile", self.hostile, least=LEAST_TRIALS)
        check_share("confidence", self.confidence, one_allowed=False)


_QUIET = 1e-6
"""Noise that is so small with at most this probability, over a few releases, is taken for too small."""

THOROUGH = Effort()
QUICK = Effort(canaries=2048, releases=16, runs=2, hostile=400)


def say_nothing(part: str) -> None:
    """Take note of a part that is done, and say nothing."""


def audit_release(
    phase: Phase, *, delta: float, batch_size: int, effort: Effort = THOROUGH, seed: int | None = None
) -> Finding:
    """Two hypotheses about one release of a phase: with and without one worst-case gradient.

    In each of many releases every canary is in or out by a coin of its own, alone on its coordinate, so a
    release is as many experiments as there are canaries. They pass through clipping, ledger and noise as a
    batch of training does. The claim is that of one Gaussian release without sampling. The bound is the one for
    sequential trials: noise is independent between coordinates and releases, and no canary touches another's
    coordinate, so a coin is fair given all other coordinates.
    """
    _check_noise(phase)
    standin = StandIn(2 * effort.canaries)
    step = _private_step(standin, phase, batch_size, seed)
    places = step.support[WEIGHT].mask().flatten()[: standin.canaries].nonzero().flatten()[: effort.canaries]
    coins = np.random.default_rng(seed)
    values, present = [], []
    for _ in range(effort.releases):
        there = torch.from_numpy(coins.random(len(places)) < 0.5)
        released = step.step(standin.batch(places[there], EXCESS * phase.clip_norm))
        seen, _ = standin.read(released)
        values.append(_in_clip_norms(seen[places], phase, batch_size))
        present.append(there.numpy())
    scores = _scores(np.array(values), np.array(present), phase.noise_multiplier)
    trials = Trials(scores.flatten(), np.array(present).flatten())
    claim = Claim((Spend(1.0, phase.noise_multiplier, 1),), delta)
    return find("release", phase.name, trials, claim, confidence=effort.confidence, sequential=True)


def audit_phases(plan: Plan, *, effort: Effort = THOROUGH, seed: int | None = None) -> tuple[Finding, ...]:
    """Every phase of a run by itself: the coins are tossed again for each phase, and scored on its steps alone.

    What a phase releases then depends on its coins only through its own steps, and its support was fixed before
    they were tossed: the bound is the one for sequential trials, whatever chose the support. Phases with equal
    noise, sampling, clip norm and number of steps make the same claim and are counted together, in the order in
    which they happened. Canaries on silent coordinates are left out.
    """
    kept: dict[tuple[Spend, float], list[tuple[str, Floats, np.ndarray]]] = {}
    for run in range(effort.runs):
        record = _train(plan, effort.canaries, _different(seed, run), one_coin=False)
        for phase, scores, active, present in record:
            found = (phase.name, scores[active], present[active])
            kept.setdefault((phase.spend, phase.clip_norm), []).append(found)
    findings = []
    for (spend, _), parts in kept.items():
        names = list(dict.fromkeys(name for name, _, _ in parts))
        name = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
        trials = Trials(np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts]))
        claim = Claim((spend,), plan.delta)
        findings.append(find("phase", name, trials, claim, confidence=effort.confidence, sequential=True))
    return tuple(findings)


def audit_run(plan: Plan, *, effort: Effort = THOROUGH, seed: int | None = None) -> Finding:
    """The whole run: one coin per canary for all phases, against the promise of the plan.

    Where some support is made from what was released, be it a choice of coordinates or weights for them, what is
    released about one canary later tells about the coins of others. The bound is then the one-run bound, which
    allows any dependence.
    """
    scores, present = [], []
    for run in range(effort.runs):
        record = _train(plan, effort.canaries, _different(seed, run), one_coin=True)
        scores.append(np.sum([found for _, found, _, _ in record], axis=0))
        present.append(record[0][3])
    trials = Trials(np.concatenate(scores), np.concatenate(present))
    claim = Claim(merge(plan.spends()), plan.delta)
    sequential = not _follows_releases(plan)
    return find("run", plan.method, trials, claim, confidence=effort.confidence, sequential=sequential)


def audit_plan(
    plan: Plan,
    *,
    effort: Effort = THOROUGH,
    seed: int | None = None,
    done: Callable[[str], None] = say_nothing,
) -> tuple[Finding, ...]:
    """Every release, every phase and the whole run of a plan.

    Counts of a table's columns are left out, and so is the choice among several runs.
    """
    plan = replace(plan, phases=plan.training)
    findings = []
    distinct = {(phase.noise_multiplier, phase.clip_norm): phase for phase in reversed(plan.phases)}
    for phase in reversed(distinct.values()):
        findings.append(
            audit_release(phase, delta=plan.delta, batch_size=plan.batch_size, effort=effort, seed=seed)
        )
        done(f"release of {phase.name!r}")
    findings += audit_phases(plan, effort=effort, seed=seed)
    done("phases")
    findings.append(audit_run(plan, effort=effort, seed=_different(seed, 7919)))
    done("run")
    return tuple(findings)


def _scores(values: Floats, present: np.ndarray, noise: float) -> Floats:
    """(releases, canaries): the log ratios, sharper on coordinates whose noise was seen to be far too small.

    It is judged on the releases on which thresholds are chosen, and on them alone.
    """
    first = max(1, round(CHOOSING * len(values)))
    variance = np.square(values[:first] - present[:first]).mean(axis=0)
    quiet = variance < chi2.ppf(_QUIET, first) / first * noise**2
    deviation = np.where(quiet, np.sqrt(np.maximum(variance, (1e-3 * noise) ** 2)), noise)
    return np.asarray((values - 0.5) / deviation**2)


def log_ratio(values: Floats, rate: float, noise: float) -> Floats:
    """ln of how much likelier a value is with the canary than without, in units of the clip norm."""
    exponent = (2 * values - 1) / (2 * noise**2)
    if rate == 1:
        return exponent
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))


def _train(
    plan: Plan, canaries: int, seed: int | None, *, one_coin: bool
) -> list[tuple[Phase, Floats, np.ndarray, np.ndarray]]:
    """Train on canaries: per phase its sum of log ratios, the active canaries, and the coins that were in force."""
    for phase in plan.phases:
        _check_noise(phase)
    canaries = min(canaries, plan.examples)
    standin = StandIn(canaries)
    most = EXCESS * max(phase.clip_norm for phase in plan.phases)
    data = CanaryData(standin, plan.examples, most, rows=2 if plan.grouped else 1)
    trainer = Trainer(
        standin.model,
        data,
        linear_loss,
        standin.plan(plan),
        optimizer=lambda named: torch.optim.SGD(named, lr=1e-2),
        collate=data.collate,
        seed=seed,
        units=data.units,
    )
    coins = np.random.default_rng(seed)
    common = coins.random(canaries) < 0.5
    record: list[tuple[Phase, Floats, np.ndarray, np.ndarray]] = []
    steps = trainer.steps()
    for number in range(plan.steps):
        place, within = plan.locate(number)
        phase = plan.phases[place]
        if within == 0:
            present = common if one_coin else coins.random(canaries) < 0.5
            data.present = torch.from_numpy(present) & standin.alone(phase.statistic)
            record.append((phase, np.zeros(canaries), np.zeros(canaries, bool), present))
        step = next(steps)
        values, active = standin.read(step.released)
        found = log_ratio(
            _in_clip_norms(values, phase, plan.batch_size), phase.sampling_rate, phase.noise_multiplier
        )
        scores, seen = record[-1][1:3]
        scores += np.where(active.numpy(), found, 0.0)
        seen |= active.numpy()
    return record


def _private_step(standin: StandIn, phase: Phase, batch_size: int, seed: int | None) -> PrivateStep:
    noise: Noise = SecureNoise() if seed is None else SeededNoise(seed)
    return PrivateStep(
        standin.model,
        linear_loss,
        support=Support.random(standin.model, ratio=0.5, seed=0),
        clip_norm=phase.clip_norm,
        noise_multiplier=phase.noise_multiplier,
        batch_size=batch_size,
        optimizer=lambda named: torch.optim.SGD(named, lr=1e-2),
        noise=noise,
    )


def _in_clip_norms(values: Tensor, phase: Phase, batch_size: int) -> Floats:
    return np.asarray(values.double().numpy() * batch_size / phase.clip_norm)


def _follows_releases(plan: Plan) -> bool:
    """Whether some support may depend on what was released before: all do that are not known not to."""
    moved = False
    for phase in plan.phases:
        source = phase.support
        if source.follows_releases and not (source.ranks_public_weights and not moved):
            return True
        moved = moved or phase.updates
    return False


def _different(seed: int | None, number: int) -> int | None:
    return None if seed is None else seed + 1_000_003 * (number + 1)


def _check_noise(phase: Phase) -> None:
    if phase.noise_multiplier == 0:
        raise ArgumentError(
            f"Phase {phase.name!r} adds no noise and claims no privacy; there is nothing to audit."
        )
