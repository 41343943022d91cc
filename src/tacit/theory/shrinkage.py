"""How much of what a group of coordinates has released is signal: an empirical Bayes estimate.

The sum of a group's released gradients over a warm-up is S = signal + N(0, s²) on each of its n coordinates, so
‖S‖²/s² is (1 + λ) times a chi-square of n degrees where the signal's energy per coordinate is λs² (signal and
noise both Gaussian). How λ is spread over the groups of a layer is not assumed but fitted: a mixture over a grid
of λ, zero among them, by expectation maximisation. Groups alike in the data are then alike in the estimate, and a
layer in which no group stands out gets the same estimate for all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.errors import ArgumentError, check_count, check_positive, check_share

_GRID = torch.cat([torch.zeros(1, dtype=torch.float64), torch.logspace(-3, 6, 37, dtype=torch.float64)])
_ROUNDS = 60
"""Stopped before it converges, the mixture keeps some of its even start: small groups are not declared empty."""


def signal_share(energies: Tensor, members: int, noise_variance: float, seen: float = 1.0) -> Tensor:
    """E[nλ/(1 + nλ)] for every group: the Wiener factor of a group that acts as one.

    ``energies`` is ‖S‖² per group of n = ``members`` coordinates, ``noise_variance`` s² of one coordinate of S.
    The coordinates of a column move together (its gradients are one number times the layer's output gradient), so
    signal is compared with the noise along one direction and not along all n. Where the energies hold only the share
    ``seen`` of the signal's, λ counts for λ / ``seen``.
    """
    check_count("The number of coordinates of a group", members)
    check_positive("The noise variance", noise_variance)
    check_share("The share of the signal that is seen", seen)
    if energies.ndim != 1 or energies.numel() == 0 or not bool((energies >= 0).all()):
        raise ArgumentError("The energies must be a flat, non-empty vector of numbers that are not negative.")
    scaled = energies.double()[:, None] / noise_variance
    likelihood = -(members / 2) * torch.log1p(_GRID) - scaled / (2 * (1 + _GRID))
    likelihood = (likelihood - likelihood.max(1, keepdim=True).values).exp()
    mixture = torch.full_like(_GRID, 1 / len(_GRID))
    for _ in range(_ROUNDS):
        mixture = _posterior(likelihood, mixture).mean(0)
    factor = members * _GRID / (seen + members * _GRID)
    return (_posterior(likelihood, mixture) @ factor).float()


def _posterior(likelihood: Tensor, mixture: Tensor) -> Tensor:
    joint = likelihood * mixture
    return joint / joint.sum(1, keepdim=True)
