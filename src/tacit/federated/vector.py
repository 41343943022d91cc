"""One reply for a whole vector: PrivUnit's idea over a finite list of public directions, with exact probabilities.

A client draws the seed of a list of M random directions, ranks the directions by how well they agree with its vector,
and draws one of them: each of the best k has ``high`` tickets, each of the others ``low``. It sends seed and index.

*The exact ε.* The seed is drawn without a look at the data. Given the seed, whatever the vector is, exactly k
directions have ``high`` tickets and M − k have ``low``; so the number of all tickets is the same for every vector, and
two vectors differ by at most high / low ≤ e^ε in the probability of any reply. A direction that is the best for one
vector is the worst for its negative, so the bound is attained: ε = ln(high / low), exactly. Scores are computed in
floating point; an error there changes which k directions are the best, never how many.

*The mean.* Directions have independent entries of mean 0 and variance 1, so a chosen one is ``gain`` × the unit vector
on average, and the server divides by the gain. The length of the vector is clipped to ``clip_norm`` and goes into the
sign: the client answers for u or for −u, u with probability (1 + length / clip_norm) / 2. The gain is that of normal
directions; entries are sums of two bytes, which differs by a few per cent for vectors with one or two entries only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.errors import ArgumentError, check_count, check_positive
from tacit.federated.lattice import check_epsilon
from tacit.federated.sampling import Uniforms, sample_coordinates
from tacit.federated.selection import RankLaw, perturbed_sampling

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

# Below the least, a reply is almost pure noise; above the most, the list of directions is too short to be worth it.
LEAST_EPSILON = 0.01
MOST_EPSILON = 12.0
FEWEST_DIRECTIONS = 256
MOST_DIRECTIONS = 65_536
MOST_ENTRIES = 2**31

SEEDS = 2**53
_COINS = 2**53
# A word of the generator holds eight bytes, and one step of its counter gives four words.
_BYTES_PER_STEP = 32
# Two bytes, uniform on 0 … 255, have this mean and this standard deviation together.
_MEAN, _DEVIATION = 255.0, math.sqrt(2 * (256**2 - 1) / 12)


@dataclass(frozen=True)
class VectorReplies:
    """Replies at ``requested`` ε for vectors of ``d`` entries whose length is clipped to ``clip_norm``."""

    requested: float
    d: int
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_epsilon("The ε of a vector reply", self.requested, LEAST_EPSILON, MOST_EPSILON)
        check_count("d", self.d, least=2)
        check_positive("clip norm", self.clip_norm)
        if self.directions * self.d > MOST_ENTRIES:
            raise ArgumentError(
                f"{self.directions:,} directions of {self.d:,} entries are too many; a vector reply at this ε is for "
                f"models of at most {MOST_ENTRIES // self.directions:,} numbers."
            )

    @property
    def directions(self) -> int:
        """M: how many directions a list has; a multiple of e^ε, so that the best are rare enough."""
        wanted = 1 << math.ceil(math.log2(16 * math.exp(self.requested)))
        return min(MOST_DIRECTIONS, max(FEWEST_DIRECTIONS, wanted))

    @cached_property
    def top(self) -> int:
        """K: how many directions count as the best; the number with the largest gain."""
        return int(np.argmax(self._gains)) + 1

    @cached_property
    def law(self) -> RankLaw:
        """The tickets of the directions, by rank."""
        return perturbed_sampling(self.directions, self.top, self.requested)

    @property
    def epsilon(self) -> float:
        """The exact ε, rounded up."""
        return self.law.epsilon

    @cached_property
    def gain(self) -> float:
        """The mean agreement of a reply with the unit vector that it was given for."""
        return float(self._gains[self.top - 1])

    @cached_property
    def _gains(self) -> Floats:
        """The gain by k = 1 … M − 1, with the mean order statistics of M normal numbers (Blom's approximation)."""
        m, growth = self.directions, math.expm1(self.requested)
        best = np.cumsum(-ndtri((np.arange(1, m) - 0.375) / (m + 0.25)))
        return np.asarray(growth * best / (m + growth * np.arange(1, m)))

    def sample(self, vectors: NDArray[np.floating], uniforms: Uniforms) -> tuple[Indices, Indices]:
        """Draw one reply, a seed and an index, for each row of ``vectors``, whatever they hold."""
        if vectors.ndim != 2 or vectors.shape[1] != self.d:
            raise ArgumentError(f"Vectors must be n × {self.d}, got {vectors.shape}.")
        units = self._signed_units(vectors, uniforms)
        seeds = uniforms.integers(0, SEEDS, len(vectors))
        indices = np.empty(len(vectors), np.int64)
        for row, (seed, unit) in enumerate(zip(seeds, units, strict=True)):
            scores = directions(int(seed), 0, self.directions, self.d) @ unit
            indices[row] = sample_coordinates(self.law, scores[None, :], uniforms)[0]
        return seeds, indices

    def value(self, seed: int, index: int) -> Floats:
        """Return the vector that a reply stands for: its mean is the client's vector, clipped."""
        direction = directions(seed, index, 1, self.d)[0].astype(np.float64)
        return np.asarray(direction * (self.clip_norm / self.gain), np.float64)

    def _signed_units(self, vectors: NDArray[np.floating], uniforms: Uniforms) -> NDArray[np.float32]:
        """Return ± the unit vector of each row: + with probability (1 + length / clip norm) / 2."""
        finite = np.nan_to_num(vectors.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        largest = np.abs(finite).max(axis=1, keepdims=True)
        # Divided by the largest entry first: squares of very large and very small numbers leave the range.
        shape = np.divide(finite, largest, out=np.zeros_like(finite), where=largest > 0)
        norm = np.linalg.norm(shape, axis=1, keepdims=True)
        units = np.divide(shape, norm, out=np.zeros_like(shape), where=norm > 0)
        with np.errstate(over="ignore"):
            share = np.minimum(largest * norm / self.clip_norm, 1.0)[:, 0]
        up = uniforms.integers(0, _COINS, len(vectors)) < (1 + share) / 2 * _COINS
        return np.asarray(np.where(up[:, None], units, -units), np.float32)


def directions(seed: int, first: int, count: int, d: int) -> NDArray[np.float32]:
    """Return directions ``first`` … of the list that ``seed`` stands for: entries of mean 0 and variance 1."""
    steps = -(-2 * d // _BYTES_PER_STEP)
    generator = np.random.Philox(key=seed)
    generator.advance(first * steps)
    words = np.asarray(generator.random_raw(count * steps * 4)).astype("<u8")
    octets = words.view(np.uint8).reshape(count, steps * _BYTES_PER_STEP)
    total = octets[:, :d].astype(np.float32)
    total += octets[:, d : 2 * d]
    total -= np.float32(_MEAN)
    total /= np.float32(_DEVIATION)
    return total
