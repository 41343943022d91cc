"""A Hugging Face Trainer around private steps: the same steps, and no way past them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
    set_seed,
)

from integrations.small import MASKS, Remembering, data, flat, network, plan
from tacit.errors import ModelError, TacitError
from tacit.integrations.hugging_face import PrivateTrainer, classification_loss
from tacit.release.ledger import read_ledger
from tacit.runs import verify
from tacit.training import schedules
from tacit.training.trainer import Trainer as TacitTrainer


class Output:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return Output(self.body(x))


def examples() -> list[dict[str, Tensor]]:
    return [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]


def arguments(place: Path, **changes: Any) -> TrainingArguments:
    usual = {
        "output_dir": str(place / "transformers"),
        "max_steps": plan().steps,
        "learning_rate": 0.05,
        "weight_decay": 0.01,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 5,
    }
    return TrainingArguments(**{**usual, **changes})


def guest(place: Path, options: dict[str, Any] | None = None, **kwargs: Any) -> PrivateTrainer:
    changes = kwargs.pop("changes", {})
    model = kwargs.pop("model", None) or Model()
    return PrivateTrainer(
        model, arguments(place, **changes), plan(), train_dataset=examples(), tacit_options=options, **kwargs
    )


def test_the_steps_are_those_of_a_run_without_transformers(tmp_path: Path) -> None:
    trainer = guest(tmp_path, {"seed": 1}, changes={"optim": "adamw_torch"})
    trainer.train()
    alone = TacitTrainer(
        Model(),
        examples(),
        classification_loss,
        plan(),
        optimizer=lambda named: torch.optim.AdamW(
            [
                {"params": [p for n, p in named if "bias" not in n], "weight_decay": 0.01},
                {"params": [p for n, p in named if "bias" in n], "weight_decay": 0.0},
            ],
            lr=0.05,
        ),
        schedule=schedules.from_torch(lambda o: get_scheduler("linear", o, 0, plan().steps), 0.05),
        collate=trainer.data_collator,
        seed=1,
    )
    assert alone.fit(progress=False).finished
    assert torch.equal(flat(trainer.model), flat(alone.model))
    assert not torch.equal(flat(trainer.model), flat(Model()))
    assert trainer.state.global_step == plan().steps


def test_the_optimizer_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    trainer = guest(tmp_path, {"seed": 1}, changes={"optim": "sgd"})
    assert type(trainer.private._state.update.optimizer) is torch.optim.SGD
    decays = {group["weight_decay"] for group in trainer.private._state.update.optimizer.param_groups}
    assert decays == {0.01, 0.0}


@pytest.mark.parametrize("kind", ["linear", "cosine", "polynomial", "constant_with_warmup", "inverse_sqrt"])
def test_schedules_and_their_warm_up_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    trainer = guest(tmp_path, {"seed": 1}, changes={"lr_scheduler_type": kind, "warmup_steps": 3})
    private = trainer.private
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=trainer.args.learning_rate)
    scheduler = get_scheduler(kind, optimizer, 3, plan().steps)
    for _ in private.steps():
        for group in private._state.update.optimizer.param_groups:
            assert group["lr"] == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_an_optimizer_that_does_not_work_on_coordinates_is_refused(tmp_path: Path) -> None:
    trainer = guest(tmp_path, {"seed": 1}, changes={"optim": "adafactor"})
    with pytest.raises(TacitError, match="optim='adafactor' is not supported"):
        trainer.train()


def test_what_training_returns_counts_planned_samples_and_no_loss(tmp_path: Path) -> None:
    trainer = guest(tmp_path, {"seed": 1})
    found = trainer.train()
    assert math.isnan(found.training_loss)
    assert "train_loss" not in found.metrics
    seconds = found.metrics["train_runtime"]
    samples = plan().steps * plan().batch_size
    assert found.metrics["train_samples_per_second"] == pytest.approx(samples / seconds, rel=0.01)
    assert found.metrics["epoch"] == pytest.approx(samples / plan().examples)
    assert found.metrics["epsilon"] == pytest.approx(trainer.private.epsilon)
    epochs = [entry["epoch"] for entry in trainer.state.log_history]
    assert epochs == sorted(epochs)
    assert epochs[-1] == found.metrics["epoch"]


@pytest.mark.parametrize("form", [lambda rows: rows[:10], lambda rows: {"some": rows[3:5]}])
def test_measuring_on_rows_of_the_training_list_is_refused(form: Any, tmp_path: Path) -> None:
    rows = examples()
    with pytest.raises(TacitError, match="holds rows that are trained on"):
        PrivateTrainer(Model(), arguments(tmp_path), plan(), train_dataset=rows, eval_dataset=form(rows))


def test_nothing_private_is_logged(tmp_path: Path) -> None:
    trainer = guest(tmp_path, {"seed": 1})
    trainer.train()
    seen = {key for entry in trainer.state.log_history for key in entry}
    assert "epsilon" in seen
    assert not seen & {"loss", "train_loss", "grad_norm", "total_flos"}
    figures = [entry["epsilon"] for entry in trainer.state.log_history if "epsilon" in entry]
    assert figures == sorted(figures)
    assert figures[-1] == pytest.approx(trainer.private.epsilon)


class Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= 4


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    first = guest(tmp_path, {"run_dir": tmp_path / "run"}, callbacks=[Stop()])
    first.train()
    ledger = tmp_path / "run" / "ledger.jsonl"
    assert len(read_ledger(ledger).charges) == 4
    early = verify(tmp_path / "run")
    assert early.for_release
    assert early.claimed == pytest.approx(plan().spent(4))
    guest(tmp_path, {"run_dir": tmp_path / "run"}).train(resume_from_checkpoint=True)
    assert len(read_ledger(ledger).charges) == plan().steps
    assert verify(tmp_path / "run").for_release


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps must be 1"),
        ({"bf16": True}, "fp16 and bf16 must be off"),
        ({"max_steps": 3}, "max_steps must be 10"),
        ({"train_sampling_strategy": "group_by_length"}, "sampled by Poisson"),
        (
            {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
            "from the number of steps alone",
        ),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size must be off"),
    ],
)
def test_settings_that_would_break_the_promise(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TacitError, match=words):
        guest(tmp_path, changes=changes)


def test_several_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 2))
    with pytest.raises(TacitError, match="Train on one device"):
        guest(tmp_path)


def test_an_optimizer_or_loss_of_ones_own_is_refused(tmp_path: Path) -> None:
    model = Model()
    own = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(TacitError, match="Leave optimizers out"):
        guest(tmp_path, model=model, optimizers=(own, None))
    with pytest.raises(TacitError, match="Give loss="):
        guest(tmp_path, compute_loss_func=lambda *_: None)


class Smuggler(TrainerCallback):
    """Computes a gradient of its own, to be applied by whichever optimizer comes along."""

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        x, y = data()
        nn.functional.cross_entropy(model(x).logits, y).backward()


def test_a_gradient_from_elsewhere_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="did not come through the private step"):
        guest(tmp_path, callbacks=[Smuggler()]).train()


def test_batches_that_transformers_samples_are_refused(tmp_path: Path) -> None:
    class Own(PrivateTrainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(examples(), batch_size=6)  # type: ignore[arg-type]

    trainer = Own(Model(), arguments(tmp_path), plan(), train_dataset=examples())
    with pytest.raises(TacitError, match="its own training data"):
        trainer.train()


def test_a_checkpoint_of_transformers_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="knows nothing of the ledger"):
        guest(tmp_path).train(resume_from_checkpoint=str(tmp_path))


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=12,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=4,
        )
    )


def sentences() -> list[dict[str, Tensor]]:
    ids = torch.randint(0, 12, (len(data()[1]), 4), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row[0] % 2} for row in ids]


def test_a_transformer_trains_and_is_evaluated(tmp_path: Path) -> None:
    rows, model = sentences(), bert()
    before = flat(model)
    trainer = PrivateTrainer(
        model, arguments(tmp_path), plan(), train_dataset=rows, eval_dataset=[dict(row) for row in rows[:10]]
    )
    trainer.train()
    assert "eval_loss" in trainer.evaluate()
    assert not torch.equal(flat(model), before)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(tmp_path: Path, reentrant: bool) -> None:
    ends = []
    for kept in (False, True):
        trainer = PrivateTrainer(
            bert(),
            arguments(
                tmp_path,
                gradient_checkpointing=not kept,
                gradient_checkpointing_kwargs={"use_reentrant": reentrant},
            ),
            plan(),
            train_dataset=sentences(),
            tacit_options={"seed": 1},
        )
        trainer.train()
        assert trainer.model.is_gradient_checkpointing is not kept
        ends.append(flat(trainer.model))
    assert torch.allclose(*ends, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(ends[0], flat(bert()), rtol=1e-4, atol=1e-6)


def test_measuring_on_the_training_data_is_refused(tmp_path: Path) -> None:
    rows = examples()
    with pytest.raises(TacitError, match="eval_dataset is the training data"):
        PrivateTrainer(Model(), arguments(tmp_path), plan(), train_dataset=rows, eval_dataset=rows)


def test_seeds_of_transformers_do_not_reach_dropout(tmp_path: Path) -> None:
    drawn = []
    for place in ("one", "two"):
        MASKS.clear()
        set_seed(1)
        model = Model()
        model.body.insert(1, Remembering(0.5))
        trainer = guest(tmp_path / place, {}, model=model, changes={"seed": 1, "data_seed": 1})
        trainer.train()
        drawn.append({mask for mask in MASKS if len(set(mask)) > 1})  # a look holds masks still
    assert drawn[0]
    assert not drawn[0] & drawn[1]
