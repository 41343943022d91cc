"""The plan of a run under local differential privacy: public numbers only, fixed before the first round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tacit.errors import ArgumentError, check_count, check_non_negative, check_positive, check_share
from tacit.federated.perturbation import Perturbation, Unperturbed, perturbation
from tacit.federated.selection import RankLaw, selection_law, uniform
from tacit.federated.vector import VectorReplies
from tacit.rounding import rounded_up
from tacit.version import __version__

SOLUTIONS = ("two-stage", "vector", "flat", "compressed", "full")
DEFAULT_THRESHOLD = 0.2

NOT_COVERED = (
    "that a client takes part, when it answers, and how long it takes",
    "a person whose records lie with several clients: what these promise adds up",
    "what the feature encoding and the hyper-parameters were chosen from",
    "clients on Flower that neither tacit fed node nor tacit site serve answers for: they run what the server sends",
)
"""What no certificate under local differential privacy covers."""


def hyper_parameters_free(epsilon: float, d: int, batch: int, threshold: float = DEFAULT_THRESHOLD) -> float:
    """Return the share μ of ε for selection: what is left after ε₂ ≥ √(d ln d / m), at most ``threshold``."""
    check_positive("epsilon", epsilon)
    check_count("d", d, least=2)
    check_count("batch", batch)
    check_share("threshold", threshold, one_allowed=False)
    return min(threshold, max(0.0, 1 - math.sqrt(d * math.log(d) / batch) / epsilon))


@dataclass(frozen=True)
class LocalPlan:
    """Who sends what, perturbed how, and what it costs each client.

    ``solution`` is one of

    * ``two-stage`` (FedSel): one coordinate chosen by ``select`` at ε₁ = με', its value perturbed at ε₂ =
      ε' − ε₁;
    * ``vector``: the whole gradient in one reply, its length clipped to ``clip_norm`` (see `VectorReplies`); nothing
      is selected, and no residual is kept;
    * ``flat``: c random coordinates, each perturbed at ε'/c and enlarged by d/c;
    * ``compressed``: a public random projection to q = ``compression``·d numbers, then flat with one of them;
    * ``full``: every client sends its whole gradient; never private.

    ε' = ``epsilon``/``epochs`` is spent by each client once per epoch. ``perturb`` = ``none`` sends clipped
    values as they are: a control without privacy. ``extra_value_budget`` is the paper's "-C" control: the
    value stage gets the whole ε', so the true ε per epoch is ε₁ + ε'. ``scaled_accumulation`` is its "-O"
    control: clients accumulate α·g, the server does not scale by α.
    """

    d: int
    batch: int
    solution: str = "two-stage"
    select: str = "ps"
    perturb: str = "pm"
    epsilon: float = 2.0
    epochs: int = 1
    top_share: float = 0.1
    mu: float = 0.1
    learning_rate: float = 0.1
    momentum: float = 0.0
    compression: float = 0.1
    extra_value_budget: bool = False
    scaled_accumulation: bool = False
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_count("d", self.d, least=2)
        check_count("batch", self.batch)
        check_count("epochs", self.epochs)
        check_positive("epsilon", self.epsilon)
        check_positive("learning rate", self.learning_rate)
        check_non_negative("momentum", self.momentum)
        check_share("top share", self.top_share, one_allowed=False)
        check_share("compression", self.compression)
        check_positive("clip norm", self.clip_norm)
        if self.solution not in SOLUTIONS:
            raise ArgumentError(
                f"There is no solution {self.solution!r}; choose one of {', '.join(SOLUTIONS)}."
            )
        if self.solution == "two-stage":
            if not 0 <= self.mu < 1:
                raise ArgumentError(f"mu must lie in [0, 1), got {self.mu!r}.")
        elif self.extra_value_budget or self.scaled_accumulation:
            raise ArgumentError("The controls -C and -O are variants of the two-stage solution only.")
        if self.solution == "full" and self.perturb != "none":
            raise ArgumentError("The full solution sends whole gradients; it has perturb = none only.")

    @property
    def k(self) -> int:
        """How many coordinates count as large."""
        return min(self.d - 1, max(1, round(self.top_share * self.d)))

    @property
    def epsilon_per_epoch(self) -> float:
        """ε', what one answer may cost."""
        return self.epsilon / self.epochs

    @property
    def epsilon1(self) -> float:
        """The budget of the selection."""
        return self.mu * self.epsilon_per_epoch

    @property
    def epsilon2(self) -> float:
        """The budget of the value."""
        return self.epsilon_per_epoch if self.extra_value_budget else self.epsilon_per_epoch - self.epsilon1

    @property
    def coordinates_sent(self) -> int:
        """C of the flat solution, chosen as by Wang et al.: max(1, min(d, ⌊ε'/2.5⌋)); 1 without noise."""
        if self.perturb == "none":
            return 1
        return max(1, min(self.d, math.floor(self.epsilon_per_epoch / 2.5)))

    @property
    def projected(self) -> int:
        """Q, the dimension that the compressed solution projects to."""
        return max(1, round(self.compression * self.d))

    def selection(self) -> RankLaw:
        """Return the exact law of the selection stage: uniform where it has no budget."""
        if self.mu == 0 and self.select != "topk":
            return uniform(self.d)
        return selection_law(self.select, self.d, self.k, self.epsilon1)

    def vector_replies(self) -> VectorReplies:
        """Return the mechanism of the vector solution."""
        return VectorReplies(self.epsilon_per_epoch, self.d, self.clip_norm)

    def value_perturbation(self) -> Perturbation:
        """Return the perturbation of one sent value."""
        match self.solution:
            case "two-stage":
                return perturbation(self.perturb, self.epsilon2)
            case "flat":
                return perturbation(self.perturb, self.epsilon_per_epoch / self.coordinates_sent)
            case "compressed":
                return perturbation(self.perturb, self.epsilon_per_epoch)
        return Unperturbed()

    def reply_mechanism(self) -> Perturbation | VectorReplies:
        """Return what makes the number or the vector of one reply."""
        return self.vector_replies() if self.solution == "vector" else self.value_perturbation()

    def answer_epsilon(self) -> float:
        """Return the exact ε of one answer, rounded up (∞ for a control without privacy)."""
        if self.solution == "vector":
            return self.vector_replies().epsilon
        value = self.value_perturbation().epsilon
        match self.solution:
            case "two-stage":
                selection = self.selection().epsilon
                return math.nextafter(selection + value, math.inf) if selection else value
            case "flat":
                return value * self.coordinates_sent
        return value

    def exact_epsilon(self) -> float:
        """Return the exact ε of one client over the whole run (∞ for a control without privacy)."""
        return self.answer_epsilon() * self.epochs


def certificate(plan: LocalPlan, randomness: str, *, finished: bool = True) -> dict[str, Any]:
    """Return the machine-readable statement of what ``plan`` guarantees; ``randomness``: seeded, system.

    A training that has not ``finished`` is not for release.
    """
    exact = plan.exact_epsilon()
    private = math.isfinite(exact)
    holds = private and exact <= plan.epsilon + 1e-9
    return {
        "trust model": "local: every client perturbs before it sends, the server is not trusted",
        "relation": "any two values of one client's whole local data",
        "unit of privacy": "one client with all the records that it holds, however many",
        "epsilon planned": plan.epsilon,
        "epsilon": exact if private else "infinite",
        "epsilon per answer": plan.answer_epsilon() if private else "infinite",
        "delta": 0.0,
        "answers per client": plan.epochs,
        "holds": holds,
        "mechanism": {
            "solution": plan.solution,
            **mechanism_of(plan),
            "d": plan.d,
        },
        "accountant": "exact ratio of output probabilities, added over answers",
        "randomness": randomness,
        "for release": holds and randomness == "system" and finished,
        "not covered": list(NOT_COVERED),
        "software": {"tacit": __version__},
        "statement": _statement(plan, exact, holds, randomness),
    }


def mechanism_of(plan: LocalPlan) -> dict[str, Any]:
    """The mechanism of a plan, for a certificate."""
    if plan.solution == "vector":
        replies = plan.vector_replies()
        return {"directions": replies.directions, "k": replies.top, "clip norm": replies.clip_norm}
    selection = plan.select if plan.solution == "two-stage" else "random"
    return {"selection": selection, "perturbation": plan.perturb, "k": plan.k}


def _statement(plan: LocalPlan, exact: float, holds: bool, randomness: str) -> str:
    if not math.isfinite(exact):
        return "This run gives no privacy: it is a control."
    text = (
        f"Whatever a client's data are, any set of messages it sends in this run is at most e^{rounded_up(exact)} "
        "times as likely as it would have been with other data."
    )
    if not holds:
        text += f" This is more than the planned epsilon of {plan.epsilon:g}."
    if randomness != "system":
        text += " The noise came from a seeded generator and can be replayed: a simulation, not for release."
    return text
