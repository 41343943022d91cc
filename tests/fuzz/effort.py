"""How long to try: the same few cases in the suite, many fresh ones under ``make fuzz``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

FACTOR = int(os.environ.get("TACIT_FUZZ", "1"))


def tries(count: int) -> settings:
    """``count`` cases, always the same; with TACIT_FUZZ=n n times as many, different every time."""
    return settings(
        max_examples=count * FACTOR,
        derandomize=FACTOR == 1,
        database=None,
        deadline=None,
        # A smaller case of the same failure is not worth minutes of a suite.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
