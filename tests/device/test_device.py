"""On a device with CUDA's rules every method trains, stops, resumes and verifies, as on the CPU; see ``pretend``.

``python -m device.scenarios`` from ``tests/`` runs all methods with all models; here are those that differ most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
CHOSEN = (
    "tp-topk linear",
    "tp-topk few linear",
    "tp-topk reset linear",
    "tp-topk frozen",
    "tp-topk tokens",
    "sparta convolutions",
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What came of the chosen scenarios, in a process of their own: a device is registered for good."""
    run = subprocess.run(
        [sys.executable, "-m", "device.scenarios", *CHOSEN, "traffic"],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {f"{f['method']} {f['model']}" if "method" in f else "traffic": f for f in found}


@pytest.mark.parametrize("scenario", CHOSEN)
def test_a_run_on_the_device_is_the_run_on_the_host(
    scenario: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    assert outcomes[scenario].get("difference", 1.0) < 1e-5, outcomes[scenario]


def test_the_noise_is_all_that_goes_to_the_device_and_nothing_of_its_size_comes_back(
    outcomes: dict[str, dict[str, Any]],
) -> None:
    """Noise is drawn on the host ahead of time, in pieces; sums, norms, supports and weights stay on the device."""
    traffic = outcomes["traffic"]["traffic"]
    steps = [value for key, value in traffic.items() if key.isdigit()]
    quiet = min(steps, key=lambda step: step["waits"])
    assert quiet["to host"] <= 32, quiet
    assert quiet["to device"] <= 1.01 * traffic["dimension"], quiet
    assert quiet["waits"] <= 1, quiet
