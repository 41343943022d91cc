"""What a run's own files say about it: released and public values only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tacit.errors import FileError
from tacit.jobs.explanation import Explanation, explain
from tacit.plan import Phase, Plan, Spend, TopK, epsilon_of, load_plan
from tacit.plan.accountants import merge
from tacit.release.ledger_file import Charge, read_ledger
from tacit.runs.layout import CHECKPOINT_FILE, LEDGER_FILE, PLAN_FILE
from tacit.runs.run_directory import support_from_state
from tacit.support.scores import FOLDS, pooled
from tacit.tensors import read_tensors
from tacit.theory import WarmupFold, average_estimates, held_out_capture

_POINTS = 60


@dataclass(frozen=True)
class Layer:
    """How many coordinates of one parameter are active."""

    name: str
    active: int
    coordinates: int


@dataclass(frozen=True)
class Energy:
    """Estimated share of the warm-up's gradient energy inside the best k coordinates, for a grid of k.

    Ranked on some of the warm-up's steps and measured on the others, hence not flattered by the noise it was
    ranked by. ``break_even`` is the least k whose uncaptured energy is at most (d − k) ν₂²: from there on
    silence saves more noise in one step than it loses signal (Proposition 5.1). It is ``None`` where no k
    below d does. ``total`` is the estimated energy of all coordinates, ‖G‖² per step.
    """

    counts: tuple[int, ...]
    captured: tuple[float, ...]
    deviations: tuple[float, ...]
    break_even: int | None
    noise_variance: float
    total: float


@dataclass(frozen=True)
class Diagnosis:
    """A run, seen from its directory. ``epsilons`` is ε after each of ``steps`` charged releases.

    ``planned`` is what the plan foresaw after as many. ``explanation`` is what the model of a table says by column.
    """

    name: str
    method: str
    promise: float
    delta: float
    active: int
    coordinates: int
    layers: tuple[Layer, ...]
    steps: tuple[int, ...]
    epsilons: tuple[float, ...]
    planned: tuple[float, ...]
    phase_ends: tuple[int, ...]
    selections: dict[str, str]
    energy: Energy | None
    explanation: Explanation | None

    @property
    def spending(self) -> Spending:
        """What the run spent over time."""
        return Spending(self.steps, self.epsilons, self.planned, self.phase_ends)


def diagnose(run_dir: Path) -> Diagnosis:
    """Read a run directory, finished or not. No data is needed and nothing is spent."""
    if not run_dir.is_dir():
        raise FileError(f"There is no run directory {run_dir}.")
    plan = load_plan(run_dir / PLAN_FILE)
    tensors, numbers = read_tensors(run_dir / CHECKPOINT_FILE)
    try:
        support = support_from_state(_part(tensors, "support"), numbers["parts"]["support"])
        selections = dict(numbers["selections"])
        energy = _energy(plan, tensors, numbers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"The checkpoint in {run_dir} cannot be read: {error}.") from error
    charges = read_ledger(run_dir / LEDGER_FILE).charges
    spending = spending_of(plan, charges)
    origin = _part(tensors, "origin") if any(phase.reset for phase in plan.phases) else None
    return Diagnosis(
        name=run_dir.absolute().name,
        method=plan.method,
        promise=plan.epsilon,
        delta=plan.delta,
        active=support.size,
        coordinates=support.dimension,
        layers=tuple(Layer(name, active, total) for name, (active, total) in support.counts().items()),
        steps=spending.releases,
        epsilons=spending.epsilons,
        planned=spending.planned,
        phase_ends=spending.phase_ends,
        selections=selections,
        energy=energy,
        explanation=explain(run_dir, plan, charges, support, origin),
    )


@dataclass(frozen=True)
class Spending:
    """ε after a grid of charged releases, and after how many releases each phase ended.

    ``planned`` is ε that the plan foresaw after as many; it stops where the plan does. It differs from what
    was spent only where version 0.1 of Tacit chose new noise after a crash.
    """

    releases: tuple[int, ...]
    epsilons: tuple[float, ...]
    planned: tuple[float, ...]
    phase_ends: tuple[int, ...]


def spending_of(plan: Plan, charges: Sequence[Charge]) -> Spending:
    """What ``charges`` spent over time, by the plan's accountant, on about sixty points."""
    ends = [
        at for at, charge in enumerate(charges, 1) if at == len(charges) or charges[at].phase != charge.phase
    ]
    grid = {round(i * len(charges) / _POINTS) for i in range(_POINTS + 1)}
    grid |= set(ends) if len(ends) <= _POINTS else set()
    releases, epsilons, planned = [], [], []
    known: dict[tuple[Spend, ...], float] = {}

    def epsilon(spends: Iterable[Spend]) -> float:
        key = merge(spends)
        if key not in known:
            known[key] = epsilon_of(key, plan.gaussian_delta, plan.accountant, plan.relation)
        return known[key]

    paid: Counter[tuple[float, float]] = Counter()
    for at, charge in enumerate([None, *charges]):
        if charge is not None:
            paid[charge.sampling_rate, charge.noise_multiplier] += 1
        if at in grid:
            releases.append(at)
            epsilons.append(epsilon(Spend(rate, noise, count) for (rate, noise), count in paid.items()))
            if at <= plan.steps:
                planned.append(epsilon(plan.spends(at)))
    return Spending(tuple(releases), tuple(epsilons), tuple(planned), tuple(ends))


def _energy(plan: Plan, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> Energy | None:
    """The energy curve of the warm-up's folds; only runs that choose their active ratio keep them."""
    phase = _choosing(plan)
    state = numbers["parts"].get("scores")
    if phase is None or state is None:
        return None
    source = cast(TopK, phase.support)  # no other source chooses its number of coordinates
    scores = _part(tensors, "scores")
    folds = []
    for place in range(FOLDS):
        part = {key.split("/", 1)[1]: t for key, t in scores.items() if key.startswith(f"fold{place}/")}
        steps = state["fold_steps"][place] if part else 0
        if steps:
            folds.append((part, steps, state["fold_noise"][place] / steps))
    if len(folds) < 2:
        return None
    names = list(folds[0][0])
    flats = [
        WarmupFold(torch.cat([part[name].flatten() for name in names]), steps, noise)
        for part, steps, noise in folds
    ]
    everything = torch.stack([fold.gradient_sum for fold in flats]).sum(0)
    shapes = [folds[0][0][name].shape for name in names]
    estimates = []
    for fold in flats:
        parts = torch.split((everything - fold.gradient_sum).abs_(), [shape.numel() for shape in shapes])
        ranking = [pooled(p.view(s), source.pooling).flatten() for p, s in zip(parts, shapes, strict=True)]
        estimates.append(held_out_capture(torch.cat(ranking), fold))
    estimate = average_estimates(estimates)
    if estimate.total <= 0:
        return None
    variance = phase.noise_deviation(plan.batch_size) ** 2
    worth = estimate.uncaptured <= (estimate.dimension - estimate.counts) * variance
    worth &= estimate.counts < estimate.dimension
    return Energy(
        tuple(int(count) for count in estimate.counts),
        tuple(float(energy) / estimate.total for energy in estimate.captured),
        tuple(float(v) ** 0.5 / estimate.total for v in estimate.captured_variance),
        int(estimate.counts[int(torch.nonzero(worth)[0])]) if bool(worth.any()) else None,
        variance,
        estimate.total,
    )


def _choosing(plan: Plan) -> Phase | None:
    for phase in plan.phases:
        if phase.support.chosen_in_run:
            return phase
    return None


def _part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.split(":", 1)[1]: tensor for key, tensor in tensors.items() if key.startswith(f"{name}:")}
