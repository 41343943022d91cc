"""The coordinator: quorum, re-asking, replies that are none, continuing, and every kind of target."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sites.small import ROUNDS, records, site, terms, values, weights
from tacit import verify
from tacit.errors import ArgumentError, FileError
from tacit.files import write_json
from tacit.release.ledger_file import read_ledger
from tacit.sites.coordinator import Coordinator, Progress, RoundError
from tacit.sites.messages import MessageError, read_message, refusal, write_message
from tacit.sites.one_machine import judged
from tacit.sites.transport import InProcess
from tacit.sites.vault import Vault


class Federation:
    """Sites in this process, and an exchange that can be tampered with."""

    def __init__(
        self, tmp_path: Path, keep: Path, count: int = 3, kind: str = "binary", **changed: Any
    ) -> None:
        self.folders = {
            f"s{n}": site(tmp_path, f"s{n}", keep=keep, seed=n, kind=kind, **changed) for n in range(count)
        }
        self.vaults = {name: Vault(folder) for name, folder in self.folders.items()}
        self.folder = tmp_path / "coordinator"
        self.terms = terms(
            kind, **{key: value for key, value in changed.items() if key not in ("epsilon", "unit")}
        )
        self.terms.write(self.folder / "training.toml")
        self.asked: list[list[str]] = []
        self.tamper: Callable[[str, bytes], bytes | None] = lambda name, reply: reply

    def exchange(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        self.asked.append(sorted(questions))
        found = InProcess(self.vaults)(questions)
        changed = {name: self.tamper(name, reply) for name, reply in found.items()}
        return {name: reply for name, reply in changed.items() if reply is not None}

    def coordinator(self, **options: Any) -> Coordinator:
        return Coordinator(self.folder, list(self.folders), self.exchange, **options)

    def charged(self) -> list[int]:
        return [len(read_ledger(folder / "ledger.jsonl").charges) for folder in self.folders.values()]

    def result(self) -> Any:
        return json.loads((self.folder / "result.json").read_text())


@pytest.fixture
def made(tmp_path: Path, keep: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path, keep)
    yield federation
    for vault in federation.vaults.values():
        vault._answers.close()


def is_answer(reply: bytes) -> bool:
    return b'\\"kind\\": \\"answer\\"' in reply


def test_all_rounds_count_and_every_site_pays_once_for_each(made: Federation) -> None:
    seen: list[Progress] = []
    coordinator = made.coordinator()
    coordinator.run(seen.append)
    assert made.charged() == [ROUNDS] * 3
    assert [progress.round for progress in seen] == list(range(1, ROUNDS + 1))
    assert seen[-1].answered == 3
    assert set(seen[-1].charged.values()) == {ROUNDS}
    result = made.result()
    assert result["finished"]
    assert (result["answers used"], result["answers paid"]) == (3 * ROUNDS, 3 * ROUNDS)
    assert result["sites"]["s0"]["epsilon spent"] == pytest.approx(made.vaults["s0"].epsilon, rel=1e-6)
    for vault in made.vaults.values():
        vault.close()
    assert all(verify(folder).for_release for folder in made.folders.values())


def test_a_training_that_nobody_has_paid_for_yet_can_be_summed_up(made: Federation) -> None:
    summary = made.coordinator().summary("nobody was asked")
    assert summary["sites"]["s0"]["epsilon spent"] == 0.0
    assert not summary["finished"]


def test_a_step_is_the_sum_of_the_released_sums_over_the_planned_batches(made: Federation) -> None:
    """Without momentum the first step moves the weights by rate times the mean of all records' released gradients."""
    coordinator = made.coordinator(learning_rate=0.5, momentum=0.0)
    before = torch.cat(
        [coordinator.model.get_parameter(n).detach().flatten() for n in sorted(coordinator.shapes)]
    )
    replies: dict[str, bytes] = {}
    made.tamper = lambda name, reply: replies.setdefault(name, reply)
    answers = coordinator._ask_round(1)
    coordinator._step(coordinator._mean(answers))
    after = torch.cat(
        [coordinator.model.get_parameter(n).detach().flatten() for n in sorted(coordinator.shapes)]
    )
    batches = {name: coordinator.facts[name].batch_size for name in replies}
    total = sum(batches.values())
    mean = sum(values(made.terms, reply) * batches[name] / total for name, reply in replies.items())
    assert torch.allclose(before.double() - 0.5 * mean, after.double(), atol=1e-6)


def test_a_round_with_too_few_answers_is_asked_again_and_repeated_free_of_charge(made: Federation) -> None:
    lost = {"s1": 2}

    def lose(name: str, reply: bytes) -> bytes | None:
        if is_answer(reply) and lost.get(name, 0):
            lost[name] -= 1
            return None
        return reply

    coordinator = made.coordinator()
    made.tamper = lose
    coordinator.run()
    assert made.charged() == [ROUNDS] * 3
    assert made.asked.count(["s1"]) == 2
    assert made.result()["answers used"] == 3 * ROUNDS


def test_without_quorum_the_training_stops_says_why_and_goes_on_later(made: Federation) -> None:
    coordinator = made.coordinator()
    made.tamper = lambda name, reply: None if name == "s2" and is_answer(reply) else reply
    with pytest.raises(RoundError, match="Round 1 got 2 answers where 3 are needed"):
        coordinator.run()
    assert not made.result()["finished"]
    assert "Round 1" in made.result()["stopped because"]
    assert not (made.folder / "model.safetensors").exists()
    assert made.charged() == [1, 1, 1]
    made.tamper = lambda name, reply: reply
    made.coordinator().run()
    assert made.charged() == [ROUNDS] * 3
    assert made.result()["finished"]


def test_with_a_quorum_a_site_that_refuses_is_left_out(made: Federation) -> None:
    made.tamper = lambda name, reply: refusal("no more") if name == "s0" and is_answer(reply) else reply
    coordinator = made.coordinator(quorum=2)
    coordinator.run()
    assert made.result()["answers used"] == 2 * ROUNDS


def test_a_coordinator_that_is_killed_before_its_checkpoint_asks_again_for_the_same_round(
    made: Federation,
) -> None:
    coordinator = made.coordinator()
    coordinator._ask_round(1)  # answered and paid; the step and the checkpoint are lost
    made.coordinator().run()
    assert made.charged() == [ROUNDS] * 3


def test_a_coordinator_continues_with_weights_and_momentum(made: Federation) -> None:
    class EnoughError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise EnoughError

    first = made.coordinator()
    with pytest.raises(EnoughError):
        first.run(stop)
    second = made.coordinator()
    assert second.done == 2
    for name in second.shapes:
        assert torch.equal(second.model.get_parameter(name), first.model.get_parameter(name))
    states = [c._optimizer.state_dict()["state"] for c in (first, second)]
    for index in states[0]:
        assert torch.equal(states[0][index]["momentum_buffer"], states[1][index]["momentum_buffer"])
    second.run()
    assert made.charged() == [ROUNDS] * 3


def edited(reply: bytes, agreed: Any, **changed: Any) -> bytes:
    shapes = {name: tuple(value.shape) for name, value in weights(agreed).items()}
    content, tensors = read_message(reply, shapes)
    number = changed.pop("number", None)
    if number is not None:
        next(iter(tensors.values())).flatten()[0] = number
    if changed.pop("without", False):
        tensors = {}
    return write_message({**content, **changed}, tensors)


@pytest.mark.parametrize(
    "changed",
    [
        {"round": 7},
        {"weights": "0" * 64},
        {"batch_size": 1},
        {"charged": "many"},
        {"charged": 10**6},
        {"kind": "facts"},
        {"number": float("nan")},
        {"number": float("inf")},
        {"without": True},
    ],
    ids=str,
)
def test_a_reply_that_is_no_answer_to_the_question_is_not_used(
    made: Federation, changed: dict[str, Any]
) -> None:
    coordinator = made.coordinator()
    made.tamper = lambda name, reply: (
        edited(reply, made.terms, **changed) if name == "s0" and is_answer(reply) else reply
    )
    with pytest.raises(RoundError):
        coordinator.run()
    assert coordinator.done == 0


def test_sites_with_other_terms_and_sites_that_lie_about_themselves_are_refused(
    made: Federation, tmp_path: Path, keep: Path
) -> None:
    made.tamper = lambda name, reply: write_message({"kind": "facts", "count": -5})
    with pytest.raises(MessageError, match="does not say what it is"):
        made.coordinator()
    made.tamper = lambda name, reply: reply
    other = Vault(site(tmp_path, "other", keep=keep, rounds=3))
    made.vaults["s1"]._answers.close()
    made.vaults["s1"] = other
    with pytest.raises(RoundError, match="other terms"):
        made.coordinator()


def test_a_training_goes_on_with_the_sites_that_it_began_with(
    made: Federation, tmp_path: Path, keep: Path
) -> None:
    made.coordinator()
    with pytest.raises(FileError, match="begun with the sites"):
        Coordinator(made.folder, ["s0", "s1"], made.exchange)
    other = Vault(site(tmp_path, "other", keep=keep, seed=9, epsilon=2.0))
    made.vaults["s1"]._answers.close()
    made.vaults["s1"] = other
    with pytest.raises(FileError, match="not the one"):
        made.coordinator()


def test_names_and_quorums_are_checked(made: Federation) -> None:
    with pytest.raises(ArgumentError):
        Coordinator(made.folder, [], made.exchange)
    with pytest.raises(ArgumentError, match="quorum of 4"):
        made.coordinator(quorum=4)


@pytest.mark.parametrize(
    ("kind", "changed", "figure", "least"),
    [
        ("binary", {"epsilon": 30.0, "rounds": 30}, "accuracy", 0.75),
        ("multiclass", {"epsilon": 30.0, "rounds": 30}, "accuracy", 0.55),
        ("regression", {"epsilon": 30.0, "rounds": 30}, "r2", 0.5),
        ("binary", {"epsilon": 30.0, "rounds": 30, "model": "logistic"}, "accuracy", 0.75),
        ("binary", {"epsilon": 30.0, "rounds": 30, "model": "mlp", "width": 8}, "accuracy", 0.7),
    ],
    ids=["binary", "multiclass", "regression", "logistic", "mlp"],
)
def test_models_of_every_kind_learn(
    tmp_path: Path, keep: Path, kind: str, changed: dict[str, Any], figure: str, least: float
) -> None:
    made = Federation(tmp_path, keep, kind=kind, **changed)
    coordinator = made.coordinator()
    coordinator.run()
    found = judged(coordinator.terms, coordinator.model, records(tmp_path, seed=77, kind=kind).dataset)
    for vault in made.vaults.values():
        vault._answers.close()
    assert found[figure] > least, found


def test_the_model_is_there_when_the_result_says_that_the_training_is_finished(
    made: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the result ends the processes then, and reads the model."""
    seen = []

    def write(path: Path, content: Any) -> None:
        if path.name == "result.json":
            seen.append((content["finished"], (made.folder / "model.safetensors").is_file()))
        write_json(path, content)

    monkeypatch.setattr("tacit.sites.coordinator.write_json", write)
    made.coordinator().run()
    assert seen == [(True, True)]

    def full(*_: Any) -> None:
        raise FileError("the disk is full")

    monkeypatch.setattr("tacit.sites.coordinator.write_model", full)
    with pytest.raises(FileError, match="full"):
        made.coordinator().run()
    assert made.result()["stopped because"] == "the disk is full"
