"""Check a run: recount its epsilon with an independent accountant, and compare everything that its files say."""

from __future__ import annotations

import dataclasses
import math
import os.path
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import FileError, TacitError, is_number
from tacit.plan import Plan, epsilon_of, plan_digest
from tacit.plan.accountants import LEAST_DELTA, REPLACE_ONE
from tacit.plan.relations import GROUPS, LEAST, gaussian_mu
from tacit.plan.remaining import follows
from tacit.release.ledger_file import LedgerRecord
from tacit.release.witness import Witness
from tacit.rounding import rounded_up
from tacit.runs.certificate import (
    REPLANNED,
    Certificate,
    PhaseRecord,
    certificate_page,
    certify,
    reasons_against_release,
    spends_of,
)
from tacit.runs.certificate_file import coordinates_in, reasons_in
from tacit.runs.evidence import HEAD_FILE, Evidence, gather
from tacit.runs.layout import (
    ADAPTER_FILE,
    CERTIFICATE_FILE,
    CHECKPOINT_FILE,
    EXPERIMENT_FILE,
    MODEL_FILE,
    PAGE_FILE,
    RESULT_FILE,
    RUN_FILE,
    SIGNATURE_FILE,
    STATISTICS_FILE,
)
from tacit.runs.recounting import TOLERANCE, recount, recount_delta
from tacit.runs.signing import load_public_key, signature_problems, write_signature

_RETOLD = (
    ("method", "the method", "the plan"),
    ("epsilon", "epsilon", "the plan"),
    ("delta", "delta", "the plan"),
    ("relation", "the neighbouring relation", "the plan"),
    ("accountant", "the accountant", "the plan"),
    ("examples", "the number of examples", "the plan"),
    ("batch_size", "the batch size", "the plan"),
    ("planned_releases", "the number of planned releases", "the plan"),
    ("ledger_torn_lines", "the number of torn lines", "the ledger"),
    ("sampler", "the sampler", "Tacit"),
    ("mechanism", "the mechanism", "Tacit"),
    ("unit", "the unit of privacy", RUN_FILE),
)
"""Fields of a certificate that are retold from elsewhere: the field, what it is, where it comes from."""

MOST_EPSILON = 1e5
"""More than any curve or group on a certificate reaches: what costs so much is not stated there."""

_SAME = 1e-3
"""Relative difference of epsilon between two versions of the same accountant."""

_LOOSE = 1.01
"""How far a claim may lie above the recount before the planning accountant, which rounds up, is asked as well."""


@dataclass(frozen=True)
class Verdict:
    """Whether all files of a run agree, and if not, where.

    ``epsilon`` is recounted from the ledger, if it could be read; ``claimed`` is what the certificate says was spent.
    ``for_release`` needs agreement and a certificate that is for release. ``unchecked`` says what this check did not
    show.
    """

    agrees: bool
    for_release: bool
    epsilon: float | None
    claimed: float | None
    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.agrees:
            return "The run does NOT verify:\n" + "\n".join(f"  - {problem}" for problem in self.problems)
        assert self.epsilon is not None
        assert self.claimed is not None
        release = "" if self.for_release else " It is NOT FOR RELEASE, as its certificate says."
        return (
            f"The run verifies: the ledger costs epsilon = {rounded_up(self.epsilon, 6)} by an independent accountant, "
            f"the certificate claims {rounded_up(self.claimed, 6)}.{release}"
        )


def verify(
    run_dir: str | Path, *, trust: str | Path | None = None, witness: str | Path | None = None
) -> Verdict:
    """Recompute epsilon from the ledger and say whether everything in the run directory agrees.

    ``trust`` is a file with a public key: the certificate must be signed with it. ``witness`` is the run's witness,
    where it does not lie at the place that the run was started with. Nothing is changed and no lock is needed. Files
    that are missing or damaged are problems, not exceptions.
    """
    trusted = None if trust is None else load_public_key(trust)
    found = gather(Path(run_dir))
    ledger, certificate = found.ledger, found.certificate
    epsilon, recounted = _recounted(found)
    problems = [*found.problems, *recounted]
    if ledger is None:
        problems.append(
            "without its ledger nothing of this run can be recounted: a certificate by itself is a claim, and a "
            "signature says who makes it"
        )
    elif found.checkpoint is not None:
        problems += _checkpoint(found.checkpoint.numbers, ledger, found.plan)
    elif found.run is not None and ledger.charges and not _damaged(found, CHECKPOINT_FILE):
        problems.append(f"{CHECKPOINT_FILE} is missing")
    problems += _model(found)
    problems += _adapter(found)
    problems += _statistics(found)
    if certificate is not None:
        problems += _files(found, certificate)
    problems += _others(found)
    problems += signature_problems(found.directory, trusted)
    asked = witness is not None
    unchecked = list(_unchecked(found, trusted=trusted is not None))
    place = witness if asked else found.run.witness if found.run is not None else None
    if place is not None and ledger is not None:
        # The run's own file names the place, so it may be no name at all: Path.is_file() raises on some of those.
        if asked or os.path.isfile(place):
            problems += _witnessed(Witness(place), ledger)
        else:
            unchecked.append(
                f"the run has a witness, {place}, which is not here: nothing shows that the directory was not put back "
                "from a backup"
            )
    elif ledger is not None:
        unchecked.append(
            "the run has no witness: nothing shows that the directory was not put back from a backup"
        )
    return Verdict(
        agrees=not problems,
        for_release=not problems and certificate is not None and certificate.for_release,
        epsilon=epsilon,
        claimed=None if certificate is None else certificate.epsilon_spent,
        problems=tuple(dict.fromkeys(problems)),
        unchecked=tuple(unchecked),
    )


def recount_paid(directory: Path) -> tuple[float | None, list[str]]:
    """ε by an independent accountant, and what plan, ledger and description say against the certificate beside them.

    For a copy of these files without the rest of the run directory: without a checkpoint, nobody knows why supports
    were chosen, nor, in runs that began before there was a model, how many coordinates it has.
    """
    return _recounted(gather(directory), whole=False)


def _recounted(found: Evidence, *, whole: bool = True) -> tuple[float | None, list[str]]:
    ledger, plan, certificate = found.ledger, found.plan, found.certificate
    problems: list[str] = []
    epsilon = None
    delta = certificate.delta if certificate is not None else plan.delta if plan is not None else None
    if plan is not None and delta is not None:
        # The certificate's delta must be the plan's; the smaller one here can only raise the recounted epsilon.
        delta = min(delta, plan.gaussian_delta)
    if ledger is not None and delta is not None:
        counts = Counter((c.sampling_rate, c.noise_multiplier) for c in ledger.charges)
        relation = (
            plan.relation if plan is not None else certificate.relation if certificate is not None else ""
        )
        epsilon = recount(counts, delta, replaced=relation == REPLACE_ONE)
        if certificate is not None:
            problems += _beyond(certificate, counts)
    if ledger is not None:
        problems += _ledger(found, ledger)
        if plan is not None and ledger.plan != plan_digest(plan):
            problems.append("the ledger belongs to another plan than the one in the directory")
        if certificate is not None and epsilon is not None and delta is not None:
            problems += _figures(certificate, ledger, epsilon, delta)
    if certificate is not None and plan is not None:
        problems += _claims(found, certificate, plan, whole=whole)
    return epsilon, problems


def sign(run_dir: str | Path, key_file: str | Path) -> None:
    """Sign the certificate of a run that verifies, with the private key in ``key_file``; see ``make_key``.

    The signature binds the certificate, the ledger, the plan, the checkpoint and the model as they are now.
    """
    problems = verify(run_dir).problems
    if problems:
        raise FileError(f"{run_dir} does not verify, so it is not signed: {problems[0]}.")
    write_signature(Path(run_dir), Path(key_file))


def _ledger(found: Evidence, ledger: LedgerRecord) -> Iterator[str]:
    """What the note of the head and the description say against the ledger."""
    if found.head is not None and found.head not in ledger.counts:
        yield f"the ledger does not have the line that {HEAD_FILE} notes as its last: it was cut or rewritten"
    if found.head is None and ledger.about:
        yield f"{HEAD_FILE} is missing"
    if ledger.about and found.digests.get(RUN_FILE) != ledger.about:
        state = (
            "is missing"
            if RUN_FILE not in found.digests
            else "is not the one that the ledger was started with"
        )
        yield f"{RUN_FILE} {state}"
    if found.run is not None:
        if found.run.run != ledger.run:
            yield f"{RUN_FILE} is of the run {found.run.run!r}, the ledger of {ledger.run!r}"
        secure = sum(charge.secure_noise for charge in ledger.charges)
        if found.run.seed is not None and secure:
            yield (
                f"{RUN_FILE} says that the noise came from the seed {found.run.seed}, the ledger calls that of "
                f"{secure} releases secure"
            )
        if found.run.seed is None and secure < len(ledger.charges):
            yield f"{RUN_FILE} names no seed, the ledger says that {len(ledger.charges) - secure} releases used one"


def _checkpoint(numbers: Any, ledger: LedgerRecord, plan: Plan | None) -> Iterator[str]:
    stamp, step = numbers.get("ledger"), numbers.get("step")
    if not isinstance(stamp, str) or type(step) is not int or step < 0:
        yield f"{CHECKPOINT_FILE} does not say which step and which ledger it belongs to"
    elif stamp not in ledger.counts:
        yield f"the ledger is not the one that {CHECKPOINT_FILE} was written with: it was cut or rewritten"
    else:
        paid = ledger.counts[stamp]
        reached = ledger.charges[paid - 1].step + 1 if paid else 0
        if step > reached:
            yield f"{CHECKPOINT_FILE} has {step} steps, the ledger had paid for {reached} when it was written"
        if plan is not None and step > plan.steps:
            yield f"{CHECKPOINT_FILE} has {step} steps, the plan {plan.steps}"


def _model(found: Evidence) -> Iterator[str]:
    """What the checkpoint and the ledger say against the model file."""
    if found.model is None:
        return
    steps = found.model.numbers.get("steps")
    if type(steps) is not int or steps < 0:
        yield f"{MODEL_FILE} does not say after how many steps it was written"
        return
    if found.ledger is not None and steps > len(found.ledger.charges):
        yield f"{MODEL_FILE} has {steps} steps, the ledger only {len(found.ledger.charges)} charges"
    if found.checkpoint is None:
        return
    numbers, tensors = found.checkpoint.numbers, found.checkpoint.tensors
    if numbers.get("step") != steps:
        yield f"{MODEL_FILE} has {steps} steps, {CHECKPOINT_FILE} {numbers.get('step')}"
    last = {
        name.removeprefix("model:"): digest for name, digest in tensors.items() if name.startswith("model:")
    }
    parts = numbers.get("parts")
    averaged = isinstance(parts, dict) and "average" in parts
    if set(last) != set(found.model.tensors):
        yield f"{MODEL_FILE} and {CHECKPOINT_FILE} hold other tensors"
    elif not averaged and last != found.model.tensors:
        yield f"{MODEL_FILE} does not hold the weights of {CHECKPOINT_FILE}"


def _adapter(found: Evidence) -> Iterator[str]:
    """What the model file says against the adapter beside it, which people load in its place."""
    if found.adapter is None:
        return
    # peft calls an adapter "default" in a model, and leaves the name out in its file.
    own = {} if found.model is None else found.model.tensors
    expected = {name.replace(".default.", "."): digest for name, digest in own.items() if ".default." in name}
    if found.adapter != expected:
        yield f"{ADAPTER_FILE} does not hold the weights of {MODEL_FILE}"


def _statistics(found: Evidence) -> Iterator[str]:
    """What the plan and the ledger say against the released counts of a table's columns."""
    counts = 0 if found.plan is None else found.plan.counts
    rounds = None if found.statistics is None else found.statistics.get("rounds")
    if found.statistics is None:
        if counts and not _damaged(found, STATISTICS_FILE):
            yield f"{STATISTICS_FILE} is missing, and the plan begins with counts of a table's columns"
        return
    if found.plan is not None and not counts:
        yield f"{STATISTICS_FILE} holds counts of a table's columns, which the plan does not have"
    elif not isinstance(rounds, list) or not rounds:
        yield f"{STATISTICS_FILE} holds no rounds of counts"
    elif found.ledger is not None and found.plan is not None:
        paid = {charge.index for charge in found.ledger.charges[:counts]}
        places = [entry.get("index") if isinstance(entry, dict) else None for entry in rounds]
        if len(set(places)) < len(places) or not paid.issuperset(places):
            yield f"{STATISTICS_FILE} holds rounds of counts that the ledger was not charged for"


def _files(found: Evidence, certificate: Certificate) -> Iterator[str]:
    """What the files say against the certificate that names them, and the page against the certificate."""
    for name, digest in certificate.files:
        if name not in found.digests:
            if not _damaged(found, name):
                yield f"{name} is missing, and the certificate was written with it"
        elif found.digests[name] != digest:
            yield f"{name} is not the one that was certified: it has another digest"
    if certificate.files or (found.ledger is not None and found.ledger.about):
        present = {
            MODEL_FILE: found.model,
            CHECKPOINT_FILE: found.checkpoint,
            RUN_FILE: found.run,
            STATISTICS_FILE: found.statistics,
        }
        named = dict(certificate.files)
        for name, content in present.items():
            if content is not None and name not in named:
                yield f"the certificate does not name {name}: it came later, or the certificate was edited"
    if found.page is None:
        if not _damaged(found, PAGE_FILE):
            yield f"{PAGE_FILE} is missing"
    elif found.page != certificate_page(certificate).encode():
        yield f"{PAGE_FILE} does not say what {CERTIFICATE_FILE} says: one of the two was edited"


def _damaged(found: Evidence, name: str) -> bool:
    """Whether a file is there and was named as a problem already."""
    return any(f"{name} " in problem for problem in found.problems)


def _figures(certificate: Certificate, ledger: LedgerRecord, epsilon: float, delta: float) -> Iterator[str]:
    if certificate.run != ledger.run:
        yield f"the certificate is of the run {certificate.run!r}, the ledger of {ledger.run!r}"
    if certificate.charged_releases != len(ledger.charges):
        yield f"the certificate counts {certificate.charged_releases} releases, the ledger {len(ledger.charges)}"
    if certificate.ledger_head != ledger.head:
        yield "the ledger is not the one that was certified: its head has another digest"
    for name, claimed in (("spent", certificate.epsilon_spent), ("promised", certificate.epsilon)):
        if math.isinf(epsilon) and not math.isinf(claimed):
            yield (
                "the independent accountant cannot recount these releases (so rarely sampled for so many steps, or "
                f"with so little noise, that it rounds up to infinity), so nothing confirms the {claimed:.6g} that the "
                f"certificate says were {name}"
            )
        elif epsilon > claimed * (1 + TOLERANCE):
            yield (
                f"the ledger costs epsilon = {epsilon:.6g} by an independent accountant, above the "
                f"{claimed:.6g} that the certificate says were {name}"
            )
    # Other accountants are looser by design; the default one rounds up, which shows with rare samples and many steps.
    claimed = certificate.epsilon_spent
    if (
        certificate.accountant == "pld"
        and claimed > epsilon * _LOOSE
        and not _rounds_up_to(claimed, certificate, ledger, delta)
    ):
        yield (
            f"the certificate claims epsilon = {certificate.epsilon_spent:.6g}, but the ledger costs only "
            f"{epsilon:.6g}: they are not of the same run"
        )


def _rounds_up_to(claimed: float, certificate: Certificate, ledger: LedgerRecord, delta: float) -> bool:
    """Whether the planning accountant comes to ``claimed`` for the ledger."""
    try:
        return _close(
            claimed,
            epsilon_of(spends_of(ledger.charges), delta, certificate.accountant, certificate.relation),
        )
    except TacitError:
        return False


def _beyond(certificate: Certificate, counts: Mapping[tuple[float, float], int]) -> Iterator[str]:
    """What an independent accountant says against ε of groups of units and δ at other ε."""
    replaced = certificate.relation == REPLACE_ONE
    epsilons = [epsilon for epsilon, _ in certificate.curve]
    likely = all(size in GROUPS and 0 < claimed < MOST_EPSILON for size, claimed in certificate.groups)
    if not likely or not all(0 <= epsilon < MOST_EPSILON and 0 <= d <= 1 for epsilon, d in certificate.curve):
        yield "the certificate has figures for several units or for other deltas that no run has"
        return
    for size, claimed in certificate.groups:
        if not replaced or size == 1:
            found = recount(counts, certificate.delta, replaced=replaced, size=size)
        else:  # group privacy: size · ε follows from δ at ε, with a factor
            one = claimed / size
            paid = recount_delta(counts, [one], LEAST_DELTA, replaced=True)[0]
            grown = math.log(paid) + _log_expm1(claimed) - _log_expm1(one)
            found = claimed if grown <= math.log(certificate.delta * (1 + 20 * TOLERANCE)) else math.inf
        if not found <= claimed * (1 + 2 * TOLERANCE) + 1e-9:
            yield (
                f"for {size} unit{'s' if size > 1 else ''} the ledger costs epsilon = {found:.6g} by an independent "
                f"accountant, above the {claimed:.6g} on the certificate"
            )
    if epsilons and (
        epsilons[0] != 0 or epsilons != sorted(epsilons) or certificate.curve[-1][1] > 2 * LEAST
    ):
        yield f"the curve on the certificate does not run from epsilon = 0 to delta = {LEAST:g}"
    deltas = recount_delta(counts, epsilons, LEAST, replaced=replaced)
    for (epsilon, claimed), found in zip(certificate.curve, deltas, strict=True):
        if not found <= claimed * (1 + 20 * TOLERANCE) + LEAST:
            yield (
                f"at epsilon = {epsilon:.6g} an independent accountant finds delta = {found:.3g}, above the "
                f"{claimed:.3g} of the certificate's curve"
            )
            return
    try:
        mu = gaussian_mu(certificate.curve)
    except ValueError:  # no Gaussian DP is so weak
        mu = math.inf
    if (mu is None) != (certificate.gaussian_mu is None) or (
        mu is not None and not math.isclose(mu, certificate.gaussian_mu or 0.0, rel_tol=1e-6, abs_tol=1e-9)
    ):
        yield "the mu of Gaussian DP on the certificate is not the one that its curve gives"


def _log_expm1(value: float) -> float:
    """log(e^value - 1), for large values too."""
    return value + math.log(-math.expm1(-value))


def _claims(found: Evidence, certificate: Certificate, plan: Plan, *, whole: bool) -> Iterator[str]:
    """What plan, ledger and description say against the certificate: it is made once more and compared throughout."""
    if certificate.plan_digest != plan_digest(plan):
        yield "the certificate names another plan than the one in the directory"
        return
    if found.ledger is None:
        return
    begun = found.run
    unit = certificate.unit if begun is None or begun.unit is None else begun.unit
    listed = () if begun is None or begun.not_covered is None else begun.not_covered
    noted = found.checkpoint.numbers if found.checkpoint is not None else {}
    try:
        again = certify(
            plan,
            found.ledger,
            unit=unit,
            not_covered=listed,
            coordinates=None if begun is None else begun.coordinates or coordinates_in(noted),
            reasons=reasons_in(noted),
            beyond=False,
        )
    except TacitError as error:
        yield str(error).rstrip(".")
        return
    for name, words, source in _RETOLD:
        said, true = getattr(certificate, name), getattr(again, name)
        if said != true:
            yield f"the certificate gives {words} as {said!r}, {source} as {true!r}"
    if begun is not None and begun.coordinates is not None and certificate.version < 3:
        yield f"the certificate has the form of version {certificate.version}, and the run is of a later one"
    known = whole or again.coordinates is not None
    if certificate.version >= 3 and known and certificate.coordinates != again.coordinates:
        yield f"the certificate counts {certificate.coordinates} coordinates, {RUN_FILE} {again.coordinates}"
    if certificate.version >= 5 and certificate.tuning != again.tuning:
        yield f"the certificate says about tuning {certificate.tuning!r}, the plan {again.tuning!r}"
    if plan.choosing and certificate.version < 5:
        yield "the certificate says nothing about tuning, and the plan chooses among several runs"
    if plan.counts and (certificate.groups or certificate.curve or certificate.gaussian_mu is not None):
        yield "the certificate speaks of several units or of other deltas, which counts of columns do not allow"
    phases = certificate.phases, _as_written(again.phases, plan, certificate.version)
    if not whole:
        phases = (_without_reasons(phases[0]), _without_reasons(phases[1]))
    if phases[0] != phases[1]:
        yield "the phases on the certificate are not those of the plan and the ledger"
    if not _close(certificate.epsilon_spent, again.epsilon_spent):
        yield (
            f"the certificate claims epsilon = {certificate.epsilon_spent:.6g} by {certificate.accountant} accounting, "
            f"which comes to {again.epsilon_spent:.6g}"
        )
    bound = [item for item in again.not_covered if item != REPLANNED or certificate.files]
    for item in bound:
        if item not in certificate.not_covered:
            yield f"the certificate leaves out that it does not cover {item}"
    against = reasons_against_release(plan, found.ledger, certificate.epsilon_spent)
    if certificate.for_release:
        for reason in dict.fromkeys((*against, *certificate.reasons_against_release)):
            yield f"the certificate is for release, although {reason}"
    if not certificate.for_release and not against:
        yield "the certificate is not for release, and nothing in the plan and the ledger speaks against it"
    if (
        not certificate.for_release
        and certificate.files
        and certificate.reasons_against_release != again.reasons_against_release
    ):
        yield "the certificate gives other reasons against a release than the plan and the ledger"


def _without_reasons(phases: tuple[PhaseRecord, ...]) -> tuple[PhaseRecord, ...]:
    return tuple(dataclasses.replace(phase, reason="") for phase in phases)


def _as_written(phases: tuple[PhaseRecord, ...], plan: Plan, version: int) -> tuple[PhaseRecord, ...]:
    """The phases with what a certificate of this version says about them."""
    if version >= 3:
        return phases
    return tuple(
        dataclasses.replace(phase, support=str(planned.support), active=(), reason="")
        for phase, planned in zip(phases, plan.phases, strict=True)
    )


def _close(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=_SAME)


def _others(found: Evidence) -> Iterator[str]:
    """What the figures and the description of the experiment say against the rest."""
    ledger, plan, certificate = found.ledger, found.plan, found.certificate
    if ledger is not None:
        charged = len(ledger.charges)
        steps = [row.get("step") for row in found.metrics]
        if found.result is not None:
            steps.append(found.result.get("steps"))
        most = max((step for step in steps if type(step) is int), default=0)
        if most > charged:
            yield f"the figures of the run speak of {most} steps, the ledger has {charged} charges"
    if found.result is not None and certificate is not None:
        for name, said in (("epsilon", certificate.epsilon_spent), ("delta", certificate.delta)):
            value = found.result.get(name)
            if is_number(value) and not _close(float(value), said):
                yield f"{RESULT_FILE} gives {name} as {value:.6g}, the certificate as {said:.6g}"
        noted = found.result.get("warnings")
        if isinstance(noted, list) and not set(certificate.warnings).issubset(map(str, noted)):
            yield f"{RESULT_FILE} leaves out warnings about the model that are on the certificate"
    sections = None if found.experiment is None else found.experiment.get("experiment")
    if isinstance(sections, dict) and plan is not None:
        yield from _experiment(sections, plan, found)


def _experiment(sections: dict[str, Any], plan: Plan, found: Evidence) -> Iterator[str]:
    privacy, training = (
        section if isinstance(section := sections.get(name), dict) else {} for name in ("privacy", "training")
    )
    for name, said, planned in (
        ("epsilon", privacy.get("epsilon"), plan.epsilon),
        ("delta", privacy.get("delta"), plan.delta),
        ("batch_size", training.get("batch_size"), plan.batch_size),
    ):
        if is_number(said) and float(said) != planned:
            yield f"{EXPERIMENT_FILE} asks for {name} = {said}, the plan has {planned}"
    if found.run is not None and training.get("seed") != found.run.seed:
        yield f"{EXPERIMENT_FILE} has the seed {training.get('seed')}, {RUN_FILE} {found.run.seed}"


def _witnessed(witness: Witness, ledger: LedgerRecord) -> Iterator[str]:
    try:
        witness.check(ledger)
    except TacitError as error:
        yield str(error).rstrip(".")


def _unchecked(found: Evidence, *, trusted: bool) -> Iterator[str]:
    certificate = found.certificate
    if certificate is None or found.ledger is None:
        return
    signed = (found.directory / SIGNATURE_FILE).is_file()
    if not signed:
        yield "nothing is signed: whoever can write this directory can write another run, consistent in itself"
    elif not trusted:
        yield "the signature is genuine, but no key was given to trust: anybody can sign"
    if not certificate.files:
        yield f"the certificate names no files: it does not bind {MODEL_FILE}, which may be another model"
    if found.run is None or found.run.unit is None:
        yield "the unit of privacy and what is not covered are on the certificate alone: they may have been edited"
    if (
        found.plan is not None
        and not follows(found.plan, found.ledger.charges)
        and REPLANNED not in certificate.not_covered
    ):
        yield f"not covered: {REPLANNED}"
    if found.model is None and not _damaged(found, MODEL_FILE):
        yield f"there is no {MODEL_FILE}: the certificate speaks of releases, not of a model in your hands"
    if found.adapter is not None:
        yield f"the settings beside {ADAPTER_FILE}: how strongly the adapter acts is theirs to say"
    if found.others:
        yield f"no evidence, and not looked at: {', '.join(found.others[:8])}{' ...' if len(found.others) > 8 else ''}"
