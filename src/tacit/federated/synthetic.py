"""The synthetic data of the paper (the generator of Wangni et al. 2018)."""

from __future__ import annotations

import numpy as np

from tacit.errors import ArgumentError, check_count, check_positive, check_share
from tacit.federated.dataset import FederatedData

SIZES = {"syn-L": (60_000, 100), "syn-H": (100_000, 300)}


def synthetic(
    records: int, d: int, c1: float, c2: float, seed: int, *, name: str = "synthetic"
) -> FederatedData:
    """Draw records of ``d`` features whose magnitudes are mostly small, with labels of a hyperplane.

    x̄ ~ N(0, I) per record; one magnitude b_j ~ U[0, 1] per feature, multiplied by ``c1`` where it is at most
    ``c2``; x = x̄ ⊙ b; y = sign(x̄·w̄) for one w̄ ~ N(0, I).
    """
    check_count("records", records)
    check_count("d", d, least=2)
    check_positive("c1", c1)
    check_share("c2", c2)
    rng = np.random.default_rng(seed)
    magnitude = rng.random(d)
    magnitude = np.where(magnitude <= c2, c1 * magnitude, magnitude).astype(np.float32)
    hyperplane = rng.standard_normal(d, dtype=np.float32)
    x = rng.standard_normal((records, d), dtype=np.float32)
    y = np.where(x @ hyperplane >= 0, np.float32(1), np.float32(-1))
    x *= magnitude
    return FederatedData(name, x, y)


def named_synthetic(name: str, seed: int) -> FederatedData:
    """Return ``syn-L-C1-C2`` (60,000 × 100) or ``syn-H-C1-C2`` (100,000 × 300), such as syn-L-0.01-0.9."""
    family, _, parameters = name[:5], name[5:6], name[6:].split("-")
    try:
        records, d = SIZES[family]
        c1, c2 = (float(part) for part in parameters)
    except (KeyError, ValueError) as error:
        raise ArgumentError(
            f"A synthetic data set has a name such as syn-L-0.01-0.9 or syn-H-0.1-0.6, not {name!r}."
        ) from error
    return synthetic(records, d, c1, c2, seed, name=name)
