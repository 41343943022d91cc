"""The plan of a run: phases with their noise, on public numbers only; frozen, digested, written as canonical JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import ArgumentError, FileError, check_count, check_positive
from tacit.files import decode_json, write_json
from tacit.plan.accountants import LEAST_DELTA, RELATION, Spend, check_accountant, check_relation, epsilon_of
from tacit.plan.phase import Phase
from tacit.plan.sources import All, Columns, Stops, active_count, source_from_record, source_to_record


@dataclass(frozen=True)
class NoiseEnergy:
    """Expected squared noise norm of one averaged step: on all d coordinates and on the k active ones."""

    phase: str
    coordinates: int
    active: int
    dense: float
    sparse: float


@dataclass(frozen=True)
class Plan:
    """A frozen list of phases that together are (``epsilon``, ``delta``)-DP.

    The promise is for data sets that differ as ``relation`` says (by one added or removed example, by one that was
    replaced, or by one that counts for nothing) and does not depend on any seed. ``epsilon`` is the promise;
    ``spent()`` is what ``accountant`` computes for it. ``epsilon = inf`` marks a run without noise, for comparison
    only.

    ``grouped`` says that a unit of privacy is a group of examples, those of one person, say. Then ``examples`` and
    ``batch_size`` count units, and what is said of an example holds for a unit.

    ``sites`` is the number of parties whose sum is released, where a run is one of several that only release their sum:
    each adds a share of the noise, and those of any ``honest`` of them together are the noise of the plan. Where a sum
    may be over fewer of them, ``fewest`` is how many it takes.
    """

    method: str
    epsilon: float
    delta: float
    examples: int
    batch_size: int
    phases: tuple[Phase, ...]
    accountant: str = "pld"
    relation: str = RELATION
    grouped: bool = False
    sites: int = 0
    honest: int = 0
    fewest: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or not self.method:
            raise ArgumentError(f"A plan needs the name of its method, got {self.method!r}.")
        check_budget(self.epsilon, self.delta, self.examples)
        check_batch(self.batch_size, self.examples)
        check_accountant(self.accountant)
        check_relation(self.relation, self.accountant)
        if type(self.grouped) is not bool:
            raise ArgumentError(f"grouped must be true or false, got {self.grouped!r}.")
        if self.sites or self.honest:
            check_honest(self.summed, self.honest)
        if self.fewest and not 2 <= check_count("fewest", self.fewest) < self.sites:
            raise ArgumentError(
                f"A sum over fewer than {self.sites} sites takes 2 or more of them, not {self.fewest}."
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
        object.__setattr__(self, "phases", tuple(self.phases))
        if not self.phases or not all(isinstance(phase, Phase) for phase in self.phases):
            raise ArgumentError("A plan needs at least one phase.")
        names = [phase.name for phase in self.phases]
        if len(set(names)) != len(names):
            raise ArgumentError(f"The phases of a plan need different names, got {names}.")
        if self.counting > 1 or any(_counts(phase) for phase in self.phases[self.counting :]):
            raise ArgumentError(
                "A plan has at most one phase that counts the columns of a table, before all others."
            )
        if self.choosing:
            self._check_choice(self.phases[-1])
        if any(_chooses(phase) for phase in self.phases[:-1]):
            raise ArgumentError("The choice among runs must be the last phase.")
        if not self.training:
            raise ArgumentError("A plan needs at least one phase that trains.")
        for phase in self.phases[: self.counting]:
            if phase.sampling_rate != 1 or phase.clip_norm != 1 or phase.updates or phase.score is not None:
                raise ArgumentError(
                    f"Phase {phase.name!r} counts the columns of a table: over all rows, each of weight 1, without "
                    "updates or scores."
                )
        if self.counting and (self.grouped or self.relation != RELATION):
            raise ArgumentError(
                f"Columns of a table are counted for the relation {RELATION!r} and units of one row only; leave "
                "counting out, and declare ranges and categories in a schema."
            )
        if not self.gaussian_delta > 0:
            raise ArgumentError(
                "The delta set aside for names of categories leaves nothing of the plan's delta."
            )
        for phase in self.training:
            if not math.isclose(phase.sampling_rate, self.batch_size / self.examples, rel_tol=1e-12):
                raise ArgumentError(
                    f"Phase {phase.name!r} samples at rate {phase.sampling_rate:g}, but "
                    f"batch_size / examples is {self.batch_size / self.examples:g}."
                )

    @property
    def summed(self) -> int:
        """How many sites every released sum is over, at least; 0 where a run is not one of several."""
        return self.fewest or self.sites

    @property
    def steps(self) -> int:
        """The number of steps, hence of releases, of the whole run."""
        return sum(phase.steps for phase in self.phases)

    @property
    def counting(self) -> int:
        """The number of phases, at the beginning, that count the columns of a table and do not train."""
        return sum(1 for _ in itertools.takewhile(_counts, self.phases))

    @property
    def choosing(self) -> bool:
        """Whether the last phase chooses among several runs of training."""
        return bool(self.phases) and _chooses(self.phases[-1])

    @property
    def training(self) -> tuple[Phase, ...]:
        """The phases that sample batches of examples."""
        return self.phases[self.counting : len(self.phases) - self.choosing]

    def _check_choice(self, phase: Phase) -> None:
        """Refuse a choice that is no release of its own, or among runs that training does not have."""
        if phase.sampling_rate != 1 or phase.steps != 1 or phase.updates or phase.score is not None:
            raise ArgumentError(
                f"Phase {phase.name!r} chooses among runs: in one release, without sampling, updates or scores."
            )
        trained = self.training
        if len(trained) != 1 or not (trained[0].updates and trained[0].support == All()):
            raise ArgumentError("A choice among runs follows one phase that trains all coordinates.")
        assert isinstance(phase.support, Stops)
        if phase.support.at[0] <= self.counts or phase.support.at[-1] != self.steps - 1:
            raise ArgumentError("Runs to choose among end at steps of training, and the last one at its end.")

    @property
    def counts(self) -> int:
        """The number of steps of these phases."""
        return sum(phase.steps for phase in self.phases[: self.counting])

    @property
    def gaussian_delta(self) -> float:
        """The part of delta at which the releases are accounted for; the rest is for names of categories."""
        aside = (phase.support.delta for phase in self.phases if isinstance(phase.support, Columns))
        return self.delta - sum(aside)

    @property
    def counted(self) -> str:
        """What ``examples`` and ``batch_size`` count: "examples" or "units"."""
        return "units" if self.grouped else "examples"

    @property
    def sampling_rate(self) -> float:
        """q = batch_size / examples: the probability with which each example enters a step."""
        return self.batch_size / self.examples

    def spends(self, steps: int | None = None) -> tuple[Spend, ...]:
        """What the first ``steps`` steps pay, or the whole run."""
        left = self.steps if steps is None else check_count("steps", steps, least=0)
        if left > self.steps:
            raise ArgumentError(f"The plan has {self.steps} steps, fewer than {steps}.")
        spends = []
        for phase in self.phases:
            taken = min(left, phase.steps)
            if taken:
                spends.append(Spend(phase.sampling_rate, phase.noise_multiplier, taken))
            left -= taken
        return tuple(spends)

    def spent(self, steps: int | None = None, accountant: str | None = None) -> float:
        """Epsilon after the first ``steps`` steps (default: all), by the plan's accountant or a named one."""
        return epsilon_of(
            self.spends(steps), self.gaussian_delta, accountant or self.accountant, self.relation
        )

    def check_promise(self) -> None:
        """Raise unless the phases keep the promise, as computed by the plan's own accountant."""
        spent = self.spent()
        if not spent <= self.epsilon:
            raise ArgumentError(
                f"The phases of this plan spend epsilon = {spent:.6g}, above the promised "
                f"{self.epsilon:.6g}; calibrate it again with make_plan."
            )

    def locate(self, step: int) -> tuple[int, int]:
        """The index of the phase that step number ``step`` (from 0) belongs to, and its number within it."""
        left = check_count("step", step, least=0)
        for index, phase in enumerate(self.phases):
            if left < phase.steps:
                return index, left
            left -= phase.steps
        raise ArgumentError(f"The plan has {self.steps} steps; there is no step number {step}.")

    def noise_at(self, release: int) -> float:
        """The noise multiplier of release number ``release`` (from 0), whichever step it serves."""
        return self.phases[self.locate(release)[0]].noise_multiplier

    def noise_energy(self, coordinates: int, active: int | None = None) -> tuple[NoiseEnergy, ...]:
        """Per phase d * nu^2 and k * nu^2 with nu = sigma * C / B, for a model of ``coordinates`` = d.

        k is floor(ratio * d) of the phase's support; give ``active`` where it says no such ratio.
        """
        return tuple(self._energies(check_count("coordinates", coordinates), active))

    def _energies(self, coordinates: int, active: int | None) -> Iterator[NoiseEnergy]:
        for phase in self.phases:
            count = self._active(phase, coordinates, active)
            variance = phase.noise_deviation(self.batch_size) ** 2
            yield NoiseEnergy(phase.name, coordinates, count, coordinates * variance, count * variance)

    @staticmethod
    def _active(phase: Phase, coordinates: int, active: int | None) -> int:
        if phase.support.dense:
            return coordinates
        if _counts(phase) or _chooses(phase):
            return 0
        share = phase.support.share
        if share is None:
            if active is None:
                raise ArgumentError(
                    f"The active ratio of phase {phase.name!r} depends on the model or is chosen during the run; "
                    "say how many coordinates are active to ask for its noise energy."
                )
            return min(check_count("active", active), coordinates)
        return active_count(share, coordinates)

    def expected_snr(
        self, gradient_energy: float, coordinates: int, captured: float = 1.0, active: int | None = None
    ) -> dict[str, float]:
        """Per phase captured * ||G||^2 / (k * nu^2): signal energy over noise energy in one averaged step.

        ``gradient_energy`` is the squared norm of the clipped mean gradient, ``captured`` the share of it on
        the support (for phases with all coordinates it is 1).
        """
        check_positive("gradient_energy", gradient_energy)
        ratios = {}
        for phase, energy in zip(self.phases, self._energies(coordinates, active), strict=True):
            share = 1.0 if phase.support.kind == All.kind else captured
            ratios[phase.name] = share * gradient_energy / energy.sparse if energy.sparse else math.inf
        return ratios

    def __str__(self) -> str:

        return plan_text(self)


def _counts(phase: Phase) -> bool:
    return isinstance(phase.support, Columns)


def _chooses(phase: Phase) -> bool:
    return isinstance(phase.support, Stops)


def check_budget(epsilon: float, delta: float, examples: int) -> None:
    """Raise unless epsilon > 0 and 0 < delta < 1/examples: a larger delta permits publishing an example."""
    check_count("examples", examples)
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or (abs(value) > 1e300 and value != math.inf)
        ):
            raise ArgumentError(f"{name} must be a number, got {value!r}.")
    if math.isnan(epsilon) or epsilon <= 0:
        raise ArgumentError(f"epsilon must be above 0, got {epsilon!r}.")
    if not LEAST_DELTA <= delta < 1:
        raise ArgumentError(f"delta must be at least {LEAST_DELTA:g} and below 1, got {delta!r}.")
    if delta >= 1 / examples:
        raise ArgumentError(
            f"delta = {delta:g} is not below 1/examples = {1 / examples:g}: it would allow publishing a "
            "whole example; choose a smaller delta."
        )


def check_honest(sites: int, honest: int) -> None:
    """Raise unless 1 <= honest <= sites, and there are at least two sites: the noise of fewer is no share."""
    check_count("sites", sites, least=2)
    if check_count("honest", honest) > sites:
        raise ArgumentError(f"Of {sites} sites at most {sites} can be honest, got honest = {honest}.")


def check_batch(batch_size: int, examples: int) -> None:
    """Raise unless 1 <= batch_size <= examples."""
    check_count("batch_size", batch_size)
    if batch_size > examples:
        raise ArgumentError(f"batch_size = {batch_size} is larger than the data set of {examples} examples.")


FORMAT = "tacit-plan"
VERSION = 1

_PLAN_FIELDS = tuple(field.name for field in dataclasses.fields(Plan))
_OPTIONAL = ("grouped", "sites", "honest", "fewest")
"""Fields that are written only where they are not the default, so that plans without them keep their digests."""
_PHASE_FIELDS = tuple(field.name for field in dataclasses.fields(Phase))
_PHASE_OPTIONAL = ("votes",)


def plan_to_record(plan: Plan) -> dict[str, Any]:
    """The JSON form of a plan. An infinite epsilon is written as the string "inf"."""
    record: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    record.update({name: getattr(plan, name) for name in _PLAN_FIELDS})
    for name in _OPTIONAL:
        if not record[name]:
            del record[name]
    record["epsilon"] = "inf" if math.isinf(plan.epsilon) else plan.epsilon
    record["phases"] = [
        {
            name: getattr(phase, name)
            for name in _PHASE_FIELDS
            if name not in _PHASE_OPTIONAL or getattr(phase, name) is not None
        }
        | {"support": source_to_record(phase.support)}
        for phase in plan.phases
    ]
    return record


def canonical(record: Mapping[str, Any]) -> str:
    """The one JSON text of a record: sorted keys, no spaces, no infinities."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plan_digest(plan: Plan) -> str:
    """SHA-256 of the canonical JSON form: equal for equal plans, and different for any other."""
    return hashlib.sha256(canonical(plan_to_record(plan)).encode()).hexdigest()


def _check_fields(
    record: Any, expected: tuple[str, ...], where: str, optional: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise FileError(f"{where} must be a JSON object.")
    missing = [name for name in expected if name not in record and name not in optional]
    unknown = [name for name in record if name not in expected]
    if missing:
        raise FileError(f"{where} lacks the field {missing[0]!r}; it is not a complete plan.")
    if unknown:
        raise FileError(
            f"{where} has the unknown field {unknown[0]!r}; it comes from another version or was edited."
        )
    return record


def plan_from_record(record: Any, where: str = "The plan") -> Plan:
    """Read what ``plan_to_record`` wrote.

    Refused are unknown and missing fields, values no plan can have, and phases that cost more than promised.
    """
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        raise FileError(f"{where} is not a Tacit plan.")
    if record.get("version") != VERSION:
        raise FileError(f"{where} has version {record.get('version')!r}; this Tacit reads version {VERSION}.")
    _check_fields(record, ("format", "version", *_PLAN_FIELDS), where, _OPTIONAL)
    if not isinstance(record["phases"], list):
        raise FileError(f"{where} must hold a list of phases.")
    try:
        phases = []
        for index, item in enumerate(record["phases"]):
            place = f"{where}, phase {index + 1},"
            _check_fields(item, _PHASE_FIELDS, place, _PHASE_OPTIONAL)
            support = source_from_record(item["support"], f"{place} support")
            phases.append(Phase(**{**item, "support": support}))
        values = {name: record[name] for name in _PLAN_FIELDS if name in record}
        values["epsilon"] = math.inf if values["epsilon"] == "inf" else values["epsilon"]
        values["phases"] = tuple(phases)
        plan = Plan(**values)
        plan.check_promise()
    except (ArgumentError, TypeError) as error:
        raise FileError(f"{where} cannot be used: {error}") from error
    return plan


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan as JSON: to a temporary file, synced, then renamed, so that no half plan is left."""
    write_json(path, plan_to_record(plan))


def load_plan(path: str | Path) -> Plan:
    """Read a plan written by ``save_plan``."""
    path = Path(path)
    try:
        record = decode_json(path.read_bytes())
    except OSError as error:
        raise FileError(f"The plan {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FileError(f"The plan {path} is not JSON: {error}.") from error
    return plan_from_record(record, f"The plan {path}")


_HEADER = ("phase", "steps", "sigma", "clip", "support", "updates", "score", "silent")


def plan_text(plan: Plan) -> str:
    """The plan as a few lines and a table, readable without markup. Equal neighbouring rows are folded."""
    lines = [
        f"{plan.method}: epsilon {plan.epsilon:g}, delta {plan.delta:g}, {plan.relation}, {plan.accountant}",
        f"{plan.examples} {plan.counted}, batch {plan.batch_size} (sampling rate {plan.sampling_rate:.6g}), "
        f"{plan.steps} steps",
    ]
    rows = [
        (
            phase.name,
            str(phase.steps),
            f"{phase.noise_multiplier:.5g}",
            f"{phase.clip_norm:g}",
            phase.support.words,
            "yes" if phase.updates else "no",
            f"{phase.votes} votes" if phase.votes else phase.score or "-",
            "reset" if phase.reset else "kept",
        )
        for phase in plan.phases
    ]
    folded: list[tuple[str, ...]] = []
    last = ""
    for row in rows:
        if folded and folded[-1][1:] == row[1:]:
            first = folded[-1][0].split(" .. ")[0]
            last = row[0]
            folded[-1] = (f"{first} .. {last}", *row[1:])
        else:
            folded.append(row)
    widths = [max(len(row[column]) for row in (_HEADER, *folded)) for column in range(len(_HEADER))]
    table = [_HEADER, tuple("-" * width for width in widths), *folded]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Difference:
    """One field in which two plans differ; ``None`` stands for a field that only one of them has."""

    where: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.where}: {self.left!r} -> {self.right!r}"


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{where}[{index}]")
    else:
        yield where, value


def compare(left: Plan, right: Plan) -> tuple[Difference, ...]:
    """The fields in which two plans differ, in the order of the plan; empty if the plans are equal."""
    first = dict(_leaves(plan_to_record(left), ""))
    second = dict(_leaves(plan_to_record(right), ""))
    return tuple(
        Difference(where, first.get(where), second.get(where))
        for where in dict.fromkeys((*first, *second))
        if first.get(where) != second.get(where)
    )
