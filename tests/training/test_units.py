"""Training where the unit of privacy is a group of examples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from distributed.processes import succeed
from tacit import PrivateStep, SeededNoise, Support, Trainer
from tacit.distributed import ALONE, Ranks
from tacit.errors import ArgumentError, FileError, ModelError, RankError
from tacit.losses import cross_entropy
from tacit.plan import load_plan, make_plan, plan_digest
from tacit.raw.one_at_a_time import Singles
from tacit.raw.sampling import PoissonBatches, PoissonSampler
from tacit.raw.units import UnitBatch
from tacit.runs import load_certificate, verify
from tacit.units import Units
from training.naive import per_example
from training.small import EXAMPLES, SEED, data, files, flat, network, plan, sgd, trainer

IDS = [f"person {place % 7 if place % 3 else place}" for place in range(EXAMPLES)]
UNITS = len(set(IDS))
BATCH = 8


def unit_plan(method: str = "dp-sgd", *, epsilon: float = math.inf, **options: Any) -> Any:
    if method != "dp-sgd":
        options.setdefault("active_ratio", 0.3)
    return make_plan(
        method,
        epsilon=epsilon,
        delta=1e-5,
        units=UNITS,
        batch_size=BATCH,
        epochs=3,
        accountant="rdp",
        **options,
    )


def unit_trainer(plan: Any, model: nn.Module | None = None, **options: Any) -> Trainer:
    return trainer(plan, model, **{"units": IDS, "rows_per_unit": None, **options})


def test_a_unit_is_drawn_whole_averaged_clipped_once_and_divided_by_the_planned_number_of_units() -> None:
    """Against the plainest program: draw units, mean per unit, clip, sum, divide by the batch size in units."""
    plan = unit_plan(clip_norm=0.3)
    run = unit_trainer(plan)
    model = network()
    shapes = {name: p.shape for name, p in model.named_parameters()}
    theta = flat(model)
    x, y = data().tensors
    people = list(dict.fromkeys(IDS))
    sampler = PoissonSampler(UNITS, plan.sampling_rate, seed=SEED)
    for number, step in enumerate(run.steps()):
        total = torch.zeros_like(theta)
        for unit in sampler.draw(number):
            rows = [place for place, person in enumerate(IDS) if person == people[unit]]
            gradient = per_example(model, shapes, theta, x[rows][:, None], y[rows]).mean(0)
            total += gradient * min(1.0, 0.3 / float(gradient.norm()))
        theta = theta - 0.5 * total / BATCH
        assert torch.allclose(flat(run.model), theta, rtol=0, atol=1e-12)
        assert step.released.batch_size == BATCH


@pytest.mark.parametrize("isolation", ["probed", "construction"])
@pytest.mark.parametrize("chunk_size", [1, 3, None])
def test_chunks_views_and_isolation_change_nothing(chunk_size: int | None, isolation: str) -> None:
    expected = unit_trainer(unit_plan())
    found = unit_trainer(unit_plan(), chunk_size=chunk_size, isolation=isolation, views=2)
    for run in (expected, found):
        assert run.fit(progress=False).finished
    assert torch.allclose(flat(found.model), flat(expected.model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["dp-sgd", "tp-topk"])
def test_one_example_per_unit_trains_bit_for_bit_as_without_units(method: str) -> None:
    plain = trainer(plan(method, epsilon=3.0))
    grouped = trainer(
        make_plan(
            method,
            epsilon=3.0,
            delta=1e-5,
            units=EXAMPLES,
            batch_size=16,
            epochs=5,
            accountant="rdp",
            **({} if method == "dp-sgd" else {"active_ratio": 0.3}),
        ),
        units=[(place, "x") for place in range(EXAMPLES)],
    )
    for run in (plain, grouped):
        run.fit(progress=False)
    assert torch.equal(flat(plain.model), flat(grouped.model))


class _Rows(Dataset[Tensor]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, place: int) -> Tensor:
        return torch.tensor(place)


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_a_step_has_all_examples_of_its_units_up_to_the_cap_and_no_unit_in_two_chunks(
    chunk_size: int | None, isolated: bool
) -> None:
    ids = np.repeat(np.arange(6), [1, 2, 3, 4, 10, 40])
    units = Units.of(np.random.default_rng(1).permutation(ids), 60)
    sampler = PoissonSampler(6, 0.7, seed=1, units=units, rows_per_unit=8)
    seen: dict[int, set[int]] = {unit: set() for unit in range(6)}
    for number, chunks in PoissonBatches(_Rows(), sampler, chunk_size=chunk_size, isolated=isolated).steps(
        0, 40
    ):
        expected = PoissonSampler(6, 0.7, seed=1).draw(number).tolist()
        drawn = []
        for chunk in chunks:
            parts = chunk if isinstance(chunk, Singles) else [chunk]
            batches = [part.batch if isinstance(part, UnitBatch) else part for part in parts]
            rows = torch.cat(batches).tolist()
            owners = units.codes[rows]
            if not isolated:
                assert chunk.ids.tolist() == owners.tolist()
                assert chunk_size is None or len(rows) <= chunk_size or len(set(owners)) == 1
            for unit in dict.fromkeys(owners.tolist()):
                own = [row for row, owner in zip(rows, owners, strict=True) if owner == unit]
                assert len(set(own)) == len(own) == min(8, int(units.sizes[unit]))
                seen[unit].update(own)
                drawn.append(unit)
        assert sorted(drawn) == expected
    assert all(
        len(rows) == units.sizes[unit] for unit, rows in seen.items()
    )  # the choice is new in every step


def test_without_a_seed_the_choice_of_examples_is_fresh_every_time() -> None:
    units = Units.of(np.zeros(1000, np.int64), 1000)
    sampler = PoissonSampler(1, 1.0, units=units, rows_per_unit=10)
    draws = [sampler.draw_units(0)[2].tolist() for _ in range(3)]
    assert draws[0] != draws[1] != draws[2]


def test_every_choice_of_examples_of_a_unit_is_equally_likely() -> None:
    units = Units.of(np.repeat([0, 1, 2], [1, 4, 5]), 10)
    sampler = PoissonSampler(3, 1.0, seed=5, units=units, rows_per_unit=2)
    draws = [tuple(sampler.draw_units(step)[2].tolist()) for step in range(6000)]
    counts = np.array([sum(set(pair) <= set(draw) for draw in draws) for pair in ((1, 2), (1, 4), (3, 4))])
    assert np.abs(counts / 6000 - 1 / 6).max() < 0.025
    assert all(len(draw) == 5 and 0 in draw for draw in draws)


def test_units_are_shared_out_whole_among_ranks_and_the_trajectory_is_that_of_one_process(
    tmp_path: Path,
) -> None:
    def trajectory(ranks: Ranks) -> list[float]:
        run = unit_trainer(unit_plan("tp-topk"), ranks=ranks, rows_per_unit=4)
        run.fit(progress=False)
        return flat(run.model).tolist()

    alone = torch.tensor(trajectory(ALONE))
    for size in (2, 3):
        for found in succeed(size, tmp_path / str(size), trajectory):
            assert float((torch.tensor(found) - alone).abs().max()) < 1e-5


def test_ranks_with_other_units_are_refused(tmp_path: Path) -> None:
    def start(ranks: Ranks) -> str:
        ids = IDS if ranks.rank == 0 else [*IDS[1:], IDS[0]]
        with pytest.raises(RankError) as error:
            unit_trainer(unit_plan(), units=ids, ranks=ranks)
        return str(error.value)

    assert "The unit of some example of process 1 is not that of process 0" in succeed(2, tmp_path, start)[0]


def test_the_samplers_of_ranks_share_out_one_draw_of_units() -> None:
    units = Units.of(IDS, EXAMPLES)
    parts = [
        PoissonSampler(UNITS, 0.5, key=bytes(32), rank=rank, size=3, units=units).draw_units(4)[0]
        for rank in range(3)
    ]
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == len(together)
    assert sorted(together) == PoissonSampler(UNITS, 0.5, key=bytes(32), rank=0, size=1).draw(4).tolist()


def test_plan_ledger_certificate_and_verification_speak_of_units(tmp_path: Path) -> None:
    plan = unit_plan(epsilon=2.0)
    unit_trainer(plan, run_dir=tmp_path / "run", unit="one person with all records", seed=None).fit(
        progress=False
    )
    assert f"{UNITS} units, batch {BATCH}" in str(plan)
    certificate = load_certificate(tmp_path / "run" / "certificate.json")
    assert certificate.examples == UNITS
    assert certificate.counted == "units"
    assert "Including or leaving out one person with all records changes" in certificate.statement
    page = (tmp_path / "run" / "certificate.txt").read_text()
    assert "every unit enters every step" in page
    assert f"units, batch size       {UNITS}, {BATCH}" in page
    found = verify(tmp_path / "run")
    assert found.agrees, found
    assert load_plan(tmp_path / "run" / "plan.json") == plan


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    plan = unit_plan("tp-topk", epsilon=2.0)
    whole = unit_trainer(plan, rows_per_unit=3)
    whole.fit(progress=False)
    stopped = unit_trainer(plan, rows_per_unit=3, run_dir=tmp_path / "run")
    for step in stopped.steps():
        if step.number == 5:
            stopped.save()
            break
    stopped.close()
    again = unit_trainer(plan, network(9), rows_per_unit=3, run_dir=tmp_path / "run")
    again.resume(progress=False)
    assert torch.equal(flat(again.model), flat(whole.model))


def test_a_run_of_units_is_not_resumed_without_them(tmp_path: Path) -> None:
    unit_trainer(unit_plan(epsilon=2.0), run_dir=tmp_path / "run").fit(progress=False)
    before = files(tmp_path)
    with pytest.raises(FileError, match="is not the plan of this trainer"):
        trainer(plan("dp-sgd", epsilon=2.0), run_dir=tmp_path / "run").resume(progress=False)
    assert files(tmp_path) == before


def test_a_plan_without_units_is_written_as_before() -> None:
    units = make_plan("dp-sgd", epsilon=1.0, delta=1e-5, units=50, batch_size=5, epochs=1)
    examples = make_plan("dp-sgd", epsilon=1.0, delta=1e-5, examples=50, batch_size=5, epochs=1)
    assert units.phases == examples.phases
    assert plan_digest(units) != plan_digest(examples)
    assert "examples" in str(examples)
    assert "units" not in str(examples)


def test_one_private_step_takes_an_id_per_example() -> None:
    x, y = data().tensors
    model, expected = network(), network()
    options = {
        "clip_norm": 0.1,
        "noise_multiplier": 0.0,
        "batch_size": 4,
        "optimizer": sgd,
        "noise": SeededNoise(0),
    }
    step = PrivateStep(model, cross_entropy, support=Support.all(model), **options)
    step.step((x[:9], y[:9]), units=["a", "b", "b", "c", "a", "a", "d", "d", "d"])
    shapes = {name: p.shape for name, p in expected.named_parameters()}
    theta = flat(expected)
    gradients = per_example(expected, shapes, theta, x[:9][:, None], y[:9])
    own = [gradients[rows].mean(0) for rows in ([0, 4, 5], [1, 2], [3], [6, 7, 8])]
    total = sum(g * min(1.0, 0.1 / float(g.norm())) for g in own)
    assert torch.allclose(flat(model), theta - 0.5 * total / 4, rtol=0, atol=1e-12)
    step.step(None, units=None)


class NAType:
    """As pandas writes what is missing: it cannot be compared."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("ambiguous")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1.5] * EXAMPLES, "of type float"),
        (np.ones(EXAMPLES), "real numbers"),
        ([None] * EXAMPLES, "is missing"),
        (["", *IDS[1:]], "The unit of example 0 is missing"),
        (np.array(["", *IDS[1:]]), "The unit of example 0 is missing"),
        (np.ma.array(np.arange(EXAMPLES), mask=np.arange(EXAMPLES) == 3), "The unit of example 3 is missing"),
        ([NAType(), *IDS[1:]], "The unit of example 0 is missing"),
        ([("a", None)] * EXAMPLES, "is missing"),
        ([True] * EXAMPLES, "of type bool"),
        ([1, "1", *[2] * (EXAMPLES - 2)], "of different types, as of the examples 0 and 1"),
        ([b"a", *["a"] * (EXAMPLES - 1)], "of different types"),
        ([(1, "a"), *[("1", "a")] * (EXAMPLES - 1)], "of different types"),
        (IDS[1:], f"{EXAMPLES - 1} ids for a data set of {EXAMPLES} examples"),
        ("abc", "one id per example"),
        (np.zeros((EXAMPLES, 2), int), "2 dimensions"),
        (list(range(EXAMPLES)), f"{EXAMPLES} different ids in units but the plan is for {UNITS}"),
    ],
)
def test_ids_that_cannot_tell_units_apart_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        unit_trainer(unit_plan(), units=ids)


def test_a_plan_and_a_trainer_that_disagree_on_what_a_unit_is_are_refused() -> None:
    with pytest.raises(ArgumentError, match="give units=, one id per example"):
        trainer(unit_plan())
    with pytest.raises(ArgumentError, match="The plan counts examples, not units"):
        unit_trainer(plan("dp-sgd"))
    with pytest.raises(ArgumentError, match="Give the number of examples, or the number of units"):
        make_plan("dp-sgd", epsilon=1.0, delta=1e-5, examples=5, units=5, batch_size=5, epochs=1)
    with pytest.raises(ArgumentError, match="Give the number of examples, or the number of units"):
        make_plan("dp-sgd", epsilon=1.0, delta=1e-5, batch_size=5, epochs=1)
    with pytest.raises(ArgumentError, match="rows_per_unit"):
        unit_trainer(unit_plan(), rows_per_unit=0)


def test_an_augmentation_that_drops_examples_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    run = unit_trainer(
        unit_plan(epsilon=2.0),
        augment=lambda batch: tuple(part[:2] for part in batch),
        run_dir=tmp_path / "run",
    )
    with pytest.raises(ModelError, match="depends on the other examples"):
        run.fit(progress=False)
    assert not (tmp_path / "run").exists()
