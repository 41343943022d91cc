"""Every planted bug still fits the source, and changes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.mutants.catalogue import MUTANTS
from tools.mutants.mutant import Edit, Mutant, PatchError
from tools.mutants.running import ROOT, SOURCE, copy_package

PACKAGE = SOURCE / "tacit"


def test_there_are_enough_and_their_names_differ() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_the_source(mutant: Mutant, tmp_path: Path) -> None:
    for file in {edit.file for edit in mutant.edits}:
        target = tmp_path / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((PACKAGE / file).read_text())
    mutant.apply(tmp_path)
    for file in {edit.file for edit in mutant.edits}:
        assert (tmp_path / file).read_text() != (PACKAGE / file).read_text()
    assert all((ROOT / test).exists() for test in mutant.tests)


def test_a_mutant_that_no_longer_fits_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for before, count in (("x = 1", 2), ("y = 1", 0)):
        with pytest.raises(PatchError, match=f"{count} times, not once"):
            Mutant("m", "w", [Edit("a.py", before, "x = 2")], []).apply(tmp_path)


def test_the_copy_is_what_runs(tmp_path: Path) -> None:
    copy = copy_package(tmp_path)
    code = "import tacit; print(tacit.__file__)"
    environment = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(copy / "tacit" / "__init__.py")
