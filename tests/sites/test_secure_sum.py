"""A secure sum over sites: masks that cancel, rounds that need all, keys that nobody can exchange, noise that adds."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from oracle import clipped_sum, per_example_gradients
from sites.small import ROUNDS, question, read, records, site, terms, weights
from tacit import verify
from tacit.errors import ArgumentError, FileError, LedgerError
from tacit.plan import load_plan
from tacit.release.ledger import FileLedger
from tacit.release.ledger_file import read_ledger
from tacit.release.noise import lattice
from tacit.release.shares import share_noise
from tacit.runs import load_certificate
from tacit.sites.coordinator import Coordinator, RoundError
from tacit.sites.masks import KEY_FILE, Masks, make_key, public_of, read_key
from tacit.sites.messages import read_message, weights_digest
from tacit.sites.options import SecureSum
from tacit.sites.records import load_records
from tacit.sites.terms import Terms, read_terms
from tacit.sites.transport import InProcess
from tacit.sites.vault import FAILED, Site, Vault, create_site, secure_sum_of
from tacit.support import Support
from tacit.tensors import read_tensors, write_tensors
from tacit.training.answering import PrivateAnswers

pytestmark = pytest.mark.usefixtures("quick_looks")

SITES, HONEST, EPSILON = 3, 2, 4.0
NAMES = [f"s{n}" for n in range(SITES)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of three sites and a coordinator, to be copied: every record is sampled in every round."""
    place = tmp_path_factory.mktemp("sum")
    base = terms(sampling_rate=1.0)
    members = tuple((name, make_key(place / f"{name}.key")) for name in NAMES)
    agreed = Terms(base.training, base.schema, secure_sum_of(base.training, members, EPSILON, 1e-5, HONEST))
    agreed.write(place / "coordinator" / "training.toml")
    for n, name in enumerate(NAMES):
        rows, key = records(place, n), place / f"{name}.key"
        create_site(place / name, agreed, rows, Site(), epsilon=EPSILON, delta=1e-5, key=key)
    return place


class Federation:
    """Copies of the folders, open, and an exchange that can be tampered with."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.terms = read_terms(place / "coordinator" / "training.toml")
        self.vaults = {name: Vault(place / name) for name in NAMES}
        self.tamper: Callable[[str, bytes], bytes | None] = lambda name, reply: reply

    def exchange(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        found = InProcess(self.vaults)(questions)
        changed = {name: self.tamper(name, reply) for name, reply in found.items()}
        return {name: reply for name, reply in changed.items() if reply is not None}

    def coordinator(self, **options: Any) -> Coordinator:
        return Coordinator(self.place / "coordinator", NAMES, self.exchange, **options)

    def charged(self) -> list[int]:
        return [len(read_ledger(self.place / name / "ledger.jsonl").charges) for name in NAMES]

    def reopen(self, name: str) -> None:
        self.vaults[name]._answers.close()
        self.vaults[name] = Vault(self.place / name)

    def words(self, reply: bytes) -> np.ndarray:
        shapes = {name: tuple(value.shape) for name, value in weights(self.terms).items()}
        tensors = read_message(reply, shapes, "I64")[1]
        return np.concatenate([tensors[name].numpy().view(np.uint64).ravel() for name in sorted(tensors)])


@pytest.fixture
def federation(made: Path, tmp_path: Path) -> Iterator[Federation]:
    found = Federation(Path(shutil.copytree(made, tmp_path / "sum")))
    yield found
    for vault in found.vaults.values():
        vault._answers.close()


def is_answer(reply: bytes) -> bool:
    return b'\\"kind\\": \\"answer\\"' in reply


def exact_sum(federation: Federation, at: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The clipped sum over the records of all sites, by brute force."""
    model, total = federation.terms.build_model(), {}
    with torch.no_grad():
        for name, value in at.items():
            model.get_parameter(name).copy_(value)
    for name in NAMES:
        rows = load_records(federation.place / name / "records.safetensors")
        gradients = per_example_gradients(model, federation.terms.loss, (rows.x, rows.y))
        found, _ = clipped_sum(gradients, Support.all(model), 1.0)
        total = {key: value + total.get(key, 0.0) for key, value in found.items()}
    return total


def test_the_sum_is_that_of_all_records_with_the_noise_of_all_sites(federation: Federation) -> None:
    coordinator = federation.coordinator(learning_rate=0.1, momentum=0.0)
    batch = sum(facts.batch_size for facts in coordinator.facts.values())
    noise = []
    for number in (1, 2):
        at = {name: coordinator.model.get_parameter(name).detach().clone() for name in coordinator.shapes}
        mean = coordinator._mean(coordinator._ask_round(number))
        for name, value in exact_sum(federation, at).items():
            noise.append((mean[name] * batch - value.reshape(mean[name].shape).double()).flatten())
    drawn = torch.cat(noise).numpy()
    plan = load_plan(federation.place / "s0" / "plan.json")
    size = sum(value.numel() for value in weights(federation.terms).values())
    _, share = share_noise(plan.phases[0].noise_multiplier, 1 + 2.0**-8, size, HONEST)
    assert share * HONEST**0.5 >= plan.phases[0].noise_multiplier
    assert stats.kstest(drawn / share / SITES**0.5, "norm").pvalue > 1e-6
    assert 0.8 < drawn.std() / (share * SITES**0.5) < 1.25


def test_a_training_finishes_and_every_site_verifies(federation: Federation) -> None:
    coordinator = federation.coordinator()
    coordinator.run()
    assert coordinator.summary()["finished"]
    assert federation.charged() == [ROUNDS] * SITES
    for vault in federation.vaults.values():
        vault.close()
    for name in NAMES:
        folder = federation.place / name
        assert verify(folder).for_release
        certificate = load_certificate(folder / "certificate.json")
        assert certificate.epsilon_spent <= certificate.epsilon <= EPSILON
        assert "the shares of any 2 of them together" in certificate.mechanism
        assert any(item.startswith("what 2 of the 3 sites can find out") for item in certificate.not_covered)
    text = (folder / "certificate.json").read_text().replace("what 2 of the 3", "what 3 of the 3")
    (folder / "certificate.json").write_text(text)
    assert not verify(folder).agrees


def test_nothing_can_be_read_from_fewer_answers_than_all(federation: Federation) -> None:
    replies = InProcess(federation.vaults)(dict.fromkeys(NAMES, question(federation.terms, 1)))
    words = {name: federation.words(reply) for name, reply in replies.items()}
    whole = sum(words.values(), np.zeros_like(words["s0"])).view(np.int64)
    step = lattice(read_answer(federation, replies["s0"])["noise_std"])
    assert np.abs(whole * step).max() < 1e4
    pairs = [words[one] + words[other] for one, other in itertools.combinations(NAMES, 2)]
    for part in (*words.values(), *pairs):
        assert stats.kstest(part.view(np.int64) / 2.0**63, "uniform", (-1, 2)).pvalue > 1e-6


def read_answer(federation: Federation, reply: bytes) -> dict[str, Any]:
    shapes = {name: tuple(value.shape) for name, value in weights(federation.terms).items()}
    return read_message(reply, shapes, "I64")[0]


def test_a_curious_site_removes_its_own_masks_and_no_others(federation: Federation) -> None:
    """s2 gives the server its key: what is left of s0's answer is the mask that s0 shares with s1."""
    reply = federation.vaults["s0"].respond(question(federation.terms, 1))
    known = Masks(
        read_key(federation.place / "s2" / KEY_FILE), federation.terms.members, federation.terms.digest
    )
    digest = weights_digest(weights(federation.terms))
    words = federation.words(reply)
    pair = Masks.__new__(Masks)
    pair.name, pair._training = "s2", federation.terms.digest
    pair._secrets = {"s0": known._secrets["s0"]}
    opened = words + pair.of_round(1, digest)(len(words))
    assert stats.kstest(opened.view(np.int64) / 2.0**63, "uniform", (-1, 2)).pvalue > 1e-6


def test_a_round_without_all_answers_is_void_and_repeated_free_of_charge(federation: Federation) -> None:
    before = {name: p.clone() for name, p in federation.coordinator().model.state_dict().items()}
    federation.tamper = lambda name, reply: None if name == "s1" and is_answer(reply) else reply
    coordinator = federation.coordinator()
    with pytest.raises(RoundError, match="Round 1 got 2 answers where 3 are needed"):
        coordinator.run()
    assert all(torch.equal(before[name], p) for name, p in coordinator.model.state_dict().items())
    assert federation.charged() == [1] * SITES
    federation.tamper = lambda name, reply: reply
    federation.reopen("s0")
    federation.coordinator().run()
    assert federation.charged() == [ROUNDS] * SITES


def test_an_answer_that_a_crash_has_lost_is_paid_for_again_and_fits_those_of_the_others(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            PrivateAnswers, "_save", lambda *_: (_ for _ in ()).throw(OSError("the disk is full"))
        )
        assert (
            read(federation.vaults["s1"], federation.vaults["s1"].respond(question(federation.terms, 1)))[
                "reason"
            ]
            == FAILED
        )
    federation.reopen("s1")
    coordinator = federation.coordinator()
    coordinator._mean(coordinator._ask_round(1))
    assert federation.charged() == [1, 2, 1]


def test_other_weights_for_one_site_give_no_sum(federation: Federation) -> None:
    """A server that asks sites about different weights learns nothing at all: their masks are not the same."""
    replies = {
        name: vault.respond(question(federation.terms, 1, weights(federation.terms, 0.1 * (name == "s0"))))
        for name, vault in federation.vaults.items()
    }
    total = sum((federation.words(reply) for reply in replies.values()), np.zeros(69, np.uint64))
    assert stats.kstest(total.view(np.int64) / 2.0**63, "uniform", (-1, 2)).pvalue > 1e-6


def test_a_round_whose_masks_do_not_cancel_is_void(federation: Federation) -> None:
    class Stranger(Masks):
        def of_round(self, number: int, asked: str, among: Any = None) -> Any:
            return super().of_round(number + 1, asked, among)

    vault = federation.vaults["s2"]
    assert vault._masks is not None
    vault._masks.__class__ = Stranger
    coordinator = federation.coordinator()
    with pytest.raises(RoundError, match="masks did not cancel"):
        coordinator.run()
    assert coordinator.done == 0


def test_a_repeated_answer_is_the_same_bytes_whatever_weights_come(federation: Federation) -> None:
    """Two values under one mask would show their difference."""
    vault = federation.vaults["s0"]
    first = vault.respond(question(federation.terms, 1))
    assert vault.respond(question(federation.terms, 1, weights(federation.terms, 1.0))) == first
    federation.reopen("s0")
    assert federation.vaults["s0"].respond(question(federation.terms, 1)) == first


@pytest.mark.parametrize("answered", [2, 3])
def test_a_checkpoint_that_was_put_back_cannot_answer_a_round_twice_under_one_mask(
    federation: Federation, answered: int
) -> None:
    """The ledger is whole, so charges alone do not show it; the difference of two answers has no mask at all."""
    folder, vault = federation.place / "s0", federation.vaults["s0"]
    vault.respond(question(federation.terms, 1))
    old = (folder / "checkpoint.safetensors").read_bytes()
    for number in range(2, answered + 1):
        vault.respond(question(federation.terms, number))
    vault._answers.close()
    (folder / "checkpoint.safetensors").write_bytes(old)
    with pytest.raises(FileError, match=f"round {answered}.*put back"):
        Vault(folder)
    assert federation.charged()[0] == answered


def test_every_file_but_the_ledger_put_back_together_is_refused(federation: Federation) -> None:
    """The ledger notes what was sent, so nothing beside it can take that back."""
    folder, vault = federation.place / "s0", federation.vaults["s0"]
    vault.respond(question(federation.terms, 1))
    backup = {p: p.read_bytes() for p in folder.iterdir() if p.is_file() and not p.name.startswith("ledger")}
    vault.respond(question(federation.terms, 2))
    vault._answers.close()
    for path in set(folder.iterdir()) - set(backup):
        if not path.name.startswith("ledger"):
            path.unlink()
    for path, content in backup.items():
        path.write_bytes(content)
    with pytest.raises(FileError, match=r"round 2 was sent.*put back"):
        Vault(folder)


def test_a_checkpoint_that_is_made_to_look_unsent_is_refused(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash has lost a charge; an edited checkpoint claims it for an early round, to have round 2 asked again."""
    folder, vault = federation.place / "s0", federation.vaults["s0"]
    for number in (1, 2):
        vault.respond(question(federation.terms, number))
    with monkeypatch.context() as patched:
        patched.setattr(PrivateAnswers, "_save", lambda *_: (_ for _ in ()).throw(OSError("full")))
        vault.respond(question(federation.terms, 3))
    vault._answers.close()
    tensors, numbers = read_tensors(folder / "checkpoint.safetensors")
    numbers["answer"] |= {"question": {**numbers["answer"]["question"], "round": 1}, "charged": 3}
    numbers["ledger"] = read_ledger(folder / "ledger.jsonl").head
    write_tensors(folder / "checkpoint.safetensors", tensors, numbers)
    with pytest.raises(FileError, match=r"round 2 was sent.*edited"):
        Vault(folder)


def test_a_witness_notices_a_ledger_put_back_to_before_its_answer_was_sent(tmp_path: Path) -> None:
    """Charge and answer are there, as after a crash before the answer left; but it did leave."""
    folder, base = tmp_path / "site", terms()
    create_site(
        folder, base, records(tmp_path), Site(witness=str(tmp_path / "witness")), epsilon=EPSILON, delta=1e-5
    )
    vault, kept = Vault(folder), {}
    noted = FileLedger.note_sent

    def note(ledger: FileLedger, number: int, answer: str) -> None:
        kept.update({p: p.read_bytes() for p in folder.iterdir()})
        noted(ledger, number, answer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FileLedger, "note_sent", note)
        assert is_answer(vault.respond(question(base, 1)))
    vault._answers.close()
    for path, content in kept.items():
        path.write_bytes(content)
    with pytest.raises(LedgerError, match="put back from a backup"):
        Vault(folder)


def test_an_answer_that_a_crash_kept_from_being_sent_is_sent_later(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint may be ahead of the note of what was sent, never behind."""
    with monkeypatch.context() as patched:
        patched.setattr(FileLedger, "note_sent", lambda *_: (_ for _ in ()).throw(OSError("full")))
        vault = federation.vaults["s0"]
        assert read(vault, vault.respond(question(federation.terms, 1)))["reason"] == FAILED
    federation.reopen("s0")
    assert is_answer(federation.vaults["s0"].respond(question(federation.terms, 1)))
    assert federation.charged()[0] == 1
    sent = read_ledger(federation.place / "s0" / "ledger.jsonl").sent
    assert sent is not None
    assert (sent.round, sent.charges) == (1, 1)


def test_masks_of_all_sites_cancel_and_no_two_rounds_weights_or_trainings_share_one(tmp_path: Path) -> None:
    members = {name: make_key(tmp_path / name) for name in ("a", "b", "c", "d")}

    def masks(training: str, number: int, digest: str) -> dict[str, np.ndarray]:
        return {
            name: Masks(read_key(tmp_path / name), members, training).of_round(number, digest)(50)
            for name in members
        }

    kinds = [masks(*kind) for kind in (("t", 1, "w"), ("t", 2, "w"), ("t", 1, "v"), ("u", 1, "w"))]
    for found in kinds:
        assert not sum(found.values(), np.zeros(50, np.uint64)).any()
    seen = np.concatenate([words for found in kinds for words in found.values()])
    assert len(np.unique(seen)) == len(seen)


def test_a_server_cannot_exchange_keys(federation: Federation, tmp_path: Path) -> None:
    """Terms with the server's own key in the place of s1's are other terms: no site answers for them."""
    sums = federation.terms.sum
    assert sums is not None
    forged = tuple((name, make_key(tmp_path / "its") if name == "s1" else key) for name, key in sums.members)
    theirs = Terms(
        federation.terms.training, federation.terms.schema, SecureSum(sums.noise_multiplier, 2, forged)
    )
    vault = federation.vaults["s0"]
    assert "other terms" in read(vault, vault.respond(question(theirs, 1)))["reason"]
    theirs.write(federation.place / "s0" / "training.toml")
    vault._answers.close()
    with pytest.raises(FileError, match="was edited"):
        Vault(federation.place / "s0")
    federation.terms.write(federation.place / "s0" / "training.toml")
    federation.vaults["s0"] = Vault(federation.place / "s0")


def test_a_key_serves_one_training(made: Path, tmp_path: Path) -> None:
    assert not list(made.glob("*.key"))
    folder = made / "s0"
    assert (folder / KEY_FILE).stat().st_mode & 0o777 == 0o600
    agreed = read_terms(folder / "training.toml")
    assert public_of(read_key(folder / KEY_FILE)) == agreed.members["s0"]
    with pytest.raises(ArgumentError, match="say which key"):
        create_site(tmp_path / "x", agreed, records(tmp_path), Site(), epsilon=EPSILON)
    make_key(tmp_path / "stranger")
    with pytest.raises(ArgumentError, match="not among those of the terms"):
        create_site(
            tmp_path / "x", agreed, records(tmp_path), Site(), epsilon=EPSILON, key=tmp_path / "stranger"
        )
    with pytest.raises(ArgumentError, match="no secure sum"):
        create_site(
            tmp_path / "x", terms(), records(tmp_path), Site(), epsilon=EPSILON, key=tmp_path / "stranger"
        )
    assert (tmp_path / "stranger").exists()
    assert not (tmp_path / "x").exists()


def test_a_budget_below_what_the_noise_gives_is_refused(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "s0" / KEY_FILE, tmp_path / "key")
    agreed = read_terms(made / "s0" / "training.toml")
    with pytest.raises(ArgumentError, match="above the budget of 1"):
        create_site(tmp_path / "x", agreed, records(tmp_path), Site(), epsilon=1.0, key=tmp_path / "key")


@pytest.mark.parametrize(
    ("members", "honest", "said"),
    [
        ((("a", "0" * 64), ("b", "11" * 32)), 2, "is no public key"),
        ((("a", "zz"), ("b", "11" * 32)), 2, "is no public key"),
        ((("a", "11" * 32), ("b", "11" * 32)), 2, "a name and a key of its own"),
        ((("a", "11" * 32),), 1, "needs two members"),
        ((("a b", "11" * 32), ("b", "22" * 32)), 2, "no name of a site"),
        ((("a", "11" * 32), ("b", "22" * 32)), 3, "at most all can be honest"),
        ((("a", "11" * 32), ("b", "22" * 32)), 0, "honest"),
    ],
)
def test_terms_of_a_sum_are_checked(members: Any, honest: int, said: str) -> None:
    base = terms()
    with pytest.raises(ArgumentError, match=said):
        Terms(base.training, base.schema, SecureSum(1.0, honest, members))


def test_the_coordinator_names_all_members_and_waits_for_all(federation: Federation, keep: Path) -> None:
    with pytest.raises(ArgumentError, match="leave the quorum out"):
        federation.coordinator(quorum=2)
    with pytest.raises(ArgumentError, match="name these sites"):
        Coordinator(federation.place / "coordinator", NAMES[:2], federation.exchange)
    federation.vaults["s0"], federation.vaults["s1"] = federation.vaults["s1"], federation.vaults["s0"]
    with pytest.raises(RoundError, match="takes part with the key of"):
        federation.coordinator()
    plain = Vault(site(federation.place, "plain", keep=keep))
    assert plain.facts()["member"] == ""
    plain._answers.close()
