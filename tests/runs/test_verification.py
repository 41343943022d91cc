"""Verification reads everything in a run directory: each file is changed, swapped or taken away, and each is noticed.

The attacks are those of somebody who edits some of the files and recomputes what digests he likes, but forgets others.
Who rewrites all of them consistently needs a signature or a witness against him; those are tested at the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tacit import Plan, Trainer
from tacit.errors import ArgumentError, FileError, LedgerError
from tacit.files import write_json, write_text
from tacit.losses import cross_entropy
from tacit.plan import load_plan, make_plan, plan_digest, save_plan
from tacit.release.ledger import FileLedger, read_ledger
from tacit.release.ledger_file import Charge, head_file
from tacit.release.witness import Witness
from tacit.runs import (
    Certificate,
    certificate_page,
    load_certificate,
    make_key,
    sign,
    verify,
    write_certificate,
)
from tacit.runs.certificate_file import certificate_to_record
from tacit.runs.layout import (
    CERTIFICATE_FILE,
    CHECKPOINT_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PAGE_FILE,
    PLAN_FILE,
    RUN_FILE,
    SIGNATURE_FILE,
)
from tacit.tensors import read_tensors, write_tensors

OLD = Path(__file__).parent / "version_0_1"
STEPS = 20


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan("dp-sgd", epsilon=3.0, delta=1e-5, examples=64, batch_size=16, epochs=5)


def trainer(plan: Plan, directory: Path, **options: Any) -> Trainer:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(64, 4, generator=generator)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    torch.manual_seed(options.pop("weights", 0))
    return Trainer(
        nn.Linear(4, 2),
        data,
        cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
        run_dir=directory,
        **options,
    )


@pytest.fixture(scope="module")
def runs(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    trainer(plan, place / "run", not_covered=["the ranges of the columns"]).fit(progress=False)
    trainer(plan, place / "other", weights=1).fit(progress=False)
    trainer(plan, place / "seeded", seed=7).fit(progress=False)
    trainer(plan, place / "averaged", average=0.9).fit(progress=False)
    return place


@pytest.fixture
def place(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def run(place: Path) -> Path:
    return place / "run"


def problems(run: Path, **options: Any) -> str:
    verdict = verify(run, **options)
    assert verdict.agrees == (not verdict.problems)
    assert not any("\n" in problem for problem in verdict.problems)
    return "; ".join(verdict.problems)


def rewrite(run: Path, charges: list[Charge]) -> None:
    """Write the ledger once more with other charges, every digest recomputed."""
    record = read_ledger(run / LEDGER_FILE)
    (run / LEDGER_FILE).unlink()
    head_file(run / LEDGER_FILE).unlink(missing_ok=True)
    with FileLedger.create(
        run / LEDGER_FILE, run=record.run, plan_digest=record.plan, about=record.about
    ) as ledger:
        for charge in charges:
            ledger.charge(charge)


def restate(directory: Path, /, **changes: Any) -> Certificate:
    """Rewrite the certificate with other words or figures, its statement and its page to match."""
    certificate = dataclasses.replace(load_certificate(directory / CERTIFICATE_FILE), **changes)
    write_json(directory / CERTIFICATE_FILE, certificate_to_record(certificate))
    write_text(directory / PAGE_FILE, certificate_page(certificate))
    return certificate


def test_a_run_as_it_was_written_verifies(place: Path) -> None:
    for name in ("run", "other", "averaged"):
        verdict = verify(place / name)
        assert verdict.agrees, verdict
        assert verdict.for_release
    seeded = verify(place / "seeded")
    assert seeded.agrees, seeded
    assert not seeded.for_release
    certificate = load_certificate(place / "run" / CERTIFICATE_FILE)
    assert [name for name, _ in certificate.files] == [CHECKPOINT_FILE, MODEL_FILE, RUN_FILE]
    assert "model.safetensors, SHA-256" in (place / "run" / PAGE_FILE).read_text()


# Findings of a review ---------------------------------------------------------------------------------------------


def test_a_ledger_that_was_cut_with_a_new_certificate_is_noticed(run: Path) -> None:
    rewrite(run, list(read_ledger(run / LEDGER_FILE).charges[:5]))
    write_certificate(run)
    assert load_certificate(run / CERTIFICATE_FILE).for_release
    found = problems(run)
    assert "the ledger is not the one that checkpoint.safetensors was written with" in found
    assert "model.safetensors has 20 steps, the ledger only 5 charges" in found
    assert "figures of the run speak of 20 steps, the ledger has 5 charges" in found


def test_a_ledger_that_was_cut_at_a_line_is_noticed_by_its_head(run: Path) -> None:
    lines = (run / LEDGER_FILE).read_bytes().splitlines(keepends=True)
    (run / LEDGER_FILE).write_bytes(b"".join(lines[:6]))
    write_certificate(run)
    assert "does not have the line that ledger.head notes as its last" in problems(run)


def test_a_seeded_ledger_that_is_called_secure_is_noticed(place: Path) -> None:
    run = place / "seeded"
    rewrite(run, [dataclasses.replace(c, secure_noise=True) for c in read_ledger(run / LEDGER_FILE).charges])
    write_certificate(run)
    assert load_certificate(run / CERTIFICATE_FILE).for_release
    assert (
        "run.json says that the noise came from the seed 7, the ledger calls that of 20 releases secure"
        in problems(run)
    )


def test_a_seed_that_was_taken_out_of_the_description_is_noticed(place: Path) -> None:
    run = place / "seeded"
    text = (run / RUN_FILE).read_text()
    (run / RUN_FILE).write_text(text.replace('"seed": 7', '"seed": null'))
    write_certificate(run)
    found = problems(run)
    assert "run.json is not the one that the ledger was started with" in found
    assert "run.json names no seed, the ledger says that 20 releases used one" in found


def test_an_edited_page_is_noticed(run: Path) -> None:
    page = run / PAGE_FILE
    page.write_text(page.read_text().replace("epsilon (promised)      3", "epsilon (promised)      1"))
    assert "certificate.txt does not say what certificate.json says" in problems(run)
    page.unlink()
    assert problems(run) == "certificate.txt is missing"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "one person with all their rows"}, "gives the unit of privacy as 'one person"),
        (
            {"not_covered": ("nothing of note",)},
            "leaves out that it does not cover the ranges of the columns",
        ),
        ({"phases": ()}, "the phases on the certificate are not those"),
        ({"mechanism": "Laplace noise"}, "gives the mechanism as"),
        ({"sampler": "shuffling"}, "gives the sampler as"),
        ({"accountant": "rdp"}, "gives the accountant as 'rdp', the plan as 'pld'"),
        ({"examples": 64_000}, "gives the number of examples as 64000"),
        ({"batch_size": -1}, "gives the batch size as -1"),
        ({"planned_releases": 10**6}, "gives the number of planned releases as 1000000"),
        ({"charged_releases": 5}, "counts 5 releases, the ledger 20"),
        ({"ledger_torn_lines": 3}, "gives the number of torn lines as 3"),
        ({"delta": 1e-9}, "gives delta as 1e-09"),
        ({"epsilon": 9.0}, "gives epsilon as 9.0, the plan as 3.0"),
        ({"epsilon_spent": 2.95}, "the certificate claims epsilon = 2.95 by pld accounting"),
        ({"method": "tp-topk"}, "gives the method as 'tp-topk'"),
        ({"relation": "replace-one"}, "gives the neighbouring relation as 'replace-one'"),
        ({"run": "0" * 32}, "the certificate is of the run '0000"),
        ({"plan_digest": "0" * 64}, "names another plan"),
        ({"ledger_head": "0" * 64}, "its head has another digest"),
        ({"for_release": False}, "nothing in the plan and the ledger speaks against it"),
        ({"reasons_against_release": ("it rained",)}, "is for release, although it rained"),
        ({"files": ()}, "the certificate does not name model.safetensors"),
        (
            {"files": (("model.safetensors", "0" * 64),)},
            "model.safetensors is not the one that was certified",
        ),
        ({"files": (("../secret", "0" * 64),)}, "../secret is missing"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_edited_field_of_a_certificate_is_noticed(
    run: Path, changes: dict[str, Any], said: str
) -> None:
    restate(run, **changes)
    assert said in problems(run)


def test_a_certificate_in_the_form_of_version_0_1_is_noticed_in_a_run_of_this_version(run: Path) -> None:
    """It would bind no model."""
    rewrite_as(run, 1, files=())
    found = problems(run)
    assert "the certificate does not name model.safetensors" in found
    assert "has the form of version 1" in found


def test_a_certificate_in_an_earlier_form_is_noticed_in_a_run_of_this_version(run: Path) -> None:
    """It would not say how many coordinates were active."""
    rewrite_as(run, 2)
    assert "has the form of version 2" in problems(run)


def test_edited_counts_of_active_coordinates_and_reasons_are_noticed(run: Path) -> None:
    certificate = load_certificate(run / CERTIFICATE_FILE)
    first, *rest = certificate.phases
    for lie in (
        dataclasses.replace(first, active=((1, first.releases),)),
        dataclasses.replace(first, reason="luck"),
    ):
        rewrite_as(run, certificate.version, phases=(lie, *rest))
        assert "the phases on the certificate are not those of the plan and the ledger" in problems(run)
    rewrite_as(run, certificate.version, phases=certificate.phases, coordinates=7)
    assert "the certificate counts 7 coordinates" in problems(run)


def rewrite_as(run: Path, version: int, **changes: Any) -> None:
    """Write the certificate and its page as an earlier version would have, or with other content."""
    certificate = dataclasses.replace(load_certificate(run / CERTIFICATE_FILE), version=version, **changes)
    write_json(run / CERTIFICATE_FILE, certificate_to_record(certificate))
    write_text(run / PAGE_FILE, certificate_page(certificate))


def test_a_date_that_is_none_is_refused(run: Path) -> None:
    restate(run, created="yesterday")
    assert "holds values that no certificate has" in problems(run)


@pytest.mark.parametrize("named", ["x" * 5_000, "a\0b", "/dev/null/witness"])
def test_a_description_whose_witness_is_no_name_of_a_file_is_judged_like_one_whose_witness_is_away(
    run: Path, named: str
) -> None:
    about = json.loads((run / RUN_FILE).read_text())
    write_json(run / RUN_FILE, {**about, "witness": named})
    assert any("which is not here" in item for item in verify(run).unchecked)


def test_a_description_that_names_a_device_as_its_witness_keeps_nobody_waiting(run: Path) -> None:
    about = json.loads((run / RUN_FILE).read_text())
    write_json(run / RUN_FILE, {**about, "witness": "/dev/zero"})
    assert "run.json is not the one that the ledger was started with" in problems(run)


def test_a_model_that_is_junk_swapped_edited_or_gone_is_noticed(place: Path) -> None:
    run, model = place / "run", place / "run" / MODEL_FILE
    sound = model.read_bytes()
    model.write_bytes(b"junk")
    assert "model.safetensors is damaged or no file of tensors" in problems(run)
    shutil.copy(place / "other" / MODEL_FILE, model)
    found = problems(run)
    assert "model.safetensors is not the one that was certified" in found
    assert "model.safetensors does not hold the weights of checkpoint.safetensors" in found
    model.write_bytes(sound)
    tensors, numbers = read_tensors(model)
    write_tensors(model, {name: tensor + 1e-3 for name, tensor in tensors.items()}, numbers)
    assert "another digest" in problems(run)
    model.unlink()
    assert problems(run) == "model.safetensors is missing, and the certificate was written with it"


def test_a_model_file_is_read_as_the_trainer_wrote_it(runs: Path) -> None:
    """The reader without PyTorch computes the same digest, for every type of number."""
    from tacit.runs.tensor_file import read_tensor_file

    kinds = [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
    ]
    tensors = {f"t{place}": torch.ones(2, 3).to(kind) for place, kind in enumerate(kinds)}
    path = runs / "kinds.safetensors"
    write_tensors(
        path, {**tensors, "none": torch.ones(0, 3), "one": torch.tensor(1.0), "ü": torch.ones(1)}, {"a": 1}
    )
    assert read_tensor_file(path).numbers == {"a": 1}
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileError, match="digest does not fit"):
        read_tensor_file(path)


# More of the same -------------------------------------------------------------------------------------------------


def take(name: str) -> Callable[[Path, Path], None]:
    return lambda run, other: shutil.copy(other / name, run / name) and None


def edit_plan(run: Path, other: Path) -> None:
    """A plan with a larger epsilon, its digest rewritten in the certificate."""
    plan = dataclasses.replace(load_plan(run / PLAN_FILE), epsilon=4.0)
    save_plan(plan, run / PLAN_FILE)
    restate(run, plan_digest=plan_digest(plan), epsilon=4.0)


def edit_plan_and_ledger(run: Path, other: Path) -> None:
    """The same with the ledger's header rewritten too."""
    plan = dataclasses.replace(load_plan(run / PLAN_FILE), epsilon=4.0)
    save_plan(plan, run / PLAN_FILE)
    record = read_ledger(run / LEDGER_FILE)
    (run / LEDGER_FILE).unlink()
    head_file(run / LEDGER_FILE).unlink(missing_ok=True)
    with FileLedger.create(
        run / LEDGER_FILE, run=record.run, plan_digest=plan_digest(plan), about=record.about
    ) as ledger:
        for charge in record.charges:
            ledger.charge(charge)
    write_certificate(run)


def more_charges(run: Path, other: Path) -> None:
    record = read_ledger(run / LEDGER_FILE)
    with FileLedger.open(run / LEDGER_FILE, plan_digest=record.plan) as ledger:
        ledger.charge(dataclasses.replace(record.charges[-1], index=STEPS))


def changed_charge(**changes: Any) -> Callable[[Path, Path], None]:
    def change(run: Path, other: Path) -> None:
        charges = list(read_ledger(run / LEDGER_FILE).charges)
        charges[3] = dataclasses.replace(charges[3], **changes)
        rewrite(run, charges)
        made = write_certificate(run)
        restate(run, for_release=True, reasons_against_release=(), phases=made.phases)

    return change


def not_covered_in_both(run: Path, other: Path) -> None:
    about = json.loads((run / RUN_FILE).read_text())
    about["not_covered"] = about["not_covered"][:-1]
    write_json(run / RUN_FILE, about)
    write_certificate(run)


def figures(name: str, **changes: Any) -> Callable[[Path, Path], None]:
    return lambda run, other: write_json(run / name, changes)


def gone(name: str) -> Callable[[Path, Path], None]:
    return lambda run, other: (run / name).unlink()


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (take(RUN_FILE), "run.json is of the run"),
        (take(CHECKPOINT_FILE), "is not the one that checkpoint.safetensors was written with"),
        (take(LEDGER_FILE), "the certificate is of the run"),
        (take("ledger.head"), "does not have the line that ledger.head notes"),
        (take(CERTIFICATE_FILE), "the certificate is of the run"),
        (take(PAGE_FILE), "certificate.txt does not say"),
        (edit_plan, "belongs to another plan"),
        (edit_plan_and_ledger, "is not the one that checkpoint.safetensors was written with"),
        (more_charges, "counts 20 releases, the ledger 21"),
        (changed_charge(clip_norm=5.0), "used another clip norm or batch size than planned"),
        (changed_charge(batch_size=8), "used another clip norm or batch size than planned"),
        (changed_charge(sampling_rate=0.125), "were sampled at another rate than planned"),
        (changed_charge(noise_multiplier=0.5), "used less noise than planned"),
        (changed_charge(phase="encore"), "belong to a phase 'encore' that the plan does not have"),
        (changed_charge(step=9), "serve a step that was not next"),
        (not_covered_in_both, "run.json is not the one that the ledger was started with"),
        (figures("result.json", steps=30, epsilon=2.0), "speak of 30 steps, the ledger has 20 charges"),
        (figures("result.json", steps=20, epsilon=2.0, delta=1e-5), "result.json gives epsilon as 2"),
        (figures("experiment.json", experiment={"training": {"seed": 3}}), "experiment.json has the seed 3"),
        (
            figures("experiment.json", experiment={"privacy": {"epsilon": 1.0}}),
            "asks for epsilon = 1.0, the plan has 3.0",
        ),
        (gone("ledger.head"), "ledger.head is missing"),
        (gone(RUN_FILE), "run.json is missing"),
        (gone(CHECKPOINT_FILE), "checkpoint.safetensors is missing"),
        (gone(PLAN_FILE), "plan.json is missing"),
        (gone(LEDGER_FILE), "without its ledger nothing of this run can be recounted"),
        (gone(CERTIFICATE_FILE), "certificate.json is missing"),
    ],
)
def test_files_that_do_not_belong_together_are_noticed(
    place: Path, attack: Callable[[Path, Path], None], said: str
) -> None:
    attack(place / "run", place / "other")
    assert said in problems(place / "run")


def test_a_certificate_by_itself_is_only_a_claim(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(run / CERTIFICATE_FILE, alone)
    found = problems(alone)
    for said in ("ledger.jsonl is missing", "plan.json is missing", "a certificate by itself is a claim"):
        assert said in found
    assert verify(alone).epsilon is None


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(run: Path) -> None:
    (run / MODEL_FILE).unlink()
    os.mkfifo(run / MODEL_FILE)
    assert "model.safetensors is not an ordinary file" in problems(run)


def test_files_that_are_no_evidence_are_named(run: Path) -> None:
    (run / "notes.txt").write_text("hello")
    verdict = verify(run)
    assert verdict.agrees
    assert any("not looked at" in item and "notes.txt" in item for item in verdict.unchecked)


def test_the_words_that_a_run_was_started_with_cannot_be_changed_later(run: Path) -> None:
    with pytest.raises(ArgumentError, match="started with the unit 'one example of the training data'"):
        write_certificate(run, unit="one person")
    certificate = write_certificate(run, not_covered=["the weather"])
    assert "the ranges of the columns" in certificate.not_covered
    assert certificate.not_covered[-1] == "the weather"
    assert verify(run).agrees


def test_a_unit_is_chosen_at_the_start(plan: Plan, tmp_path: Path) -> None:
    trainer(plan, tmp_path, unit="one visit of a patient").fit(progress=False)
    assert load_certificate(tmp_path / CERTIFICATE_FILE).unit == "one visit of a patient"
    assert verify(tmp_path).agrees
    with pytest.raises(ArgumentError, match="needs a unit"):
        trainer(plan, tmp_path / "none", unit="")


# Runs of version 0.1 ----------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(OLD, tmp_path / "old")
    return tmp_path / "old"


def test_runs_of_version_0_1_verify_and_say_what_they_do_not_bind(old: Path) -> None:
    for name, for_release in (("finished", True), ("replanned", True), ("seeded", False)):
        verdict = verify(old / name)
        assert verdict.agrees, verdict
        assert verdict.for_release == for_release
        said = "; ".join(verdict.unchecked)
        assert "does not bind model.safetensors" in said
        assert "may have been edited" in said
        assert ("timed by what had been released" in said) == (name == "replanned")


def test_a_run_of_version_0_1_is_checked_against_all_that_lies_there(old: Path) -> None:
    run = old / "finished"
    shutil.copy(old / "replanned" / MODEL_FILE, run)
    assert "does not hold the weights of checkpoint.safetensors" in problems(run)
    run = old / "seeded"
    rewrite(run, [dataclasses.replace(c, secure_noise=True) for c in read_ledger(run / LEDGER_FILE).charges])
    assert "came from the seed 7" in problems(run)


def test_a_run_of_version_0_1_is_resumed_and_signed(old: Path, plan: Plan, tmp_path: Path) -> None:
    run = old / "stopped"
    # Its own plan: the last bits of a noise that is calibrated anew depend on the version of SciPy.
    planned = load_plan(run / PLAN_FILE)
    assert planned.phases[0].noise_multiplier == pytest.approx(plan.phases[0].noise_multiplier, rel=1e-4)
    result = trainer(planned, run).resume(progress=False)
    assert (result.finished, result.steps) == (True, 16)
    verdict = verify(run)
    assert verdict.agrees, verdict
    make_key(tmp_path / "key")
    for name in ("stopped", "finished"):
        sign(old / name, tmp_path / "key")
        assert verify(old / name, trust=tmp_path / "key.pub").agrees
    shutil.copy(old / "stopped" / MODEL_FILE, old / "finished")
    assert "model.safetensors has changed since it was signed" in problems(
        old / "finished", trust=tmp_path / "key.pub"
    )


# Signatures -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        assert make_key(place / name) == place / f"{name}.pub"
    return place


def test_a_key_is_for_its_owner_only_and_never_overwritten(keys: Path, run: Path) -> None:
    assert (keys / "ours").stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE KEY" in (keys / "ours").read_bytes()
    with pytest.raises(FileError, match="exists already"):
        make_key(keys / "ours")
    shutil.copy(keys / "ours", run / "key")
    (run / "key").chmod(0o640)
    with pytest.raises(FileError, match="can be read by others"):
        sign(run, run / "key")


def test_a_signed_run_verifies_with_the_key_that_signed_it(keys: Path, run: Path) -> None:
    assert "is not signed" in problems(run, trust=keys / "ours.pub")
    assert any("nothing is signed" in item for item in verify(run).unchecked)
    sign(run, keys / "ours")
    assert verify(run, trust=keys / "ours.pub").agrees
    assert any("anybody can sign" in item for item in verify(run).unchecked)
    assert (
        problems(run, trust=keys / "theirs.pub")
        == "the certificate is signed with another key than the trusted one"
    )
    sign(run, keys / "theirs")
    assert verify(run, trust=keys / "theirs.pub").agrees


def test_a_directory_that_was_rewritten_consistently_fails_against_a_signature(
    keys: Path, place: Path
) -> None:
    """Without a signature this verifies: whoever holds a directory can put another run in it."""
    run, other = place / "run", place / "other"
    sign(run, keys / "ours")
    for file in other.iterdir():
        shutil.copy(file, run)
    assert "certificate.json has changed since it was signed" in problems(run, trust=keys / "ours.pub")
    (run / SIGNATURE_FILE).unlink()
    assert verify(run).agrees
    assert "is not signed" in problems(run, trust=keys / "ours.pub")
    sign(run, keys / "theirs")
    assert "another key" in problems(run, trust=keys / "ours.pub")


@pytest.mark.parametrize(
    "name", [CERTIFICATE_FILE, PAGE_FILE, PLAN_FILE, LEDGER_FILE, RUN_FILE, MODEL_FILE, CHECKPOINT_FILE]
)
def test_a_signature_binds_every_part(keys: Path, place: Path, name: str) -> None:
    run = place / "run"
    sign(run, keys / "ours")
    if name == PLAN_FILE:
        save_plan(dataclasses.replace(load_plan(run / name), epsilon=3.5), run / name)
    else:
        shutil.copy(place / "other" / name, run / name)
    assert f"{name} has changed since it was signed" in problems(run, trust=keys / "ours.pub")
    (run / name).unlink()
    assert f"{name} " in problems(run, trust=keys / "ours.pub")


def test_a_signature_that_was_edited_is_not_genuine(keys: Path, run: Path) -> None:
    sign(run, keys / "ours")
    path = run / SIGNATURE_FILE
    record = json.loads(path.read_text())
    for change in (
        {"signed": {**record["signed"], MODEL_FILE: "0" * 64}},
        {"signed": {**record["signed"], "extra": "0" * 64}},
        {"signature": record["key"] + record["key"][:-1] + "="},
        {"key": "A" * 43 + "="},
    ):
        write_json(path, {**record, **change})
        assert not verify(run, trust=keys / "ours.pub").agrees
    for junk in (b"", b"{}", b"[1]", b"\xff", json.dumps({**record, "version": 2}).encode()):
        path.write_bytes(junk)
        assert not verify(run).agrees


def test_what_does_not_verify_is_not_signed(keys: Path, run: Path) -> None:
    (run / PAGE_FILE).write_text("All is well.\n")
    with pytest.raises(
        FileError, match=r"does not verify, so it is not signed: certificate.txt does not say"
    ):
        sign(run, keys / "ours")
    assert not (run / SIGNATURE_FILE).exists()


def test_keys_that_are_none_are_refused_in_a_sentence(keys: Path, run: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    (keys / "junk").write_text("no key")
    other = ec.generate_private_key(ec.SECP256R1())
    (keys / "curve.pub").write_bytes(
        other.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    for name, said in (
        ("junk", "holds no public key"),
        ("ours", "holds a private key; trust the public one"),
        ("curve.pub", "of another kind"),
        ("nowhere", "cannot be read"),
    ):
        with pytest.raises(FileError, match=said):
            verify(run, trust=keys / name)
    for name, said in (
        ("junk", "holds no private key"),
        ("ours.pub", "holds no private key"),
        ("nowhere", "cannot be read"),
    ):
        with pytest.raises(FileError, match=said):
            sign(run, keys / name)


# Witnesses --------------------------------------------------------------------------------------------------------


def stopped(plan: Plan, directory: Path, steps: int, **options: Any) -> None:
    run = trainer(plan, directory, **options)
    if (directory / RUN_FILE).exists():
        run.load()
    for step in run.steps():
        if step.number == steps:
            run.save()
            break
    run.close()


def test_a_directory_that_was_put_back_from_a_backup_is_noticed(plan: Plan, tmp_path: Path) -> None:
    """Ten releases, a backup, ten more, the backup put back: forty releases could be certified as thirty."""
    run, witness = tmp_path / "run", tmp_path / "elsewhere" / "witness"
    witness.parent.mkdir()
    stopped(plan, run, 10, witness=witness)
    shutil.copytree(run, tmp_path / "backup")
    trainer(plan, run).resume(progress=False)
    verdict = verify(run)
    assert verdict.agrees, verdict
    assert not any("witness" in item for item in verdict.unchecked)
    shutil.rmtree(run)
    shutil.copytree(tmp_path / "backup", run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(
        LedgerError, match=r"noted 20 releases of this run, and the ledger with its 10 .* start a new run"
    ):
        trainer(plan, run).resume(progress=False)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    write_certificate(run)
    assert "put back from a backup" in problems(run)


def test_without_a_witness_that_cannot_be_noticed_and_is_said(plan: Plan, tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped(plan, run, 10)
    shutil.copytree(run, tmp_path / "backup")
    stopped(plan, run, 15)
    trainer(plan, tmp_path / "backup").resume(progress=False)
    verdict = verify(tmp_path / "backup")
    assert verdict.agrees
    assert any(
        "no witness: nothing shows that the directory was not put back" in item for item in verdict.unchecked
    )


def test_a_witness_that_is_gone_another_or_behind_is_refused(plan: Plan, tmp_path: Path) -> None:
    run, witness = tmp_path / "run", tmp_path / "witness"
    stopped(plan, run, 6, witness=witness)
    early = witness.read_bytes()
    stopped(plan, run, 9)
    sound = witness.read_bytes()
    for content, said in (
        (None, "cannot be read"),
        (b"", "knows nothing of the run"),
        (b"\n" + b"0" * 32 + b" 3 " + b"0" * 64, "knows nothing of the run"),
        (early, "stops at 6 releases, the ledger has 9"),
        (sound + b"\nwho? 3", "is damaged"),
        (sound[:-1] + b"x", "is damaged"),
    ):
        witness.unlink() if content is None else witness.write_bytes(content)
        with pytest.raises(LedgerError, match=said):
            trainer(plan, run).resume(progress=False)
    witness.write_bytes(sound + b"\n" + sound.splitlines()[-1][:70])  # a line that a crash has cut
    assert trainer(plan, run).resume(progress=False).finished
    assert verify(run).agrees
    witness.rename(tmp_path / "moved")
    assert any("is not here" in item for item in verify(run).unchecked)
    assert verify(run, witness=tmp_path / "moved").agrees
    assert "cannot be read" in problems(run, witness=tmp_path / "nowhere")


def test_a_witness_is_told_before_noise_is_drawn(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.release.noise import SecureNoise

    begin = SecureNoise.begin
    noted: list[int] = []
    witness = Witness(tmp_path / "witness")

    def checked(self: SecureNoise, index: int) -> None:
        run = read_ledger(tmp_path / "run" / LEDGER_FILE)
        assert witness.last(run.run) == (index + 1, run.head)
        noted.append(index)
        begin(self, index)

    monkeypatch.setattr(SecureNoise, "begin", checked)
    trainer(plan, tmp_path / "run", witness=witness.path).fit(progress=False)
    assert noted == list(range(STEPS))


def test_a_witness_that_cannot_be_written_releases_nothing(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be written"):
        trainer(plan, tmp_path / "run", witness=tmp_path / "no" / "place").fit(progress=False)
    assert not (tmp_path / "run" / LEDGER_FILE).exists()
    with pytest.raises(ArgumentError, match="lies in the run directory"):
        trainer(plan, tmp_path / "run", witness=tmp_path / "run" / "witness").fit(progress=False)
    with pytest.raises(ArgumentError, match="run_dir"):
        Trainer(nn.Linear(4, 2), [0] * 64, cross_entropy, plan, optimizer=torch.optim.SGD, witness="w")  # type: ignore[arg-type]


def test_a_run_goes_on_only_with_its_own_witness(plan: Plan, tmp_path: Path) -> None:
    stopped(plan, tmp_path / "run", 3, witness=tmp_path / "witness")
    with pytest.raises(FileError, match=r"started with the witness .*witness, not .*another"):
        trainer(plan, tmp_path / "run", witness=tmp_path / "another").resume(progress=False)
    stopped(plan, tmp_path / "plain", 3)
    with pytest.raises(FileError, match="started with no witness"):
        trainer(plan, tmp_path / "plain", witness=tmp_path / "another").resume(progress=False)


def test_a_run_whose_ledger_is_gone_is_not_begun_again_under_the_eyes_of_its_witness(
    plan: Plan, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stopped(plan, run, 3, witness=tmp_path / "witness")
    for name in (LEDGER_FILE, CHECKPOINT_FILE):
        (run / name).unlink()
    with pytest.raises(LedgerError, match="has noted 3 releases of the run"):
        trainer(plan, run).resume(progress=False)


def test_two_runs_share_a_witness(plan: Plan, tmp_path: Path) -> None:
    for name in ("one", "two"):
        stopped(plan, tmp_path / name, 4, witness=tmp_path / "witness")
    for name in ("one", "two"):
        assert trainer(plan, tmp_path / name).resume(progress=False).finished
        assert verify(tmp_path / name).agrees
