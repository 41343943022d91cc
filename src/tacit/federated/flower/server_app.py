"""The ServerApp: runs the rounds that are left of a training and writes checkpoint and result.

Everything it needs is in the run configuration (`settings`), so that starting it again goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from tacit.federated.flower.logs import show_log
from tacit.federated.flower.settings import QUESTION_PREFIX
from tacit.federated.flower.strategy import FedSelStrategy
from tacit.federated.plan import certificate
from tacit.federated.protocol import read_question
from tacit.federated.server import Aggregator, Training
from tacit.files import write_json

CHECKPOINT_FILE = "checkpoint.safetensors"
RESULT_FILE = "result.json"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds that are left."""
    run_training(grid, context.run_config)


def run_training(grid: Grid, config: Mapping[str, Any]) -> None:
    """Run the rounds that are left of the training that ``config`` describes."""
    show_log()
    folder = Path(config["folder"])
    question = read_question(
        {
            name.removeprefix(QUESTION_PREFIX).replace("-", "_"): value
            for name, value in config.items()
            if name.startswith(QUESTION_PREFIX)
        }
    )
    training = Training(question, float(config["learning-rate"]), int(config["batch"]))
    aggregator = Aggregator(training, folder / CHECKPOINT_FILE)
    strategy = FedSelStrategy(aggregator, int(config["nodes"]), float(config["patience"]))
    if not aggregator.done:
        strategy.start(
            grid,
            ArrayRecord({"weights": Array(aggregator.weights)}),
            num_rounds=question.rounds - aggregator.finished,
            timeout=float(config["round-timeout"]),
        )
    write_json(
        folder / RESULT_FILE,
        {
            "training": question.training,
            "rounds": aggregator.finished,
            "answers used": aggregator.accepted,
            "replies rejected": aggregator.rejected,
            "certificate": certificate(question.plan(), "system"),
        },
    )
