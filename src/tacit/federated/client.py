"""A client that answers a server it does not trust.

Its records, its residual and its ledger live in files of its own and never leave it. It computes the exact
ε of every question itself, refuses what its budget does not cover, and writes each answer to its ledger
before it gives it.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from tacit.errors import FileError, LedgerError, TacitError, check_non_negative
from tacit.federated.data import FederatedData
from tacit.federated.local import two_stage_answers
from tacit.federated.local_ledger import LocalCharge, LocalLedger
from tacit.federated.models import linear_model
from tacit.federated.protocol import ProtocolError, Question, Reply, check_weights, to_steps
from tacit.federated.sampling import SystemUniforms, Uniforms
from tacit.files import read_json, write_bytes, write_json

LEDGER_FILE = "ledger.jsonl"
ANSWERED_FILE = "answered"
CERTIFICATE_FILE = "certificate.json"
LOCK_FILE = "node.lock"
RECORDS_FILE = "records.safetensors"

ROUNDING = 1e-12
"""The share by which sums of ε may exceed a budget: they are sums of rounded numbers."""
_MEMORY = b"This client has answered. Its ledger and the note beside it must not be lost.\n"


class RefusalError(TacitError):
    """The client declines to answer; the reason may be sent."""


@dataclass(frozen=True)
class LocalClient:
    """A client with its files in ``folder`` and a lifetime ``budget`` of ε over all trainings.

    With a budget of 0 it answers nothing.
    ``witness`` is a second place for the note of how far the ledger reaches (see `LocalLedger`).
    """

    folder: Path
    budget: float
    uniforms: Uniforms = field(default_factory=SystemUniforms)
    witness: Path | None = None

    def __post_init__(self) -> None:
        check_non_negative("budget", self.budget)

    def answer(self, question: Question, weights: NDArray[np.float32]) -> Reply:
        """Answer ``question`` once; a question that was answered before gets the same answer at no cost.

        The answer is ε-LDP in everything the client holds, with ε = the exact ε of the question's mechanism,
        charged before this returns.
        """
        check_weights(question, weights)
        with LocalLedger(self.folder / LEDGER_FILE, self.witness) as ledger:
            self._check_memory(ledger)
            before = ledger.find(question.training, question.round)
            self._check(question, ledger, before)
            if before is not None:
                return Reply(before.training, before.round, before.coordinate, before.steps)
            return self._answer_afresh(question, weights, ledger)

    def _check_memory(self, ledger: LocalLedger) -> None:
        """Refuse a ledger that is empty in a folder that has answered, or shorter than the folder's certificate says.

        Else make sure that the folder remembers.
        """
        certificate = self.folder / CERTIFICATE_FILE
        if certificate.is_file():
            stated = read_json(certificate)
            ledger.check_reaches(
                str(stated.get("ledger head")) if isinstance(stated, dict) else "", certificate
            )
        memory = self.folder / ANSWERED_FILE
        if ledger.charges:
            if not memory.exists():
                write_bytes(memory, _MEMORY, mode=0o600)
        elif memory.exists() or any(self.folder.glob("residual-*.safetensors")):
            raise LedgerError(
                f"{self.folder} has answered before, but its ledger is gone, so what it has spent is not known. "
                "Bring the newest ledger and its note back; if they are lost, do not use these records again."
            )

    def _check(self, question: Question, ledger: LocalLedger, before: LocalCharge | None) -> None:
        earlier = [charge for charge in ledger.charges if charge.training == question.training]
        if any(charge.plan != question.digest for charge in earlier):
            raise RefusalError("This training began with another plan; a plan cannot change on the way.")
        if before is not None:
            return
        if earlier and question.round < max(charge.round for charge in earlier):
            raise RefusalError("The round is over; the client has answered a later one.")
        cost = question.plan().answer_epsilon()
        if ledger.spent + cost > self.budget * (1 + ROUNDING):
            raise RefusalError("The client's privacy budget does not cover another answer.")

    def _answer_afresh(self, question: Question, weights: NDArray[np.float32], ledger: LocalLedger) -> Reply:
        plan = question.plan()
        records = read_records(self.folder / RECORDS_FILE)
        model = linear_model(question.model, question.d, question.l2)
        if records.d != question.d:
            raise ProtocolError("The question is for another number of features than the client has.")
        gradient = model.gradients(weights, records.x, records.y).mean(axis=0, keepdims=True)
        if question.solution == "vector":
            seeds, indices = plan.vector_replies().sample(gradient, self.uniforms)
            reply = Reply(question.training, question.round, int(indices[0]), int(seeds[0]))
            self._charge(question, reply, plan.answer_epsilon(), ledger)
            return reply
        residual = self._residual(question)
        answers, left = two_stage_answers(
            plan.selection(), plan.value_perturbation(), gradient, residual, plan.momentum, self.uniforms
        )
        reply = Reply(
            question.training, question.round, int(answers.coordinate[0]), to_steps(float(answers.value[0]))
        )
        self._charge(question, reply, plan.answer_epsilon(), ledger)
        write_bytes(self._residual_file(question), save({"residual": left}), mode=0o600)
        return reply

    def _charge(self, question: Question, reply: Reply, cost: float, ledger: LocalLedger) -> None:
        plan = plan_file(self.folder, question.digest)
        if not plan.exists():  # kept before the first charge for it, which could not be recounted without
            write_json(plan, {name: value for name, value in asdict(question).items() if name != "round"})
        ledger.charge(
            LocalCharge(
                question.training, question.digest, question.round, cost, reply.coordinate, reply.steps
            )
        )
        self._check_memory(ledger)

    def _residual(self, question: Question) -> NDArray[np.float32] | None:
        path = self._residual_file(question)
        if not path.exists():
            return None
        residual: NDArray[np.float32] = _load(path)["residual"]
        if residual.shape != (1, question.d):
            raise FileError(f"{path} belongs to another model.")
        return residual

    def _residual_file(self, question: Question) -> Path:
        name = hashlib.sha256(question.training.encode()).hexdigest()[:16]
        return self.folder / f"residual-{name}.safetensors"


def plan_file(folder: Path, digest: str) -> Path:
    """Where a client keeps what a training asks, which its charges name by this digest."""
    return folder / f"plan-{digest}.json"


def write_records(path: Path, records: FederatedData) -> None:
    """Write a client's records, readable by their owner only."""
    content = {"x": np.ascontiguousarray(records.x, np.float32), "y": np.ascontiguousarray(records.y)}
    write_bytes(path, save(content), mode=0o600)


def read_records(path: Path) -> FederatedData:
    """Read a client's records: ``x`` (n × d) and ``y`` (n, ±1)."""
    content = _load(path)
    if content.keys() != {"x", "y"} or not content["y"].size:
        raise FileError(f"{path} must hold the arrays x and y, with at least one record.")
    return FederatedData(path.name, content["x"], content["y"])


def _load(path: Path) -> dict[str, NDArray[np.float32]]:
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be read.") from error
