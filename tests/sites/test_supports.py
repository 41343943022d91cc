"""Rounds about chosen coordinates: the choice, messages of k numbers, what a server may name, the model at the end."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from oracle import clipped_sum, per_example_gradients
from sites.small import read, records, terms, weights, write_csv
from sites.test_coordinator import Federation
from tacit import load, verify
from tacit.cli.main import app
from tacit.errors import ArgumentError
from tacit.release.ledger_file import read_ledger
from tacit.sites.coordinator import Coordinator
from tacit.sites.masks import make_key
from tacit.sites.messages import MessageError, read_message, weights_digest, write_message
from tacit.sites.options import Training
from tacit.sites.records import load_records
from tacit.sites.supports import bits_of, compact_shapes, gathered, spread, support_of
from tacit.sites.terms import Terms, read_terms
from tacit.sites.transport import InProcess
from tacit.sites.vault import Site, Vault, create_site, secure_sum_of
from tacit.support import Block, Kind, Support

pytestmark = pytest.mark.usefixtures("quick_looks")

TOP = {"method": "tp-topk", "active_ratio": 0.2, "warmup": 0.5}
ROWS = {"method": "sparta", "active_ratio": 0.25, "warmup": 0.5, "model": "mlp", "width": 8, "depth": 1}


@pytest.fixture
def made(tmp_path: Path, keep: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path, keep, 2, **TOP)
    yield federation
    for vault in federation.vaults.values():
        vault._answers.close()


def test_the_top_of_the_released_squares_is_trained_and_answers_have_k_numbers(made: Federation) -> None:
    coordinator = made.coordinator(learning_rate=0.3)
    squares: dict[str, torch.Tensor] = {}
    while coordinator.done < 2:
        answers = coordinator._ask_round(coordinator.done + 1)
        mean, noise = coordinator._mean(answers), coordinator._noise(answers)
        for name, value in mean.items():
            squares[name] = squares.get(name, 0) + value.float() ** 2 - noise**2
        coordinator._take(mean, noise)
        coordinator.used += len(answers)
        coordinator._choose_if_due()
        coordinator.done += 1
    support = coordinator.support
    assert support is not None
    total = sum(value.numel() for value in squares.values())
    assert support.size == int(0.2 * total)
    flat = torch.cat([value.flatten() for value in squares.values()])
    active = torch.cat([support[name].mask().flatten() for name in squares])
    assert flat[active].min() >= flat[~active].max()
    start = weights(made.terms)
    for name, block in support.items():
        assert torch.equal(coordinator.model.get_parameter(name)[~block.mask()], start[name][~block.mask()])
    coordinator._save()
    again = made.coordinator(learning_rate=0.3)
    assert again.support is not None
    assert again.support.digest() == support.digest()
    again.run()
    for name in made.folders:
        charges = read_ledger(made.folders[name] / "ledger.jsonl").charges
        assert [charge.active for charge in charges] == [total, total, support.size, support.size]
        reply = made.vaults[name].respond(_question(made.terms, 4, support, again))
        _, values = read_message(reply, compact_shapes(support))
        assert sum(value.numel() for value in values.values()) == support.size
    for vault in made.vaults.values():
        vault.close()
    assert all(verify(folder).for_release for folder in made.folders.values())
    assert again.summary()["active coordinates"] == support.size


def _question(
    agreed: Terms, number: int, support: Support, at: Coordinator | None = None, bits: Any = None
) -> bytes:
    whole = weights(agreed) if at is None else {n: at.model.get_parameter(n).detach() for n in at.shapes}
    named = bits_of(support) if bits is None else bits
    content = {"kind": "round", "training": agreed.digest, "round": number, "support": named}
    return write_message(content, gathered(support, whole))


def test_the_scores_of_a_warm_up_survive_a_restart(made: Federation) -> None:
    coordinator = made.coordinator(learning_rate=0.3)
    answers = coordinator._ask_round(1)
    coordinator._take(coordinator._mean(answers), coordinator._noise(answers))
    coordinator.done = 1
    coordinator._save()
    again = made.coordinator(learning_rate=0.3)
    assert coordinator._choice is not None
    assert again._choice is not None
    for name, value in coordinator._choice.state()[0].items():
        assert torch.equal(value, again._choice.state()[0][name])
    again.run()
    assert again.summary()["finished"]


def some(agreed: Terms, every: int = 3) -> Support:
    return Support(
        {
            name: Block.coordinates(w.shape, torch.arange(0, w.numel(), every))
            for name, w in weights(agreed).items()
        }
    )


HOSTILE: dict[str, Any] = {
    "in the warm-up": lambda agreed: _question(agreed, 1, some(agreed)),
    "none after it": lambda agreed: write_message(
        {"kind": "round", "training": agreed.digest, "round": 3}, weights(agreed)
    ),
    "without weights": lambda agreed: write_message(
        {"kind": "round", "training": agreed.digest, "round": 3, "support": bits_of(some(agreed))}
    ),
    "all weights": lambda agreed: write_message(
        {"kind": "round", "training": agreed.digest, "round": 3, "support": bits_of(some(agreed))},
        weights(agreed),
    ),
    "of text": lambda agreed: _question(agreed, 3, some(agreed), bits="all"),
    "of another model": lambda agreed: _question(agreed, 3, some(agreed), bits={"w": "AA=="}),
    "too short": lambda agreed: _question(agreed, 3, some(agreed), bits=edited(agreed, lambda raw: raw[:-1])),
    "too long": lambda agreed: _question(
        agreed, 3, some(agreed), bits=edited(agreed, lambda raw: raw + b"\0")
    ),
    "bits beyond": lambda agreed: _question(
        agreed, 3, some(agreed), bits=edited(agreed, lambda raw: raw[:-1] + b"\xff")
    ),
    "no base64": lambda agreed: _question(agreed, 3, some(agreed), bits=dict.fromkeys(weights(agreed), "?!")),
    "numbers": lambda agreed: _question(agreed, 3, some(agreed), bits=dict.fromkeys(weights(agreed), 7)),
    "empty": lambda agreed: write_message(
        {
            "kind": "round",
            "training": agreed.digest,
            "round": 3,
            "support": edited(agreed, lambda raw: bytes(len(raw))),
        }
    ),
}


def edited(agreed: Terms, change: Any) -> dict[str, str]:
    return {
        name: base64.b64encode(change(base64.b64decode(bits))).decode()
        for name, bits in bits_of(some(agreed)).items()
    }


@pytest.mark.parametrize("what", HOSTILE)
def test_a_support_that_is_none_is_refused_at_no_cost(made: Federation, what: str) -> None:
    vault = made.vaults["s0"]
    assert read(vault, vault.respond(HOSTILE[what](made.terms)))["kind"] == "refusal"
    assert made.charged() == [0, 0]


def test_an_answer_on_a_support_is_the_noisy_clipped_sum_there(tmp_path: Path) -> None:
    """Brute force at ε so large that noise does not matter: masked first, clipped then, as it is charged."""
    agreed = terms(**TOP, sampling_rate=1.0)
    create_site(tmp_path / "s", agreed, records(tmp_path), Site(), epsilon=1000.0, delta=1e-5)
    vault = Vault(tmp_path / "s")
    support, at = some(agreed), weights(agreed, 0.5)
    start = weights(agreed)
    content = {"kind": "round", "training": agreed.digest, "round": 3, "support": bits_of(support)}
    reply = vault.respond(write_message(content, gathered(support, at)))
    said, values = read_message(reply, compact_shapes(support))
    vault._answers.close()
    model = agreed.build_model()
    with torch.no_grad():
        for name, value in spread(support, gathered(support, at), start).items():
            model.get_parameter(name).copy_(value)
    rows = load_records(tmp_path / "s" / "records.safetensors")
    total, _ = clipped_sum(per_example_gradients(model, agreed.loss, (rows.x, rows.y)), support, 1.0)
    for name, value in values.items():
        expected = total[name].flatten()
        expected = expected if len(expected) == len(value) else expected[support[name].flat()]
        off = (value * said["batch_size"] - expected).abs()
        assert float(off.max()) < 8 * said["noise_std"] * said["batch_size"] + 1e-3


def test_the_digest_of_a_question_names_its_support(made: Federation) -> None:
    at = gathered(some(made.terms), weights(made.terms))
    one, other = bits_of(some(made.terms)), bits_of(some(made.terms, 2))
    assert len({weights_digest(at), weights_digest(at, one), weights_digest(at, other)}) == 3


def test_rows_are_chosen_by_absolute_values_and_weights_rest_meanwhile(tmp_path: Path, keep: Path) -> None:
    made = Federation(tmp_path, keep, 2, **ROWS)
    coordinator = made.coordinator(learning_rate=0.1)
    start = {name: value.clone() for name, value in weights(made.terms).items()}
    answers = coordinator._ask_round(1)
    coordinator._take(coordinator._mean(answers), coordinator._noise(answers))
    for name, value in start.items():
        assert torch.equal(coordinator.model.get_parameter(name), value)
    means = [value.double().sum() for values in answers.values() for value in values.values()]
    assert sum(means) > 0  # sums of absolute values: their noise cancels, they do not
    coordinator.done = 1
    coordinator.run()
    assert coordinator.support is not None
    assert {block.kind for block in coordinator.support.values()} == {Kind.ROWS, Kind.ALL}
    for vault in made.vaults.values():
        vault.close()
    assert all(verify(folder).for_release for folder in made.folders.values())


def test_a_secure_sum_on_a_support(tmp_path: Path) -> None:
    base = terms(**TOP)
    names = ("a", "b")
    members = tuple((name, make_key(tmp_path / f"{name}.key")) for name in names)
    agreed = Terms(base.training, base.schema, secure_sum_of(base.training, members, 4.0, 1e-5))
    agreed.write(tmp_path / "c" / "training.toml")
    assert read_terms(tmp_path / "c" / "training.toml") == agreed
    for n, name in enumerate(names):
        rows = records(tmp_path, n)
        create_site(
            tmp_path / name, agreed, rows, Site(), epsilon=4.0, delta=1e-5, key=tmp_path / f"{name}.key"
        )
    vaults = {name: Vault(tmp_path / name) for name in names}
    coordinator = Coordinator(tmp_path / "c", list(names), InProcess(vaults))
    coordinator.run()
    assert coordinator.summary()["finished"]
    assert coordinator.support is not None
    for vault in vaults.values():
        vault.close()
    assert all(verify(tmp_path / name).for_release for name in names)


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "all"},
        {"active_ratio": 0.1},
        {"warmup": 0.5},
        {"method": "tp-topk", "rounds": 1},
        {"method": "tp-topk", "warmup": 1.0},
        {"method": "tp-topk", "active_ratio": 0.0},
    ],
)
def test_methods_that_cannot_be_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        Training(**changed)


def test_a_support_of_bits_comes_back(made: Federation) -> None:
    shapes = {name: tuple(value.shape) for name, value in weights(made.terms).items()}
    support = some(made.terms, 5)
    assert support_of(json.loads(json.dumps(bits_of(support))), shapes).digest() == support.digest()
    with pytest.raises(MessageError):
        support_of({}, shapes)


def test_the_coordinators_folder_predicts_and_exports(made: Federation, tmp_path: Path) -> None:
    coordinator = made.coordinator()
    coordinator.run()
    table = write_csv(tmp_path / "new.csv", rows=30, seed=9)
    shown = CliRunner().invoke(
        app, ["predict", str(made.folder), str(table), "--out", str(tmp_path / "out.csv")]
    )
    assert shown.exit_code == 0, shown.output
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 31
    assert load(made.folder).classes == ("no", "yes")
    shown = CliRunner().invoke(app, ["export", str(made.folder), "--out", str(tmp_path / "m.pt2")])
    assert shown.exit_code == 0, shown.output
    with safe_open(str(made.folder / "model.safetensors"), framework="pt") as file:
        assert set(file.keys()) == set(coordinator.model.state_dict())
    refused = CliRunner().invoke(app, ["export", str(made.folder), "--out", str(tmp_path / "m.tacit")])
    assert refused.exit_code != 0
