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


def test_simulate_writes_table_json_and_figure(tmp_path: Path) -> None:
    result = tacit(
        "fed simulate syn-L-0.1-0.6 --select ps --perturb pm --epsilon 4 --model logistic --folds 2 "
        f"--repeats 1 --json {tmp_path / 'out' / 'r.json'} --figure {tmp_path / 'r.png'}"
    )
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.stdout
    assert "not for release" in " ".join(result.stdout.split())
    report = json.loads((tmp_path / "out" / "r.json").read_text())
    assert 0.5 < report["mean"] < 1
    assert report["certificate"]["for release"] is False
    assert report["certificate"]["epsilon"] == pytest.approx(4.0)
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_simulate_without_data_says_where_to_put_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    result = tacit("fed simulate adult")
    assert "TACIT_DATA" in str(result.exception)


def test_run_without_flower_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tacit.federated.flower.loopback", None)
    result = tacit(f"fed run syn-L-0.1-0.6 --folder {tmp_path}")
    assert "tacit-dp[federated]" in str(result.exception)


def test_node_without_flower_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tacit.federated.flower.node", None)
    result = tacit(f"fed node --folder {tmp_path} --budget 1 --superlink 127.0.0.1:1 --insecure")
    assert "tacit-dp[federated]" in str(result.exception)


def test_the_command_line_does_not_load_flower_or_torch() -> None:
    code = (
        "import sys, tacit.cli.fed; print([m for m in ('flwr', 'torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
