"""Your own table: write a CSV, train on it at epsilon 3, read the certificate."""

from __future__ import annotations

import csv
import random
import tempfile
from pathlib import Path

import torch

import tacit
from tacit.data import read_table
from tacit.losses import binary_cross_entropy
from tacit.models import build
from tacit.runs import verify


def write_customers(path: Path, rows: int = 4000) -> None:
    rng = random.Random(1)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["age", "plan", "city", "joined", "churn"])
        for _ in range(rows):
            age, plan = rng.randint(18, 90), rng.choice(["basic", "plus", "pro"])
            joined = f"20{rng.randint(10, 24)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
            churns = (50 - age) / 15 + 2 * (plan == "basic") + rng.gauss(0, 1) > 0
            out.writerow([age, plan, f"Town {rng.randrange(500)}", joined, "yes" if churns else "no"])


def main() -> float:
    with tempfile.TemporaryDirectory() as place:
        write_customers(Path(place, "customers.csv"))
        task = read_table(Path(place, "customers.csv"), target="churn")
        plan = tacit.make_plan(
            "tp-topk",
            epsilon=3,
            delta=1e-5,
            examples=len(task.train),
            batch_size=512,
            epochs=20,
            active_ratio="auto",
            reset=True,
        )
        print(plan)
        trainer = tacit.Trainer(
            build("logistic", task),
            task.train,
            binary_cross_entropy,
            plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=1.0),
            held_out=task.held_out,
            run_dir=Path(place, "run"),
            not_covered=task.not_covered,
        )
        result = trainer.fit(progress=False)
        print(f"accuracy {result.measured['accuracy']:.3f} at epsilon {result.epsilon:.3f}")
        print(result.selections["sparse"])
        print(verify(Path(place, "run")))
        return result.measured["accuracy"]


if __name__ == "__main__":
    main()
