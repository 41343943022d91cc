"""Directions that a layer's columns share, and how much of a measured signal is real.

Directions that the groups of a layer share, found in released sums.

Let M (groups × members) hold a layer's released gradients, summed over a warm-up: signal + N(0, s²) on every entry.
The gradient of a column is one number times the layer's output gradient, and output gradients are much alike over
examples, so the signal lies close to a few directions of the members. Seen along these, a group's signal is whole,
while its noise is that of one coordinate per direction and not of all members.

With n groups and m members, a signal of energy ℓ s² along one direction shows as the eigenvalue (ℓ + n)(ℓ + m)/ℓ · s²
of MᵀM once ℓ > √(nm); pure noise stays below (√n + √m)² s², with fluctuations of the Tracy–Widom scale. The
eigenvector then has the squared cosine 1 − m(n + ℓ)/(ℓ(ℓ + m)) with the direction sought (Benaych-Georges and
Nadakuditi, 2012), and because it was fitted to the same noise that it is used on, a group without signal has variance
(1 + m/ℓ)² s² along it.

How much of what a group of coordinates has released is signal: an empirical Bayes estimate.

The sum of a group's released gradients over a warm-up is S = signal + N(0, s²) on each of its n coordinates, so
‖S‖²/s² is (1 + λ) times a chi-square of n degrees where the signal's energy per coordinate is λs² (signal and
noise both Gaussian). How λ is spread over the groups of a layer is not assumed but fitted: a mixture over a grid
of λ, zero among them, by expectation maximisation. Groups alike in the data are then alike in the estimate, and a
layer in which no group stands out gets the same estimate for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy.linalg
import torch
from torch import Tensor

from tacit.errors import ArgumentError, check_count, check_positive, check_share

_MOST = 16
_MARGIN = 2.5
"""Pure noise exceeds its edge by so many Tracy–Widom scales in one of two hundred layers."""
_SEEN = 0.5


@dataclass(frozen=True)
class CommonDirections:
    """What the groups show along the ``count`` directions that they share.

    ``energies``, one per group, are scaled to the noise s² per direction. ``seen`` is the share of a group's signal
    that lies along the directions found rather than beside them.
    """

    count: int
    seen: float
    energies: Tensor


def common_directions(
    groups: Tensor, noise_variance: float, weights: Tensor, most: int = _MOST
) -> CommonDirections | None:
    """The directions whose energy no noise explains and which see half of the signal or more; None if there are none.

    ``groups`` (groups × members) is M, ``noise_variance`` s². ``weights``, one per group and at most 1, say how much
    each group counts in the search: with those without signal left out, the others' direction comes out clearer.
    """
    check_positive("The noise variance", noise_variance)
    if groups.ndim != 2 or groups.numel() == 0 or weights.shape != groups.shape[:1]:
        raise ArgumentError("The groups must be a non-empty matrix, one row and one weight per group.")
    if groups.shape[1] == 1:
        return None  # what is seen is all there is
    groups, weights = groups.double() / math.sqrt(noise_variance), weights.double()
    n, m = float(weights.square().sum()), groups.shape[1]
    values, directions = _leading(groups * weights[:, None], most)
    edge = (math.sqrt(n) + math.sqrt(m)) ** 2
    scale = (math.sqrt(n) + math.sqrt(m)) * (1 / math.sqrt(n) + 1 / math.sqrt(m)) ** (1 / 3)
    excess = values - n - m
    signal = (excess + (excess.square() - 4 * n * m).clamp(min=0).sqrt()) / 2
    seen = 1 - m * (n + signal) / (signal * (signal + m))
    found = (values > edge + _MARGIN * scale) & (seen > _SEEN)
    if not bool(found.any()):
        return None
    directions, signal, seen = directions[:, found], signal[found], seen[found]
    # A group that does not count in the search has not bent the directions towards its noise.
    bent = 1 + weights.square()[:, None] * m / signal
    energies = noise_variance * ((groups @ directions) / bent).square().sum(1)
    return CommonDirections(int(found.sum()), float((seen * signal).sum() / signal.sum()), energies)


def _leading(matrix: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of MᵀM, falling, and their eigenvectors as columns."""
    narrow = matrix.shape[1] <= len(matrix)
    products = matrix.T @ matrix if narrow else matrix @ matrix.T
    last = len(products) - 1
    values, vectors = scipy.linalg.eigh(products.numpy(), subset_by_index=[max(0, last + 1 - most), last])
    kept, found = torch.from_numpy(values).flip(0), torch.from_numpy(vectors).flip(1)
    return kept, found if narrow else torch.nn.functional.normalize(matrix.T @ found, dim=0)


_GRID = torch.cat([torch.zeros(1, dtype=torch.float64), torch.logspace(-3, 6, 37, dtype=torch.float64)])
_ROUNDS = 60
"""Stopped before it converges, the mixture keeps some of its even start: small groups are not declared empty."""


def signal_share(
    energies: Tensor, members: int, noise_variance: float, seen: float = 1.0, growth: float = 1.0
) -> Tensor:
    """E[nλ/(1 + nλ)] for every group: the Wiener factor of a group that acts as one.

    ``energies`` is ‖S‖² per group of n = ``members`` coordinates, ``noise_variance`` s² of one coordinate of S.
    The coordinates of a column move together (its gradients are one number times the layer's output gradient), so
    signal is compared with the noise along one direction and not along all n. Where the energies hold only the share
    ``seen`` of the signal's, λ counts for λ / ``seen``. ``growth`` is how much larger λ is over the whole run.
    """
    check_count("The number of coordinates of a group", members)
    check_positive("The noise variance", noise_variance)
    check_share("The share of the signal that is seen", seen)
    check_positive("The growth of the signal", growth)
    if energies.ndim != 1 or energies.numel() == 0 or not bool((energies >= 0).all()):
        raise ArgumentError("The energies must be a flat, non-empty vector of numbers that are not negative.")
    scaled = energies.double()[:, None] / noise_variance
    likelihood = -(members / 2) * torch.log1p(_GRID) - scaled / (2 * (1 + _GRID))
    likelihood = (likelihood - likelihood.max(1, keepdim=True).values).exp()
    mixture = torch.full_like(_GRID, 1 / len(_GRID))
    for _ in range(_ROUNDS):
        mixture = _posterior(likelihood, mixture).mean(0)
    ratio = growth * members * _GRID / seen
    factor = ratio / (1 + ratio)
    return (_posterior(likelihood, mixture) @ factor).float()


def _posterior(likelihood: Tensor, mixture: Tensor) -> Tensor:
    joint = likelihood * mixture
    return joint / joint.sum(1, keepdim=True)
