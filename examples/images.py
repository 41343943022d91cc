"""Images: a small convolutional network on the digits of scikit-learn, TP-TopK beside DP-SGD."""

from __future__ import annotations

import torch
from torch import nn

import tacit
from tacit.data import load
from tacit.losses import cross_entropy


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def main(epochs: int = 30) -> dict[str, float]:
    task = load("digits")
    found = {}
    for method, options in (("dp-sgd", {}), ("tp-topk", {"active_ratio": "auto", "reset": True})):
        torch.manual_seed(0)
        plan = tacit.make_plan(
            method,
            epsilon=8,
            delta=1e-5,
            examples=len(task.train),
            batch_size=256,
            epochs=epochs,
            **options,
        )
        trainer = tacit.Trainer(
            network(),
            task.train,
            cross_entropy,
            plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.5, momentum=0.5),
            held_out=task.held_out,
            seed=0,  # a seed makes runs comparable, and for that reason not for release
        )
        result = trainer.fit(progress=False)
        found[method] = result.measured["accuracy"]
        print(f"{method}: accuracy {found[method]:.3f}, {result.active} of {result.dimension} active")
    return found


if __name__ == "__main__":
    main()
