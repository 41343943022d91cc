"""Sites that leave: a round of a secure sum without them is void, the next is about the others; none pays twice."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from oracle import clipped_sum, per_example_gradients
from sites.small import ROUNDS, question, read, records, site, terms, weights
from sites.test_secure_sum import EPSILON, NAMES, Federation, is_answer
from tacit import verify
from tacit.errors import ArgumentError
from tacit.plan import load_plan
from tacit.plan.plan import plan_from_record, plan_to_record
from tacit.runs import load_certificate
from tacit.sites.coordinator import Coordinator, RoundError, VoidError
from tacit.sites.masks import make_key
from tacit.sites.messages import MessageError, read_message
from tacit.sites.options import SecureSum
from tacit.sites.records import load_records
from tacit.sites.terms import Terms, read_terms
from tacit.sites.transport import InProcess
from tacit.sites.vault import Site, Vault, create_site, secure_sum_of
from tacit.support import Support

pytestmark = pytest.mark.usefixtures("quick_looks")

FEWEST = 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of three sites, of which a sum takes two, and of a coordinator: to be copied."""
    place = tmp_path_factory.mktemp("fewer")
    base = terms(sampling_rate=1.0)
    members = tuple((name, make_key(place / f"{name}.key")) for name in NAMES)
    sums = secure_sum_of(base.training, members, EPSILON, 1e-5, honest=2, fewest=FEWEST)
    agreed = Terms(base.training, base.schema, sums)
    agreed.write(place / "coordinator" / "training.toml")
    for n, name in enumerate(NAMES):
        key = place / f"{name}.key"
        create_site(place / name, agreed, records(place, n), Site(), epsilon=EPSILON, delta=1e-5, key=key)
    return place


@pytest.fixture
def federation(made: Path, tmp_path: Path) -> Iterator[Federation]:
    found = Federation(Path(shutil.copytree(made, tmp_path / "sum")))
    yield found
    for vault in found.vaults.values():
        vault._answers.close()


def number_of(reply: bytes) -> int:
    shapes = {name: tuple(value.shape) for name, value in weights(terms()).items()}
    return int(read_message(reply, shapes, "I64")[0]["round"])


def test_a_training_goes_on_without_a_site_that_leaves(federation: Federation) -> None:
    federation.tamper = lambda name, reply: (
        None if name == "s1" and is_answer(reply) and number_of(reply) >= 2 else reply
    )
    coordinator = federation.coordinator()
    coordinator.run()
    summary = json.loads((federation.place / "coordinator" / "result.json").read_text())
    assert (summary["finished"], summary["rounds"], summary["rounds void"]) == (True, ROUNDS, 1)
    assert summary["answers used"] == 3 + 2 * (ROUNDS - 2)
    assert federation.charged() == [
        ROUNDS,
        2,
        ROUNDS,
    ]  # s1 has paid for the void round, and is not asked again
    for vault in federation.vaults.values():
        vault.close()
    for name in NAMES:
        certificate = load_certificate(federation.place / name / "certificate.json")
        assert verify(federation.place / name).for_release
        assert "the sum over 2 to 3 sites" in certificate.mechanism
        assert any(item.startswith("what 1 of the 3 sites can find out") for item in certificate.not_covered)


def test_the_sum_over_those_who_are_left_is_theirs_with_enough_noise(federation: Federation) -> None:
    coordinator = federation.coordinator(learning_rate=0.1, momentum=0.0)
    coordinator._present = {"s0", "s2"}
    batch = sum(coordinator.facts[name].batch_size for name in ("s0", "s2"))
    answers = coordinator._ask_round(1)
    mean, model, drawn = coordinator._mean(answers), coordinator.model, []
    exact: dict[str, torch.Tensor] = {}
    for name in ("s0", "s2"):
        rows = load_records(federation.place / name / "records.safetensors")
        gradients = per_example_gradients(model, federation.terms.loss, (rows.x, rows.y))
        found, _ = clipped_sum(gradients, Support.all(model), 1.0)
        exact = {key: value + exact.get(key, 0.0) for key, value in found.items()}
    for name, value in exact.items():
        drawn.append((mean[name] * batch - value.reshape(mean[name].shape).double()).flatten())
    noise = load_plan(federation.place / "s0" / "plan.json").phases[0].noise_multiplier
    deviation = coordinator._deviations["s0"] * 2**0.5
    assert deviation >= noise
    assert stats.kstest(torch.cat(drawn).numpy() / deviation, "norm").pvalue > 1e-6


def test_sites_that_are_asked_for_different_sums_give_none(federation: Federation) -> None:
    """Masks of these three would cancel if the sites of a sum were not part of them."""
    asked = {
        "s0": question(federation.terms, 1, among=["s0", "s1"]),
        "s1": question(federation.terms, 1),
        "s2": question(federation.terms, 1, among=["s1", "s2"]),
    }
    words = {name: federation.words(federation.vaults[name].respond(asked[name])) for name in NAMES}
    for count in (1, 2, 3):
        for some in itertools.combinations(NAMES, count):
            total = sum((words[name] for name in some), np.zeros_like(words["s0"]))
            assert stats.kstest(total.view(np.int64) / 2.0**63, "uniform", (-1, 2)).pvalue > 1e-6


def test_a_site_answers_one_sum_a_round(federation: Federation) -> None:
    """The difference of a sum over three and one over two would be the answer of one site."""
    vault = federation.vaults["s0"]
    first = vault.respond(question(federation.terms, 1))
    for among in (["s0", "s1"], ["s0", "s2"]):
        assert vault.respond(question(federation.terms, 1, among=among)) == first
    federation.reopen("s0")
    assert federation.vaults["s0"].respond(question(federation.terms, 1, among=["s0", "s1"])) == first
    assert federation.charged()[0] == 1


@pytest.mark.parametrize(
    "among",
    [
        ["s0"],
        ["s1", "s2"],
        ["s2", "s0"],
        ["s0", "s0", "s1"],
        ["s0", "s9"],
        ["s0", "s1", "s2"],
        [],
        "s0",
        {"s0": 1, "s1": 2},
        [0, 1],
        None,
    ],
)
def test_a_sum_over_too_few_or_over_others_is_not_answered(federation: Federation, among: Any) -> None:
    vault = federation.vaults["s0"]
    assert read(vault, vault.respond(question(federation.terms, 1, among=among)))["kind"] == "refusal"
    assert federation.charged()[0] == 0


def test_sums_over_some_are_for_terms_that_allow_them(keep: Path, tmp_path: Path) -> None:
    vault = Vault(site(tmp_path, keep=keep))
    asked = question(vault.terms, 1, among=["s0", "s1"])
    assert "no sums over some" in read(vault, vault.respond(asked))["reason"]
    assert vault.facts()["charged"] == 0
    vault._answers.close()


def test_a_round_that_was_begun_with_all_is_void_for_those_who_are_left(federation: Federation) -> None:
    """The coordinator dies after s0 has answered for all; when it comes back s2 is gone. Nobody pays twice."""
    coordinator = federation.coordinator()
    at = {name: coordinator.model.get_parameter(name).detach() for name in coordinator.shapes}
    federation.vaults["s0"].respond(question(federation.terms, 1, at))
    federation.tamper = lambda name, reply: None if name == "s2" else reply
    again = federation.coordinator()
    assert again._present == {"s0", "s1"}
    again.run()
    assert (again.done, again.void, again.used) == (ROUNDS, 1, 2 * (ROUNDS - 1))
    assert federation.charged() == [ROUNDS, ROUNDS, 0]
    assert [site.get("left", False) for site in again.summary()["sites"].values()] == [False, False, True]


def test_with_too_few_sites_left_the_training_stops_and_goes_on_later(federation: Federation) -> None:
    federation.coordinator()
    federation.tamper = lambda name, reply: None if name != "s0" and is_answer(reply) else reply
    with pytest.raises(RoundError, match="Round 1 got 1 answers where 3 are needed"):
        federation.coordinator().run()
    federation.tamper = lambda name, reply: None if name != "s0" else reply
    with pytest.raises(RoundError, match="s1, s2 do not answer"):
        federation.coordinator()
    federation.tamper = lambda name, reply: reply
    last = federation.coordinator()
    last.run()
    assert (last.void, federation.charged()) == (0, [ROUNDS] * 3)


def test_a_training_of_void_rounds_has_no_model(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def void(*_: object) -> None:
        raise VoidError("void")

    monkeypatch.setattr(Coordinator, "_ask_round", void)
    coordinator = federation.coordinator()
    with pytest.raises(RoundError, match="Every round was void"):
        coordinator.run()
    assert not json.loads((federation.place / "coordinator" / "result.json").read_text())["finished"]
    assert not (federation.place / "coordinator" / "model.safetensors").exists()


def test_a_warm_up_of_void_rounds_chooses_nothing(keep: Path, tmp_path: Path) -> None:
    sparse = {"method": "tp-topk", "active_ratio": 0.3, "warmup": 0.5}
    folder = tmp_path / "coordinator"
    terms(**sparse).write(folder / "training.toml")
    vault = Vault(site(tmp_path, keep=keep, **sparse))
    coordinator = Coordinator(folder, ["a"], InProcess({"a": vault}))
    coordinator.done = coordinator.terms.training.scoring - 1
    with pytest.raises(RoundError, match="warm-up were void"):
        coordinator._choose_if_due()
    vault._answers.close()


def test_sites_without_a_sum_go_on_without_one_that_left(keep: Path, tmp_path: Path) -> None:
    folder = tmp_path / "coordinator"
    terms().write(folder / "training.toml")
    vaults = {name: Vault(site(tmp_path, name, keep=keep, seed=n)) for n, name in enumerate(NAMES)}
    exchange = InProcess(vaults)
    Coordinator(folder, NAMES, exchange, quorum=2)
    vaults["s1"]._answers.close()

    def without(questions: Any) -> dict[str, bytes]:
        return exchange({name: asked for name, asked in questions.items() if name != "s1"})

    with pytest.raises(RoundError, match="'s1' does not answer"):
        Coordinator(folder, NAMES, without)
    coordinator = Coordinator(folder, NAMES, without, quorum=2)
    coordinator.run()
    assert (coordinator.done, coordinator.used, coordinator.void) == (ROUNDS, 2 * ROUNDS, 0)
    for vault in vaults.values():
        vault._answers.close()


def test_terms_say_how_many_a_sum_takes(federation: Federation, tmp_path: Path) -> None:
    agreed = federation.terms
    assert agreed.sum is not None
    assert "fewest = 2" in agreed.text
    plan = load_plan(federation.place / "s0" / "plan.json")
    assert (plan.sites, plan.fewest, plan.summed, plan.honest) == (3, 2, 2, 2)
    assert plan_from_record(plan_to_record(plan)) == plan
    members = agreed.sum.members
    assert secure_sum_of(agreed.training, members, EPSILON, 1e-5, fewest=3).fewest is None
    assert secure_sum_of(agreed.training, members, EPSILON, 1e-5, fewest=2).honest == 1
    for fewest, honest in ((1, 1), (3, 2), (4, 2), (2, 3)):
        with pytest.raises(ArgumentError, match=r"take 2 or more|at most all"):
            SecureSum(1.0, honest, members, fewest)
    path = tmp_path / "training.toml"
    path.write_text(agreed.text.replace("fewest = 2", "least = 2"))
    with pytest.raises(Exception, match="may have fewest"):
        read_terms(path)


def test_a_message_error_tells_an_answer_to_another_question(federation: Federation) -> None:
    coordinator = federation.coordinator()
    reply = federation.vaults["s0"].respond(question(federation.terms, 1))
    with pytest.raises(MessageError, match="for other weights"):
        coordinator._values("s0", reply, 1, "00")
