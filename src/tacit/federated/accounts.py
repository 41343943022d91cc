"""What the files of a client say about what it has spent: its certificate, and whether everything agrees.

The ledger has every answer and its ε, the plans beside it what was asked. From both, ε is computed anew; the records
are not needed, and nothing is changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.errors import FileError, TacitError, is_number
from tacit.federated.client import ANSWERED_FILE, CERTIFICATE_FILE, LEDGER_FILE, ROUNDING, plan_file
from tacit.federated.local_ledger import LocalCharge, check_notes, read_lines
from tacit.federated.plan import NOT_COVERED, LocalPlan, mechanism_of
from tacit.federated.protocol import Question, Reply, check_reply, read_question
from tacit.files import read_json, write_json
from tacit.rounding import rounded_up
from tacit.version import __version__

FORMAT = "tacit-client-1"

_FORMAT_OF_LEDGERS = b"tacit-local-ledger"
UNCHECKED = (
    "that the folder was not put back from a backup as a whole: only a witness notices that",
    "what the client did with its records besides answering",
    "the budget, the date and the version that the certificate names",
)


@dataclass(frozen=True)
class ClientVerdict:
    """Whether the files of a client agree: ``epsilon`` is what its answers cost, computed anew."""

    agrees: bool
    epsilon: float | None
    answers: int
    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = UNCHECKED

    def __str__(self) -> str:
        if self.agrees:
            return f"The client verifies: {self.answers} answers, ε = {rounded_up(self.epsilon or 0.0, 6)}, δ = 0."
        return "\n".join(["The client does NOT verify:", *(f"  - {problem}" for problem in self.problems)])


def is_client(folder: Path) -> bool:
    """Whether a folder is that of a client under local differential privacy that has answered."""
    path = folder / LEDGER_FILE
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _FORMAT_OF_LEDGERS in file.read(500)


def certify(folder: Path, budget: float) -> None:
    """Write the certificate of a client whose lifetime budget is ``budget``, if it has answered."""
    if is_client(folder):
        charges, digests = read_lines(folder / LEDGER_FILE)
        account = _account(charges, _questions(folder, charges), digests[-1])
        about = {"budget": budget, "created": datetime.now(UTC).isoformat(timespec="seconds")}
        write_json(folder / CERTIFICATE_FILE, {"format": FORMAT, **account, **about, "software": __version__})


def statement_of(folder: Path) -> str:
    """The promise of a client's certificate, in a sentence."""
    return str(read_json(folder / CERTIFICATE_FILE)["statement"])


def account_of(folder: Path) -> dict[str, Any]:
    """What a check of a client's files finds, and its certificate where they agree, as plain values."""
    verdict = verify_client(folder)
    certificate = read_json(folder / CERTIFICATE_FILE) if verdict.agrees else {}
    return {**certificate, "name": folder.name, "verdict": asdict(verdict)}


def verify_client(folder: Path, witness: Path | None = None) -> ClientVerdict:
    """Compute ε anew from plans and ledger, and compare notes and certificate with it."""
    problems: list[str] = []
    charges: Sequence[LocalCharge] = ()
    total = None
    try:
        charges, digests = read_lines(folder / LEDGER_FILE)
        check_notes(folder / LEDGER_FILE, witness)
        questions = _questions(folder, charges)
        problems += _charges(charges, questions)
        total = math.fsum(_cost(questions[charge.plan]) for charge in charges)
        if charges and not (folder / ANSWERED_FILE).exists():
            problems.append(f"{ANSWERED_FILE} is missing")
        problems += _certificate(folder, _account(charges, questions, digests[-1] if digests else ""), total)
    except TacitError as error:
        problems.append(str(error))
    return ClientVerdict(not problems, total, len(charges), tuple(problems))


def _charges(charges: Sequence[LocalCharge], questions: Mapping[str, Question]) -> list[str]:
    """What is wrong with single charges: their ε, their answers, the order of their rounds."""
    problems = []
    last: dict[str, tuple[str, int]] = {}
    for charge in charges:
        question, name = questions[charge.plan], f"round {charge.round} of {charge.training}"
        plan, number = last.get(charge.training, (charge.plan, 0))
        if question.training != charge.training or plan != charge.plan:
            problems.append(f"{name} is charged for the plan of another training")
            continue
        if not number < charge.round <= question.rounds:
            problems.append(f"{name} is out of order")
        last[charge.training] = (charge.plan, charge.round)
        if charge.epsilon < _cost(question):
            problems.append(f"{name} costs ε = {_cost(question):.9g}; {charge.epsilon:.9g} was charged")
        try:
            asked = replace(question, round=min(charge.round, question.rounds))
            reply = Reply(charge.training, asked.round, charge.coordinate, charge.steps)
            check_reply(reply, asked, asked.plan().reply_mechanism())
        except TacitError as error:
            problems.append(f"{name} has an answer that its plan cannot give: {error}")
    return problems


def _certificate(folder: Path, account: Mapping[str, Any], total: float) -> list[str]:
    path = folder / CERTIFICATE_FILE
    if not path.is_file():
        return [f"{CERTIFICATE_FILE} is missing; a node writes it when it stops"]
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return [f"{CERTIFICATE_FILE} is none of a client"]
    problems = [
        f"{CERTIFICATE_FILE} says another {key}" for key in account if not _same(found.get(key), account[key])
    ]
    others = sorted(found.keys() - account.keys() - {"format", "budget", "created", "software"})
    problems += [f"{CERTIFICATE_FILE} says {key}, which no certificate of a client does" for key in others]
    budget = found.get("budget")
    if not is_number(budget) or not total <= float(budget or 0.0) * (1 + ROUNDING):
        problems.append(f"what was spent, ε = {total:.9g}, is above the budget of the certificate, {budget}")
    return problems


def _same(found: object, expected: object) -> bool:
    """Whether two values are written alike in JSON: there, false and 0 are not."""
    return json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


def _account(charges: Sequence[LocalCharge], questions: Mapping[str, Question], head: str) -> dict[str, Any]:
    """What plans and ledger come to."""
    total = math.fsum(charge.epsilon for charge in charges)
    trainings = []
    for digest, question in questions.items():
        own = [charge for charge in charges if charge.plan == digest]
        plan: LocalPlan = question.plan()
        trainings.append(
            {
                "training": question.training,
                "answers": len(own),
                "answers planned": question.rounds,
                "epsilon per answer": plan.answer_epsilon(),
                "epsilon": math.fsum(charge.epsilon for charge in own),
                "mechanism": {"solution": plan.solution, **mechanism_of(plan), "d": plan.d},
            }
        )
    return {
        "trust model": "local: the client perturbs before it sends, the server is not trusted",
        "relation": "any two values of the client's whole local data",
        "unit of privacy": "one client with all the records that it holds, however many",
        "epsilon spent": total,
        "delta": 0.0,
        "answers": len(charges),
        "trainings": trainings,
        "ledger head": head,
        "not covered": list(NOT_COVERED),
        "statement": (
            f"Whatever this client's data are, all messages that it has sent so far, in {len(trainings)} "
            f"training{'s' if len(trainings) > 1 else ''}, are at most e^{rounded_up(total, 6)} "
            "times as likely as they would have been with other data."
        ),
    }


def _cost(question: Question) -> float:
    return question.plan().answer_epsilon()


def _questions(folder: Path, charges: Sequence[LocalCharge]) -> dict[str, Question]:
    """The plan of every charge, by its digest, in the order of the ledger."""
    found: dict[str, Question] = {}
    for digest in dict.fromkeys(charge.plan for charge in charges):
        path = plan_file(folder, digest)
        if not path.is_file():
            raise FileError(f"{path.name}, the plan of some charges, is missing: they cannot be recounted.")
        content = read_json(path)
        if not isinstance(content, dict):
            raise FileError(f"{path.name} is no plan.")
        question = read_question({**content, "round": 1})
        if question.digest != digest:
            raise FileError(f"{path.name} is not the plan that was charged: it was edited.")
        found[digest] = question
    return found
