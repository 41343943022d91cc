"""A custom loop: take the steps of a plan one at a time, look at what was released, stop whenever you like."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import tacit
from tacit.data import load
from tacit.losses import cross_entropy
from tacit.models import build


def main() -> float:
    task = load("digits")
    plan = tacit.make_plan(
        "tp-topk",
        epsilon=8,
        delta=1e-5,
        examples=len(task.train),
        batch_size=256,
        epochs=20,
        active_ratio=0.5,
    )
    with tempfile.TemporaryDirectory() as place:
        trainer = tacit.Trainer(
            build("mlp", task, width=32),
            task.train,
            cross_entropy,
            plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.5),
            run_dir=Path(place, "run"),
        )
        for step in trainer.steps():
            # Everything in a step has been released: its gradient, its support, its signal-to-noise ratio.
            if step.number % 20 == 0:
                print(
                    f"step {step.number:3d} {step.phase.name:8s} epsilon {trainer.epsilon:.3f} "
                    f"active {step.released.support.size:5d} "
                    f"signal to noise {step.released.signal_to_noise:.2f}"
                )
        trainer.save()
        trainer.finish()
        trainer.close()
        print((Path(place, "run") / "certificate.txt").read_text().splitlines()[3])
        figures = trainer.evaluate(task.held_out)
    print(f"accuracy {figures['accuracy']:.3f}")
    return figures["accuracy"]


if __name__ == "__main__":
    main()
