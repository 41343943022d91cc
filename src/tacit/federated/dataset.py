"""Records spread over clients: one record per client."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Features (n × d, any real type) and labels in {−1, +1}; row i is the private record of client i."""

    name: str
    x: NDArray[np.generic] = field(repr=False)
    y: NDArray[np.float32] = field(repr=False)

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.y.shape != (len(self.x),):
            raise ArgumentError(
                f"{self.name}: x must be n × d and y of length n, got {self.x.shape}, {self.y.shape}."
            )
        if not np.isin(self.y, (-1, 1)).all():
            raise ArgumentError(f"{self.name}: labels must be −1 or +1.")

    @property
    def d(self) -> int:
        """The number of features."""
        return int(self.x.shape[1])

    def __len__(self) -> int:
        return len(self.x)
