"""Dropout and augmentation of a run for release: no seed reaches them, and no file tells of them."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tacit import PrivateStep, SecureNoise, Trainer
from tacit.errors import ModelError
from tacit.losses import cross_entropy
from tacit.plan import make_plan
from tacit.raw.rehearsal import UNIFORM
from tacit.release.noise import SeededNoise
from tacit.support import Support
from tacit.tensors import read_tensors, write_tensors
from training.small import data, flat, network, plan, sgd, trainer


def seed_all() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


class Masks(nn.Module):
    """A dropout layer that tells a list outside of the model which masks it drew."""

    def __init__(self, seen: str) -> None:
        super().__init__()
        self.drop, self.seen = nn.Dropout(0.5), seen

    def forward(self, x: Tensor) -> Tensor:
        mask = self.drop(torch.ones(8)).tolist()
        SEEN.setdefault(self.seen, []).append((mask, random.random(), np.random.rand()))  # noqa: NPY002
        return self.drop(x)


SEEN: dict[str, list[Any]] = {}


def masks(name: str, **options: Any) -> list[Any]:
    """What the masks were in a run after everything had been seeded."""
    SEEN.pop(name, None)
    seed_all()
    chosen = plan("dp-sgd", epsilon=3.0, epochs=1)
    model = network(1, Masks(name))
    Trainer(model, data(), cross_entropy, chosen, optimizer=sgd, **options).fit(progress=False)
    return SEEN.pop(name)


def test_two_runs_after_the_same_seeds_draw_different_masks() -> None:
    first, second = masks("first"), masks("second")
    assert not set(map(repr, first)) & set(map(repr, second))


def test_two_runs_with_the_same_seed_of_the_trainer_draw_the_same() -> None:
    assert masks("first", seed=3) == masks("second", seed=3)
    assert masks("first", seed=3) != masks("second", seed=4)


def test_a_run_leaves_the_generators_as_they_were(tmp_path: Path) -> None:
    """The state afterwards would tell how many examples were drawn."""
    states = []
    for _ in range(2):
        seed_all()
        run = trainer(plan("dp-sgd", epsilon=3.0, epochs=1), network(1, nn.Dropout(0.5)), seed=None)
        before = (torch.get_rng_state(), random.getstate(), repr(np.random.get_state()))  # noqa: NPY002
        for _ in run.steps():
            assert torch.equal(torch.get_rng_state(), before[0])
            assert random.getstate() == before[1]
            assert repr(np.random.get_state()) == before[2]  # noqa: NPY002
        states.append(before[2])
    assert states[0] == states[1]


@pytest.mark.parametrize("seed", [None, 3])
def test_a_checkpoint_holds_nothing_of_the_generators(tmp_path: Path, seed: int | None) -> None:
    run = trainer(
        plan("dp-sgd", epsilon=3.0, epochs=1), network(1, nn.Dropout(0.5)), run_dir=tmp_path, seed=seed
    )
    run.fit(progress=False)
    for name in ("checkpoint", "model"):
        tensors, _ = read_tensors(tmp_path / f"{name}.safetensors")
        assert not [key for key, tensor in tensors.items() if "rng" in key or tensor.dtype == torch.uint8]


def test_a_checkpoint_of_version_0_1_is_resumed_and_its_state_is_ignored(tmp_path: Path) -> None:
    def start() -> Trainer:
        model = network(1, Masks("resumed"))
        return trainer(plan("dp-sgd", epsilon=3.0, epochs=2), model, run_dir=tmp_path, seed=None)

    run = start()
    for step in run.steps():
        if step.number == 3:
            run.save()
            break
    run.close()
    path = tmp_path / "checkpoint.safetensors"
    tensors, numbers = read_tensors(path)
    torch.manual_seed(0)
    write_tensors(path, {**tensors, "rng": torch.get_rng_state()}, numbers)
    torch.manual_seed(5)
    outside = torch.get_rng_state()
    SEEN.clear()
    assert start().resume(progress=False).finished
    assert torch.equal(torch.get_rng_state(), outside)
    first = SEEN["resumed"][0][0]
    torch.manual_seed(0)
    assert nn.Dropout(0.5)(torch.ones(8)).tolist() != first or len(set(map(repr, SEEN["resumed"]))) > 1


def test_a_resumed_run_draws_afresh(tmp_path: Path) -> None:
    drawn = []
    for place in ("one", "two"):
        SEEN.clear()

        def start(place: str = place) -> Trainer:
            model = network(1, Masks("afresh"))
            return trainer(plan("dp-sgd", epsilon=3.0, epochs=1), model, run_dir=tmp_path / place, seed=None)

        seed_all()
        run = start()
        next(iter(run.steps()))
        run.save()
        run.close()
        seed_all()
        start().resume(progress=False)
        drawn.append(set(map(repr, SEEN["afresh"])))
    assert not drawn[0] & drawn[1]


class Noisy(Dataset[Any]):
    """A data set that adds noise of its own seeding, as data sets with random transformations do."""

    def __init__(self) -> None:
        self._x, self._y = data().tensors
        self._rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, place: int) -> Any:
        drawn = (self._rng.random(), random.random(), np.random.rand(), float(torch.rand(())))  # noqa: NPY002
        SEEN.setdefault("data", []).append(drawn)
        return self._x[place] * drawn[0], self._y[place]


def test_random_transformations_of_a_data_set_are_secret_too() -> None:
    chosen = plan("dp-sgd", epsilon=3.0, epochs=1)
    runs = []
    for _ in range(2):
        SEEN.clear()
        seed_all()
        Trainer(network(), Noisy(), cross_entropy, chosen, optimizer=sgd).fit(progress=False)
        runs.append(list(zip(*SEEN["data"], strict=True)))
    for first, second in zip(*runs, strict=True):
        assert len(set(first)) > 20
        assert set(first) & set(second) <= {float(torch.tensor(UNIFORM))}, "only what a look holds still"


class Jittered(Noisy):
    """The same with the global generators, which a seed of the trainer reaches."""

    def __getitem__(self, place: int) -> Any:
        return self._x[place] * (random.random() + float(torch.rand(()))), self._y[place]


@pytest.mark.parametrize("workers", [0, 2])
def test_with_a_seed_random_transformations_and_dropout_survive_a_stop(tmp_path: Path, workers: int) -> None:
    def start(place: str) -> Trainer:
        return Trainer(
            network(1, nn.Dropout(0.2)),
            Jittered(),
            cross_entropy,
            plan("dp-sgd", epsilon=20.0, epochs=2),
            optimizer=sgd,
            run_dir=tmp_path / place,
            seed=5,
            workers=workers,
            chunk_size=7,
            augment=lambda chunk: (chunk[0] * (1 + 0.1 * np.random.rand()), chunk[1]),  # noqa: NPY002
        )

    whole = start("whole")
    whole.fit(progress=False)
    stopped = start("stopped")
    for step in stopped.steps():
        if step.number == 3:
            stopped.save()
            break
    stopped.close()
    random.seed(99)
    resumed = start("stopped")
    resumed.resume(progress=False)
    assert torch.equal(flat(resumed.model), flat(whole.model))


# One step of people's own -----------------------------------------------------------------------------------


def private_step(model: nn.Module, **options: Any) -> PrivateStep:
    return PrivateStep(
        model,
        cross_entropy,
        support=Support.all(model),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=16,
        optimizer=sgd,
        **options,
    )


@pytest.mark.parametrize("secure", [True, False])
def test_a_single_step_draws_in_secret_unless_its_noise_is_seeded(secure: bool) -> None:
    drawn = []
    for _ in range(2):
        SEEN.clear()
        seed_all()
        step = private_step(network(1, Masks("step")), noise=SecureNoise() if secure else SeededNoise(1))
        step.step(tuple(tensor[:16] for tensor in data().tensors))
        drawn.append(set(map(repr, SEEN["step"])))
    assert bool(drawn[0] & drawn[1]) is not secure


def test_a_model_that_seeds_the_generator_itself_is_refused_before_anything_is_spent() -> None:
    class Seeding(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            torch.manual_seed(0)
            return super().forward(x)

    step = private_step(network(1, Seeding(0.5)))
    with pytest.raises(ModelError, match="seeds PyTorch's generator itself"):
        step.step(tuple(tensor[:16] for tensor in data().tensors))
    assert len(step.ledger) == 0


# The attack -------------------------------------------------------------------------------------------------


def test_the_masks_of_other_examples_cannot_be_replayed(tmp_path: Path) -> None:
    """With the first checkpoint and all data but one row, the adversary replays the step with and without the row.

    Where the masks can be replayed, the row that comes first moves the masks of all others, and the sum by many clip
    norms. Without noise, the released sum then equals the replay; it must not.
    """
    rows = 40
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 1, 8, 8, generator=generator, dtype=torch.float64)
    pairs = TensorDataset(x, torch.randint(0, 3, (rows,), generator=generator))
    chosen = make_plan(
        "dp-sgd", epsilon=math.inf, delta=1e-5, examples=rows, batch_size=rows, epochs=1, accountant="rdp"
    )

    def model() -> nn.Module:
        return network(1, nn.Dropout(0.5))

    torch.manual_seed(7)
    trained = model()
    run = Trainer(trained, pairs, cross_entropy, chosen, optimizer=sgd, run_dir=tmp_path)
    known = model()
    known.load_state_dict(trained.state_dict())
    steps = run.steps()
    released = next(steps).released
    run.close()
    tensors, _ = read_tensors(tmp_path / "checkpoint.safetensors")
    torch.set_rng_state(tensors.get("rng", torch.get_rng_state()))
    replay = Trainer(known, pairs, cross_entropy, chosen, optimizer=sgd, seed=0)
    replay._generators = _Plain()  # type: ignore[assignment]
    replayed = next(replay.steps()).released
    distance = math.sqrt(
        sum(float((released.values[n] - replayed.values[n]).square().sum()) for n in released.values)
    )
    assert distance * rows > 1.0


class _Plain:
    """The global generators as they are, which is what version 0.1 drew from."""

    def keyed(self, *place: int) -> Any:
        return nullcontext()
