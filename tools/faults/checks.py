"""What must hold after a fault, counted without trusting the ledger."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tacit.raw.clipping import ROUNDING
from tacit.release.ledger import read_ledger
from tacit.runs import load_certificate, verify
from tacit.runs.recounting import TOLERANCE, recount
from tacit.tensors import read_tensors
from tools.faults.subject import DELTA, EPSILON, Case

UNHARMED = "continued"
RESUMED = "stopped, resumed"
MENDED = "refused, repaired, resumed"
REFUSED = "refused"
ENDINGS = (UNHARMED, RESUMED, MENDED, REFUSED)


@dataclass(frozen=True)
class Outcome:
    """What came of a fault; ``problems`` is empty if everything held.

    ``charges`` and ``drawn`` count the ledger's lines and the draws of noise that really happened; ``certified`` is
    epsilon on the certificate, ``counted`` that of the draws.
    """

    case: Case
    what: str
    ending: str
    problems: tuple[str, ...]
    charges: int = 0
    drawn: int = 0
    certified: float = 0.0
    counted: float = 0.0


def finished(case: Case, run: Path, what: str, ending: str, problems: list[str], stops: int) -> Outcome:
    """The outcome of a run that must have come to its end after being stopped at most so many times."""
    found = list(problems)
    if not (run / "certificate.json").exists():
        return Outcome(case, what, ending, (*found, "the run did not finish"))
    charges = read_ledger(run / "ledger.jsonl").charges
    draws = [line.split() for line in case.witness.read_text().splitlines()]
    places = [int(place) for place, _ in draws]
    if len(set(places)) != len(places):
        found.append("a place of the ledger gave noise twice")
    if not set(places) <= set(range(len(charges))):
        found.append("noise was drawn that the ledger does not hold")
    if not len(places) <= len(charges) <= len(places) + stops * case.together:
        found.append(f"{len(charges)} charges and {len(places)} draws do not fit {stops} stops")
    if len(charges) != case.plan.steps:
        found.append(f"{len(charges)} charges are not the {case.plan.steps} of the plan")
    if read_tensors(run / "checkpoint.safetensors")[1]["step"] > charges[-1].step + 1:
        found.append("the last checkpoint is ahead of the last charge")
    counted = recount(_spends(case, draws), DELTA)
    certificate = load_certificate(run / "certificate.json")
    if counted > certificate.epsilon_spent * (1 + TOLERANCE) or counted > EPSILON:
        found.append(f"under-reported: the noise drawn costs {counted:.5f}")
    if certificate.epsilon_spent > EPSILON:
        found.append(f"epsilon {certificate.epsilon_spent:.5f} is above the promise")
    verdict = verify(run)
    if not (verdict.agrees and verdict.for_release):
        found.append(f"the certificate does not verify: {'; '.join(verdict.problems) or 'not for release'}")
    return Outcome(
        case, what, ending, tuple(found), len(charges), len(places), certificate.epsilon_spent, counted
    )


def _spends(case: Case, draws: list[list[str]]) -> Counter[tuple[float, float]]:
    """Sampling rate and noise multiplier of what was really drawn, from the scale of the noise itself."""
    clip_norms = {phase.clip_norm for phase in case.plan.phases}
    assert len(clip_norms) == 1
    sensitivity = clip_norms.pop() * (1 + max(ROUNDING.values()))
    rate = case.plan.sampling_rate
    return Counter((rate, round(float(scale) / sensitivity, 9)) for _, scale in draws)
