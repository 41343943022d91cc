"""The certificate: what a run promises, computed from its ledger and plan, as JSON and as a page."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from itertools import chain, repeat

from tacit.errors import ArgumentError
from tacit.name_lists import shortened
from tacit.plan import Plan, Spend, epsilon_of, plan_digest
from tacit.plan.accountants import RELATION, REPLACE_ONE, ZERO_OUT
from tacit.plan.relations import LEAST, curve_of, gaussian_mu, group_epsilons
from tacit.plan.remaining import follows
from tacit.plan.sources import Stops
from tacit.release.ledger_file import Charge, LedgerRecord
from tacit.rounding import rounded_up
from tacit.version import __version__

DEFAULT_UNIT = "one example of the training data"
DEFAULT_GROUP = "one unit: all examples of the training data that have the same id"
DEFAULT_NOT_COVERED = (
    "the choice of hyper-parameters, if other runs on the same data were compared to make it",
    "the preparation of the data: normalisation, vocabulary, class weights or filters taken from it",
    "the choice of the model's architecture and initial weights, if the data influenced it",
    "results on held-out data, unless that data is public or paid for elsewhere",
    "other runs on the same data, and copies of this run's directory that were trained further",
)
REPLANNED = (
    "interruptions that somebody timed by what had been released: new noise was chosen after one, and is accounted "
    "for as if it had been fixed before the run; otherwise the probability of the exception is larger, by 17 % in the "
    "worst case that we measured"
)
"""What version 0.1 did after a crash; ``tests/plan/test_remaining.py`` measures what it can cost."""

ISOLATION = {
    "probed": (
        "mixing of examples that no probe met: that an example's gradient depends on it alone was probed, not proven, "
        "through fetch, collate, augment, model and loss, at the start and at unpredictable later steps; a probe "
        "cannot prove it for data, weights or batch sizes that it did not see, nor that the rounding of an example is "
        "the same in a batch of another size"
    ),
    "construction": (
        "values that the data set, or code through global variables, keeps from one example to the next: examples "
        "were kept apart by construction, each fetched, collated, augmented and differentiated by itself"
    ),
}
"""For each way to keep examples apart, which it was and what it leaves open."""
SAMPLER = "Poisson: every example enters every step independently with the phase's sampling rate"
MECHANISM = "Gaussian noise on the sum of gradients masked to the support and clipped in L2 norm"
GROUP_SAMPLER = "Poisson: every unit enters every step independently with the phase's sampling rate"
GROUP_MECHANISM = (
    "Gaussian noise on the sum over units of the mean gradient of a unit's examples, masked to the support and clipped "
    "in L2 norm as a whole"
)

COUNTING = "; before training, Gaussian noise on counts of the table's columns, to which a row adds a vector of norm 1"
"""What is added to the mechanism where a plan begins with counts."""

CHOOSING = (
    "; after training, Gaussian noise on losses of several runs, to which an example adds a clipped vector"
)
"""What is added to the mechanism where a plan ends with a choice."""

SHARING = (
    "; what is released is the sum over {} sites, each of which adds a share of the noise before a mask hides its "
    "part; the shares of any {} of them together are the noise stated here"
)
"""What is added to the mechanism where the noise is shared among sites."""

TRUSTED = (
    "what {} of the {} sites can find out, with or without the coordinator: a site knows its own noise and masks, so "
    "those who collude must be fewer; nor what somebody finds out who breaks X25519, SHA-256 or AES-256"
)
"""What a certificate does not cover where the noise is shared among sites."""

NO_TUNING = "no tuning: this run compared no settings on the data"
TUNED = (
    "{} whole runs, with learning rates times {}, were trained and then compared on {:g} % of the {}, on which "
    "none was trained; the figures above cover all of them together and the comparison"
)

VERSION = 5
"""Version 1, of Tacit 0.1, has no ``files``; version 2 does not say how many coordinates were active, nor why; version
3 says nothing about groups of units, Gaussian DP and other δ; version 4 has no ``warnings`` and says nothing about
tuning."""

_PACKAGES = ("torch", "numpy", "scipy", "cryptography")


@dataclass(frozen=True)
class PhaseRecord:
    """What one phase promised and what the ledger says it did.

    ``noise_multipliers`` lists (noise multiplier, number of releases) as charged, most noise last. ``active`` lists
    (released numbers, number of releases): the active coordinates, or the rows where a release is one number per row.
    ``reason`` says why the support is what it is, from released values only.
    """

    name: str
    support: str
    sampling_rate: float
    clip_norm: float
    planned_steps: int
    planned_noise_multiplier: float
    releases: int
    noise_multipliers: tuple[tuple[float, int], ...]
    active: tuple[tuple[int, int], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Certificate:
    """A statement about one run, for people and for machines.

    ``epsilon`` is the promise, which holds whenever the run is stopped; ``epsilon_spent`` is what
    ``accountant`` computes for the charges in the ledger. ``for_release`` is false if anything stands in
    ``reasons_against_release``. ``files`` names the other files of the run that the certificate speaks of, the model
    above all, with their SHA-256. ``coordinates`` is the number of trainable coordinates, where the run noted it.
    ``groups`` lists (number of units that act together, ε at the same δ), ``curve`` (ε, δ) for one unit, and
    ``gaussian_mu`` is the μ of Gaussian DP that covers the curve: all three by pld accounting of the charges.
    ``warnings`` say what speaks against relying on the model, where something does; they are no part
    of the promise.
    ``tuning`` says whether settings were compared on the data, and how that is covered.
    ``version`` is that of the file format; a certificate keeps the words of the version that wrote it.
    """

    run: str
    method: str
    epsilon: float
    epsilon_spent: float
    delta: float
    relation: str
    unit: str
    sampler: str
    mechanism: str
    accountant: str
    examples: int
    batch_size: int
    phases: tuple[PhaseRecord, ...]
    planned_releases: int
    charged_releases: int
    for_release: bool
    reasons_against_release: tuple[str, ...]
    not_covered: tuple[str, ...]
    plan_digest: str
    ledger_head: str
    ledger_torn_lines: int
    software: tuple[tuple[str, str], ...]
    created: str
    files: tuple[tuple[str, str], ...] = ()
    coordinates: int | None = None
    groups: tuple[tuple[int, float], ...] = ()
    gaussian_mu: float | None = None
    curve: tuple[tuple[float, float], ...] = ()
    warnings: tuple[str, ...] = ()
    tuning: str = ""
    version: int = VERSION

    @property
    def counted(self) -> str:
        """What ``examples`` and ``batch_size`` count."""
        return "units" if self.sampler == GROUP_SAMPLER else "examples"

    @property
    def statement(self) -> str:
        """The promise in words that need no mathematics."""
        if math.isinf(self.epsilon):
            return "This run adds no noise and promises no privacy."
        if self.epsilon > 500:
            return "The noise of this run is so weak that it promises no privacy worth the name."
        odds = 1 / (1 + math.exp(-self.epsilon))
        if self.version > 2:
            change, undecided = _CHANGES.get(self.relation, _CHANGES[RELATION])
            return (
                f"{change.format(self.unit)} changes the probability of any outcome of this run by at most "
                f"a factor of {rounded_up(math.exp(self.epsilon))}, except with probability {self.delta:g}. Apart "
                f"from that exception, someone who starts out undecided {undecided} can never become more than "
                f"{rounded_up(100 * odds)} % sure, whatever else they know."
            )
        return (
            f"The use of {self.unit} makes no outcome of this run more than {math.exp(self.epsilon):.4g} "
            f"times as likely or as unlikely as it would have been without, except with a probability of at "
            f"most {self.delta:g}; apart from that exception, an observer who at first thinks its use as "
            f"likely as not can never become more than {100 * odds:.4g} % sure of it, whatever else the "
            "observer knows."
        )


_CHANGES = {
    RELATION: ("Including or leaving out {}", "whether it was used"),
    REPLACE_ONE: ("Exchanging the contents of {} for any others", "which of two versions of it was used"),
    ZERO_OUT: ("Using {} or letting it count for nothing", "whether it counted"),
}
"""For each relation, what differs between two neighbours, and what an onlooker may be undecided about."""


def certify(
    plan: Plan,
    ledger: LedgerRecord,
    *,
    unit: str = DEFAULT_UNIT,
    not_covered: Sequence[str] = DEFAULT_NOT_COVERED,
    files: Mapping[str, str] | None = None,
    coordinates: int | None = None,
    reasons: Mapping[str, str] | None = None,
    beyond: bool = True,
    warnings: Sequence[str] = (),
) -> Certificate:
    """The certificate of the run whose ledger is ``ledger``; ``files`` are SHA-256 digests of its other files by name.

    ``coordinates`` is the number of trainable coordinates, ``reasons`` says per phase why its support is what it is.
    ``beyond`` asks for the figures beyond one unit and one δ, which take a moment. ``warnings`` are sentences on the
    use of the model.

    Nothing is taken on trust from the run: epsilon is composed from the charges. A run that used seeded
    noise, less noise than planned, or more than the promise is marked as not for release, with the reason.
    """
    if not unit or not all(not_covered):
        raise ArgumentError("A certificate needs a unit of privacy, and no empty entries in not_covered.")
    spends = spends_of(ledger.charges)
    spent = epsilon_of(spends, plan.gaussian_delta, plan.accountant, plan.relation)
    if not follows(plan, ledger.charges):
        not_covered = (*(item for item in not_covered if item != REPLANNED), REPLANNED)
    if plan.sites:
        trusted = TRUSTED.format(plan.summed - plan.honest + 1, plan.sites)
        not_covered = (*(item for item in not_covered if item != trusted), trusted)
    against = reasons_against_release(plan, ledger, spent)
    beyond = (
        beyond and not plan.counts
    )  # names of categories are accounted for at one delta and for one row only
    curve = curve_of(spends, plan.relation) if beyond else ()
    return Certificate(
        run=ledger.run,
        method=plan.method,
        epsilon=plan.epsilon,
        epsilon_spent=spent,
        delta=plan.delta,
        relation=plan.relation,
        unit=unit,
        sampler=GROUP_SAMPLER if plan.grouped else SAMPLER,
        mechanism=_mechanism(plan),
        accountant=plan.accountant,
        examples=plan.examples,
        batch_size=plan.batch_size,
        phases=_phases(plan, ledger.charges, reasons or {}),
        planned_releases=plan.steps,
        charged_releases=len(ledger.charges),
        for_release=not against,
        reasons_against_release=against,
        not_covered=tuple(not_covered),
        plan_digest=plan_digest(plan),
        ledger_head=ledger.head,
        ledger_torn_lines=ledger.torn,
        software=_software(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files=tuple(sorted((files or {}).items())),
        coordinates=coordinates,
        groups=group_epsilons(spends, plan.delta, plan.relation) if beyond else (),
        gaussian_mu=gaussian_mu(curve),
        curve=curve,
        warnings=tuple(warnings),
        tuning=tuning_of(plan),
    )


def _mechanism(plan: Plan) -> str:
    trained = GROUP_MECHANISM if plan.grouped else MECHANISM
    over = f"{plan.fewest} to {plan.sites}" if plan.fewest else plan.sites
    shared = SHARING.format(over, plan.honest) if plan.sites else ""
    return trained + shared + (COUNTING if plan.counts else "") + (CHOOSING if plan.choosing else "")


def tuning_of(plan: Plan) -> str:
    """Whether the run of a plan compares settings on the data, in words."""
    source = plan.phases[-1].support
    if not isinstance(source, Stops):
        return NO_TUNING
    rates = " and ".join(f"{rate:g}" for rate in source.rates)
    return TUNED.format(len(source.rates), rates, 100 * source.apart, "units" if plan.grouped else "examples")


def spends_of(charges: Sequence[Charge]) -> tuple[Spend, ...]:
    """The charges as spends, one per distinct sampling rate and noise multiplier."""
    counts: dict[tuple[float, float], int] = {}
    for charge in charges:
        key = (charge.sampling_rate, charge.noise_multiplier)
        counts[key] = counts.get(key, 0) + 1
    return tuple(Spend(rate, noise, count) for (rate, noise), count in sorted(counts.items()))


def reasons_against_release(plan: Plan, ledger: LedgerRecord, spent: float) -> tuple[str, ...]:
    """Why the outcome of this run must not be released as private; empty if nothing speaks against it."""
    reasons = []
    if math.isinf(plan.epsilon):
        reasons.append("the run adds no noise")
    elif not spent <= plan.epsilon:
        reasons.append(f"the ledger has spent epsilon = {spent:.6g}, above the promised {plan.epsilon:.6g}")
    if ledger.plan != plan_digest(plan):
        reasons.append("the ledger belongs to another plan")
    seeded = sum(not charge.secure_noise for charge in ledger.charges)
    if seeded:
        reasons.append(
            f"{seeded} of {len(ledger.charges)} releases used seeded noise, which whoever knows the seed can "
            "remove"
        )
    return (*reasons, *_misfits(plan, ledger.charges))


def _misfits(plan: Plan, charges: Sequence[Charge]) -> tuple[str, ...]:
    """Charges that do not fit the plan, one sentence per kind.

    A release needs the noise that the plan has at its place. Version 0.1 gave it at least that of its own phase, which
    is let pass; what it costs is in epsilon, and ``REPLANNED`` says what is not.
    """
    planned = {phase.name: phase for phase in plan.phases}
    at_place = chain.from_iterable(repeat(phase.noise_multiplier, phase.steps) for phase in plan.phases)
    found: dict[str, int] = {}
    expected = 0
    for charge in charges:
        phase = planned.get(charge.phase)
        least = next(at_place, math.inf)
        if phase is None:
            kind = f"belong to a phase {charge.phase!r} that the plan does not have"
        elif charge.sampling_rate != phase.sampling_rate:
            kind = f"of phase {phase.name!r} were sampled at another rate than planned"
        elif charge.clip_norm != phase.clip_norm or charge.batch_size != plan.batch_size:
            kind = f"of phase {phase.name!r} used another clip norm or batch size than planned"
        elif charge.noise_multiplier < min(least, phase.noise_multiplier):
            kind = f"of phase {phase.name!r} used less noise than planned"
        elif charge.step > expected or charge.step >= plan.steps:
            kind = f"of phase {phase.name!r} serve a step that was not next"
        elif plan.phases[plan.locate(charge.step)[0]] is not phase:
            kind = f"of phase {phase.name!r} serve a step of another phase"
        else:
            kind = ""
        expected = charge.step + 1
        if kind:
            found[kind] = found.get(kind, 0) + 1
    return tuple(f"{count} releases {kind}" for kind, count in found.items())


def _phases(plan: Plan, charges: Sequence[Charge], reasons: Mapping[str, str]) -> tuple[PhaseRecord, ...]:
    noises = {phase.name: Counter[float]() for phase in plan.phases}
    active = {phase.name: Counter[int]() for phase in plan.phases}
    for charge in charges:
        if charge.phase in noises:
            noises[charge.phase][charge.noise_multiplier] += 1
            active[charge.phase][charge.active] += 1
    return tuple(
        PhaseRecord(
            name=phase.name,
            support=phase.support.words,
            sampling_rate=phase.sampling_rate,
            clip_norm=phase.clip_norm,
            planned_steps=phase.steps,
            planned_noise_multiplier=phase.noise_multiplier,
            releases=sum(noises[phase.name].values()),
            noise_multipliers=tuple(sorted(noises[phase.name].items())),
            active=tuple(sorted(active[phase.name].items())),
            reason=reasons.get(phase.name, ""),
        )
        for phase in plan.phases
    )


def _software() -> tuple[tuple[str, str], ...]:
    versions = [("python", platform.python_version()), ("tacit-dp", __version__)]
    for package in _PACKAGES:
        try:
            versions.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            versions.append((package, "absent"))
    return tuple(versions)


WARNINGS = "Warnings about the model (what they say of held-out rows is exact, and not covered)"

_WIDTH = 96
_COLUMN = 24


def certificate_page(certificate: Certificate) -> str:
    """Everything the certificate says, for a reader with no tool but an editor."""
    title = f"PRIVACY CERTIFICATE of the run {certificate.run}"
    lines = [title, "=" * len(title), ""]
    if certificate.for_release:
        lines += ["FOR RELEASE, within the limits stated below.", ""]
    else:
        lines += ["NOT FOR RELEASE, because", *_list(certificate.reasons_against_release), ""]
    lines += [*textwrap.wrap(certificate.statement, _WIDTH), ""]
    lines += _table(
        [
            ("epsilon (promised)", f"{certificate.epsilon:g}"),
            ("epsilon (spent)", f"{certificate.epsilon_spent:.6g}, by {certificate.accountant} accounting"),
            ("delta", f"{certificate.delta:g}"),
            ("neighbouring data sets", certificate.relation),
            ("unit of privacy", certificate.unit),
            ("method", certificate.method),
            ("sampler", certificate.sampler),
            ("mechanism", certificate.mechanism),
            *([("tuning", certificate.tuning)] if certificate.version > 4 else []),
            (f"{certificate.counted}, batch size", f"{certificate.examples}, {certificate.batch_size}"),
            ("releases", f"{certificate.charged_releases} charged, {certificate.planned_releases} planned"),
            ("torn ledger lines", str(certificate.ledger_torn_lines)),
        ]
    )
    lines += _beyond(certificate)
    lines += ["", "Phases", "------"]
    for phase in certificate.phases:
        lines += _phase(phase, certificate)
    lines += ["", "Not covered by these figures", "----------------------------"]
    not_covered = certificate.not_covered
    lines += _list(not_covered if certificate.version < 3 else map(shortened, not_covered))
    if certificate.warnings:
        lines += ["", WARNINGS, "-" * len(WARNINGS), *_list(certificate.warnings)]
    lines += ["", "Evidence", "--------"]
    lines += _table(
        [
            ("plan, SHA-256", certificate.plan_digest),
            ("ledger head, SHA-256", certificate.ledger_head),
            *((f"{name}, SHA-256", digest) for name, digest in certificate.files),
            ("written", certificate.created),
            ("software", ", ".join(f"{name} {version}" for name, version in certificate.software)),
        ]
    )
    return "\n".join(lines) + "\n"


def _beyond(certificate: Certificate) -> list[str]:
    """What the charges mean for several units and for other figures than (ε, δ)."""
    if not certificate.groups and certificate.gaussian_mu is None:
        return []
    title = "Several units together, and other figures"
    lines = ["", title, "-" * len(title)]
    told = [
        (
            f"{size} unit{'s' if size > 1 else ''}",
            f"epsilon {rounded_up(epsilon)} at delta {certificate.delta:g}",
        )
        for size, epsilon in certificate.groups
        if epsilon > 0
    ]
    if certificate.gaussian_mu is not None:
        told.append(
            ("Gaussian DP", f"mu = {rounded_up(certificate.gaussian_mu)}, for every delta from {LEAST:g} up")
        )
    if certificate.curve:
        told.append(("delta by epsilon", "the curve is in certificate.json"))
    figures = [certificate.groups, certificate.gaussian_mu, certificate.curve]
    digest = hashlib.sha256(json.dumps(figures).encode()).hexdigest()[:16]
    told.append(("digest", f"{digest}, of these figures in full in certificate.json"))
    return [*lines, *_table(told)]


def _phase(phase: PhaseRecord, certificate: Certificate) -> list[str]:
    used = ", ".join(f"{noise:.6g} ({count} times)" for noise, count in phase.noise_multipliers) or "none"
    planned = f"{phase.name}: {phase.releases} releases of {phase.planned_steps} planned"
    mechanism = (
        f"sampling rate {phase.sampling_rate:.6g}, clip norm {phase.clip_norm:g}, "
        f"noise multiplier {phase.planned_noise_multiplier:.6g} planned"
    )
    if certificate.version < 3:
        return [f"{planned}, support: {phase.support}", f"  {mechanism}", *_indented(f"used: {used}")]
    counts = ", ".join(
        f"{active:,}" if len(phase.active) == 1 else f"{active:,} ({count} times)"
        for active, count in phase.active
    )
    total = f" (the model has {certificate.coordinates:,} coordinates)" if certificate.coordinates else ""
    return [
        planned,
        *_indented(f"support: {phase.support}"),
        *(_indented(f"why: {phase.reason}") if phase.reason else []),
        *_indented(f"numbers per release: {counts or 'none'}{total}"),
        f"  {mechanism}",
        *_indented(f"noise multiplier used: {used}"),
    ]


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _list(items: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for item in items:
        lines += textwrap.wrap(item, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return lines


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    for name, value in rows:
        if len(name) >= _COLUMN:
            lines.append(name)
            name = ""
        indents = {"initial_indent": f"{name:<{_COLUMN}}", "subsequent_indent": " " * _COLUMN}
        lines += textwrap.wrap(value, _WIDTH, **indents)  # type: ignore[arg-type]
    return lines
