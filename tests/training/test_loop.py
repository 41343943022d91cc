"""A training loop of one's own: drawn batches, schedulers, checkpoints, and a certificate that verifies."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from tacit import OwnLoop, PoissonLoader, PrivateLoop, PrivateStep, Support, Trainer, make_plan, verify
from tacit.errors import ArgumentError, FileError, ModelError
from tacit.losses import cross_entropy
from tacit.plan import Plan
from tacit.runs import load_certificate
from training.small import BATCH, EPOCHS, EXAMPLES, SEED, STEPS, adam, data, files, flat, network, sgd


def own_plan(*, epsilon: float = 8.0, **changed: Any) -> Plan:
    settings: dict[str, Any] = {"delta": 1e-5, "examples": EXAMPLES, "batch_size": BATCH, "epochs": EPOCHS}
    return make_plan(OwnLoop(), epsilon=epsilon, **{**settings, **changed})


def loader(**changed: Any) -> PoissonLoader:
    return PoissonLoader(data(), **{"batch_size": BATCH, "chunk_size": 5, "seed": SEED, **changed})


def loop(plan: Plan | None = None, model: nn.Module | None = None, **changed: Any) -> PrivateLoop:
    settings = {"optimizer": sgd, **changed}
    drawn = settings.pop("loader", None) or loader()
    return PrivateLoop(model or network(), drawn, cross_entropy, plan or own_plan(), **settings)


def test_a_loop_takes_the_steps_of_the_trainer() -> None:
    """The same plan, seed and data: the same weights as DP-SGD by the trainer, bit for bit."""
    by_hand = loop(own_plan(epsilon=math.inf, accountant="rdp"))
    for draw in by_hand:
        by_hand.step(draw)
    plan = make_plan(
        "dp-sgd", epsilon=math.inf, delta=1e-5, examples=EXAMPLES, batch_size=BATCH, epochs=EPOCHS
    )
    trainer = Trainer(network(), data(), cross_entropy, plan, optimizer=sgd, seed=SEED, chunk_size=5)
    trainer.fit(progress=False)
    assert by_hand.done == STEPS
    assert torch.equal(flat(by_hand.model), flat(trainer.model))


def test_a_loop_that_ends_early_is_certified_for_what_it_spent_and_verifies(tmp_path: Path) -> None:
    plan = own_plan()
    with loop(plan, loader=loader(seed=None), run_dir=tmp_path) as running:
        for draw in running:
            running.step(draw)
            if running.done == 7:
                running.support = Support.random(running.model, ratio=0.3, seed=1)
            if running.done == 12:
                break
        spent = running.epsilon
    assert spent == plan.spent(12) < plan.spent()
    verdict = verify(tmp_path)
    assert verdict.agrees, verdict
    assert verdict.for_release
    certificate = load_certificate(tmp_path / "certificate.json")
    assert certificate.method == "own-loop"
    assert certificate.epsilon_spent == spent
    assert certificate.charged_releases == 12
    (phase,) = certificate.phases
    assert phase.support == "what the training loop chose"
    assert dict(phase.active) == {279: 7, running.support.size: 5}
    assert any("the training loop" in item for item in certificate.not_covered)


def test_a_seeded_loop_is_not_for_release(tmp_path: Path) -> None:
    with loop(run_dir=tmp_path) as running:
        for draw in running:
            running.step(draw)
    verdict = verify(tmp_path)
    assert verdict.agrees
    assert not verdict.for_release


def _run(directory: Path, stops: tuple[int, ...] = ()) -> PrivateLoop:
    """Cosine schedule and Adam, another support after 8 steps; saved and built anew at each of ``stops``."""
    for stop in (*stops, None):
        running = loop(run_dir=directory, optimizer=adam)
        scheduler = CosineAnnealingLR(running.optimizer, STEPS)
        if directory.exists():
            running.load()
            scheduler.load_state_dict(running.notes["scheduler"])
        for draw in running:
            running.step(draw)
            scheduler.step()
            if running.done == 8:
                running.support = Support.random(running.model, ratio=0.5, seed=1)
            if running.done == stop:
                running.save(scheduler=scheduler.state_dict())
                break
        if stop is None:
            running.finish()
        running.close()
    return running


def test_a_loop_that_was_stopped_ends_as_it_would_have(tmp_path: Path) -> None:
    whole, parted = _run(tmp_path / "whole"), _run(tmp_path / "parted", (5, 8, 13))
    assert torch.equal(flat(whole.model), flat(parted.model))
    assert whole.optimizer.param_groups[0]["lr"] == parted.optimizer.param_groups[0]["lr"]
    assert verify(tmp_path / "parted").agrees


def test_steps_that_a_crash_has_lost_stay_paid(tmp_path: Path) -> None:
    running = loop(run_dir=tmp_path)
    for draw in running:
        running.step(draw)
        if running.done == 3:
            running.save()
        if running.done == 6:
            break
    running.close()
    again = loop(run_dir=tmp_path)
    again.load()
    assert (again.done, again.total) == (3, STEPS - 3)
    for draw in again:
        again.step(draw)
    again.finish()
    again.close()
    assert len(again._ledger.charges) == STEPS
    assert verify(tmp_path).agrees


def test_after_an_exception_the_directory_is_free_and_holds_no_certificate(tmp_path: Path) -> None:
    def failing() -> None:
        with loop(run_dir=tmp_path) as running:
            for draw in running:
                running.step(draw)
                running.save()
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert not (tmp_path / "certificate.json").exists()
    again = loop(run_dir=tmp_path)
    again.load()
    assert again.done == 1
    again.close()


def test_a_directory_that_holds_a_run_is_not_begun_again(tmp_path: Path) -> None:
    with loop(run_dir=tmp_path) as running:
        for draw in running:
            running.step(draw)
    before = files(tmp_path)
    with pytest.raises(FileError, match="already holds a run"):
        next(iter(loop(run_dir=tmp_path)))
    assert files(tmp_path) == before


@pytest.mark.parametrize("again", [False, True])
def test_a_batch_that_was_drawn_cannot_be_left_out(again: bool) -> None:
    running = loop()
    draws = iter(running)
    running.step(next(draws))
    next(draws)
    with pytest.raises(ArgumentError, match="step 1 was drawn and not used"):
        next(iter(running) if again else draws)
    assert len(running._ledger.charges) == 1


def test_a_batch_cannot_be_used_twice() -> None:
    running = loop()
    for draw in running:
        running.step(draw)
        with pytest.raises(ArgumentError, match="each can be used once"):
            running.step(draw)
        break


@pytest.mark.parametrize("steps", [1, 2])
def test_a_backward_pass_of_the_loop_is_refused(steps: int, tmp_path: Path) -> None:
    """Before the next step, and at the end, so that no certificate is written."""
    model = network()

    def careless() -> None:
        with PrivateLoop(
            model, loader(), cross_entropy, own_plan(), optimizer=sgd, run_dir=tmp_path / "run"
        ) as running:
            for draw in running:
                running.step(draw)
                cross_entropy(model, data()[:]).mean().backward()
                if running.done == steps:
                    break

    with pytest.raises(ModelError, match="did not come through the private step"):
        careless()
    assert not (tmp_path / "run" / "certificate.json").exists()


def test_a_batch_whose_step_failed_cannot_be_tried_again_in_part() -> None:
    failing = {"now": False}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if failing["now"]:
            raise RuntimeError("the loss fails")
        return cross_entropy(model, batch)

    running = PrivateLoop(network(), loader(), loss, own_plan(), optimizer=sgd)
    draws = iter(running)
    draw = next(draws)
    failing["now"] = True
    with pytest.raises(ModelError, match="the loss fails"):
        running.step(draw)
    failing["now"] = False
    with pytest.raises(ArgumentError, match="each can be used once"):
        running.step(draw)
    with pytest.raises(ArgumentError, match="drawn and not used"):
        next(draws)


def test_units_are_drawn_whole_and_certified_as_such(tmp_path: Path) -> None:
    ids = [place // 4 for place in range(EXAMPLES)]
    drawn = PoissonLoader(data(), batch_size=4, units=ids, rows_per_unit=3)
    plan = make_plan(OwnLoop(), epsilon=8.0, delta=1e-5, units=EXAMPLES // 4, batch_size=4, epochs=2)
    with loop(plan, loader=drawn, run_dir=tmp_path) as running:
        for draw in running:
            running.step(draw)
    assert verify(tmp_path).for_release
    assert load_certificate(tmp_path / "certificate.json").counted == "units"


def test_a_scheduler_goes_on_when_the_support_changes() -> None:
    running = loop()
    scheduler = StepLR(running.optimizer, 2, 0.5)
    rates = []
    for draw in running:
        running.step(draw)
        scheduler.step()
        running.support = Support.random(running.model, ratio=0.3, seed=running.done)
        rates.append(running.optimizer.param_groups[0]["lr"])
    assert rates == [0.5 * 0.5 ** (step // 2) for step in range(1, STEPS + 1)]


def test_what_is_wrong_is_said_before_anything_is_spent(tmp_path: Path) -> None:
    plan = own_plan()
    with pytest.raises(
        ArgumentError, match=r"from a PoissonLoader, not from DataLoader; .*PoissonLoader\.like"
    ):
        loop(plan, loader=DataLoader(data()))
    with pytest.raises(ArgumentError, match=r"plan is for dp-sgd; make one with the method OwnLoop\(\)"):
        loop(make_plan("dp-sgd", epsilon=8, delta=1e-5, examples=EXAMPLES, batch_size=BATCH, epochs=1))
    with pytest.raises(
        ArgumentError, match="64 examples in batches of 16, the loader has 64 examples in batches of 8"
    ):
        loop(plan, loader=loader(batch_size=8))
    with pytest.raises(ArgumentError, match="is for PrivateLoop"):
        Trainer(network(), data(), cross_entropy, plan, optimizer=sgd)
    with pytest.raises(ArgumentError, match=r"DataLoader draws batches in its own way.*PoissonLoader\.like"):
        Trainer(network(), DataLoader(data()), cross_entropy, plan, optimizer=sgd)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="plain numbers, texts and lists"):
        loop(plan).save(what=torch.zeros(2))
    with pytest.raises(ArgumentError, match="witness"):
        loop(plan, witness=tmp_path / "w")


def test_a_collate_that_mixes_examples_is_found_before_anything_is_written(tmp_path: Path) -> None:
    def mixing(items: list[Any]) -> Any:
        x, y = default_collate(items)
        return x - x.mean(0), y

    running = loop(loader=loader(collate=mixing), run_dir=tmp_path / "run")
    with pytest.raises(Exception, match="collate"):
        next(iter(running))
    assert not (tmp_path / "run").exists()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(data())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda: DataLoader(data(), sampler=WeightedRandomSampler([1.0] * EXAMPLES, 8)), "draws by Weighted"),
        (
            lambda: DataLoader(data(), sampler=RandomSampler(data(), replacement=True)),
            "draws by RandomSampler",
        ),
        (lambda: DataLoader(data(), sampler=RandomSampler(data(), num_samples=9)), "draws by RandomSampler"),
        (lambda: DataLoader(data(), batch_sampler=[[1, 2], [3]]), "batch_sampler of its own"),
        (lambda: DataLoader(data(), batch_size=None), "batch_sampler of its own"),
        (lambda: DataLoader(Stream(), batch_size=4), "map-style"),
        (lambda: DataLoader(data(), 4, num_workers=1, worker_init_fn=print), "worker_init_fn"),
    ],
)
def test_a_data_loader_whose_sampling_is_not_known_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        PoissonLoader.like(given())


def test_a_plain_data_loader_lends_its_data_and_collate() -> None:
    def collate(items: list[Any]) -> dict[str, Tensor]:
        x, y = default_collate(items)
        return {"x": x, "y": y}

    drawn = PoissonLoader.like(DataLoader(data(), 16, shuffle=True, collate_fn=collate), seed=3)
    assert (drawn.batch_size, drawn.sampling_rate) == (16, 0.25)
    chunks = [chunk for chunks in drawn.draws(5) for chunk in chunks]
    assert all(set(chunk) == {"x", "y"} for chunk in chunks)


def test_every_example_comes_with_the_sampling_rate_and_independently() -> None:
    """Counts of single examples and of pairs over many draws; a loader that shuffles would fail on the pairs."""
    drawn = PoissonLoader(torch.utils.data.TensorDataset(torch.arange(20)), batch_size=5)
    taken = np.zeros((4000, 20))
    for step, chunks in enumerate(drawn.draws(4000)):
        for (rows,) in chunks:
            taken[step, rows.numpy()] += 1
    assert taken.max() == 1
    assert np.abs(taken.mean(0) - 0.25).max() < 6 * math.sqrt(0.25 * 0.75 / 4000)
    together = (taken.T @ taken)[~np.eye(20, dtype=bool)] / 4000
    assert np.abs(together - 0.0625).max() < 6 * math.sqrt(0.0625 * 0.9375 / 4000)
    assert abs(taken.sum(1).var() - 20 * 0.25 * 0.75) < 0.6


def test_a_bare_step_takes_what_is_drawn() -> None:
    model = network()
    drawn = loader()
    step = PrivateStep(
        model,
        cross_entropy,
        support=Support.all(model),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=drawn.batch_size,
        sampling_rate=drawn.sampling_rate,
        optimizer=sgd,
    )
    for chunks in drawn.draws(4):
        step.step_over(chunks)
    assert len(step.ledger) == 4
    assert 0 < step.epsilon(1e-5) < math.inf


def test_isolation_by_construction_gives_the_same_steps() -> None:
    weights = []
    for isolation in ("probed", "construction"):
        running = loop(own_plan(epsilon=math.inf, accountant="rdp"), isolation=isolation)
        for draw in running:
            running.step(draw)
            if running.done == 3:
                break
        weights.append(flat(running.model))
    assert torch.allclose(*weights, rtol=0, atol=1e-12)


def test_evaluation_mode_is_said() -> None:
    model = network().eval()
    with pytest.warns(UserWarning, match="evaluation mode"):
        next(iter(loop(model=model)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loop()))
