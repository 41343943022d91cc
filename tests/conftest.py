"""One thread per test process: the suite runs on all cores as it is, and a thread pool does not survive a fork.

Property tests draw the same cases every time, and models are looked at in the same way at the same steps, so that the
suite judges a change and nothing else; under ``make fuzz`` (TACIT_FUZZ) both are drawn afresh.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

REPEATED = os.environ.get("TACIT_FUZZ", "1") == "1"

settings.register_profile("tacit", derandomize=REPEATED, database=None)
settings.load_profile("tacit")


@pytest.fixture(autouse=True)
def _the_same_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks of runs without a seed are secret; in tests they are those of a fixed one."""
    if not REPEATED:
        return
    import numpy as np

    class Fixed:
        def __init__(self) -> None:
            self._generator = np.random.default_rng(0)

        def uniform(self, count: int) -> np.ndarray:
            return self._generator.random(count)

    monkeypatch.setattr("tacit.raw.inspections.Keystream", Fixed)
