from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tacit.cli.main import app


def tacit(line: str) -> Result:
    return CliRunner().invoke(app, shlex.split(line))


def test_check_prints_json_and_succeeds_where_the_claim_holds() -> None:
    result = tacit("fed check --select pe --d 10 --k 1 --epsilon1 1 --samples 20000 --json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert report["holds"] is True
    assert report["exact_epsilon"] == pytest.approx(1.0, abs=1e-9)


def test_check_fails_for_the_published_encoding() -> None:
    result = tacit("fed check --select pe-paper --d 10 --k 1 --epsilon1 1 --samples 0")
    assert result.exit_code == 1
    assert "1.173" in result.stdout
    assert "DOES NOT HOLD" in result.stdout


def test_errors_are_one_sentence_and_exit_code_two() -> None:
    script = Path(sys.executable).with_name("tacit")
    done = subprocess.run([script, "fed", "check", "--k", "100"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == "tacit: k must be below the dimension d = 100, got 100."
