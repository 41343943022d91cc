"""What a release says of itself is said alike everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tacit
from tacit.errors import NO_FILE_LOCKS
from tacit.version import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_written_once() -> None:
    assert tacit.__version__ == __version__
    assert "version" not in PROJECT["project"]
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tacit.version.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_changelog_and_citation_name_this_version() -> None:
    headings = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_addresses_are_those_of_one_project() -> None:
    home = PROJECT["project"]["urls"]["Homepage"]
    assert all(address.startswith(home) for address in PROJECT["project"]["urls"].values())
    assert f'\nrepository-code: "{home}"\n' in (ROOT / "CITATION.cff").read_text()


def test_every_extra_that_a_sentence_asks_for_exists() -> None:
    asked = set()
    for file in (ROOT / "src").rglob("*.py"):
        asked |= set(re.findall(r"tacit-dp\[(\w+)\]", file.read_text()))
    assert asked == {"data", "federated", "figures", "integrations", "onnx", "text"}
    assert asked <= set(PROJECT["project"]["optional-dependencies"])


# As on Windows, where Python has no fcntl.
WITHOUT_LOCKS = "import sys; sys.modules['fcntl'] = None; "


@pytest.mark.parametrize(
    "use",
    [
        "import tacit.release.ledger",
        "from tacit.federated.local_ledger import _lock; _lock(0, None)",
    ],
)
def test_without_file_locks_the_ledger_says_what_it_needs(use: str) -> None:
    code = WITHOUT_LOCKS + use
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"tacit.errors.LedgerError: {NO_FILE_LOCKS}"


def test_without_file_locks_planning_works_and_training_is_one_sentence(tmp_path: Path) -> None:
    start = [sys.executable, "-c", f"{WITHOUT_LOCKS}from tacit.cli.main import main; main()"]
    line = ["plan", "--examples", "1000", "--batch-size", "100", "--epochs", "3", "--epsilon", "1"]
    assert subprocess.run([*start, *line], capture_output=True, check=False).returncode == 0
    line = ["train", "nhanes", "--epsilon", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run([*start, *line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"tacit: {NO_FILE_LOCKS}\n")


def test_the_workflows_name_what_the_makefile_can_do() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    used = {name for file in workflows for name in re.findall(r"\bmake ([a-z0-9-]+)", file.read_text())}
    assert {"test", "test-oldest", "package-test", "docs"} <= used
    assert used <= targets
