"""Whitening by the statistics of synthetic images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Whitening:
    """Principal components of vectors of synthetic images, brought closer to equal variance.

    With eigenvalues eⱼ of their second moment and ē the mean over all directions, direction j is scaled by
    (eⱼ + ridge · ē)^(−1/2): strong directions, which most images share, no longer drown the others, and directions
    that synthetic images hardly have are not blown up. At most ``dimensions`` directions are kept, the strongest.
    What comes out has unit length. Training on it needs far fewer
    steps than on the vectors themselves, and under privacy steps are dear.
    """

    def __init__(self, vectors: Tensor, dimensions: int, ridge: float = 4.0) -> None:
        count, inputs = vectors.shape
        self._mean = vectors.mean(0)
        centred = F.normalize(vectors - self._mean, dim=1)
        few = count < inputs  # then the small matrix of products between images gives the same directions
        spread, axes = torch.linalg.eigh((centred @ centred.T if few else centred.T @ centred) / count)
        kept = min(dimensions, int((spread > 1e-6 * spread[-1]).sum()))
        spread, axes = spread.flip(0)[:kept], axes.flip(1)[:, :kept]
        directions = centred.T @ (axes / (count * spread).sqrt()) if few else axes
        floor = ridge * float(centred.square().sum()) / (count * inputs)
        self._scaled = directions * (spread + floor).rsqrt()

    def __call__(self, vectors: Tensor) -> Tensor:
        """Whitened vectors of unit length, one row per vector."""
        return F.normalize(F.normalize(vectors - self._mean, dim=1) @ self._scaled, dim=1)
