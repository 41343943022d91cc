"""How many releases to charge at once: a line that is certain to be on disk can take longer than a small step.

Charges that are written ahead stay charged if a crash comes before their releases, so a run then ends that many steps
earlier. Hence few of them: one by one where steps are slow, and never more than a hundredth of the run.
"""

from __future__ import annotations

import math
import time

MOST = 64
LEAST_SHARE = 100
"""At most one in so many of a run's steps is charged ahead."""
DISK_SHARE = 0.05
"""The share of time that may go to the disk before more is charged at once."""


class Together:
    """Watches how long steps take, and says how many charges to write at once."""

    def __init__(self, steps: int) -> None:
        self._most = min(MOST, steps // LEAST_SHARE)
        self._began, self._count = 0.0, 0

    def count(self, left: int, disk: float) -> int:
        """How many releases to charge now, of ``left`` that are sure to come; at least the next.

        ``disk`` is how long it took to write the last charges, which were as many as this said.
        """
        now, wanted = time.monotonic(), 1
        if self._count and self._most > 1:
            each = max(1e-6, (now - self._began - disk) / self._count)
            wanted = math.ceil(disk / (DISK_SHARE * each))
        self._began, self._count = now, max(1, min(wanted, self._most, left))
        return self._count
