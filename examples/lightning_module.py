"""Lightning: its loop, loggers and validation around private steps."""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

import tacit
from tacit.data import load
from tacit.integrations.lightning import PrivateModule
from tacit.losses import cross_entropy
from tacit.models import build


class Digits(PrivateModule):
    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("accuracy", (self(inputs).argmax(1) == targets).float().mean(), batch_size=len(targets))


def main() -> float:
    torch.manual_seed(0)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="The .*dataloader.* does not have many workers")
    task = load("digits")
    plan = tacit.make_plan(
        "dp-sgd", epsilon=8, delta=1e-5, examples=len(task.train), batch_size=256, epochs=20
    )
    with tempfile.TemporaryDirectory() as place:
        module = Digits(
            build("mlp", task, width=32),
            task.train,
            cross_entropy,
            plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.5),
            run_dir=Path(place, "run"),
        )
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(module, val_dataloaders=DataLoader(task.held_out, batch_size=400))
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        print((Path(place, "run") / "certificate.txt").read_text().splitlines()[3])
    print(f"accuracy {figures['accuracy']:.3f} at epsilon {figures['epsilon']:.3f}")
    return figures["accuracy"]


if __name__ == "__main__":
    main()
