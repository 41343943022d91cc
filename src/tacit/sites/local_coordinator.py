"""The coordinator of a local training: sites that are one client each, asked by the same messages as other sites."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.errors import ArgumentError, check_count
from tacit.federated.server import Aggregator, default_rate
from tacit.federated.server import Training as LocalTraining
from tacit.runs.layout import CHECKPOINT_FILE
from tacit.sites.coordinator import (
    TRIES,
    Coordinator,
    Exchange,
    Progress,
    RoundError,
    result_written,
    write_model,
)
from tacit.sites.messages import MessageError, read_message, write_message
from tacit.sites.terms import TERMS_FILE, read_terms

log = logging.getLogger("tacit.sites")


@dataclass(frozen=True)
class LocalFacts:
    """What a site says of itself, and what an answer costs it."""

    epsilon: float
    answers: int
    each: float

    def spent(self, answers: int) -> float:
        """ε of so many answers."""
        return self.each * answers


def coordinator_of(folder: Path) -> type[Coordinator | LocalCoordinator]:
    """What runs the training in ``folder``, by the guarantee of its terms."""
    return Coordinator if read_terms(folder / TERMS_FILE).local is None else LocalCoordinator


class LocalCoordinator:
    """A local training in ``folder``, which holds its terms; ``exchange``, ``sites`` and rounds as in `Coordinator`.

    A round counts once ``quorum`` sites have answered, by default more than half.
    """

    def __init__(
        self,
        folder: Path,
        sites: list[str],
        exchange: Exchange,
        *,
        quorum: int | None = None,
        learning_rate: float | None = None,
    ) -> None:
        self.folder, self._exchange = folder, exchange
        self.terms = read_terms(folder / TERMS_FILE)
        if self.terms.local is None:
            raise ArgumentError(f"{folder} holds no local training.")
        if not sites or len(set(sites)) < len(sites):
            raise ArgumentError("Name every site once, and at least one.")
        self.sites = sorted(sites)
        needed = len(sites) // 2 + 1 if quorum is None else check_count("quorum", quorum)
        if needed > len(sites):
            raise ArgumentError(f"A quorum of {quorum} cannot come from {len(sites)} sites.")
        question = self.terms.question(1)
        rate = default_rate(question.solution) if learning_rate is None else learning_rate
        training = LocalTraining(question, rate, len(sites), needed)
        self._aggregator = Aggregator(training, folder / CHECKPOINT_FILE)
        each = question.plan().answer_epsilon()
        self.facts = {
            name: LocalFacts(self.terms.local.epsilon, self.terms.training.rounds, each)
            for name in self.sites
        }
        self.charged = dict.fromkeys(self.sites, 0)
        self._refresh_charged()

    @property
    def model(self) -> nn.Module:
        """The model of now: a linear one, whose last weight is the intercept."""
        model, weights = self.terms.build_model(), torch.from_numpy(self._aggregator.weights)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(
                    weights[-1:] if parameter.dim() == 1 else weights[:-1].reshape(parameter.shape)
                )
        return model

    def run(self, on_round: Callable[[Progress], None] = lambda _: None) -> None:
        """Run the rounds that are left; write model and result. Raise if a round stays without quorum."""
        aggregator = self._aggregator
        with result_written(self.folder, self._refresh_charged, self.summary):
            while not aggregator.done:
                answered = self._run_round()
                on_round(
                    Progress(
                        aggregator.finished,
                        self.terms.training.rounds,
                        answered,
                        len(self.sites),
                        dict(self.charged),
                    )
                )
            write_model(self.folder, self.terms, self.model, aggregator.finished)

    def summary(self, reason: str = "") -> dict[str, Any]:
        """What the training came to; ``reason`` says why it stopped early."""
        aggregator = self._aggregator
        finished = aggregator.done and aggregator.accepted > 0 and not reason
        return {
            "training": self.terms.training.name,
            "terms": self.terms.digest,
            "finished": finished,
            **({} if finished else {"stopped because": reason or "no answer was used"}),
            "rounds": aggregator.finished,
            "rounds planned": self.terms.training.rounds,
            "quorum": aggregator.training.quorum,
            "answers used": aggregator.accepted,
            "answers paid": sum(self.charged.values()),
            "learning rate": aggregator.training.learning_rate,
            "sites": {
                name: {
                    "count": 1,
                    "counted": "client",
                    "charged": self.charged[name],
                    "answers": facts.answers,
                    "epsilon spent": facts.spent(self.charged[name]),
                    "epsilon": facts.epsilon,
                    "delta": 0.0,
                }
                for name, facts in self.facts.items()
            },
        }

    def _run_round(self) -> int:
        aggregator = self._aggregator
        number = aggregator.question.round
        payload = write_message(
            {"kind": "round", "training": self.terms.digest, "round": number},
            {"weights": torch.from_numpy(aggregator.weights)},
        )
        taken = 0
        for attempt in range(1, TRIES + 1):
            aggregator.ask(len(self.sites))
            replies = self._exchange(dict.fromkeys(self.sites, payload))
            taken = sum(self._take(name, replies[name], number) for name in self.sites if name in replies)
            if aggregator.has_quorum:
                aggregator.finish_round()
                return taken
            log.warning("round %d: %d answers, too few; asked %d of %d", number, taken, attempt, TRIES)
        raise RoundError(
            f"Round {number} got {taken} answers where {aggregator.training.quorum} are needed, asked {TRIES} times. "
            "Start again with the same folder: answers that were paid for are repeated free of charge."
        )

    def _take(self, name: str, reply: bytes, number: int) -> bool:
        try:
            content, _ = read_message(reply, {})
        except MessageError as error:
            self._aggregator.reject(name, str(error))
            return False
        if content.pop("kind", None) != "answer":
            self._aggregator.reject(name, f"it refuses: {content.get('reason')}")
            return False
        self.charged[name] = max(self.charged[name], number)
        return self._aggregator.take(name, content)

    def _refresh_charged(self) -> None:
        """Ask what each site has charged; one that has agreed to other terms is an error, one that is away is not."""
        replies: Mapping[str, bytes] = self._exchange(
            dict.fromkeys(self.sites, write_message({"kind": "facts"}))
        )
        for name, reply in replies.items():
            try:
                content, _ = read_message(reply, {})
            except MessageError as error:
                log.warning("the site %s does not say what it is: %s", name, error)
                continue
            if content.get("training") != self.terms.digest:
                raise RoundError(
                    f"The site {name!r} has agreed to other terms than {self.folder / TERMS_FILE}."
                )
            if type(content.get("charged")) is int and content["charged"] >= 0:
                self.charged[name] = content["charged"]
