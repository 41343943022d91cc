"""What fine-tuning on images starts from: a network or features, chosen on public images; rates by rule."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cli.conftest import Tacit
from tacit.data.features import registry
from tacit.files import decode_toml
from tacit.jobs import starts
from tacit.jobs.defaults import HEAD_STEPS, head_training
from tacit.jobs.recipes import RECIPES
from tacit.jobs.settings import TrainingConfig, experiment_of

SETTINGS = "--image-size 16 --epsilon 8 --delta 1e-3 --accountant rdp"


def flat(images: Tensor) -> Iterator[Tensor]:
    yield torch.nn.functional.normalize(images.flatten(1), dim=1)


def blind(images: Tensor) -> Iterator[Tensor]:
    yield torch.ones(len(images), 4) / 2


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Private and public photographs, and two kinds of features: one that sees them, one that does not."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    rng = random.Random(5)
    for folder, count, kinds in (("photos", 60, ("cats", "dogs")), ("public", 45, ("cups", "keys"))):
        for kind, bright in zip(kinds, ((200, 20), (20, 200)), strict=True):
            (tmp_path / folder / kind).mkdir(parents=True)
            for number in range(count):
                left, right = ((value + rng.randint(-20, 20),) * 3 for value in bright)
                picture = image.new("RGB", (20, 20), left)
                picture.paste(right, (10, 0, 20, 20))
                picture.save(tmp_path / folder / kind / f"{number}.png")
    for name, make in (("flat", flat), ("blind", blind)):
        made = registry.Features(f"For a test: {name}.", 1, lambda shape, make=make: make)
        monkeypatch.setitem(registry.FEATURES, name, made)
    monkeypatch.setattr(starts, "STARTS", (starts.Start(features="blind"), starts.Start(features="flat")))
    return tmp_path


def test_a_folder_trains_on_features_unless_something_else_is_asked_for(
    tacit: Tacit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (starts.PATCHES, starts.FEATURES):
        monkeypatch.setitem(registry.FEATURES, name, registry.FEATURES["flat"])
    done = tacit(f"train photos {SETTINGS} --dry-run --json")
    assert done.code == 0, done.err
    assert done.json["experiment"]["data"]["features"] == starts.PATCHES
    assert done.json["experiment"]["model"]["name"] == "unit-linear"
    assert "no data set went into" in done.json["facts"][0]
    assert (
        tacit(f"train photos --grey {SETTINGS} --dry-run --json").json["experiment"]["data"]["features"]
        == "scattering"
    )
    for asked in ("--model mlp --width 4", "--method dp-sgd"):
        said = tacit(f"train photos {SETTINGS} {asked} --dry-run --json").json["experiment"]
        assert said["data"]["features"] is None
    assert (
        "There is no model 'nosuch'"
        in tacit(f"train photos --features blind --model nosuch {SETTINGS}").sentence
    )


def test_a_last_layer_on_features_is_trained_certified_and_used(tacit: Tacit, photos: Path) -> None:
    done = tacit(f"finetune photos --features flat {SETTINGS} --out run --json")
    assert done.code == 0, done.err
    assert done.json["held_out"]["auc"] > 0.9
    assert done.json["steps"] == HEAD_STEPS
    assert tacit("verify run").code == 0
    assert tacit("predict run photos --out scores.csv").code == 0


def test_the_start_is_chosen_on_public_images_and_said(tacit: Tacit, photos: Path) -> None:
    shown = tacit(f"finetune photos --public public {SETTINGS} --dry-run")
    assert shown.code == 0, shown.err
    assert "# Start: the features flat, chosen on the public images in public" in shown.out
    data = decode_toml(shown.out)["data"]
    assert data["features"] == "flat"
    assert "public" not in data  # what was chosen is the configuration
    assert not (photos / "runs").exists()


def test_a_run_that_stays_at_chance_says_so_everywhere(tacit: Tacit, photos: Path) -> None:
    done = tacit(f"finetune photos --features blind {SETTINGS} --out run --json")
    (warning,) = done.json["warnings"]
    assert warning.startswith("The model is no better than guessing")
    page = (photos / "run" / "certificate.txt").read_text()
    assert warning[:40] in page
    assert "Warnings about the model" in page
    assert "no better than guessing" in (photos / "run" / "certificate.json").read_text()
    assert tacit("verify run").code == 0
    result = photos / "run" / "result.json"
    result.write_text(result.read_text().replace("no better than guessing", "excellent"))
    verdict = tacit("verify run")
    assert verdict.code == 1
    assert "leaves out warnings about the model" in verdict.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--public photos", "public names the private images themselves"),
        ("--public photos/cats", "public names the private images themselves"),
        ("--public nowhere", "public names a folder of images"),
        ("--public public --features flat", "leave out --public, --model or --features"),
        ("--public public --method full", "public compares last layers"),
        ("--features flat --method sparta", "only a last layer is trained"),
        ("--features flat --model mobilenet-v2", "leave out --model, or --features"),
        ("--features flat --lora-rank 4", "leave out --lora-rank, or --features"),
    ],
)
def test_bad_combinations(tacit: Tacit, photos: Path, options: str, sentence: str) -> None:
    assert sentence in tacit(f"finetune photos {options} {SETTINGS} --out run").sentence
    assert not (photos / "run").exists()


def test_images_with_a_budget_are_not_public(tacit: Tacit, photos: Path) -> None:
    assert tacit("budget init public --epsilon 3").code == 0
    refused = tacit(f"finetune photos --public public {SETTINGS}").sentence
    assert "has the budget 'public', so it is not public" in refused


def test_rates_follow_from_public_numbers_and_what_is_given_stays() -> None:
    few, many = (head_training(TrainingConfig(), n, 2.0) for n in (200, 20_000))
    assert few.batch_size is not None
    assert few.epochs is not None
    assert few.epochs * 200 / few.batch_size == pytest.approx(HEAD_STEPS)
    assert few.learning_rate is not None
    assert many.learning_rate is not None
    assert many.learning_rate / few.learning_rate == pytest.approx(100**0.7, rel=1e-2)
    assert few.clip_norm == pytest.approx(0.1)
    given = TrainingConfig(batch_size=10, epochs=3.0, clip_norm=1.0, learning_rate=0.5, momentum=0.0)
    kept = head_training(given, 200, 2.0, length=40.0)
    assert (kept.batch_size, kept.epochs, kept.clip_norm, kept.learning_rate, kept.momentum) == (
        10,
        3.0,
        1.0,
        0.5,
        0.0,
    )


def test_train_on_features_has_the_same_defaults_as_finetune(tacit: Tacit, photos: Path) -> None:
    shown = [
        decode_toml(tacit(f"{command} photos --features flat {SETTINGS} --dry-run").out)
        for command in ("train", "finetune")
    ]
    assert shown[0]["training"] == shown[1]["training"]
    for each in shown:  # so few images leave nothing but noise of a centre
        assert (each["model"]["name"], each["method"]["name"]) == ("unit-linear", "dp-sgd")


def test_grey_images_start_from_features_unless_a_network_is_named(
    tacit: Tacit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "FEATURES", "flat")
    grey = tacit(f"finetune photos --grey {SETTINGS} --dry-run")
    assert grey.code == 0, grey.err
    assert "# Start: the features flat, because the images are grey" in grey.out
    assert decode_toml(grey.out)["data"]["features"] == "flat"
    named = starts.by_rule(
        experiment_of({"data": {"source": "photos", "grey": True}, "model": {"name": "mobilenet-v2"}})
    )
    assert named[1] == ""


def test_a_data_set_with_a_recipe_starts_from_its_features() -> None:
    asked = experiment_of({"data": {"source": "pneumoniamnist"}, "method": {"name": "last-layer"}})
    found, why = starts.by_rule(asked)
    assert found.data.features == RECIPES["pneumoniamnist", "best"].features
    assert "because the recipe for pneumoniamnist has them" in why
    assert (
        starts.by_rule(experiment_of({"data": {"source": "cats"}, "method": {"name": "last-layer"}}))[1] == ""
    )


def test_a_model_is_not_asked_on_other_features_than_it_was_trained_on(
    tacit: Tacit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tacit(f"train photos --features flat {SETTINGS} --epochs 3 --out run --quiet")
    assert done.code == 0, done.err
    assert tacit("predict run photos/cats --out first.csv").code == 0

    def turned(images: Tensor) -> Iterator[Tensor]:
        for vectors in flat(images):
            yield vectors * torch.where(torch.arange(vectors.shape[1]) == 7, -1.0, 1.0)

    monkeypatch.setitem(registry.FEATURES, "flat", registry.Features("For a test.", 1, lambda shape: turned))
    refused = tacit("predict run photos/cats --out second.csv")
    assert refused.code == 2
    assert "was trained on other features 'flat' than this installation computes" in refused.err
    assert not Path("second.csv").exists()


def test_a_run_whose_features_were_renamed_is_not_verified(tacit: Tacit, photos: Path) -> None:
    assert tacit(f"train photos --features flat {SETTINGS} --epochs 3 --out run --quiet").code == 0
    assert tacit("verify run").code == 0
    about = Path("run/experiment.json")
    about.write_text(about.read_text().replace('"flat"', '"blind"'))
    edited = tacit("verify run")
    assert edited.code == 1
    assert "experiment.json" in edited.out


def test_a_run_is_not_continued_on_other_features_than_it_began_on(
    tacit: Tacit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tacit(f"train photos --features flat {SETTINGS} --epochs 3 --out run --quiet").code == 0
    for name in ("certificate.json", "certificate.txt", "model.safetensors"):
        Path("run", name).unlink()
    paid = Path("run/ledger.jsonl").read_bytes()
    about = Path("run/inputs.json")
    noted = about.read_text()
    about.write_text(json.dumps({**json.loads(noted), "signature": None}))
    assert "earlier version of Tacit trained this model" in tacit("resume run --quiet").sentence
    about.write_text(noted)
    monkeypatch.setitem(registry.FEATURES, "flat", registry.Features("For a test.", 2, lambda shape: blind))
    assert "trained on other features 'flat'" in tacit("resume run --quiet").sentence
    assert Path("run/ledger.jsonl").read_bytes() == paid


def test_what_a_run_takes_and_answers_is_not_edited_before_it_is_certified(
    tacit: Tacit, photos: Path
) -> None:
    assert tacit(f"train photos --features flat {SETTINGS} --epochs 3 --out run --quiet").code == 0
    for name in ("certificate.json", "certificate.txt", "model.safetensors"):
        Path("run", name).unlink()
    about = Path("run/inputs.json")
    noted = json.loads(about.read_text())
    for edited in ({"classes": noted["classes"][::-1]}, {"features": None, "signature": None}):
        about.write_text(json.dumps(noted | edited))
        assert "run/inputs.json does not say what this run takes" in tacit("resume run --quiet").sentence
        assert not Path("run/certificate.json").exists()
    about.write_text(json.dumps(noted))
    assert tacit("resume run --quiet").code == 0
    assert tacit("verify run").code == 0


def test_a_finished_run_is_not_certified_anew(tacit: Tacit, photos: Path) -> None:
    assert tacit(f"train photos --features flat {SETTINGS} --epochs 3 --out run --quiet").code == 0
    certificate = Path("run/certificate.json")
    before = certificate.read_bytes()
    written = certificate.stat().st_mtime_ns
    assert tacit("resume run --quiet").code == 0
    assert certificate.read_bytes() == before
    assert certificate.stat().st_mtime_ns == written
    for name in ("inputs.json", "experiment.json"):
        file = Path("run", name)
        whole = file.read_text()
        file.write_text(whole.replace("flat", "blind"))
        assert "run is not the one that the certificate speaks of" in tacit("resume run --quiet").sentence
        assert tacit("verify run").code == 1
        file.write_text(whole)
    assert tacit("verify run").code == 0


def test_a_plan_needs_no_features_and_what_can_be_refused_is_refused_before_they_are_computed(
    tacit: Tacit, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, ...]] = []

    def make(shape: tuple[int, int, int]) -> registry.Transform:
        made.append(shape)
        return flat

    slow = registry.Features("For a test.", 1, make, lambda shape: (shape[0] * shape[1] * shape[2],))
    monkeypatch.setitem(registry.FEATURES, "slow", slow)
    asked = f"photos --features slow {SETTINGS}"
    assert tacit(f"train {asked} --folds 3 --dry-run --json").code == 0
    for command in ("train", "finetune"):
        planned = tacit(f"{command} {asked} --dry-run --json")
        assert planned.code == 0, planned.err
        assert "Features are computed when the run starts" in " ".join(planned.json["facts"])
    (photos / "taken").mkdir()
    (photos / "taken" / "notes.txt").write_text("mine")
    for wrong, sentence in (
        ("--optimizer adam --momentum 0.9", "momentum is for sgd"),
        ("--model centred-linear --method dp-sgd", "need each other"),
        ("--batch-size 100000", "batch"),
        ("--out taken", "already exists"),
    ):
        done = tacit(f"train {asked} {wrong}")
        assert done.code != 0
        assert sentence in done.err
    assert not made
    done = tacit(f"train {asked} --epochs 1 --out run --json")
    assert done.code == 0, done.err
    assert made
    assert done.json["coordinates"] == 2 * (3 * 16 * 16) + 2 or done.json["coordinates"] == 3 * 16 * 16 + 1
    as_planned = planned.json["experiment"]["model"]["name"]
    assert tacit(f"train {asked} --dry-run --json").json["experiment"]["model"]["name"] == as_planned
