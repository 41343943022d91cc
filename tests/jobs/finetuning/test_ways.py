"""What each way to fine-tune trains: exact counts, through a plan and a trainer."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from tacit.data.task import Task
from tacit.errors import ArgumentError
from tacit.jobs.defaults import plan_of
from tacit.jobs.finetuning import with_frozen_prefix, with_network, with_trained_part
from tacit.jobs.problem import Problem
from tacit.jobs.settings import (
    FINETUNING,
    DataConfig,
    Experiment,
    MethodConfig,
    PrivacyConfig,
    TrainingConfig,
)
from tacit.jobs.setup import build_trainer
from tacit.models.config import ModelConfig
from tacit.plan import Plan
from tacit.support.support import trainable_parameters
from tacit.training.trainer import Trainer

EXAMPLES = 24
# Three layers of width 8 with 12 hidden units; the embeddings are frozen.
LAYERS, WIDTH, HIDDEN = 3, 8, 12
HEAD = WIDTH + 1
VECTORS = LAYERS * (5 * WIDTH + HIDDEN + 4 * WIDTH) + 1
WEIGHTS = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)


def texts() -> Problem:
    torch.manual_seed(1)
    ids = torch.randint(1, 10, (EXAMPLES, 6))
    ids[::3, 4:] = 0
    data = TensorDataset(ids, (ids[:, :1] > 4).float())
    others = TensorDataset(ids.flip(1), (ids[:, -1:] > 4).float())
    task = Task("toy", data, others, "binary", (6,), ("no", "yes"), vocabulary=10)
    return Problem("toy", data, others, "binary", (), task)


def experiment(directory: Path, method: MethodConfig, **model: object) -> Experiment:
    return Experiment(
        data=DataConfig("toy"),
        model=replace(ModelConfig(str(directory), weights="public"), **model),  # type: ignore[arg-type]
        method=method,
        privacy=PrivacyConfig(epsilon=4.0, delta=1e-3),
        training=TrainingConfig(batch_size=6, epochs=2.0, learning_rate=0.1, seed=0, chunk_size=4),
    )


def trainer_of(described: Experiment, problem: Problem) -> tuple[Trainer, Plan]:
    assert problem.task is not None
    found = with_trained_part(described, problem.task.outputs, problem.examples)
    plan = plan_of(found, problem.examples)
    return build_trainer(found, with_frozen_prefix(found, problem), plan), plan


def rows(ratio: float, count: int) -> int:
    return max(1, math.floor(ratio * count))


@pytest.mark.parametrize(
    ("method", "active", "coordinates"),
    [
        (MethodConfig("full"), VECTORS + WEIGHTS + WIDTH, None),
        # All layers but the last are computed only once.
        (MethodConfig("last-layer"), HEAD, (VECTORS - 1) // LAYERS + WEIGHTS // LAYERS + HEAD),
        # Biases of six linear layers and of two norms in each layer, and the head.
        (MethodConfig("bitfit"), LAYERS * (5 * WIDTH + HIDDEN + 2 * WIDTH) + HEAD, None),
        *(
            (
                MethodConfig(name, active_ratio=0.25, **options),
                VECTORS
                + WIDTH
                + LAYERS
                * (4 * rows(0.25, WIDTH) * WIDTH + rows(0.25, HIDDEN) * WIDTH + rows(0.25, WIDTH) * HIDDEN),
                None,
            )
            for name, options in (
                ("random-rows", {}),
                ("magnitude-rows", {}),
                ("sparta", {"selection_epochs": 0.5, "head_epochs": 0.5}),
            )
        ),
        (
            MethodConfig("sparta", rows=3, selection_epochs=0.5),
            VECTORS + WIDTH + LAYERS * (4 * 3 * WIDTH + 3 * WIDTH + 3 * HIDDEN),
            None,
        ),
        (
            MethodConfig("random-rows", active_ratio=0.25, always_active=()),
            HEAD
            + LAYERS
            * (
                4 * rows(0.25, WIDTH) * WIDTH
                + rows(0.25, HIDDEN) * WIDTH
                + rows(0.25, WIDTH) * HIDDEN
                + 9 * rows(0.25, WIDTH)
                + rows(0.25, HIDDEN)
            ),
            None,
        ),
        (MethodConfig("tp-topk", active_ratio=0.1), VECTORS + WIDTH + math.floor(0.1 * WEIGHTS), None),
        (MethodConfig("lora"), LAYERS * 2 * 2 * 8 * WIDTH + HEAD, LAYERS * 2 * 2 * 8 * WIDTH + HEAD),
    ],
    ids=lambda value: f"{value.name}-{value.rows or ''}" if isinstance(value, MethodConfig) else "",
)
def test_exactly_these_coordinates_are_trained(
    bert: Path, method: MethodConfig, active: int, coordinates: int | None
) -> None:
    trainer, plan = trainer_of(experiment(bert, method), texts())
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    result = trainer.fit(progress=False)
    assert result.finished
    assert result.active == active
    assert result.dimension == (coordinates or VECTORS + WEIGHTS + WIDTH)
    moved = sum(int((p != before[name]).sum()) for name, p in trainer.model.named_parameters())
    dense_before = active if method.name != "tp-topk" else result.dimension
    assert moved <= dense_before
    assert moved >= 0.95 * active
    assert plan.steps == 8
    assert result.epsilon <= 4.0


def test_every_way_follows_the_same_plan(bert: Path) -> None:
    options = {"random-rows": {"active_ratio": 0.1}, "magnitude-rows": {"active_ratio": 0.1}}
    spends = set()
    for name in FINETUNING:
        if name != "tp-topk":  # its warm-up has a share of ε of its own
            _, plan = trainer_of(experiment(bert, MethodConfig(name, **options.get(name, {}))), texts())
            spends.add((plan.steps, plan.sampling_rate, *{phase.noise_multiplier for phase in plan.phases}))
    assert len(spends) == 1


def test_a_frozen_beginning_changes_nothing_but_the_cost(bert: Path) -> None:
    method = MethodConfig("random-rows", active_ratio=0.5)
    frozen = ("encoder.embeddings.*", "encoder.encoder.layer.0.*", "encoder.encoder.layer.1.*")
    by_pattern, _ = trainer_of(experiment(bert, method, freeze=frozen), texts())
    computed_once, _ = trainer_of(experiment(bert, method, frozen_blocks=2), texts())
    first, second = by_pattern.fit(progress=False), computed_once.fit(progress=False)
    assert first.active == second.active
    assert first.measured == pytest.approx(second.measured, rel=1e-4)
    for (name, one), (_, other) in zip(
        by_pattern.model.named_parameters(), computed_once.model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)
    assert set(computed_once.model.state_dict()) == set(by_pattern.model.state_dict())


def test_what_is_left_open_is_completed() -> None:
    images = with_network(Experiment(data=DataConfig("cifar10")))
    assert (images.model.name, images.model.weights, images.data.tokenizer) == (
        "mobilenet-v2",
        "public",
        None,
    )
    texts = with_network(Experiment(data=DataConfig("sst2")))
    assert (texts.model.name, texts.data.tokenizer, texts.training.chunk_size) == ("minilm", "minilm", 64)


@pytest.mark.parametrize(
    ("method", "model", "sentence"),
    [
        (MethodConfig("dp-sgd"), {}, "no way to fine-tune called 'dp-sgd'"),
        (MethodConfig("sparta", rows=99), {}, "has 8 rows, fewer than the 99"),
        (MethodConfig("sparta", score="size"), {}, "score must be one of"),
        (MethodConfig("full", active_ratio=0.1), {}, "full makes no choice of rows"),
        (MethodConfig("full"), {"lora_rank": 4}, "are for the method lora"),
        (MethodConfig("lora"), {"base_precision": "int8"}, "is for language models"),
        (MethodConfig("random-rows", always_active=("fc.*",)), {}, r"matches the pattern 'fc\.\*'"),
        (MethodConfig("full"), {"frozen_blocks": 3}, "3 of them cannot be frozen"),
    ],
)
def test_bad_descriptions(bert: Path, method: MethodConfig, model: dict[str, object], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        trainer_of(experiment(bert, method, **model), texts())


def test_head_and_vectors_are_what_the_counts_assume(bert: Path) -> None:
    trainer, _ = trainer_of(experiment(bert, MethodConfig("full")), texts())
    shapes = {name: p.dim() for name, p in trainable_parameters(trainer.model).items()}
    sizes = {name: p.numel() for name, p in trainable_parameters(trainer.model).items()}
    assert sum(sizes[name] for name, dims in shapes.items() if dims == 1) == VECTORS


def test_pretrained_weights_move_in_smaller_steps_than_a_fresh_head(bert: Path) -> None:
    def rate(name: str, **training: object) -> float | None:
        described = experiment(bert, MethodConfig(name))
        given = replace(described.training, **{"learning_rate": None, **training})  # type: ignore[arg-type]
        return with_trained_part(replace(described, training=given), 1, EXAMPLES).training.learning_rate

    assert [rate(name) for name in ("last-layer", "sparta", "full")] == [1.0, 0.1, 0.1]
    assert rate("sparta", learning_rate=0.3) == 0.3
    assert rate("sparta", optimizer="adam") is None
