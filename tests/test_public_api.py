"""What ``import tacit`` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tacit
from tacit import plan as plan_package

ARGUMENTS = {"epsilon": 3.0, "delta": 1e-5, "examples": 1000, "batch_size": 100, "epochs": 1}


def test_everything_that_is_listed_is_there() -> None:
    for name in tacit.__all__:
        assert getattr(tacit, name) is not None, name


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    assert dir(tacit) == sorted([*tacit.__all__, "__version__"])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tacit.nothing  # type: ignore[attr-defined]


def test_the_package_plan_is_still_callable_and_says_what_to_call_instead() -> None:
    with pytest.warns(DeprecationWarning, match="tacit.make_plan"):
        old = tacit.plan("dp-sgd", **ARGUMENTS)  # type: ignore[operator]
    assert old == tacit.make_plan("dp-sgd", **ARGUMENTS)  # type: ignore[arg-type]


def test_the_package_plan_is_a_package() -> None:
    assert plan_package.load_plan is tacit.load_plan
    assert tacit.plan.load_plan is tacit.load_plan


@pytest.mark.parametrize("names", ["make_plan, load_plan, Plan, TacitError", "verify"])
def test_planning_and_verifying_load_no_pytorch(names: str) -> None:
    code = f"import sys\nfrom tacit import {names}\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
