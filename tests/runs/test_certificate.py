"""Certificates say what the ledger says; verification finds every lie."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import ArgumentError, FileError
from tacit.plan import Plan, make_plan, plan_digest, save_plan
from tacit.release.ledger import FileLedger, read_ledger
from tacit.release.ledger_file import Charge
from tacit.runs import certify, load_certificate, recount, verification, verify, write_certificate
from tacit.runs.certificate import REPLANNED
from tacit.runs.layout import CERTIFICATE_FILE, LEDGER_FILE, PAGE_FILE, PLAN_FILE


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(
        "tp-topk", epsilon=2.0, delta=1e-5, examples=2000, batch_size=100, epochs=10, active_ratio=0.3
    )


def planned_charge(plan: Plan, index: int, step: int, **changes: Any) -> Charge:
    phase = plan.phases[plan.locate(step)[0]]
    charge = Charge(
        index, step, phase.name, phase.sampling_rate, phase.noise_multiplier, phase.clip_norm, 100, 50, True
    )
    return dataclasses.replace(charge, **changes)


def make_run(
    directory: Path, plan: Plan, change: Callable[[int], dict[str, Any]] = lambda _: {}, steps: int = 200
) -> Path:
    save_plan(plan, directory / PLAN_FILE)
    with FileLedger.create(directory / LEDGER_FILE, run="run-1", plan_digest=plan_digest(plan)) as ledger:
        for step in range(steps):
            ledger.charge(planned_charge(plan, step, step, **change(step)))
    return directory


@pytest.fixture(scope="module")
def finished(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_run(tmp_path_factory.mktemp("finished"), plan)
    write_certificate(directory)
    return directory


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    for file in finished.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_finished_run_verifies(plan: Plan, run: Path) -> None:
    certificate = load_certificate(run / CERTIFICATE_FILE)
    assert certificate.for_release
    assert certificate.epsilon == 2.0
    assert certificate.epsilon_spent == plan.spent()
    assert (certificate.charged_releases, certificate.planned_releases) == (200, 200)
    assert [phase.releases for phase in certificate.phases] == [60, 140]
    verdict = verify(run)
    assert verdict.agrees, verdict
    assert verdict.for_release
    assert verdict.epsilon == pytest.approx(plan.spent(), rel=2e-3)
    assert "verifies" in str(verdict)


def test_the_certificate_survives_its_file(run: Path) -> None:
    certificate = load_certificate(run / CERTIFICATE_FILE)
    made = certify(make_plan_from(run), read_ledger(run / LEDGER_FILE))
    assert dataclasses.replace(certificate, created=made.created) == made


def make_plan_from(run: Path) -> Plan:
    from tacit.plan import load_plan

    return load_plan(run / PLAN_FILE)


def test_the_page_says_everything_in_plain_text(run: Path) -> None:
    page = (run / PAGE_FILE).read_text()
    flat = " ".join(page.split())
    certificate = load_certificate(run / CERTIFICATE_FILE)
    for expected in (
        "FOR RELEASE",
        "epsilon (promised) 2",
        "add-or-remove-one",
        "one example of the training data",
        "Poisson",
        "the top 30 % by",
        "hyper-parameters",
        "architecture",
        "held-out",
        certificate.ledger_head,
        certificate.plan_digest,
        "cryptography",
        certificate.statement,
    ):
        assert expected in flat
    assert "NOT FOR RELEASE" not in page
    assert "<" not in page
    assert "**" not in page
    assert max(map(len, page.splitlines())) <= 96


def test_the_statement_has_the_right_numbers(run: Path) -> None:
    statement = load_certificate(run / CERTIFICATE_FILE).statement
    assert math.exp(2) <= 7.390 < math.exp(2) * 1.001
    assert "at most a factor of 7.39, except with probability 1e-05." in statement
    assert 100 * math.exp(2) / (1 + math.exp(2)) <= 88.08
    assert "never become more than 88.08 % sure" in statement


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 0.5, 1.0, 2.5, 3.0, 7.7, 10.0, 42.0])
def test_the_statement_never_rounds_down(run: Path, epsilon: float) -> None:
    certificate = dataclasses.replace(load_certificate(run / CERTIFICATE_FILE), epsilon=epsilon)
    factor, sure = re.findall(r"factor of (\S+), except.* than (\S+) % sure", certificate.statement)[0]
    assert math.exp(epsilon) <= float(factor) <= 1.001 * math.exp(epsilon)
    odds = 100 / (1 + math.exp(-epsilon))
    assert odds <= float(sure) <= 1.001 * odds


def test_the_certificate_says_how_many_coordinates_were_active(run: Path) -> None:
    certificate = load_certificate(run / CERTIFICATE_FILE)
    charges = read_ledger(run / LEDGER_FILE).charges
    for phase in certificate.phases:
        counted = Counter(charge.active for charge in charges if charge.phase == phase.name)
        assert phase.active == tuple(sorted(counted.items()))
        assert f"numbers per release: {phase.active[0][0]:,}" in (run / PAGE_FILE).read_text()


def test_what_is_not_covered_and_the_unit_are_the_callers_to_say(run: Path) -> None:
    write_certificate(run, unit="one patient", not_covered=["the choice of clinics"])
    page = (run / PAGE_FILE).read_text()
    assert "Including or leaving out one patient changes" in page
    assert "the choice of clinics" in page
    assert "hyper-parameters" not in page
    with pytest.raises(ArgumentError, match="needs a unit"):
        write_certificate(run, unit="")


def test_seeded_noise_is_not_for_release(plan: Plan, tmp_path: Path) -> None:
    make_run(tmp_path, plan, lambda step: {"secure_noise": step != 7})
    certificate = write_certificate(tmp_path)
    assert not certificate.for_release
    assert "1 of 200 releases used seeded noise" in certificate.reasons_against_release[0]
    assert "NOT FOR RELEASE" in (tmp_path / PAGE_FILE).read_text()
    verdict = verify(tmp_path)
    assert verdict.agrees
    assert not verdict.for_release
    assert "NOT FOR RELEASE" in str(verdict)


def test_a_run_without_noise_is_not_for_release(tmp_path: Path) -> None:
    silent = make_plan("dp-sgd", epsilon=math.inf, delta=1e-5, examples=2000, batch_size=100, epochs=1)
    make_run(tmp_path, silent, steps=20)
    certificate = write_certificate(tmp_path)
    assert not certificate.for_release
    assert certificate.epsilon_spent == math.inf
    assert "promises no privacy" in certificate.statement
    assert load_certificate(tmp_path / CERTIFICATE_FILE) == certificate
    verdict = verify(tmp_path)
    assert verdict.agrees
    assert not verdict.for_release


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"noise_multiplier": 0.9}, "less noise than planned"),
        ({"sampling_rate": 0.025}, "another rate than planned"),
        ({"clip_norm": 2.0}, "another clip norm"),
        ({"batch_size": 50}, "another clip norm or batch size"),
        ({"phase": "encore"}, "'encore' that the plan does not have"),
    ],
)
def test_charges_that_do_not_fit_the_plan_are_not_for_release(
    plan: Plan, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    make_run(tmp_path, plan, lambda step: change if step in (20, 30) else {})
    certificate = write_certificate(tmp_path)
    assert not certificate.for_release
    assert any(reason in item for item in certificate.reasons_against_release)


def test_a_run_with_losses_verifies(plan: Plan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / PLAN_FILE)
    with FileLedger.create(tmp_path / LEDGER_FILE, run="run-1", plan_digest=plan_digest(plan)) as ledger:
        for step in [*range(62), *range(40, 178)]:
            place = len(ledger)
            ledger.charge(planned_charge(plan, place, step, noise_multiplier=plan.noise_at(place)))
    certificate = write_certificate(tmp_path)
    assert certificate.charged_releases == 200
    assert certificate.for_release
    assert len(certificate.phases[0].noise_multipliers) == 2
    assert REPLANNED not in certificate.not_covered
    verdict = verify(tmp_path)
    assert verdict.agrees, verdict
    assert verdict.epsilon == pytest.approx(plan.spent(), rel=2e-3)


def test_noise_that_was_chosen_after_a_loss_narrows_the_claim(plan: Plan, tmp_path: Path) -> None:
    """As version 0.1 did: more releases than planned, the later ones with more noise."""
    save_plan(plan, tmp_path / PLAN_FILE)
    more = 1.12 * plan.phases[1].noise_multiplier
    with FileLedger.create(tmp_path / LEDGER_FILE, run="run-1", plan_digest=plan_digest(plan)) as ledger:
        for step in range(90):
            ledger.charge(planned_charge(plan, step, step))
        for step in range(70, 200):
            ledger.charge(planned_charge(plan, len(ledger), step, noise_multiplier=more))
    certificate = write_certificate(tmp_path)
    assert certificate.charged_releases == 220
    assert certificate.for_release
    assert certificate.not_covered[-1] == REPLANNED
    assert verify(tmp_path).agrees


def test_a_loss_that_was_not_paid_for_is_found(plan: Plan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / PLAN_FILE)
    with FileLedger.create(tmp_path / LEDGER_FILE, run="run-1", plan_digest=plan_digest(plan)) as ledger:
        for step in [*range(90), *range(70, 200)]:
            ledger.charge(planned_charge(plan, len(ledger), step))
    certificate = write_certificate(tmp_path)
    assert not certificate.for_release
    assert "above the promised 2" in certificate.reasons_against_release[0]
    verdict = verify(tmp_path)
    assert not verdict.agrees
    assert any("promised" in problem for problem in verdict.problems)


def test_an_unfinished_run_can_be_certified_and_keeps_its_promise(plan: Plan, tmp_path: Path) -> None:
    make_run(tmp_path, plan, steps=50)
    certificate = write_certificate(tmp_path)
    assert certificate.epsilon == 2.0
    assert certificate.epsilon_spent < 0.6
    assert verify(tmp_path).for_release


def edit(path: Path, changes: dict[str, Any]) -> None:
    record = json.loads(path.read_text())
    record.update(changes)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"epsilon_spent": 1.5}, "above the 1.5 that the certificate says were spent"),
        ({"epsilon_spent": 2.4}, "the ledger costs only"),
        ({"epsilon": 1.0}, "statement"),
        ({"delta": 1e-4}, "statement"),
        ({"charged_releases": 190}, "counts 190 releases, the ledger 200"),
        ({"ledger_head": "00" * 32}, "not the one that was certified"),
        ({"plan_digest": "00" * 32}, "names another plan"),
        ({"run": "run-2"}, "of the run 'run-2', the ledger of 'run-1'"),
        ({"method": "dp-sgd"}, "gives the method as 'dp-sgd'"),
        ({"accountant": "rdp"}, "gives the accountant as 'rdp'"),
        ({"examples": 3000}, "gives the number of examples as 3000"),
        ({"relation": "replace-one"}, "statement of the certificate"),
        ({"relation": "some"}, "gives the neighbouring relation"),
        ({"mood": "good"}, "has the unknown field 'mood'"),
        ({"version": 9}, "has version 9"),
        ({"format": "x"}, "is not a Tacit certificate"),
        ({"phases": 3}, "values that no certificate has"),
        ({"statement": "Trust me."}, "statement"),
    ],
)
def test_every_edit_of_the_certificate_is_found(run: Path, changes: dict[str, Any], problem: str) -> None:
    edit(run / CERTIFICATE_FILE, changes)
    verdict = verify(run)
    assert not verdict.agrees
    assert not verdict.for_release
    assert any(problem in item for item in verdict.problems), verdict
    assert "NOT verify" in str(verdict)


def test_an_honest_claim_above_the_recount_is_what_the_planning_accountant_says(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lower(*arguments: Any, **options: Any) -> float:
        return 0.8 * recount(*arguments, **options)

    monkeypatch.setattr(verification, "recount", lower)
    assert verify(run).agrees
    edit(run / CERTIFICATE_FILE, {"epsilon_spent": 2.1})
    assert any("the ledger costs only" in problem for problem in verify(run).problems)


def test_a_consistent_lie_about_epsilon_is_found_in_the_plan_and_the_ledger(run: Path, plan: Plan) -> None:
    certificate = load_certificate(run / CERTIFICATE_FILE)
    lie = dataclasses.replace(certificate, epsilon=1.0, epsilon_spent=0.999)
    edit(run / CERTIFICATE_FILE, {"epsilon": 1.0, "epsilon_spent": 0.999, "statement": lie.statement})
    problems = " ".join(verify(run).problems)
    assert "gives epsilon as 1.0, the plan as 2.0" in problems
    assert "above the 1 that the certificate says were promised" in problems


def test_a_certificate_for_release_in_spite_of_seeded_noise_is_found(plan: Plan, tmp_path: Path) -> None:
    make_run(tmp_path, plan, lambda _: {"secure_noise": False})
    write_certificate(tmp_path)
    edit(tmp_path / CERTIFICATE_FILE, {"for_release": True, "reasons_against_release": []})
    assert any("although 200 of 200 releases used seeded noise" in item for item in verify(tmp_path).problems)


def test_a_ledger_changed_after_certification_is_found(run: Path, plan: Plan) -> None:
    with FileLedger.open(run / LEDGER_FILE, plan_digest=plan_digest(plan)) as ledger:
        ledger.charge(planned_charge(plan, 200, 199))
    problems = " ".join(verify(run).problems)
    assert "counts 200 releases, the ledger 201" in problems
    lines = (run / LEDGER_FILE).read_bytes().splitlines(keepends=True)
    (run / LEDGER_FILE).write_bytes(b"".join(lines[:150]))
    assert "counts 200 releases, the ledger 149" in " ".join(verify(run).problems)
    (run / LEDGER_FILE).write_bytes(b"".join(lines[:150]).replace(b"1.0", b"2.0", 1))
    assert "damaged" in " ".join(verify(run).problems)


def test_another_plan_in_the_directory_is_found(run: Path, plan: Plan) -> None:
    other = make_plan("dp-sgd", epsilon=2.0, delta=1e-5, examples=2000, batch_size=100, epochs=10)
    save_plan(other, run / PLAN_FILE)
    problems = " ".join(verify(run).problems)
    assert "the ledger belongs to another plan" in problems
    assert "names another plan" in problems


@pytest.mark.parametrize("name", [PLAN_FILE, LEDGER_FILE, CERTIFICATE_FILE])
def test_a_missing_file_is_a_problem_with_its_name(run: Path, name: str) -> None:
    (run / name).unlink()
    verdict = verify(run)
    assert not verdict.agrees
    assert any(name in problem for problem in verdict.problems)
    if name == CERTIFICATE_FILE:
        with pytest.raises(FileError, match="cannot be read"):
            load_certificate(run / name)


def test_a_looser_accountant_still_verifies(tmp_path: Path) -> None:
    plan = make_plan(
        "dp-sgd", epsilon=2.0, delta=1e-5, examples=2000, batch_size=100, epochs=2, accountant="theorem-4.1"
    )
    make_run(tmp_path, plan, steps=40)
    write_certificate(tmp_path)
    verdict = verify(tmp_path)
    assert verdict.agrees, verdict
    assert verdict.epsilon is not None
    assert verdict.epsilon < 0.95 * 2


def test_what_cannot_be_recounted_is_said_to_be_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.runs.verification.recount", lambda *given, **named: math.inf)
    verdict = verify(run)
    assert not verdict.agrees
    assert any("cannot recount these releases" in problem for problem in verdict.problems)


def test_the_recount_uses_the_ledger_alone(run: Path, plan: Plan) -> None:
    counts: dict[tuple[float, float], int] = {}
    for phase in plan.phases:
        counts[phase.sampling_rate, phase.noise_multiplier] = phase.steps
    assert verify(run).epsilon == pytest.approx(recount(counts, 1e-5), rel=1e-12)
