"""Lightning around private steps: the same steps, and no way past them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="lightning is not installed")

from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from integrations.small import MASKS, Remembering, data, flat, network, plan
from tacit.errors import TacitError
from tacit.integrations.lightning import PrivacyGuard, PrivateModule
from tacit.losses import cross_entropy
from tacit.release.ledger import read_ledger
from tacit.runs import verify
from tacit.training.trainer import Trainer as TacitTrainer


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lightning leaves neither environment nor process group behind."""
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


def sgd(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=0.5, momentum=0.5)


def module(kind: type[PrivateModule] = PrivateModule, **options: Any) -> PrivateModule:
    return kind(network(), TensorDataset(*data()), cross_entropy, plan(), optimizer=sgd, **options)


def lightning(**options: Any) -> Trainer:
    usual = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**{**usual, **options})


def test_the_steps_are_those_of_a_run_without_lightning() -> None:
    guest = module(seed=1)
    trainer = lightning()
    trainer.fit(guest)
    alone = TacitTrainer(network(), TensorDataset(*data()), cross_entropy, plan(), optimizer=sgd, seed=1)
    assert alone.fit(progress=False).finished
    assert torch.equal(flat(guest.model), flat(alone.model))
    assert not torch.equal(flat(guest.model), flat(network()))
    assert trainer.global_step == plan().steps
    assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(alone.epsilon, rel=1e-6)


def test_a_run_directory_with_model_and_certificate(tmp_path: Path) -> None:
    lightning().fit(module(run_dir=tmp_path / "run"))
    verdict = verify(tmp_path / "run")
    assert verdict.for_release
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == plan().steps


class Stop(Callback):
    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        trainer.should_stop = trainer.global_step >= 4


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    lightning(callbacks=[Stop()], min_epochs=0).fit(module(run_dir=tmp_path / "run", seed=2))
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == 4
    early = verify(tmp_path / "run")
    assert early.agrees, early
    assert early.claimed is not None
    assert early.claimed < plan().epsilon
    resumed = module(run_dir=tmp_path / "run", seed=2, resume=True)
    lightning().fit(resumed)
    whole = module(seed=2)
    lightning().fit(whole)
    assert torch.equal(flat(resumed.model), flat(whole.model))
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == plan().steps
    assert verify(tmp_path / "run").agrees


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "bf16-mixed"}, "precision must be 32-true"),
        ({"strategy": "ddp"}, "Train on one device"),
        ({"max_epochs": 3}, "max_epochs must be 1: one pass takes the 10 steps"),
        ({"max_epochs": -1}, "max_epochs must be 1"),
        ({"overfit_batches": 2}, "overfit_batches"),
        ({"fast_dev_run": True}, "fast_dev_run must be off"),
        ({"limit_train_batches": 2}, "limit_train_batches must be left out"),
        ({"limit_train_batches": 0.5}, "limit_train_batches must be left out"),
        ({"max_steps": 3}, "max_steps must be left out, or be the steps of the plan"),
    ],
)
def test_settings_that_would_break_the_promise(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    guest = module(run_dir=tmp_path / "run")
    with pytest.raises(TacitError, match=words):
        lightning(**options).fit(guest)
    assert not (tmp_path / "run").exists()
    assert torch.equal(flat(guest.model), flat(network()))


@pytest.mark.parametrize("options", [{"accumulate_grad_batches": 2}, {"gradient_clip_val": 1.0}])
def test_what_lightning_itself_refuses_for_manual_optimization(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(MisconfigurationException, match="not supported for manual optimization"):
        lightning(**options).fit(module(run_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_data_that_lightning_samples() -> None:
    guest = module()
    with pytest.raises(TacitError, match="its own training data"):
        lightning().fit(guest, train_dataloaders=DataLoader(TensorDataset(*data()), batch_size=12))
    assert torch.equal(flat(guest.model), flat(network()))


class OwnOptimizer(PrivateModule):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class OwnGradient(PrivateModule):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        x, y = data()
        nn.functional.cross_entropy(self(x), y).backward()


class Automatic(PrivateModule):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.automatic_optimization = True


class OwnStep(PrivateModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        return self.model(x).mean()


class OwnStepByNumber(PrivateModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch[0]).mean()


class OwnStepByName(PrivateModule):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch.x).mean()


class NoStep(PrivateModule):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OwnStep, "given the number of a private step, not a batch"),
        (OwnStepByNumber, "given the number of a private step, not a batch"),
        (OwnStepByName, "given the number of a private step, not a batch"),
        (NoStep, "took no private step"),
        (OwnOptimizer, "configure_optimizers must stay as it is"),
        (OwnGradient, "did not come through the private step"),
        (Automatic, "automatic_optimization must stay off"),
    ],
)
def test_ways_around_the_private_step(kind: type[PrivateModule], words: str) -> None:
    with pytest.raises(TacitError, match=words):
        lightning().fit(module(kind))


def test_as_many_steps_as_the_plan_has_may_be_asked_for() -> None:
    guest = module(seed=1)
    lightning(max_steps=plan().steps).fit(guest)
    assert guest.private.done == plan().steps


def test_the_guard_wants_a_private_module() -> None:
    class Plain(LightningModule):
        pass

    with pytest.raises(TacitError, match="PrivateModule"):
        PrivacyGuard().setup(lightning(), Plain(), "fit")


def test_a_checkpoint_of_lightning_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    trainer = lightning()
    trainer.fit(module(seed=1))
    trainer.save_checkpoint(tmp_path / "weights.ckpt")
    with pytest.raises(TacitError, match="knows nothing of the ledger"):
        lightning().fit(module(seed=1), ckpt_path=str(tmp_path / "weights.ckpt"), weights_only=False)


def test_an_error_gives_up_the_run_directory(tmp_path: Path) -> None:
    class Break(Callback):
        def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
            if trainer.global_step == 3:
                raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        lightning(callbacks=[Break()]).fit(module(run_dir=tmp_path / "run"))
    resumed = module(run_dir=tmp_path / "run", resume=True)
    lightning().fit(resumed)
    assert verify(tmp_path / "run").for_release
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) >= plan().steps


def test_seeds_of_lightning_do_not_reach_dropout() -> None:
    drawn = []
    for _ in range(2):
        MASKS.clear()
        seed_everything(1, workers=True, verbose=False)
        guest = module()
        guest.model.insert(1, Remembering(0.5))
        lightning().fit(guest)
        drawn.append({mask for mask in MASKS if len(set(mask)) > 1})  # a look holds masks still
    assert drawn[0]
    assert not drawn[0] & drawn[1]
