"""What a shuffler adds: ε of local answers to whoever sees them only as a shuffled heap.

Hiding among the clones (Feldman, McMillan and Talwar, FOCS 2021, theorem 3.1): if n clients answer by one ε₀-LDP
mechanism and only the unordered answers are seen, what they tell about one client follows, by a mapping that does not
look at its data, from a pair (A + Δ, C − A + 1 − Δ) with C ~ Bin(n − 1, e^−ε₀), A ~ Bin(C, 1/2) and Δ ~ Bernoulli(
e^ε₀ / (e^ε₀ + 1)), or from the same pair with its two numbers exchanged. Its privacy loss is put on a grid, rounded
up, and composed over rounds. This is accounting: Tacit ships no shuffler, and the promise is only as good as the one
that is used.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from tacit.errors import ArgumentError, check_count, check_positive, check_share
from tacit.plan.loss_distribution import LossDistribution, Losses, composed_precisely

MOST_EPSILON, LEAST_DELTA = 30.0, 1e-12
ASSUMED = (
    "This holds against whoever sees the answers of a round only as an unordered heap: a shuffler, which Tacit does "
    "not provide, must take names, times and order away, must not collude with the server, and that many clients must "
    "really answer. Against the shuffler itself, and if it fails, the local ε holds."
)
_BLOCKS = 200
"""Numbers of clones that are told apart; those between count as the smallest of their block, which tells more."""
_CELLS = 400
"""Cells of the grid between no loss and the largest that matters."""
_TAIL = 1e-15
"""Probability beyond which numbers of clones count as the least possible."""
_REACH = 9.0
_HALVINGS = 40


def shuffled_epsilon(epsilon: float, answers: int, delta: float, rounds: int = 1) -> float:
    """Central ε at ``delta`` of one client, whose ``rounds`` answers were each shuffled with ``answers`` in all.

    ``epsilon`` is that of one answer, local and exact. Every client of a round must use one mechanism and keep nothing
    from one of its answers to the next (vector replies, or one answer per client). Never above the local ε of them all.
    """
    check_positive("epsilon", epsilon)
    check_count("answers", answers)
    check_count("rounds", rounds)
    check_share("delta", delta, one_allowed=False)
    if delta < LEAST_DELTA:
        raise ArgumentError(f"delta must be at least {LEAST_DELTA:g} here, got {delta:g}.")
    if epsilon > MOST_EPSILON:
        raise ArgumentError(f"Shuffling helps answers of ε up to {MOST_EPSILON:g}, not {epsilon:g}.")
    once = LossDistribution((_losses(epsilon, answers),))
    composed = once if rounds == 1 else composed_precisely([(once, rounds)], delta)
    return min(rounds * epsilon, composed.epsilon_at(delta))


def local_epsilon(central: float, answers: int, delta: float, rounds: int = 1) -> float:
    """The largest ε of one answer, rounded down, with which shuffled answers have at most the ``central`` ε."""
    check_positive("central", central)
    low, high = central / rounds, MOST_EPSILON
    for _ in range(_HALVINGS):
        if high - low < 1e-4 * low:
            break
        middle = (low + high) / 2
        if shuffled_epsilon(middle, answers, delta, rounds) <= central:
            low = middle
        else:
            high = middle
    return low


def _losses(epsilon: float, answers: int) -> Losses:
    """The law of the privacy loss of the pair, rounded up to a grid.

    Both orders of the pair have the same law of the loss, because exchanging the two numbers exchanges them.
    """
    clones, weights = _clones(answers, math.exp(-epsilon))
    kept = 1 / (1 + math.exp(-epsilon))  # the probability of Δ = 1
    # Given c clones the loss follows from x = (A + Δ)/(c + 1), and grows with it.
    spread = 2 * (2 * kept - 1) / math.sqrt(max(1.0, float(clones[0]) + 1))
    reach = min(epsilon, _REACH * spread)
    step = reach / _CELLS
    grid = np.arange(-_CELLS - 1, _CELLS + 1) * step
    ratio = np.exp(grid)
    where = np.clip((ratio * kept - (1 - kept)) / ((1 + ratio) * (2 * kept - 1)), 0.0, 1.0)
    total = clones[:, None] + 1
    # The loss is at most the grid point where A + Δ is at most x(c + 1); rounding may only make it seem larger.
    most = np.floor(where[None, :] * total * (1 - 1e-12))
    below = kept * stats.binom.cdf(most - 1, clones[:, None], 0.5)
    below += (1 - kept) * stats.binom.cdf(most, clones[:, None], 0.5)
    known = weights @ below
    # No loss is above ε₀, and what lies beyond the grid or the tail of the clones counts as that.
    last = math.ceil(epsilon / step)
    masses = np.zeros(last + _CELLS + 2)
    masses[: len(grid)] = np.maximum(np.diff(known, prepend=0.0), 0.0)
    masses[last + _CELLS + 1] += max(0.0, 1 - float(known[-1]))
    return Losses(step, -_CELLS - 1, masses, 0.0)


def _clones(answers: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of clones and their probabilities, in blocks that count as their smallest number."""
    law = stats.binom(answers - 1, share)
    low, high = (int(law.ppf(_TAIL)), int(law.ppf(1 - _TAIL))) if answers > 1 else (0, 0)
    width = max(1, math.ceil((high - low + 1) / _BLOCKS))
    starts = np.arange(max(0, low), high + 1, width)
    ends = np.append(starts[1:] - 1, answers - 1)
    masses = law.cdf(ends) - law.cdf(starts - 1)
    return starts, masses
