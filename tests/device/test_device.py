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

TRAFFIC = (
    "traffic wide all",
    "traffic wide few coordinates",
    "traffic convolutions rows",
    "traffic tokens all",
    "traffic tokens many coordinates",
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What came of the chosen scenarios, in a process of their own: a device is registered for good."""
    run = subprocess.run(
        [sys.executable, "-m", "device.scenarios", *CHOSEN, *TRAFFIC],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {f"{f['method']} {f['model']}" if "method" in f else f"traffic {f['traffic']}": f for f in found}


@pytest.mark.parametrize("scenario", CHOSEN)
def test_a_run_on_the_device_is_the_run_on_the_host(
    scenario: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    assert outcomes[scenario].get("difference", 1.0) < 1e-5, outcomes[scenario]


def test_a_step_waits_once_and_moves_nothing_of_the_models_size(outcomes: dict[str, dict[str, Any]]) -> None:
    """Sums, norms, supports, weights and noise stay on the device, in whatever chunks a batch comes.

    Indices of rows go there where a convolution needs them, and random directions to verify products in: 8 numbers for
    each input of a layer. Steps that look at the model again ask more.
    """
    for name in TRAFFIC:
        quiet = min(outcomes[name]["steps"], key=lambda step: step["waits"])
        assert quiet["waits"] <= 1, outcomes[name]
        assert quiet["to host"] <= 1, outcomes[name]
        assert quiet["to device"] <= outcomes[name]["dimension"] / 4, outcomes[name]
