"""Private choice of one coordinate: the exact laws.

Every selection here looks at its input vector v only through the ranks of |v| (1 = smallest, d = largest;
ties go by position), and gives a coordinate of rank r a whole number of tickets w(r) that depends on nothing
else. Some mechanisms may also answer ⊥, "no coordinate", which has its own tickets whatever v is. One ticket
of all is drawn. Since any coordinate can have any rank, the mechanism is ε-LDP exactly for

    ε = ln max w − ln min w.

A `RankLaw` holds the tickets, so its ε is computed, not claimed, and the samplers draw from just these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError, check_count
from tacit.federated.encoding import calibrated_logit, encoding_probabilities
from tacit.federated.ratios import MOST_TICKETS, check_epsilon, log_ratio, most_within, unit_tickets

PRIVATE_SELECTIONS = ("exp", "pe", "pe-paper", "ps", "random")
SELECTIONS = (*PRIVATE_SELECTIONS, "topk")

# Below the least ε₁ even the largest coordinate is chosen with probability 1/d, to six digits: random does the
# same at ε₁ = 0. Above the most there is no privacy worth the name. Tickets of ten million coordinates still
# resolve both ends.
LEAST_EPSILON1 = 1e-6
MOST_EPSILON1 = 16.0
MOST_COORDINATES = 10_000_000


@dataclass(frozen=True, eq=False)
class RankLaw:
    """The output law of a selection: tickets of the coordinate of rank r in ``tickets[r-1]``, and of ⊥."""

    name: str
    tickets: NDArray[np.int64] = field(repr=False)
    bottom_tickets: int = 0

    def __post_init__(self) -> None:
        if self.tickets.min() < 0 or self.bottom_tickets < 0 or not 0 < self.total <= MOST_TICKETS:
            raise ArgumentError(
                f"The tickets of {self.name} must not be negative and sum to 1 … 2⁶², their sum is {self.total}."
            )
        self.tickets.setflags(write=False)

    @property
    def d(self) -> int:
        """The number of coordinates."""
        return int(self.tickets.size)

    @cached_property
    def total(self) -> int:
        """The number of tickets."""
        return int(self.tickets.sum()) + self.bottom_tickets

    @cached_property
    def by_rank(self) -> NDArray[np.float64]:
        """P[the coordinate of rank r] in entry r − 1."""
        return np.asarray(self.tickets / self.total)

    @cached_property
    def bottom(self) -> float:
        """P[⊥]."""
        return self.bottom_tickets / self.total

    @cached_property
    def cumulative(self) -> NDArray[np.int64]:
        """Tickets of all ranks up to r, by rank."""
        return np.cumsum(self.tickets)

    @cached_property
    def most(self) -> int:
        """The most tickets that a coordinate can have."""
        return int(self.tickets.max())

    @cached_property
    def expected_proposals(self) -> float:
        """How many uniform proposals it takes on average until one is kept."""
        return self.d * float(self.by_rank.max())

    @cached_property
    def epsilon(self) -> float:
        """The exact ε of the selection, rounded up; infinite if some coordinate can never be the output."""
        return log_ratio(self.most, int(self.tickets.min()))


def exponential(d: int, epsilon: float) -> RankLaw:
    """EXP: P[rank r] ∝ exp(ε r / (d−1))."""
    _check_dimension(d)
    _check_epsilon1(epsilon)
    least = unit_tickets(d * math.exp(epsilon))
    most = most_within(epsilon, least)
    # Ranks between the first and the last may be rounded either way: only the two ends bear on ε.
    between = np.rint(most * np.exp(epsilon * (np.arange(1, d + 1) - d) / (d - 1))).astype(np.int64)
    return RankLaw("exp", np.clip(between, least, most))


def perturbed_encoding(d: int, k: int, epsilon: float) -> RankLaw:
    """PE with its keep probability calibrated to the exact ratio, so that it is ``epsilon``-LDP."""
    _check_top(d, k)
    _check_epsilon1(epsilon)
    return _encoding("pe", d, k, float(calibrated_logit(d, k, epsilon)), epsilon)


def perturbed_encoding_as_published(d: int, k: int, epsilon: float) -> RankLaw:
    """PE with the published p = e^ε/(1+e^ε): **not** ``epsilon``-LDP; ``law.epsilon`` is its true ε."""
    _check_top(d, k)
    _check_epsilon1(epsilon)
    return _encoding("pe-paper", d, k, epsilon, math.inf)


def perturbed_sampling(d: int, k: int, epsilon: float) -> RankLaw:
    """PS: a coordinate of the top k with probability e^ε k / (d − k + e^ε k), uniform on either side."""
    _check_top(d, k)
    _check_epsilon1(epsilon)
    rest = unit_tickets(d * math.exp(epsilon))
    return RankLaw("ps", _two_blocks(d, k, most_within(epsilon, rest), rest))


def uniform(d: int) -> RankLaw:
    """Choose any coordinate with probability 1/d: the control that looks at nothing (ε = 0)."""
    _check_dimension(d)
    return RankLaw("random", np.ones(d, np.int64))


def top_k(d: int, k: int) -> RankLaw:
    """Choose uniformly among the top k: the control without privacy (ε = ∞ for k < d)."""
    _check_top(d, k)
    return RankLaw("topk", _two_blocks(d, k, 1, 0))


def selection_law(name: str, d: int, k: int, epsilon: float) -> RankLaw:
    """Return the law of the selection called ``name``; ``exp`` and ``random`` ignore k, controls ignore ε."""
    match name:
        case "exp":
            return exponential(d, epsilon)
        case "pe":
            return perturbed_encoding(d, k, epsilon)
        case "pe-paper":
            return perturbed_encoding_as_published(d, k, epsilon)
        case "ps":
            return perturbed_sampling(d, k, epsilon)
        case "random":
            return uniform(d)
        case "topk":
            return top_k(d, k)
    raise ArgumentError(f"There is no selection {name!r}; choose one of {', '.join(SELECTIONS)}.")


def ranks(magnitudes: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the rank of every entry within its row, 1 for the smallest; ties go by position."""
    order = np.argsort(magnitudes, axis=-1, kind="stable")
    result = np.empty_like(order)
    np.put_along_axis(result, order, np.arange(1, magnitudes.shape[-1] + 1)[None, :], axis=-1)
    return result


def output_probabilities(law: RankLaw, vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return P[output = j | v] for every row v of ``vectors``: columns j = 0 … d−1, then ⊥."""
    chosen = law.by_rank[ranks(np.abs(vectors)) - 1]
    return np.concatenate([chosen, np.full((len(vectors), 1), law.bottom)], axis=1)


def _encoding(name: str, d: int, k: int, logit: float, epsilon: float) -> RankLaw:
    f_top, f_rest, bottom = (float(chance) for chance in encoding_probabilities(d, k, logit))
    # ⊥ is never likelier than ¼: at most a third of the tickets of all coordinates.
    rest = unit_tickets(d * f_top / f_rest * 4 / 3)
    top = math.ceil(f_top / f_rest * rest)
    if math.isfinite(epsilon):
        top = min(top, most_within(epsilon, rest))
    answers = k * top + (d - k) * rest
    return RankLaw(name, _two_blocks(d, k, top, rest), round(answers * bottom / (1 - bottom)))


def _two_blocks(d: int, k: int, top: int, rest: int) -> NDArray[np.int64]:
    tickets = np.full(d, rest, np.int64)
    tickets[d - k :] = top
    return tickets


def _check_epsilon1(epsilon: float) -> None:
    check_epsilon("epsilon1", epsilon, LEAST_EPSILON1, MOST_EPSILON1)


def _check_dimension(d: int) -> None:
    check_count("d", d, least=2)
    if d > MOST_COORDINATES:
        raise ArgumentError(f"d must be at most {MOST_COORDINATES:,}, got {d}.")


def _check_top(d: int, k: int) -> None:
    _check_dimension(d)
    check_count("k", k)
    if k >= d:
        raise ArgumentError(f"k must be below the dimension d = {d}, got {k}.")
