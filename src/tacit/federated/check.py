"""Is a local mechanism as private as it claims? The exact answer, and a test on samples it really draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from tacit.errors import ArgumentError, check_count, check_share
from tacit.federated.perturbation import Perturbation, perturbation
from tacit.federated.sampling import sample_coordinates
from tacit.federated.selection import RankLaw, selection_law
from tacit.federated.vector import VectorReplies, directions

TOLERANCE = 1e-9
# Each has a list of directions of its own, so it costs as much as thousands of draws of a coordinate.
MOST_VECTOR_SAMPLES = 5_000


@dataclass(frozen=True)
class SampledEpsilon:
    """What samples say: with the stated confidence ε of the sampler is at least ``lower``.

    ``lower`` and ``upper`` bound ln(P[event | first input] / P[event | second input]) for the one event and
    the two inputs where the exact law is worst. They are Clopper–Pearson bounds: they assume nothing but
    independent draws. A ``lower`` above the claim is proof that the sampler breaks it.
    """

    samples: int
    confidence: float
    hits_first: int
    hits_second: int
    lower: float
    upper: float


@dataclass(frozen=True)
class CheckReport:
    """The claimed and the exact ε of a selection, alone or followed by a value perturbation."""

    selection: str
    perturbation: str | None
    d: int
    k: int
    claimed_epsilon: float
    exact_selection_epsilon: float
    exact_perturbation_epsilon: float
    exact_epsilon: float
    bottom_probability: float
    holds: bool
    sampled: SampledEpsilon | None


def check_mechanism(
    selection: str,
    d: int,
    k: int,
    epsilon1: float,
    perturb: str | None = None,
    epsilon2: float | None = None,
    *,
    samples: int = 0,
    confidence: float = 0.999,
    seed: int = 0,
) -> CheckReport:
    """Compute the exact ε of (selection, perturbation, d, k) and, if ``samples`` > 0, test the samplers.

    ``selection`` = vector is the vector reply at ``epsilon1``: it chooses its own k, and draws at most
    `MOST_VECTOR_SAMPLES`.

    The index and the perturbed value can be at their worst for one and the same pair of inputs, so the exact
    ε of both stages is the sum of the exact ε of each: the bound of the paper's Theorem 1 is tight.
    """
    check_count("seed", seed, least=0)
    if selection == "vector":
        if perturb is not None:
            raise ArgumentError("A vector reply is one stage: leave perturb and epsilon2 out.")
        return _check_vector(VectorReplies(epsilon1, d), samples, confidence, seed)
    if (perturb is None) != (epsilon2 is None):
        raise ArgumentError("perturb and epsilon2 go together: give both or neither.")
    law = selection_law(selection, d, k, epsilon1)
    value = perturbation(perturb, epsilon2) if perturb is not None and epsilon2 is not None else None
    second = exact_perturbation_epsilon(value) if value is not None else 0.0
    claimed = epsilon1 + (epsilon2 or 0.0)
    exact = law.epsilon + second
    return CheckReport(
        selection=selection,
        perturbation=perturb,
        d=d,
        k=k,
        claimed_epsilon=claimed,
        exact_selection_epsilon=law.epsilon,
        exact_perturbation_epsilon=second,
        exact_epsilon=exact,
        bottom_probability=law.bottom,
        holds=exact <= claimed + TOLERANCE,
        sampled=_sampled_epsilon(law, value, samples, confidence, seed) if samples else None,
    )


def _check_vector(replies: VectorReplies, samples: int, confidence: float, seed: int) -> CheckReport:
    return CheckReport(
        selection="vector",
        perturbation=None,
        d=replies.d,
        k=replies.top,
        claimed_epsilon=replies.requested,
        exact_selection_epsilon=replies.epsilon,
        exact_perturbation_epsilon=0.0,
        exact_epsilon=replies.epsilon,
        bottom_probability=0.0,
        holds=replies.epsilon <= replies.requested + TOLERANCE,
        sampled=_sampled_vector_epsilon(replies, samples, confidence, seed) if samples else None,
    )


def _sampled_vector_epsilon(
    replies: VectorReplies, samples: int, confidence: float, seed: int
) -> SampledEpsilon:
    """Test whole replies: how often is the direction one of the best for a vector, given it and given its negative?

    The best for one are the worst for the other, so this event has the greatest ratio.
    """
    check_count("samples", samples)
    check_share("confidence", confidence, one_allowed=False)
    samples = min(samples, MOST_VECTOR_SAMPLES)
    rng = np.random.default_rng(seed)
    vector = rng.standard_normal(replies.d)
    vector *= 2 * replies.clip_norm / np.linalg.norm(vector)
    hits = []
    for sign in (1.0, -1.0):
        seeds, indices = replies.sample(np.tile(sign * vector, (samples, 1)), rng)
        count = 0
        for list_seed, index in zip(seeds, indices, strict=True):
            scores = directions(int(list_seed), 0, replies.directions, replies.d) @ vector
            count += int(np.count_nonzero(scores > scores[index]) < replies.top)
        hits.append(count)
    return _bounds(samples, confidence, hits[0], hits[1])


def exact_perturbation_epsilon(mechanism: Perturbation) -> float:
    """Return the largest log ratio of the output law over pairs of inputs, at every level that it has."""
    worst = 0.0
    inputs = [float(v) for v in np.linspace(-1, 1, 9)]
    for value in inputs:
        for other in inputs:
            outputs = np.concatenate([mechanism.landmarks(value), mechanism.landmarks(other)])
            worst = max(worst, float(np.max(_log_ratio(mechanism, outputs, value, other))))
    return worst


def clopper_pearson(hits: int, trials: int, error: float) -> tuple[float, float]:
    """Return (lower, upper) such that each bound on the success probability fails with at most ``error``."""
    lower = float(beta.ppf(error, hits, trials - hits + 1)) if hits else 0.0
    upper = float(beta.ppf(1 - error, hits + 1, trials - hits)) if hits < trials else 1.0
    return lower, upper


def _sampled_epsilon(
    law: RankLaw, value: Perturbation | None, samples: int, confidence: float, seed: int
) -> SampledEpsilon:
    check_count("samples", samples)
    check_share("confidence", confidence, one_allowed=False)
    rng = np.random.default_rng(seed)
    # Coordinate 0 is the largest of the first input and the smallest of the second; its clipped value is +1
    # and −1.
    first = np.concatenate([[2.0 * law.d], np.arange(2.0, law.d + 1)])
    second = np.concatenate([[-1.0], np.arange(2.0, law.d + 1)])
    hits = [_hits(law, value, vector, samples, rng) for vector in (first, second)]
    return _bounds(samples, confidence, hits[0], hits[1])


def _bounds(samples: int, confidence: float, first: int, second: int) -> SampledEpsilon:
    error = (1 - confidence) / 2
    (low_1, high_1), (low_2, high_2) = (clopper_pearson(h, samples, error) for h in (first, second))
    return SampledEpsilon(
        samples=samples,
        confidence=confidence,
        hits_first=first,
        hits_second=second,
        lower=math.log(low_1 / high_2) if low_1 > 0 else -math.inf,
        upper=math.log(high_1 / low_2) if low_2 > 0 else math.inf,
    )


def _hits(
    law: RankLaw,
    value: Perturbation | None,
    vector: NDArray[np.float64],
    samples: int,
    rng: np.random.Generator,
) -> int:
    """Count outputs of coordinate 0 with a value at which the log ratio of +1 to −1 is greatest."""
    hits = 0
    chunk = max(1, 2_000_000 // law.d)
    for start in range(0, samples, chunk):
        n = min(chunk, samples - start)
        magnitudes = np.ascontiguousarray(np.broadcast_to(np.abs(vector), (n, law.d)))
        chosen = int(np.count_nonzero(sample_coordinates(law, magnitudes, rng) == 0))
        if value is not None:
            outputs = value.sample(np.full(chosen, vector[0]), rng)
            ratio = _log_ratio(value, outputs, 1.0, -1.0)
            chosen = int(np.count_nonzero(ratio >= value.epsilon - 1e-6))
        hits += chosen
    return hits


def _log_ratio(
    mechanism: Perturbation, outputs: NDArray[np.float64], value: float, other: float
) -> NDArray[np.float64]:
    """Return ln of the law at ``outputs`` given ``value`` over that given ``other``."""
    with np.errstate(invalid="ignore"):
        ratio = mechanism.log_law(outputs, value) - mechanism.log_law(outputs, other)
    return np.where(np.isnan(ratio), 0.0, ratio)
