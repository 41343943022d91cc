"""A training that goes on where another has ended: new terms, new budgets, the same model."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from typer.testing import CliRunner

from sites.small import ROUNDS, records, site, terms
from tacit import verify
from tacit.cli.main import app
from tacit.data.records import read_records
from tacit.errors import ArgumentError, FileError
from tacit.sites.coordinator import Coordinator, RoundError
from tacit.sites.terms import Terms, extended, read_terms
from tacit.sites.transport import InProcess
from tacit.sites.vault import Site, Vault, create_site

pytestmark = pytest.mark.usefixtures("quick_looks")


def trained(folder: Path, sites: dict[str, Path]) -> torch.nn.Module:
    vaults = {name: Vault(place) for name, place in sites.items()}
    coordinator = Coordinator(folder, list(sites), InProcess(vaults))
    coordinator.run()
    for vault in vaults.values():
        vault.close()
    return coordinator.model


def test_a_finished_training_goes_on_from_its_weights_with_budgets_of_its_own(
    tmp_path: Path, keep: Path
) -> None:
    terms().write(tmp_path / "study" / "training.toml")
    with pytest.raises(FileError, match="begin that training first"):
        extended(tmp_path / "study", terms().training)
    first = trained(tmp_path / "study", {"a": site(tmp_path, "a", keep=keep)})
    done = CliRunner().invoke(
        app, ["fed", "init", str(tmp_path / "more"), "--extend", str(tmp_path / "study"), "--rounds", "2"]
    )
    assert done.exit_code == 0, done.output
    agreed = read_terms(tmp_path / "more" / "training.toml")
    assert agreed.training == replace(terms().training, rounds=2)
    assert agreed.schema == terms().schema
    for name, value in agreed.build_model().state_dict().items():
        assert torch.equal(value, first.state_dict()[name])
    assert agreed.digest != replace(agreed, start=None).digest
    create_site(tmp_path / "b", agreed, records(keep), Site(), epsilon=2.0, delta=1e-5)
    second = trained(tmp_path / "more", {"b": tmp_path / "b"})
    moved = [not torch.equal(value, first.state_dict()[name]) for name, value in second.state_dict().items()]
    assert any(moved)
    for folder, rounds in (("a", ROUNDS), ("b", 2)):
        verdict = verify(tmp_path / folder)
        assert verdict.for_release, verdict
        assert len((tmp_path / folder / "ledger.jsonl").read_text().splitlines()) >= rounds


def test_a_start_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    right = terms().build_model().state_dict()

    def told(start: str) -> Terms:
        replace(terms(), start=start).write(tmp_path / "training.toml")
        return read_terms(tmp_path / "training.toml")

    def packed(weights: dict[str, torch.Tensor]) -> str:
        return base64.b64encode(save(weights)).decode()

    assert told(packed(right)).build_model() is not None
    first = next(iter(right))
    for start in (
        "no base64!",
        base64.b64encode(b"no tensors").decode(),
        packed({}),
        packed({**right, first: right[first][..., :1].contiguous()}),
        packed({**right, first: right[first].double()}),
        packed({**right, first: torch.full_like(right[first], float("nan"))}),
        packed({**right, first: torch.full_like(right[first], 1e7)}),
    ):
        with pytest.raises(FileError, match="start"):
            told(start)


def test_a_site_comes_up_whatever_weights_the_coordinator_starts_at(tmp_path: Path) -> None:
    """Here gradients overflow unless a record is of ward C: a look would tell whether one is there."""
    agreed = terms(model="mlp", width=2, depth=12)
    weights = {name: torch.zeros_like(w) for name, w in agreed.build_model().state_dict().items()}
    first, *others = (w for w in weights.values() if w.dim() == 2)
    first[:, agreed.task.features.index("ward = C")] = 1e6
    for weight in others:
        weight.fill_(1e6)
    chosen = replace(agreed, start=base64.b64encode(save(weights)).decode())
    table = tmp_path / "ward-a.csv"
    table.write_text(
        "ward,age,dose,ill\n"
        + "".join(f"A,{20 + k},{k / 9:.2f},{'no' if k % 3 else 'yes'}\n" for k in range(60))
    )
    create_site(
        tmp_path / "site", chosen, read_records(table, agreed.schema), Site(), epsilon=4.0, delta=1e-5
    )
    Vault(tmp_path / "site").close()


def test_init_wants_a_schema_or_a_training_to_extend(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["fed", "init", str(tmp_path / "more"), "--rounds", "2"])
    assert isinstance(done.exception, ArgumentError) or done.exit_code != 0
    assert not (tmp_path / "more").exists()


def test_a_training_that_a_site_left_goes_on_with_the_others(tmp_path: Path, keep: Path) -> None:
    study = tmp_path / "study"
    terms().write(study / "training.toml")
    vault = Vault(site(tmp_path, "a", keep=keep))
    answers = InProcess({"a": vault})
    rounds = 0

    def leaving(questions: Mapping[str, bytes]) -> dict[str, bytes]:
        nonlocal rounds
        rounds += 1
        return {} if rounds > 3 else dict(answers(questions))

    coordinator = Coordinator(study, ["a"], leaving)
    with pytest.raises(RoundError):
        coordinator.run()
    assert coordinator.done == 2
    vault.close()
    more = extended(study, replace(terms().training, rounds=3))
    for name, value in more.build_model().state_dict().items():
        assert torch.equal(value, coordinator.model.state_dict()[name])
    other = terms(rounds=9)
    (study / "training.toml").write_text(other.text)
    with pytest.raises(FileError, match="other terms"):
        extended(study, other.training)
