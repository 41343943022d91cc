"""Check a run's certificate against its ledger and its plan, with an accountant of one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tacit.certificate.files import CERTIFICATE_FILE, LEDGER_FILE, PLAN_FILE, load_certificate
from tacit.certificate.record import Certificate, reasons_against_release
from tacit.certificate.recounting import TOLERANCE, recount
from tacit.errors import TacitError
from tacit.plan import Plan, load_plan, plan_digest
from tacit.release.ledger_lines import LedgerRecord, read_ledger

Read = TypeVar("Read")


@dataclass(frozen=True)
class Verdict:
    """Whether certificate, ledger and plan agree, and if not, where.

    ``epsilon`` is recounted from the ledger, if it could be read; ``claimed`` is what the certificate says
    was spent. ``for_release`` needs agreement and a certificate that is for release.
    """

    agrees: bool
    for_release: bool
    epsilon: float | None
    claimed: float | None
    problems: tuple[str, ...]

    def __str__(self) -> str:
        if not self.agrees:
            return "The run does NOT verify:\n" + "\n".join(f"  - {problem}" for problem in self.problems)
        release = "" if self.for_release else " It is NOT FOR RELEASE, as its certificate says."
        return (
            f"The run verifies: the ledger costs epsilon = {self.epsilon:.6g} by an independent accountant, "
            f"the certificate claims {self.claimed:.6g}.{release}"
        )


def verify(run_dir: str | Path) -> Verdict:
    """Recompute epsilon from the ledger file alone and say whether certificate, ledger and plan agree.

    Nothing is changed and no lock is needed. Files that are missing or damaged are problems, not exceptions.
    """
    directory = Path(run_dir)
    problems: list[str] = []
    ledger = _attempt(lambda: read_ledger(directory / LEDGER_FILE), problems)
    plan = _attempt(lambda: load_plan(directory / PLAN_FILE), problems)
    certificate = _attempt(lambda: load_certificate(directory / CERTIFICATE_FILE), problems)
    epsilon = None
    delta = certificate.delta if certificate is not None else plan.delta if plan is not None else None
    if ledger is not None and delta is not None:
        counts = Counter((charge.sampling_rate, charge.noise_multiplier) for charge in ledger.charges)
        epsilon = recount(counts, delta)
    if ledger is not None and plan is not None and ledger.plan != plan_digest(plan):
        problems.append("the ledger belongs to another plan than the one in the directory")
    if ledger is not None and certificate is not None and epsilon is not None:
        problems += _figures(certificate, ledger, epsilon)
    if plan is not None and certificate is not None:
        problems += _same_plan(certificate, plan)
    if ledger is not None and plan is not None and certificate is not None:
        against = reasons_against_release(plan, ledger, certificate.epsilon_spent)
        if certificate.for_release and against:
            problems.append(f"the certificate is for release, although {against[0]}")
    return Verdict(
        agrees=not problems,
        for_release=not problems and certificate is not None and certificate.for_release,
        epsilon=epsilon,
        claimed=None if certificate is None else certificate.epsilon_spent,
        problems=tuple(problems),
    )


def _attempt(read: Callable[[], Read], problems: list[str]) -> Read | None:
    try:
        return read()
    except TacitError as error:
        problems.append(str(error).rstrip("."))
        return None


def _figures(certificate: Certificate, ledger: LedgerRecord, epsilon: float) -> list[str]:
    problems = []
    if certificate.run != ledger.run:
        problems.append(f"the certificate is of the run {certificate.run!r}, the ledger of {ledger.run!r}")
    if certificate.charged_releases != len(ledger.charges):
        problems.append(
            f"the certificate counts {certificate.charged_releases} releases, "
            f"the ledger {len(ledger.charges)}"
        )
    if certificate.ledger_head != ledger.head:
        problems.append("the ledger is not the one that was certified: its head has another digest")
    for name, claimed in (("spent", certificate.epsilon_spent), ("promised", certificate.epsilon)):
        if epsilon > claimed * (1 + TOLERANCE):
            problems.append(
                f"the ledger costs epsilon = {epsilon:.6g} by an independent accountant, above the "
                f"{claimed:.6g} that the certificate says were {name}"
            )
    # Other accountants are looser by design; the default one must come out the same.
    if certificate.accountant == "pld" and certificate.epsilon_spent > epsilon * 1.01:
        problems.append(
            f"the certificate claims epsilon = {certificate.epsilon_spent:.6g}, but the ledger costs only "
            f"{epsilon:.6g}: they are not of the same run"
        )
    return problems


def _same_plan(certificate: Certificate, plan: Plan) -> list[str]:
    if certificate.plan_digest != plan_digest(plan):
        return ["the certificate names another plan than the one in the directory"]
    pairs = [
        ("epsilon", certificate.epsilon, plan.epsilon),
        ("delta", certificate.delta, plan.delta),
        ("the method", certificate.method, plan.method),
        ("the accountant", certificate.accountant, plan.accountant),
        ("the neighbouring relation", certificate.relation, plan.relation),
        ("the number of examples", certificate.examples, plan.examples),
        ("the batch size", certificate.batch_size, plan.batch_size),
    ]
    return [
        f"the certificate gives {name} as {said!r}, the plan as {planned!r}"
        for name, said, planned in pairs
        if said != planned
    ]
