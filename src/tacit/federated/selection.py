"""Perturbed encoding (PE) in closed form.

PE marks the k coordinates of largest magnitude, flips every mark with probability 1−p independently, and
draws one of the marked coordinates uniformly (⊥ if none is left). A coordinate that was in the top k is the
output with probability p·E[1/(1+X₁)], X₁ ~ Bin(k−1, p) + Bin(d−k, 1−p), one that was not with
(1−p)·E[1/(1+X₀)], X₀ ~ Bin(k, p) + Bin(d−k−1, 1−p). X₀ is stochastically larger than X₁ when p > ½, so the
ratio of the two is *above* p/(1−p): the paper's p = e^ε/(1+e^ε) is not ε-LDP, and p has to be found from
the true ratio.

E[1/(1+X)] = ∫₀¹ E[s^X] ds, and E[s^X] is a product of two powers: one smooth integral, whatever d is.

Private choice of one coordinate: the exact laws.

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
from numpy.typing import ArrayLike, NDArray

from tacit.errors import ArgumentError, check_count
from tacit.federated.lattice import MOST_TICKETS, check_epsilon, log_ratio, most_within, unit_tickets

Floats = NDArray[np.float64]

_PANELS = 28
_NODES_PER_PANEL = 12


def _quadrature() -> tuple[Floats, Floats]:
    # The integrand falls off like exp(-λt) from t = 1-s = 0 with λ up to d: panels that halve towards 0
    # resolve every λ up to 2^30 to the precision of the arithmetic.
    nodes, weights = np.polynomial.legendre.leggauss(_NODES_PER_PANEL)
    edges = np.concatenate([[0.0], 2.0 ** -np.arange(_PANELS - 1, -1, -1.0)])
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (nodes + 1)).ravel(), (half * weights).ravel()


_T, _W = _quadrature()


def encoding_probabilities(d: ArrayLike, k: ArrayLike, logit: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return (f_top, f_rest, P[⊥]) of PE that keeps a mark with probability p = 1/(1+e^−logit).

    ``f_top`` is the probability of one given coordinate of the top k, ``f_rest`` of one given other
    coordinate: k·f_top + (d−k)·f_rest + P[⊥] = 1. Arguments broadcast; 1 ≤ k < d.
    """
    dimension, top, x = np.broadcast_arrays(
        np.asarray(d, np.float64), np.asarray(k, np.float64), np.asarray(logit, np.float64)
    )
    keep, flip = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))
    log_keep = np.log1p(-keep[..., None] * _T)
    log_flip = np.log1p(-flip[..., None] * _T)
    rest = dimension - top
    common = (top[..., None] - 1) * log_keep + (rest[..., None] - 1) * log_flip
    f_top = keep * (np.exp(common + log_flip) @ _W)
    f_rest = flip * (np.exp(common + log_keep) @ _W)
    bottom = np.exp(top * np.log(flip) + rest * np.log(keep))
    return f_top, f_rest, bottom


def encoding_epsilon(d: ArrayLike, k: ArrayLike, logit: ArrayLike) -> Floats:
    """Return the exact ε of PE at the given logit of its keep probability: ln(f_top / f_rest)."""
    f_top, f_rest, _ = encoding_probabilities(d, k, logit)
    return np.log(f_top) - np.log(f_rest)


def calibrated_logit(d: ArrayLike, k: ArrayLike, epsilon: ArrayLike) -> Floats:
    """Return the largest logit, to 1e-12, at which PE is exactly ``epsilon``-LDP; never above it.

    The exact ε grows with the logit and is never below it, so the answer lies in (0, epsilon].
    """
    dimension, top, target = np.broadcast_arrays(
        np.asarray(d, np.float64), np.asarray(k, np.float64), np.asarray(epsilon, np.float64)
    )
    before, after = np.zeros_like(target), target.copy()
    value_before, value_after = np.zeros_like(target), encoding_epsilon(dimension, top, after)
    for _ in range(40):
        error = value_after - target
        if np.all((error <= 0) & (error >= -1e-12)):
            return after
        # A secant step, aimed a hair below the target so that the iteration ends on the private side.
        slope = (value_after - value_before) / np.where(after == before, 1.0, after - before)
        step = np.where(
            (error <= 0) & (error >= -1e-12), 0.0, (error + 5e-13) / np.where(slope > 0, slope, 1.0)
        )
        before, value_before = after, value_after
        after = np.clip(after - step, 0.0, target)
        value_after = encoding_epsilon(dimension, top, after)
    raise ArgumentError(
        f"Perturbed encoding cannot be calibrated for d={d!r}, k={k!r}, epsilon={epsilon!r}; use ps or exp."
    )


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
