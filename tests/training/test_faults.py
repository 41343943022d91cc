"""Runs that are really killed, and a run that is really interrupted, each in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tacit
from tacit import TacitError
from tacit.release.ledger import read_ledger
from tacit.tensors import read_tensors
from training.small import STEPS, flat, network, plan, trainer

ROOT = Path(__file__).parents[2]
HELD_RUN = """
import sys, time
from pathlib import Path
from training.small import network, plan, trainer

place = Path(sys.argv[1])

def held(chunk):
    ledger = place / "run" / "ledger.jsonl"
    while ledger.exists() and ledger.read_bytes().count(b"\\n") == 6 and not (place / "go").exists():
        time.sleep(0.01)
    return chunk

chosen = plan("tp-topk", epsilon=3.0)
run = trainer(chosen, run_dir=place / "run", augment=held, workers=int(sys.argv[2]))
print(run.fit(progress=False).finished)
"""


def environment() -> dict[str, str]:
    """With the package that is tested here, which may be a copy."""
    package = Path(tacit.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}:{package}", "OMP_NUM_THREADS": "1"}


def test_runs_survive_faults_of_several_kinds(tmp_path: Path) -> None:
    kinds = ("kill", "full-disk", "read-only", "ledger", "hostile", "two")
    chosen = [option for kind in kinds for option in ("--kind", kind)]
    options = ["--faults", "6", "--table", str(tmp_path / "faults.md")]
    done = subprocess.run(
        [sys.executable, "-m", "tools.faults", "--seed", "7", "--jobs", "1", *options, *chosen],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("6 held, 0 did not\n")
    page = (tmp_path / "faults.md").read_text()
    assert re.search(r"^\| \*\*all\*\* \| 6 \|.*\| 0 \| 0 \|$", page, re.MULTILINE)


@pytest.fixture(params=[0, 1], ids=["no workers", "a worker"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A run in another process, in a group as a shell would start it, that waits in its sixth step."""
    command = [sys.executable, "-c", HELD_RUN, str(tmp_path), str(request.param)]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        ledger = tmp_path / "run" / "ledger.jsonl"
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < 6:
            assert process.poll() is None
            time.sleep(0.01)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_an_interrupt_stops_after_the_step_and_loses_nothing(
    running: subprocess.Popen[str], tmp_path: Path
) -> None:
    chosen = plan("tp-topk", epsilon=3.0)
    with pytest.raises(TacitError, match="in use by another process"):
        trainer(chosen, run_dir=tmp_path / "run").resume(progress=False)
    with pytest.raises(TacitError, match="already holds a run"):
        trainer(chosen, run_dir=tmp_path / "run").fit(progress=False)
    os.killpg(running.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    assert output == "False\n"
    charges = read_ledger(tmp_path / "run" / "ledger.jsonl").charges
    _, numbers = read_tensors(tmp_path / "run" / "checkpoint.safetensors")
    assert 6 <= len(charges) == numbers["step"] < STEPS
    resumed = trainer(chosen, network(), run_dir=tmp_path / "run")
    whole = trainer(chosen, network())
    assert resumed.resume(progress=False).finished
    assert whole.fit(progress=False).finished
    assert torch.equal(flat(resumed.model), flat(whole.model))
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == STEPS
