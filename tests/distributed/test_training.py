"""Several processes that train one model: the same steps, the same supports, the same ledger as one process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from distributed.processes import run_ranks, succeed
from tacit import PrivateStep, SecureNoise, SeededNoise, Support, TacitError, Trainer
from tacit.distributed import ALONE, Group, Ranks
from tacit.losses import cross_entropy
from tacit.raw.clipping import ROUNDING
from tacit.release.ledger import read_ledger
from tacit.runs import verify
from training.small import STEPS, data, flat, momentum, network, plan, sgd, trainer

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("dp-sgd", {}),
    ("tp-topk", {}),
    ("tp-topk", {"active_ratio": "auto", "score": "movement", "reset": True}),
    ("on-topk", {}),
    ("rs", {}),
    ("sparta", {}),
]


def trajectory(ranks: Ranks, method: str, options: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """The weights after every step and the support of every step."""
    # Every rank starts with weights of its own; the first one's count.
    run = trainer(
        plan(method, epsilon=epsilon, **options),
        network(1 + ranks.rank),
        ranks=ranks,
        optimizer=momentum,
        average=0.9,
    )
    weights, supports = [], []
    for step in run.steps():
        weights.append(flat(run.model).tolist())
        supports.append(step.released.support.digest())
    return {"weights": weights, "supports": supports, "epsilon": run.epsilon}


@pytest.mark.parametrize(
    ("size", "epsilon", "methods"),
    [(2, float("inf"), METHODS), (4, float("inf"), METHODS[1:6:4]), (2, 3.0, METHODS[2:4])],
    ids=["2, no noise", "4, no noise", "2, noise"],
)
def test_the_trajectory_is_that_of_one_process(
    tmp_path: Path, size: int, epsilon: float, methods: list[tuple[str, dict[str, Any]]]
) -> None:
    def trajectories(ranks: Ranks) -> list[dict[str, Any]]:
        return [trajectory(ranks, method, options, epsilon) for method, options in methods]

    alone = trajectories(ALONE)
    for ours in succeed(size, tmp_path, trajectories):
        for found, expected in zip(ours, alone, strict=True):
            assert found["supports"] == expected["supports"]
            assert found["epsilon"] == expected["epsilon"]
            difference = torch.tensor(found["weights"]) - torch.tensor(expected["weights"])
            assert float(difference.abs().max()) < 1e-5


def test_all_ranks_have_the_same_bits(tmp_path: Path) -> None:
    def bits(ranks: Ranks) -> list[float]:
        run = trainer(plan(epsilon=3.0), ranks=ranks, seed=None)
        for _ in run.steps():
            pass
        return flat(run.model).tolist()

    found = succeed(4, tmp_path, bits)
    assert all(other == found[0] for other in found)
    assert found[0] != flat(network()).tolist()


def test_without_a_seed_the_released_noise_is_that_of_one_draw(tmp_path: Path) -> None:
    """A model without gradients releases its noise: its deviation is σC/B, whatever the number of ranks."""

    def noise(ranks: Ranks) -> list[float]:
        model = nn.Linear(4000, 1)
        step = PrivateStep(
            model,
            lambda model, batch: model(batch).flatten() * 0,
            support=Support.all(model),
            clip_norm=0.5,
            noise_multiplier=2.0,
            batch_size=8,
            optimizer=sgd,
            ranks=ranks,
        )
        released = step.step(torch.randn(3, 4000))
        return [float(released.values["weight"].std()), released.noise_std, len(step.ledger)]

    for deviation, claimed, charged in succeed(4, tmp_path, noise):
        assert charged == 1
        assert claimed == pytest.approx(2.0 * 0.5 / 8 * (1 + ROUNDING[torch.float32]), rel=1e-9)
        assert 0.92 < deviation / claimed < 1.08  # 2/3, 1/2 and 2 are far outside; 5 deviations are 0.056


def test_one_step_of_ones_own_is_over_the_examples_of_all_ranks(tmp_path: Path) -> None:
    images, targets = data().tensors

    def stepped(ranks: Ranks, mine: range) -> list[float]:
        model = network(1 + ranks.rank)
        step = PrivateStep(
            model,
            cross_entropy,
            support=Support.random(model, ratio=0.3, seed=4),
            clip_norm=0.3,
            noise_multiplier=1.0,
            batch_size=16,
            optimizer=sgd,
            noise=SeededNoise(3),
            ranks=ranks,
        )
        chosen = torch.tensor(list(mine))
        step.step((images[chosen], targets[chosen]) if len(mine) else None)
        return flat(model).tolist()

    alone = torch.tensor(stepped(ALONE, range(10)))
    # The third rank has no example.
    shares = [range(4), range(4, 10), range(0)]
    for found in succeed(3, tmp_path, lambda ranks: stepped(ranks, shares[ranks.rank])):
        assert torch.allclose(torch.tensor(found), alone, atol=1e-9)


def test_only_active_coordinates_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = plan("tp-topk", epsilon=3.0)
    sent: list[int] = []
    reduce = dist.reduce

    def noted(tensor: Tensor, *given: Any, **named: Any) -> Any:
        sent.append(tensor.numel())
        return reduce(tensor, *given, **named)

    monkeypatch.setattr(dist, "reduce", noted)

    def sizes(ranks: Ranks) -> list[list[int]]:
        sent.clear()
        run = trainer(chosen, ranks=ranks)
        return [[step.released.support.size for step in run.steps()], list(sent)]

    for active, travelled in succeed(2, tmp_path, sizes):
        assert travelled == active
        assert min(active) < max(active) == flat(network()).numel()


# The ledger -----------------------------------------------------------------------------------------------


def test_a_charge_is_on_the_first_ranks_disk_before_the_released_value_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "run" / "ledger.jsonl"
    spread = Group.spread
    begin = SeededNoise.begin

    def slow(self: SeededNoise, index: int) -> None:
        assert len(read_ledger(ledger).charges) == index + 1
        time.sleep(0.01)
        begin(self, index)

    monkeypatch.setattr(SeededNoise, "begin", slow)

    def work(ranks: Ranks) -> list[int]:
        seen: list[int] = []

        def noted(self: Group, values: Any) -> None:
            spread(self, values)
            seen.append(len(read_ledger(ledger).charges) if ledger.exists() else -1)

        monkeypatch.setattr(Group, "spread", noted)
        trainer(plan(epsilon=3.0), run_dir=tmp_path / "run", ranks=ranks).fit(progress=False)
        return seen

    found = succeed(2, tmp_path / "ranks", work)
    # The first spread is of the initial weights, before there is a ledger.
    assert found[1] == [-1, *range(1, STEPS + 1)]


def test_only_the_first_rank_draws_noise_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    begin = SecureNoise.begin
    monkeypatch.setattr(
        SecureNoise, "begin", lambda self, index: (drawn.append(index), begin(self, index))[1]
    )

    def work(ranks: Ranks) -> list[Any]:
        directory = tmp_path / f"run-{ranks.rank}"
        run = trainer(plan(epsilon=3.0), run_dir=directory, ranks=ranks, seed=None, held_out=data(20))
        result = run.fit(progress=False)
        return [list(drawn), result.finished, result.epsilon, result.measured]

    first, second = succeed(2, tmp_path / "ranks", work)
    assert first == [list(range(STEPS)), True, *second[2:]]
    assert second[:2] == [[], True]
    assert not (tmp_path / "run-1").exists()
    verdict = verify(tmp_path / "run-0")
    assert verdict.agrees
    assert verdict.for_release


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    chosen = plan("tp-topk", epsilon=3.0)
    whole = trainer(chosen)
    for _ in whole.steps():
        pass

    def some(until: int) -> Any:
        def work(ranks: Ranks) -> list[Any]:
            run = trainer(chosen, network(1 + ranks.rank), run_dir=tmp_path / "run", ranks=ranks)
            if (tmp_path / "run").exists():
                run.load()
            for step in run.steps():
                if step.number == until:
                    break
            run.save()
            if until == STEPS:
                run.finish()
            run.close()
            return [run.done, flat(run.model).tolist()]

        return work

    for size, until in [(2, 4), (4, 11)]:
        assert [found[0] for found in succeed(size, tmp_path / str(size), some(until))] == [until] * size
    done, weights = some(STEPS)(ALONE)
    assert done == STEPS
    assert torch.allclose(torch.tensor(weights).double(), flat(whole.model), atol=1e-5)
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == STEPS
    assert verify(tmp_path / "run").agrees


# What is refused ------------------------------------------------------------------------------------------


def refused(tmp_path: Path, words: str, **options: Any) -> None:
    """Every rank refuses, in words that hold ``words``, and nothing is written."""

    def work(ranks: Ranks) -> None:
        given = {name: made(ranks.rank) for name, made in options.items()}
        run = trainer(given.pop("plan", plan(epsilon=3.0)), run_dir=tmp_path / "run", ranks=ranks, **given)
        run.fit(progress=False)

    for ending in run_ranks(2, tmp_path / "ranks", work):
        assert ending.error.startswith("RankError")
        assert words in ending.error


def test_data_in_another_order_is_refused(tmp_path: Path) -> None:
    images, targets = data().tensors

    class Swapped(torch.utils.data.Dataset[Any]):
        """Two examples have changed places on the second rank."""

        def __init__(self, rank: int) -> None:
            self.order = list(range(len(images)))
            if rank:
                self.order[3], self.order[60] = 60, 3

        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, place: int) -> Any:
            return images[self.order[place]], targets[self.order[place]]

    def tensors(rank: int) -> torch.utils.data.TensorDataset:
        order = torch.tensor(Swapped(rank).order)
        return torch.utils.data.TensorDataset(images[order], targets[order])

    for made in (Swapped, tensors):

        def work(ranks: Ranks, made: Any = made) -> None:
            Trainer(network(), made(ranks.rank), cross_entropy, plan(), optimizer=sgd, ranks=ranks)

        for ending in run_ranks(2, tmp_path, work):
            assert ending.error.startswith(
                "RankError: The data or its order of process 1 is not that of process 0"
            )


def test_another_model_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "The model", model=lambda rank: network(1, *[nn.Conv2d(4, 4, 1).double()] * rank))


def test_another_plan_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "The plan", plan=lambda rank: plan(epsilon=3.0 + rank))


def test_another_seed_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "settings", seed=lambda rank: rank)


def test_weights_that_drift_apart_are_found_before_the_next_support_is_chosen(tmp_path: Path) -> None:
    def optimizer(rank: int) -> Any:
        return lambda named: torch.optim.SGD(named, lr=0.5 + rank)

    refused(tmp_path, "The state of training of process 1", optimizer=optimizer)
    warmup = plan(epsilon=3.0).phases[0].steps
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == warmup


def test_without_a_seed_every_example_drawn_is_worked_on_by_one_rank(tmp_path: Path) -> None:
    """Shares of one draw: disjoint, of equal size, other ones in every step and every run, unknown beforehand."""

    def shares(ranks: Ranks) -> list[list[list[int]]]:
        runs = [trainer(plan(epsilon=3.0), ranks=ranks, seed=None) for _ in range(2)]
        return [[run._examples.batches._sampler.draw(step).tolist() for step in range(30)] for run in runs]

    found = succeed(3, tmp_path, shares)
    draws = []
    for run in range(2):
        for step in range(30):
            parts = [rank[run][step] for rank in found]
            together = sorted(place for part in parts for place in part)
            assert len(set(together)) == len(together)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            draws.append(tuple(together))
    assert len(set(draws)) == len(draws)
    rate = plan().sampling_rate
    assert abs(sum(map(len, draws)) / (60 * 64) - rate) < 5 * (rate * (1 - rate) / (60 * 64)) ** 0.5


def test_forgetting_the_other_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(TacitError, match=r"one of 4 .* ranks=tacit\.distributed\.join\(\)"):
        trainer(plan())
    with pytest.raises(TacitError, match="one of 4"):
        PrivateStep(
            nn.Linear(2, 1),
            cross_entropy,
            support=Support.all(nn.Linear(2, 1)),
            clip_norm=1,
            noise_multiplier=1,
            batch_size=1,
            optimizer=sgd,
        )
    assert trainer(plan(), ranks=ALONE).ranks is ALONE
