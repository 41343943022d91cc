"""The trial of the package notices a package that is wrong; that it passes is tried by make package-test."""

from __future__ import annotations

import io
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from tools.package_test import HELD, ROOT, Environment, Failure, check_contents, check_extra
from tools.package_uses import CORE, EXTRAS, Use

ABOUT = "tacit_dp-9.9.9.dist-info"
WHEEL = {
    *(str(file.relative_to(ROOT / "src")) for file in (ROOT / "src" / "tacit").rglob("*.py")),
    *(f"tacit/{name}" for name in HELD),
    f"{ABOUT}/METADATA",
    f"{ABOUT}/entry_points.txt",
    f"{ABOUT}/licenses/LICENSE",
}
SDIST = {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "src/tacit/release/noise.c"}


def written(place: Path, wheel: set[str], sdist: set[str]) -> tuple[Path, Path]:
    packed, source = place / "tacit_dp-9.9.9-py3-none-any.whl", place / "tacit_dp-9.9.9.tar.gz"
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(wheel):
            archive.writestr(name, "")
    with tarfile.open(source, "w:gz") as archive:
        for name in sorted(sdist):
            archive.addfile(tarfile.TarInfo(f"tacit_dp-9.9.9/{name}"), io.BytesIO())
    return source, packed


def test_a_sound_package_passes(tmp_path: Path) -> None:
    check_contents(*written(tmp_path, WHEEL, SDIST))


@pytest.mark.parametrize(
    ("wheel", "sdist", "sentence"),
    [
        (WHEEL | {"tests/test_a.py"}, SDIST, "The wheel holds more than Tacit: tests."),
        (WHEEL | {"tacit_papers/cli.py"}, SDIST, "The wheel holds more than Tacit: tacit_papers."),
        (WHEEL - {"tacit/py.typed"}, SDIST, "The wheel lacks tacit/py.typed."),
        (WHEEL - {"tacit/cli/main.py"}, SDIST, "The wheel lacks tacit/cli/main.py."),
        (WHEEL, SDIST | {"tests/a.py"}, "The source distribution holds more than a build needs: tests."),
        (WHEEL, SDIST - {"LICENSE"}, "The source distribution lacks LICENSE."),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wheel: set[str], sdist: set[str], sentence: str) -> None:
    with pytest.raises(Failure) as caught:
        check_contents(*written(tmp_path, wheel, sdist))
    assert str(caught.value) == sentence


def test_a_command_that_fails_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Environment, "python", Path(sys.executable))
    here = Environment("the environment here", tmp_path)
    (tmp_path / "work").mkdir()
    said = here.python_runs("import os; print(os.listdir(), os.environ['HOME'])")
    assert said == f"[] {tmp_path / 'home'}\n"
    with pytest.raises(Failure) as caught:
        here.python_runs("a = 1\nraise SystemExit('It is bad.')")
    words = "Could not run the script that begins 'a = 1' in the environment here: It is bad."
    assert str(caught.value) == words
    assert capsys.readouterr().err == "It is bad.\n"


def test_lines_run_in_one_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Environment, "python", Path(sys.executable))
    (tmp_path / "work").mkdir()
    here = Environment("the environment here", tmp_path)
    check_extra(here, Use("", ("--help", "data list")))
    with pytest.raises(Failure, match="tacit plan ended with exit code 2"):
        check_extra(here, Use("", ("--help", "plan")))
    assert "Missing option" in capsys.readouterr().err


def test_every_extra_of_a_user_has_a_use() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    developers = {"test", "dev", "docs", "browser", "peers", "opponents"}
    assert set(EXTRAS) == set(project["optional-dependencies"]) - developers
    for use in EXTRAS.values():
        assert use.script or use.commands
        assert bool(use.asks) != bool(use.asks_script)
    assert len(CORE.script.strip().splitlines()) == 10
