"""Private choice of one coordinate: the exact laws.

Every selection here looks at its input vector v only through the ranks of |v| (1 = smallest, d = largest;
ties go by position), and a coordinate of rank r is the output with a probability f(r) that depends on
nothing else. Some mechanisms may also answer ⊥, "no coordinate", with a probability that does not depend on
v at all. Since any coordinate can have any rank, the mechanism is ε-LDP exactly for

    ε = ln max f − ln min f.

A `RankLaw` holds f and P[⊥], so its ε is computed, not claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError, check_count, check_positive
from tacit.federated.encoding import calibrated_logit, encoding_probabilities

PRIVATE_SELECTIONS = ("exp", "pe", "pe-paper", "ps", "random")
SELECTIONS = (*PRIVATE_SELECTIONS, "topk")


@dataclass(frozen=True, eq=False)
class RankLaw:
    """The output law of a selection: ``by_rank[r-1]`` = P[the coordinate of rank r], ``bottom`` = P[⊥]."""

    name: str
    by_rank: NDArray[np.float64] = field(repr=False)
    bottom: float = 0.0

    def __post_init__(self) -> None:
        total = float(self.by_rank.sum()) + self.bottom
        if self.by_rank.min() < 0 or self.bottom < 0 or not math.isclose(total, 1.0, abs_tol=1e-9):
            raise ArgumentError(
                f"The law of {self.name} must be non-negative and sum to 1, its sum is {total!r}."
            )
        self.by_rank.setflags(write=False)

    @property
    def d(self) -> int:
        """The number of coordinates."""
        return int(self.by_rank.size)

    @cached_property
    def acceptance(self) -> NDArray[np.float64]:
        """f(r) / max f by rank: how likely a uniformly proposed coordinate is kept."""
        return np.asarray(self.by_rank / self.by_rank.max())

    @cached_property
    def cumulative(self) -> NDArray[np.float64]:
        """P[rank ≤ r] by rank."""
        return np.cumsum(self.by_rank)

    @cached_property
    def expected_proposals(self) -> float:
        """How many uniform proposals it takes on average until one is kept."""
        return self.d * float(self.by_rank.max())

    @property
    def epsilon(self) -> float:
        """The exact ε of the selection; infinite if some coordinate can never be the output."""
        lowest, highest = float(self.by_rank.min()), float(self.by_rank.max())
        return math.log(highest) - math.log(lowest) if lowest > 0 else math.inf


def exponential(d: int, epsilon: float) -> RankLaw:
    """EXP: P[rank r] ∝ exp(ε r / (d−1))."""
    _check_dimension(d)
    check_positive("epsilon1", epsilon)
    weights = np.exp(epsilon * (np.arange(1, d + 1) - d) / (d - 1))
    return RankLaw("exp", weights / weights.sum())


def perturbed_encoding(d: int, k: int, epsilon: float) -> RankLaw:
    """PE with its keep probability calibrated to the exact ratio, so that it is ``epsilon``-LDP."""
    _check_top(d, k)
    check_positive("epsilon1", epsilon)
    return _encoding("pe", d, k, float(calibrated_logit(d, k, epsilon)))


def perturbed_encoding_as_published(d: int, k: int, epsilon: float) -> RankLaw:
    """PE with the published p = e^ε/(1+e^ε): **not** ``epsilon``-LDP; ``law.epsilon`` is its true ε."""
    _check_top(d, k)
    check_positive("epsilon1", epsilon)
    return _encoding("pe-paper", d, k, epsilon)


def perturbed_sampling(d: int, k: int, epsilon: float) -> RankLaw:
    """PS: a coordinate of the top k with probability e^ε k / (d − k + e^ε k), uniform on either side."""
    _check_top(d, k)
    check_positive("epsilon1", epsilon)
    rest = math.exp(-epsilon) / (k + (d - k) * math.exp(-epsilon))
    top = 1 / (k + (d - k) * math.exp(-epsilon))
    return RankLaw("ps", _two_blocks(d, k, top, rest))


def uniform(d: int) -> RankLaw:
    """Choose any coordinate with probability 1/d: the control that looks at nothing (ε = 0)."""
    _check_dimension(d)
    return RankLaw("random", np.full(d, 1 / d))


def top_k(d: int, k: int) -> RankLaw:
    """Choose uniformly among the top k: the control without privacy (ε = ∞ for k < d)."""
    _check_top(d, k)
    return RankLaw("topk", _two_blocks(d, k, 1 / k, 0.0))


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


def _encoding(name: str, d: int, k: int, logit: float) -> RankLaw:
    top, rest, bottom = encoding_probabilities(d, k, logit)
    return RankLaw(name, _two_blocks(d, k, float(top), float(rest)), float(bottom))


def _two_blocks(d: int, k: int, top: float, rest: float) -> NDArray[np.float64]:
    law = np.full(d, rest)
    law[d - k :] = top
    return law


def _check_dimension(d: int) -> None:
    check_count("d", d, least=2)


def _check_top(d: int, k: int) -> None:
    _check_dimension(d)
    check_count("k", k)
    if k >= d:
        raise ArgumentError(f"k must be below the dimension d = {d}, got {k}.")
