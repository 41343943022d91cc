"""Plant a mutant in a copy of the package and see whether the tests notice."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
CENTRAL = ("raw", "release", "training", "plan", "runs", "support", "audit")
LOCAL = ("federated",)
PATIENCE = 900.0
_NO_SUCH_TEST = 4
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[| - |$)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """Which test caught a mutant, or None, and how long that took."""

    mutant: Mutant
    caught_by: str | None
    seconds: float


def copy_package(place: Path) -> Path:
    """A copy of ``src`` without compiled parts, so that the source that was changed is what runs."""
    copy = place / "src"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    return copy


def compile_parts(place: Path) -> None:
    """Build the compiled parts of a copy, as pyproject.toml says, beside their source."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parts = [
        {key.replace("-", "_"): value for key, value in part.items() if key != "optional"}
        for part in project["tool"]["setuptools"]["ext-modules"]
    ]
    code = (
        "import json, sys; from setuptools import Extension, setup; "
        "parts = [Extension(**part) for part in json.loads(sys.argv.pop())]; "
        "setup(name='copy', package_dir={'': 'src'}, packages=[], ext_modules=parts)"
    )
    command = [sys.executable, "-c", code, "build_ext", "--inplace", json.dumps(parts)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The compiled parts cannot be built: {done.stderr[-800:]}")


def attempt(mutant: Mutant, before: str | None = None) -> Outcome:
    """Run the test that noticed ``before``, then those that should notice, then all of the area, until one fails."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tacit-mutant-") as place:
        source = copy_package(Path(place))
        mutant.apply(source / "tacit")
        if mutant.compiled:
            compile_parts(Path(place))
        caught = None
        for tests in ([before] if before else [], mutant.tests, _area(mutant)):
            caught = first_failure(source, [test for test in tests if (ROOT / test.split("::")[0]).exists()])
            if caught is not None:
                break
    if caught is not None and not passes_without(caught.split(" ")[0], mutant.compiled):
        raise SystemExit(f"{caught} fails without any mutant, so it shows nothing; mend it first.")
    return Outcome(mutant, caught, time.monotonic() - started)


@cache
def passes_without(test: str, compiled: bool) -> bool:
    """Whether a test passes with the package as it is, copied, and compiled or not, in the same way."""
    with tempfile.TemporaryDirectory(prefix="tacit-control-") as place:
        source = copy_package(Path(place))
        if compiled:
            compile_parts(Path(place))
        return first_failure(source, [test]) is None


def first_failure(source: Path, tests: list[str]) -> str | None:
    """The first test that fails with the package at ``source``; None if all pass."""
    if not tests:
        return None
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(source.parent / "hypothesis"),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{tests[0]} (does not end)"
    if done.returncode in (0, _NO_SUCH_TEST):
        return None
    if done.returncode not in (1, 2):
        raise SystemExit(f"pytest cannot run: {done.stdout[-800:]}{done.stderr[-800:]}")
    found = _FAILED.search(done.stdout)
    return found.group(1) if found else tests[0]


def _area(mutant: Mutant) -> list[str]:
    local = all(edit.file.startswith("federated/") for edit in mutant.edits)
    return [f"tests/{folder}" for folder in (LOCAL if local else CENTRAL)]
