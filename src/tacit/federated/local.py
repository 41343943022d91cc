"""What one client does in one round (LocalUpdate of Algorithm 1), for many clients at once.

The arguments are raw and stay with the client; `Answers` is all that leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.federated.perturbation import Perturbation
from tacit.federated.sampling import BOTTOM, Uniforms, sample_coordinates
from tacit.federated.selection import RankLaw

Floats = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Answers:
    """One coordinate and one perturbed value per client; coordinate `BOTTOM` means ⊥, and value 0."""

    coordinate: NDArray[np.int64]
    value: NDArray[np.float64]


def two_stage_answers(
    law: RankLaw,
    perturbation: Perturbation,
    gradients: NDArray[np.float32],
    residual: NDArray[np.float32] | None,
    momentum: float,
    uniforms: Uniforms,
) -> tuple[Answers, NDArray[np.float32]]:
    """Select, perturb and answer; return the answers and the new residual of each client.

    With r the residual kept from earlier rounds (None for a first round) and g the gradient: r' = r + g, j
    drawn from ``law`` by the ranks of |r'|, the answer is (j, perturbed clip(r'_j + η r_j)), and r'_j is
    reset to 0. The answer is ε-LDP with ε = law.epsilon + perturbation.epsilon, whatever g and r are.
    """
    accumulated = gradients.copy() if residual is None else gradients + residual
    # What is not finite counts as zero: it must neither stop the client nor show in its ranks.
    np.nan_to_num(accumulated, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    coordinate = sample_coordinates(law, np.abs(accumulated), uniforms)
    rows = np.flatnonzero(coordinate != BOTTOM)
    chosen = coordinate[rows]
    sent = accumulated[rows, chosen].astype(np.float64)
    if residual is not None:
        sent += momentum * residual[rows, chosen]
    value = np.zeros(len(coordinate))
    value[rows] = perturbation.sample(sent, uniforms)
    accumulated[rows, chosen] = 0.0
    return Answers(coordinate, value), accumulated


def flat_answers(
    perturbation: Perturbation, vectors: Floats, count: int, uniforms: Uniforms
) -> list[Answers]:
    """Answer for ``count`` different random coordinates per client; values are not yet enlarged."""
    n, d = vectors.shape
    if count == 1:
        coordinates = uniforms.integers(0, d, n)[:, None]
    else:
        order = np.argsort(uniforms.integers(0, 2**62, n * d).reshape(n, d), axis=1)
        coordinates = order[:, :count]
    values = perturbation.sample(np.take_along_axis(vectors, coordinates, axis=1), uniforms)
    return [Answers(coordinates[:, i], values[:, i]) for i in range(count)]


def sum_answers(answers: Answers, d: int) -> NDArray[np.float64]:
    """Return the sum of the answers as a dense vector; ⊥ counts as the zero vector."""
    given = answers.coordinate != BOTTOM
    return np.bincount(answers.coordinate[given], weights=answers.value[given], minlength=d).astype(
        np.float64
    )
