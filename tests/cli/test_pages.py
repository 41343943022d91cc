"""The pages and examples a newcomer follows."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest
from tools.cli_reference import PAGE, page
from typer.main import get_command

from cli.conftest import Tacit
from tacit.cli.main import app
from tacit.jobs.settings import experiment_of

ROOT = Path(__file__).parents[2]
PAGES = [
    "guide/getting-started.md",
    "guide/choosing-epsilon.md",
    "guide/data.md",
    "guide/finetuning.md",
    "guide/report.md",
    "guide/three-ways.md",
    "reference/cli.md",
]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / name).read_text(), flags=re.DOTALL)


def test_the_reference_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == page(), "run python -m tools.cli_reference"


@pytest.mark.parametrize("name", PAGES)
def test_every_command_on_the_pages_parses(name: str) -> None:
    lines = [line for block in blocks(name, "sh") for line in block.splitlines() if "tacit " in line]
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        command, context = get_command(app), None
        while isinstance(command, click.Group):
            context = click.Context(command, parent=context, info_name=command.name)
            _, command, words = command.resolve_command(context, words)
            assert command is not None
        command.make_context(command.name, list(words), parent=context)


def test_the_commands_of_choosing_epsilon_run(tacit: Tacit) -> None:
    lines = blocks("guide/choosing-epsilon.md", "sh")[0].splitlines()
    noises = [tacit(f"{line.removeprefix('tacit ')} --json").json["phases"][-1] for line in lines]
    assert noises[0]["noise_multiplier"] > 2 * noises[1]["noise_multiplier"]


def test_the_snippet_of_getting_started_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = blocks("guide/getting-started.md", "python")
    exec(compile(snippet, "docs/guide/getting-started.md", "exec"), {})
    assert "coordinates stay active" in capsys.readouterr().out


def test_the_configuration_of_getting_started_is_valid() -> None:
    (text,) = blocks("guide/getting-started.md", "toml")
    assert experiment_of(tomllib.loads(text)).method.warmup == (0.5, 0.7)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "least", "needs"),
    [
        ("tabular", 0.75, "torch"),
        ("text", 0.85, "torch"),
        ("own_loop", 0.75, "sklearn"),
        ("lightning_module", 0.75, "lightning"),
        ("hugging_face", 0.8, "accelerate"),
    ],
)
def test_examples_run_and_learn(
    name: str, least: float, needs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(needs)
    assert example(name).main() > least
    assert "accuracy" in capsys.readouterr().out


def test_the_example_on_images_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    found = example("images").main(epochs=10)
    assert min(found.values()) > 0.7
