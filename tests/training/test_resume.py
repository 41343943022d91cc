"""Stopping, crashing, resuming: nothing is forgotten, nothing is promised twice."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit import Plan, TacitError, Trainer
from tacit.errors import ExampleError
from tacit.losses import cross_entropy
from tacit.plan import Spend, epsilon_of, load_plan, plan_digest
from tacit.release.ledger import FileLedger, read_ledger
from tacit.runs import verify
from tacit.runs.metrics import read_metrics
from tacit.tensors import read_tensors, write_tensors
from training.small import STEPS, adam, data, files, flat, mask, momentum, network, plan, trainer


@pytest.fixture(scope="module")
def private() -> Plan:
    return plan("tp-topk", epsilon=3.0, score="movement", reset=True)


def crash(run: Trainer, steps: int, checkpoint: int) -> None:
    """Take so many steps, with the last checkpoint after ``checkpoint`` of them; then the process is gone."""
    for step in run.steps():
        if step.number == checkpoint:
            run.save()
        if step.number == steps:
            break
    run.close()


def charged(directory: Path) -> float:
    record, planned = read_ledger(directory / "ledger.jsonl"), load_plan(directory / "plan.json")
    spends = [Spend(charge.sampling_rate, charge.noise_multiplier, 1) for charge in record.charges]
    return epsilon_of(spends, planned.delta, planned.accountant)


# An orderly stop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "stop"),
    [
        ("tp-topk", {"score": "movement", "reset": True}, 3),
        ("tp-topk", {"score": "movement", "reset": True}, 6),
        ("tp-topk", {"score": "movement", "reset": True}, 15),
        ("tp-topk", {"active_ratio": "auto"}, 5),
        ("on-topk", {}, 9),
        ("rs", {}, 10),
        ("sparta", {"score": "row-norms", "always_active": ["7.*"]}, 3),
        ("sparta", {"score": "votes", "votes": 2}, 3),
        ("sparta", {"score": "saliency", "head": ["7.*"], "head_epochs": 1}, 7),
    ],
)
def test_a_stopped_run_ends_exactly_as_one_that_was_not(
    tmp_path: Path, method: str, options: dict[str, Any], stop: int
) -> None:
    chosen = plan(method, epsilon=20.0, **options)

    def jitter(chunk: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return chunk[0] + 0.1 * torch.randn_like(chunk[0]), chunk[1]

    def start(directory: str) -> Trainer:
        return trainer(
            chosen,
            network(1, nn.Dropout(0.2)),
            optimizer=adam,
            average=0.9,
            augment=jitter,
            run_dir=tmp_path / directory,
        )

    torch.manual_seed(0)
    whole = start("whole")
    assert whole.fit(progress=False).finished
    torch.manual_seed(0)
    crash(start("stopped"), stop, stop)
    torch.manual_seed(1)
    resumed = start("stopped")
    result = resumed.resume(progress=False)
    assert result.finished
    assert result.epsilon == whole.epsilon
    assert resumed.support == whole.support
    assert torch.equal(flat(resumed.model), flat(whole.model))
    ours, theirs = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("stopped", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    charges = [read_ledger(tmp_path / name / "ledger.jsonl").charges for name in ("stopped", "whole")]
    assert charges[0] == charges[1]


def test_several_stops_at_the_same_place_change_nothing(tmp_path: Path, private: Plan) -> None:
    whole = trainer(private, run_dir=tmp_path / "whole")
    whole.fit(progress=False)
    crash(trainer(private, run_dir=tmp_path / "run"), 7, 7)
    for _ in range(3):
        again = trainer(private, run_dir=tmp_path / "run")
        again.load()
        again.save()
        again.close()
    again = trainer(private, run_dir=tmp_path / "run")
    assert again.resume(progress=False).finished
    assert torch.equal(flat(again.model), flat(whole.model))


# A crash --------------------------------------------------------------------------------------------------


def planned_noise(plan: Plan) -> list[float]:
    return [phase.noise_multiplier for phase in plan.phases for _ in range(phase.steps)]


@pytest.mark.parametrize(("steps", "checkpoint"), [(4, 0), (9, 2), (20, 13), (20, 19), (20, 0)])
def test_lost_steps_stay_charged_and_the_run_ends_earlier(
    tmp_path: Path, private: Plan, steps: int, checkpoint: int
) -> None:
    crash(trainer(private, run_dir=tmp_path), steps, checkpoint)
    before = read_ledger(tmp_path / "ledger.jsonl").charges
    assert len(before) == steps
    result = trainer(private, run_dir=tmp_path).resume(progress=False)
    after = read_ledger(tmp_path / "ledger.jsonl").charges
    last = STEPS - (steps - checkpoint)
    assert result.finished
    assert result.steps == last
    assert after[:steps] == before
    assert [charge.step for charge in after[steps:]] == list(range(checkpoint, last))
    assert charged(tmp_path) == result.epsilon == private.spent()
    verdict = verify(tmp_path)
    assert verdict.agrees, verdict
    assert verdict.epsilon is not None
    assert verdict.epsilon <= private.epsilon


def test_whenever_a_run_crashes_its_noise_is_the_planned_sequence(tmp_path: Path, private: Plan) -> None:
    """The promise rests on this: somebody who times crashes by what was released changes no noise."""
    assert len(set(planned_noise(private))) == 2
    run = trainer(private, run_dir=tmp_path)
    for steps, checkpoint in [(3, 1), (6, 4), (9, 9), (12, 10), (14, 13)]:
        crash(run, steps, checkpoint)
        run = trainer(private, run_dir=tmp_path)
        run.load()
        charges = read_ledger(tmp_path / "ledger.jsonl").charges
        assert run.total == STEPS - len(charges) + run.done
    run.close()
    assert trainer(private, run_dir=tmp_path).resume(progress=False).steps == STEPS - 2 - 2 - 0 - 2 - 1
    charges = read_ledger(tmp_path / "ledger.jsonl").charges
    assert [charge.noise_multiplier for charge in charges] == planned_noise(private)
    assert verify(tmp_path).agrees


def test_the_noise_that_is_drawn_is_that_of_the_place_in_the_ledger(tmp_path: Path, private: Plan) -> None:
    """A step of the warm-up that is taken again after the warm-up's releases has the noise of the main phase."""
    warm, main = private.phases
    crash(trainer(private, run_dir=tmp_path), warm.steps + 1, 2)
    again = trainer(private, run_dir=tmp_path)
    again.load()
    step = next(again.steps())
    again.close()
    assert step.phase.name == warm.name
    assert step.released.noise_std == pytest.approx(
        main.noise_multiplier * warm.clip_norm / private.batch_size, rel=1e-3
    )


@pytest.mark.parametrize("epsilon", [math.inf, 1e-3], ids=["other examples", "other noise"])
def test_a_step_taken_again_is_not_the_same_step(tmp_path: Path, epsilon: float) -> None:
    """With a seed too: the place in the ledger decides, and it is never used twice."""
    chosen = plan("dp-sgd", epsilon=epsilon)
    first = trainer(chosen, run_dir=tmp_path)
    before = next(first.steps())
    first.close()
    again = trainer(chosen, run_dir=tmp_path)
    again.load()
    after = next(again.steps())
    again.close()
    assert before.number == after.number == 1
    one, other = (torch.cat([v.flatten() for v in s.released.values.values()]) for s in (before, after))
    likeness = float(torch.nn.functional.cosine_similarity(one, other, dim=0))
    assert likeness < (0.99 if epsilon == math.inf else 0.3)


def test_rows_of_lost_steps_are_dropped_from_the_figures(tmp_path: Path, private: Plan) -> None:
    crash(trainer(private, run_dir=tmp_path), 6, 4)
    rows = [{"step": number, "epsilon": 9.9} for number in range(1, 7)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 7, "eps'
    )
    trainer(private, run_dir=tmp_path).resume(progress=False)
    found = read_metrics(tmp_path)
    assert [row["step"] for row in found] == list(range(1, STEPS - 1))
    assert [row["epsilon"] == 9.9 for row in found] == [True] * 4 + [False] * (STEPS - 6)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == STEPS - 1


def test_a_crash_after_the_last_step_is_finished_by_resume(tmp_path: Path, private: Plan) -> None:
    crash(trainer(private, run_dir=tmp_path), STEPS, STEPS)
    result = trainer(private, run_dir=tmp_path).resume(progress=False)
    assert result.finished
    assert (tmp_path / "metrics.csv").exists()
    assert verify(tmp_path).agrees
    assert len(read_ledger(tmp_path / "ledger.jsonl").charges) == STEPS


def test_a_start_that_was_cut_short_is_begun_again_by_resume(tmp_path: Path, private: Plan) -> None:
    crash(trainer(private, run_dir=tmp_path), 1, 0)
    for name in ("ledger.jsonl", "ledger.head", "checkpoint.safetensors"):
        (tmp_path / name).unlink()
    assert trainer(private, run_dir=tmp_path).resume(progress=False).finished
    assert len(read_ledger(tmp_path / "ledger.jsonl").charges) == STEPS


def test_a_ledger_without_charges_needs_no_checkpoint(tmp_path: Path, private: Plan) -> None:
    crash(trainer(private, run_dir=tmp_path / "other"), 1, 0)
    shutil.copytree(tmp_path / "other", tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    ledger = tmp_path / "run" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    ledger.with_suffix(".head").unlink()
    assert trainer(private, run_dir=tmp_path / "run").resume(progress=False).finished


def test_a_stopped_trainer_can_resume_itself(tmp_path: Path, private: Plan) -> None:
    run = trainer(private, run_dir=tmp_path)
    for step in run.steps():
        if step.number == 5:
            run.save()
            break
    assert run.resume(progress=False).finished
    assert len(read_ledger(tmp_path / "ledger.jsonl").charges) == STEPS


def test_a_failure_inside_a_step_leaves_the_directory_free(tmp_path: Path, private: Plan) -> None:
    ledger = tmp_path / "ledger.jsonl"

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if ledger.exists() and ledger.read_text(encoding="utf-8").count("\n") > 6:
            raise RuntimeError("person 17 is odd")
        return cross_entropy(model, batch)

    first = Trainer(network(), data(), loss, private, optimizer=momentum, seed=1, run_dir=tmp_path)
    with pytest.raises(ExampleError, match=r"RuntimeError in loss, test_resume.py line \d+") as caught:
        first.fit(progress=False)
    assert "person" not in str(caught.value)
    again = Trainer(network(), data(), cross_entropy, private, optimizer=momentum, seed=1, run_dir=tmp_path)
    assert again.resume(progress=False).finished
    assert charged(tmp_path) <= private.epsilon


# What is refused ------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path: Path, private: Plan) -> Path:
    crash(trainer(private, run_dir=tmp_path / "run"), 8, 6)
    return tmp_path / "run"


def refuse(directory: Path, make: Callable[[], Trainer], words: str) -> None:
    before = files(directory)
    with pytest.raises(TacitError, match=words) as caught:
        make().resume(progress=False)
    assert "\n" not in str(caught.value)
    assert files(directory) == before
    assert not list(directory.glob("*.part"))


def lines_of(directory: Path) -> list[bytes]:
    return (directory / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def damage_ledger_of_another_run(directory: Path, private: Plan) -> None:
    other = directory.parent / "other"
    crash(trainer(private, run_dir=other), 8, 6)
    shutil.copy(other / "ledger.jsonl", directory)


def damage_edited_charge(directory: Path, private: Plan) -> None:
    lines = lines_of(directory)
    lines[3] = lines[3].replace(b'"noise_multiplier":', b'"noise_multiplier":9')
    (directory / "ledger.jsonl").write_bytes(b"".join(lines))


def damage_removed_charge(directory: Path, private: Plan) -> None:
    lines = lines_of(directory)
    (directory / "ledger.jsonl").write_bytes(b"".join(lines[:3] + lines[4:]))


def damage_cut_ledger(directory: Path, private: Plan) -> None:
    """Behind the checkpoint, which knows of six charges."""
    (directory / "ledger.jsonl").write_bytes(b"".join(lines_of(directory)[:5]))


def damage_rewritten_ledger(directory: Path, private: Plan) -> None:
    """By someone who recomputes the digests: only the checkpoint can tell."""
    record = read_ledger(directory / "ledger.jsonl")
    for name in ("ledger.jsonl", "ledger.head"):
        (directory / name).unlink()
    with FileLedger.create(
        directory / "ledger.jsonl", run=record.run, plan_digest=plan_digest(private)
    ) as ledger:
        for charge in record.charges[:6]:
            ledger.charge(charge)


def damage_missing_ledger(directory: Path, private: Plan) -> None:
    (directory / "ledger.jsonl").unlink()


def damage_missing_checkpoint(directory: Path, private: Plan) -> None:
    (directory / "checkpoint.safetensors").unlink()


def damage_checkpoint_of_another_run(directory: Path, private: Plan) -> None:
    other = directory.parent / "other"
    crash(trainer(private, run_dir=other), 8, 6)
    shutil.copy(other / "checkpoint.safetensors", directory)


def damage_checkpoint_ahead_of_its_charges(directory: Path, private: Plan) -> None:
    tensors, numbers = read_tensors(directory / "checkpoint.safetensors")
    write_tensors(directory / "checkpoint.safetensors", tensors, {**numbers, "step": 7})


def damage_torn_checkpoint(directory: Path, private: Plan) -> None:
    path = directory / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def damage_checkpoint_without_a_part(directory: Path, private: Plan) -> None:
    tensors, numbers = read_tensors(directory / "checkpoint.safetensors")
    del tensors["model:0.weight"]
    write_tensors(directory / "checkpoint.safetensors", tensors, numbers)


def damage_run_without_a_name(directory: Path, private: Plan) -> None:
    about = json.loads((directory / "run.json").read_text())
    del about["run"]
    (directory / "run.json").write_text(json.dumps(about))


def damage_edited_plan(directory: Path, private: Plan) -> None:
    text = (directory / "plan.json").read_text()
    (directory / "plan.json").write_text(text.replace('"epsilon": 3.0', '"epsilon": 4.0'))


DAMAGE = {name: made for name, made in list(globals().items()) if name.startswith("damage_")}
SAID = {
    "damage_ledger_of_another_run": "belongs to the run",
    "damage_edited_charge": "damaged",
    "damage_removed_charge": "does not follow",
    "damage_cut_ledger": "cut, rewritten",
    "damage_rewritten_ledger": "cut, rewritten",
    "damage_missing_ledger": "cannot be opened",
    "damage_missing_checkpoint": "no checkpoint",
    "damage_checkpoint_of_another_run": "not the one that the checkpoint was written with",
    "damage_checkpoint_ahead_of_its_charges": "only 6 had been charged",
    "damage_torn_checkpoint": "checkpoint.safetensors cannot be read",
    "damage_checkpoint_without_a_part": "does not fit this trainer",
    "damage_run_without_a_name": "was edited",
    "damage_edited_plan": "not the plan of this trainer",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_directory_that_was_tampered_with_is_refused(stopped: Path, private: Plan, damage: str) -> None:
    DAMAGE[damage](stopped, private)
    refuse(stopped, lambda: trainer(private, run_dir=stopped), SAID[damage])


def other_plan(private: Plan, directory: Path) -> Trainer:
    return trainer(plan("tp-topk", epsilon=3.5, score="movement", reset=True), run_dir=directory)


def other_model(private: Plan, directory: Path) -> Trainer:
    return trainer(private, network(1, nn.Conv2d(4, 4, 1).double()), run_dir=directory)


def other_precision(private: Plan, directory: Path) -> Trainer:
    return trainer(private, network().float(), run_dir=directory)


def other_seed(private: Plan, directory: Path) -> Trainer:
    return trainer(private, run_dir=directory, seed=12)


def no_seed(private: Plan, directory: Path) -> Trainer:
    return trainer(private, run_dir=directory, seed=None)


def other_data(private: Plan, directory: Path) -> Trainer:
    images, targets = data(65).tensors
    dataset = TensorDataset(images, targets)
    return Trainer(network(), dataset, cross_entropy, private, optimizer=momentum, run_dir=directory)


def no_run(private: Plan, directory: Path) -> Trainer:
    return trainer(private, run_dir=directory.parent / "nowhere")


def no_directory(private: Plan, directory: Path) -> Trainer:
    return trainer(private)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (other_plan, "not the plan of this trainer"),
        (other_model, "model has changed"),
        (other_precision, "model has changed"),
        (other_seed, "started with seed 11, not 12"),
        (no_seed, "started with seed 11, not None"),
        (other_data, r"65 .*64"),
        (no_run, "nowhere.*cannot be read"),
        (no_directory, "run_dir"),
    ],
)
def test_another_trainer_is_refused(
    stopped: Path, private: Plan, make: Callable[[Plan, Path], Trainer], words: str
) -> None:
    refuse(stopped, lambda: make(private, stopped), words)
    assert trainer(private, run_dir=stopped).resume(progress=False).finished


def test_a_directory_with_a_run_is_not_started_again(stopped: Path, private: Plan) -> None:
    before = files(stopped)
    with pytest.raises(TacitError, match="already holds a run; resume it"):
        trainer(private, run_dir=stopped).fit(progress=False)
    (stopped / "ledger.jsonl").unlink()
    with pytest.raises(TacitError, match="already holds a run"):
        trainer(private, run_dir=stopped).fit(progress=False)
    assert {**files(stopped), "ledger.jsonl": before["ledger.jsonl"]} == before
    (stopped / "checkpoint.safetensors").unlink()
    for start in (trainer(private, run_dir=stopped).fit, trainer(private, run_dir=stopped).resume):
        with pytest.raises(TacitError, match=r"ledger\.head is there without ledger\.jsonl"):
            start(progress=False)


@pytest.fixture
def held(stopped: Path, private: Plan) -> Iterator[Path]:
    owner = trainer(private, run_dir=stopped)
    owner.load()
    yield stopped
    owner.close()


def test_a_second_trainer_in_the_same_directory_is_refused(held: Path, private: Plan) -> None:
    refuse(held, lambda: trainer(private, run_dir=held), "in use")


def test_a_refused_trainer_does_not_keep_the_directory(stopped: Path, private: Plan) -> None:
    original = (stopped / "checkpoint.safetensors").read_bytes()
    damage_checkpoint_ahead_of_its_charges(stopped, private)
    refused = trainer(private, run_dir=stopped)
    with pytest.raises(TacitError):
        refused.resume(progress=False)
    (stopped / "checkpoint.safetensors").write_bytes(original)
    assert trainer(private, run_dir=stopped).resume(progress=False).finished
    assert refused.run is None


def test_a_promise_that_cannot_be_kept_any_more_is_refused(tmp_path: Path, private: Plan) -> None:
    crash(trainer(private, run_dir=tmp_path), 15, 2)
    with FileLedger.open(tmp_path / "ledger.jsonl", plan_digest=plan_digest(private)) as ledger:
        for index in range(15, 40):
            ledger.charge(dataclasses.replace(ledger.charges[-1], index=index))
    refuse(tmp_path, lambda: trainer(private, run_dir=tmp_path), "no further step can be taken")


def test_silent_coordinates_are_silent_in_a_resumed_run_too(tmp_path: Path, private: Plan) -> None:
    crash(trainer(private, optimizer=momentum, run_dir=tmp_path), 10, 9)
    again = trainer(private, optimizer=momentum, run_dir=tmp_path)
    again.load()
    silent = ~mask(again.support)
    before = flat(again.model)
    for _ in again.steps():
        pass
    again.close()
    assert silent.any()
    assert torch.equal(flat(again.model)[silent], before[silent])
    assert torch.equal(before[silent], flat(network())[silent])
    assert math.isclose(again.epsilon, charged(tmp_path))


def test_what_is_protected_cannot_change_on_the_way(private: Plan, tmp_path: Path) -> None:
    """The certificate would name the unit of the start, and half of the run would have protected another."""
    crash(trainer(private, run_dir=tmp_path, unit="one patient"), steps=4, checkpoint=3)
    with pytest.raises(TacitError, match="was started to protect 'one patient', not 'one visit'"):
        trainer(private, run_dir=tmp_path, unit="one visit").resume(progress=False)
    assert trainer(private, run_dir=tmp_path, unit="one patient").resume(progress=False).finished
