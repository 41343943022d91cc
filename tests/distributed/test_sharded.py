"""Models that ``fully_shard`` has divided among processes: the same training as in one process, in shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from distributed.processes import run_ranks, succeed
from tacit import PrivateStep, SecureNoise, Support, Trainer
from tacit.distributed import ALONE, Ranks
from tacit.errors import ArgumentError, ModelError
from tacit.losses import cross_entropy
from tacit.release.ledger import read_ledger
from tacit.runs import verify
from training.small import adam, data, flat, momentum, network, plan, sgd, trainer

EPOCHS = 2
METHODS: list[tuple[str, dict[str, Any], Any]] = [
    ("dp-sgd", {}, adam),
    ("tp-topk", {"active_ratio": 0.3, "score": "movement", "reset": True}, momentum),
    ("tp-topk", {"active_ratio": "auto", "warmup": 0.5}, adam),
    ("sparta", {}, momentum),
]


class Tied(nn.Module):
    """A table that is read and multiplied with, a frozen layer, and a layer with fewer rows than ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.frozen, self.last = nn.Embedding(7, 5), nn.Linear(5, 5), nn.Linear(7, 3)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.table.weight
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        ids = (images.flatten(1)[:, :6] * 2).long().clamp(0, 6)
        return self.last(self.head(torch.tanh(self.frozen(self.table(ids).mean(1)))))


def sharded(ranks: Ranks, model: nn.Module) -> nn.Module:
    """The model, in one unit for each layer that shares nothing, over all ranks."""
    if ranks.size > 1:
        mesh = init_device_mesh("cpu", (ranks.size,))
        for layer in model.children():
            if any(True for _ in layer.parameters()) and not isinstance(model, Tied):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def whole(model: nn.Module) -> list[float]:
    """All trained parameters, from whoever holds them."""
    if not any(hasattr(p, "full_tensor") for p in model.parameters()):
        return flat(model).tolist()
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([p.full_tensor().detach().reshape(-1) for p in parameters]).tolist()


def trajectory(
    ranks: Ranks,
    method: str,
    options: dict[str, Any],
    optimizer: Any,
    epsilon: float,
    make: Callable[[], nn.Module] = network,
) -> dict[str, Any]:
    """The weights after every step and the support of every step."""
    chosen = plan(method, epsilon=epsilon, epochs=EPOCHS, **options)
    run = trainer(chosen, sharded(ranks, make()), ranks=ranks, optimizer=optimizer, average=0.9)
    weights, supports = [], []
    for _ in run.steps():
        weights.append(whole(run.model))
        supports.append(run.support.digest())
    measured = run.evaluate(data(20))
    return {"weights": weights, "supports": supports, "epsilon": run.epsilon, "measured": measured}


def trajectories(ranks: Ranks, size: int) -> list[dict[str, Any]]:
    if size == 4:
        return [
            trajectory(ranks, *METHODS[1], float("inf")),
            trajectory(ranks, *METHODS[3], float("inf")),
            trajectory(ranks, *METHODS[0], float("inf"), Tied),
        ]
    found = [trajectory(ranks, *method, float("inf")) for method in METHODS[:3]]
    # With a seed every rank draws the part of the noise that its rows have in one process.
    return [*found, trajectory(ranks, *METHODS[1], 3.0)]


# The door -------------------------------------------------------------------------------------------------


def test_every_number_is_noised_once_in_secret_after_the_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss without slope moves weights by noise alone: of the full deviation in every shard, and never the same."""
    ledger = tmp_path / "run" / "ledger.jsonl"
    add = SecureNoise.add

    def noted(self: SecureNoise, values: Tensor, scale: float, factor: float) -> None:
        assert len(read_ledger(ledger).charges) == 1
        add(self, values, scale, factor)

    monkeypatch.setattr(SecureNoise, "add", noted)

    def noise(ranks: Ranks) -> dict[str, Any]:
        model = nn.Linear(3000, 4)
        run = Trainer(
            sharded(ranks, model),
            TensorDataset(torch.randn(64, 3000, generator=torch.Generator().manual_seed(1)), torch.zeros(64)),
            lambda model, batch: 0.0 * model(batch[0]).sum(1),
            plan("dp-sgd", epsilon=3.0, epochs=0.25),
            optimizer=sgd,
            ranks=ranks,
            run_dir=tmp_path / "run",
        )
        before = model.weight.full_tensor()
        [step] = list(run.steps())
        moved = (before - model.weight.full_tensor()) / 0.5
        own = step.released.values["weight"]
        assert torch.allclose(moved[2 * ranks.rank : 2 * ranks.rank + 2], own, atol=1e-6)
        run.save()
        run.finish()
        run.close()
        return {"moved": moved.tolist(), "claimed": step.released.noise_std, "count": own.numel()}

    found = succeed(2, tmp_path / "ranks", noise)
    moved = torch.tensor(found[0]["moved"])
    verdict = verify(tmp_path / "run")  # which finds the weights in the shards, bit by bit
    assert verdict.agrees
    assert verdict.for_release
    assert found[0] == found[1]
    assert found[0]["count"] == 6000
    # 5 deviations of an estimate from 3000 numbers are 0.065; √2 times as much noise, or 1/√2, is far outside.
    assert all(0.93 < float(row.std()) / found[0]["claimed"] < 1.07 for row in moved)
    correlation = torch.corrcoef(moved) - torch.eye(4)
    assert float(correlation.abs().max()) < 0.1


def test_a_rank_holds_the_state_of_its_rows_only(tmp_path: Path) -> None:
    def held(ranks: Ranks) -> list[int]:
        chosen = plan("tp-topk", epsilon=3.0, epochs=EPOCHS)
        run = trainer(chosen, sharded(ranks, network()), ranks=ranks, optimizer=adam, average=0.9)
        steps = iter(run.steps())
        next(steps)
        moments = sum(t.numel() for t in run._state.update.state()[0].values() if t.dim())
        squares = sum(t.numel() for name, t in run._state.scores.state()[0].items() if "squares" in name)
        average = sum(t.numel() for t in run._state.average.state()[0].values())
        for _ in steps:
            pass
        sparse = sum(t.numel() for t in run._state.update.state()[0].values() if t.dim())
        return [moments, squares, average, sparse, run.support.size]

    found = succeed(2, tmp_path, held)
    total = flat(network()).numel()
    moments, squares, average, sparse = ([one[part] for one in found] for part in range(4))
    assert sum(moments) == 2 * total
    assert sum(squares) == sum(average) == total
    assert sum(sparse) == 2 * found[0][4] < total
    assert max(squares) < 0.52 * total


# Checkpoints ----------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    chosen = plan("tp-topk", epsilon=3.0, epochs=EPOCHS)
    alone = trainer(chosen, optimizer=adam, average=0.9)
    for _ in alone.steps():
        pass

    def some(until: int) -> Callable[[Ranks], list[Any]]:
        def work(ranks: Ranks) -> list[Any]:
            run = trainer(
                chosen,
                sharded(ranks, network()),
                run_dir=tmp_path / "run",
                ranks=ranks,
                optimizer=adam,
                average=0.9,
                held_out=data(20),
            )
            if (tmp_path / "run").exists():
                run.load()
            for step in run.steps():
                if step.number == until:
                    break
            run.save()
            if until == chosen.steps:
                run.finish(run.measure())
            run.close()
            return [run.done, whole(run.model)]

        return work

    for size, until in [(2, 2), (4, 5), (2, chosen.steps)]:
        found = succeed(size, tmp_path / f"{until}", some(until))
        assert [done for done, _ in found] == [until] * size
    assert torch.allclose(torch.tensor(found[1][1]).double(), flat(alone.model), atol=1e-5)
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == chosen.steps
    assert verify(tmp_path / "run").agrees
    assert len(list((tmp_path / "run").glob("checkpoint-shards-*"))) == 1
    with alone.final_weights():
        expected = alone.model.state_dict()
        final = load_file(tmp_path / "run" / "model.safetensors")
        assert set(final) == set(expected)
        assert all(torch.allclose(final[name], expected[name], atol=1e-5) for name in final)

    # One bit of one shard.
    shard = next((tmp_path / "run").glob("checkpoint-shards-*/*"))
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    for ending in run_ranks(2, tmp_path / "damaged", some(chosen.steps)):
        assert "is damaged: it does not hold what the checkpoint says" in ending.error
    with pytest.raises(Exception, match="was sharded, and this one is not sharded"):
        trainer(chosen, run_dir=tmp_path / "run", optimizer=adam, average=0.9).load()


# The same as in one process -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
def test_the_trajectory_is_that_of_one_process(tmp_path: Path, size: int) -> None:
    alone = trajectories(ALONE, size)
    for ours in succeed(size, tmp_path, lambda ranks: trajectories(ranks, size)):
        for found, expected in zip(ours, alone, strict=True):
            assert found["supports"] == expected["supports"]
            assert found["epsilon"] == expected["epsilon"]
            assert found["measured"] == pytest.approx(expected["measured"], abs=1e-5)
            difference = torch.tensor(found["weights"]) - torch.tensor(expected["weights"])
            assert float(difference.abs().max()) < 1e-5


# What is refused ------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def one_shard(model: nn.Module, **options: Any) -> nn.Module:
    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)), **options)


@pytest.mark.usefixtures("group")
def test_what_is_not_supported_is_refused_by_name() -> None:
    model = one_shard(network())
    with pytest.raises(ModelError, match=r"'0\.weight' is sharded over processes .* only tacit\.Trainer"):
        PrivateStep(
            model,
            cross_entropy,
            support=Support.all(model),
            clip_norm=1.0,
            noise_multiplier=1.0,
            batch_size=4,
            optimizer=sgd,
        )
    mesh = init_device_mesh("cpu", (1,))

    def by_columns(name: str, layer: nn.Module, mesh: Any) -> None:
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh, [Shard(1)]))

    with pytest.raises(ModelError, match=r"tensor parallel or hybrid sharding.*not supported"):
        trainer(plan("dp-sgd"), distribute_module(nn.Sequential(nn.Linear(4, 4)), mesh, by_columns))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    with pytest.raises(ModelError, match=r"MixedPrecisionPolicy, whose rounding"):
        trainer(plan("dp-sgd"), one_shard(network(), mp_policy=half))
    with pytest.raises(ArgumentError, match="Adafactor may look at whole parameters"):
        trainer(plan("dp-sgd"), one_shard(network()), optimizer=lambda named: torch.optim.Adafactor(named))
    half_sharded = nn.Sequential(one_shard(nn.Linear(4, 4)), nn.Linear(4, 3))
    with pytest.raises(ModelError, match=r"'1\.weight' is trained and not sharded"):
        trainer(plan("dp-sgd"), half_sharded)
    with pytest.raises(ArgumentError, match="read row by row are not supported for sharded models"):
        trainer(plan("dp-sgd"), one_shard(nn.Sequential(nn.Embedding(4, 4))), lazy_noise=True)


@pytest.mark.usefixtures("group")
def test_a_shard_of_one_process_trains_and_stays_a_sharded_model() -> None:
    model = one_shard(network())
    run = trainer(plan("dp-sgd", epochs=0.5), model)
    for _ in run.steps():
        pass
    expected = trainer(plan("dp-sgd", epochs=0.5))
    for _ in expected.steps():
        pass
    assert torch.allclose(torch.tensor(whole(model)).double(), flat(expected.model), atol=1e-6)
    images = data().tensors[0]
    assert torch.allclose(model(images), expected.model(images), atol=1e-6)


@pytest.mark.usefixtures("group")
def test_a_model_in_a_wrapper_that_averages_gradients_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"wrapped in DistributedDataParallel, which adds gradients up"):
        trainer(plan("dp-sgd"), DistributedDataParallel(network()))
    with pytest.raises(ModelError, match="wrapped in DataParallel"):
        trainer(plan("dp-sgd"), nn.DataParallel(network()))
