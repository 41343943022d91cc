"""Options of commands are the fields of jobs and methods: nothing is written twice, and nothing is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import click
import pytest
from typer.main import get_command

from cli.conftest import Tacit
from tacit.cli import options
from tacit.cli.main import app
from tacit.errors import ArgumentError
from tacit.jobs.settings import FINETUNING, SECTIONS
from tacit.option_fields import Option, option, options_of
from tacit.plan import METHODS


def parameters(command: str) -> dict[str, Any]:
    group = get_command(app)
    assert isinstance(group, click.Group)
    return {flag: p for p in group.commands[command].params for flag in (*p.opts, *p.secondary_opts)}


def flags() -> Iterator[tuple[str, str, Option]]:
    for section, known in SECTIONS.items():
        for key, one in known.items():
            yield f"{section}.{key}", (one.flag or f"--{key.replace('_', '-')}").split("/")[0], one


def test_every_field_is_an_option_of_a_command_that_trains() -> None:
    offered = {**parameters("train"), **parameters("finetune")}
    missing = {place for place, flag, _ in flags() if flag.startswith("--") and flag not in offered}
    owners_words = {
        place for place in missing if place.startswith("deployment.")
    }  # for a registry, in a file
    assert owners_words
    assert missing - owners_words == {"data.tokenizer"}, "it follows from the model; a file may name another"


def test_help_texts_are_those_of_the_fields() -> None:
    train = parameters("train")
    for place, flag, one in flags():
        if flag in train and flag not in ("--image-size", "--head"):
            assert train[flag].help.startswith(one.help.rstrip(".")), place


@pytest.mark.parametrize("command", ["train", "plan"])
def test_the_help_lists_every_method(command: str) -> None:
    text = parameters(command)["--method"].help
    assert all(name in text for name in METHODS)
    assert all(name in parameters("finetune")["--method"].help for name in FINETUNING)


def test_defaults_are_shown() -> None:
    train = parameters("train")
    assert train["--epsilon"].help.endswith("(default: 3)")
    assert train["--held-out"].help.endswith("(default: 0.2)")
    assert train["--method"].help.endswith(
        "(default: tp-topk; dp-sgd for the additive model and text-linear)"
    )
    assert parameters("finetune")["--method"].help.endswith("(default: last-layer)")
    assert not parameters("plan")["--epochs"].help.endswith(")"), "it must be given"


def test_one_option_fills_the_fields_of_several_sections(tacit: Tacit) -> None:
    found: list[options.Settings] = []

    @options.job_options(
        options.offer("data", only=("image_size",)), options.offer("model", only=("image_size",))
    )
    def command(settings: options.Settings) -> None:
        found.append(settings)

    command(image_size=48)
    assert found == [{"data": {"image_size": 48}, "model": {"image_size": 48}}]


@dataclass(frozen=True)
class Later:
    """A section of tomorrow."""

    patience: int = option("Epochs to wait for.", 3)
    mood: float | tuple[float, ...] | None = option("One number, or several.", None)


def test_a_new_field_is_a_new_option_and_nothing_else_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECTIONS, "later", options_of(Later))  # type: ignore[arg-type]
    found: list[options.Settings] = []

    @options.job_options(options.offer("later"))
    def command(settings: options.Settings, loud: bool = False) -> None:
        found.append(settings)

    command(patience=5, mood="1,2", loud=True)
    command(patience=None, mood="1", loud=True)
    assert found == [
        {"later": {"patience": 5, "mood": (1.0, 2.0)}},
        {"later": {"patience": None, "mood": 1.0}},
    ]
    with pytest.raises(ArgumentError, match="--mood takes numbers separated by commas"):
        command(patience=1, mood="x", loud=False)


def test_a_field_that_is_gone_is_noticed_when_the_command_is_defined() -> None:
    with pytest.raises(KeyError):
        options.offer("data", only=("colour",))


def test_words_beside_a_number_are_words() -> None:
    ratio = SECTIONS["method"]["active_ratio"]
    assert options._read(ratio, "auto") == "auto"
    assert options._read(ratio, "0.5") == 0.5
    with pytest.raises(ArgumentError, match="--active-ratio takes one number"):
        options._read(ratio, "0.5,0.5")
    assert options._read(replace(ratio, words=()), None) is None
