"""What a run on Flower is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.federated.protocol import Question

QUESTION_PREFIX = "question-"


@dataclass(frozen=True)
class RunSettings:
    """What the server is told: the question, how to update, and how long to wait."""

    question: Question
    learning_rate: float
    batch: int
    nodes: int
    round_timeout: float = 60.0
    patience: float = 60.0

    def run_config(self, folder: Path) -> dict[str, Any]:
        """Return all of this as the flat table that the ServerApp reads; its files go to ``folder``."""
        values: dict[str, Any] = {
            "folder": str(folder),
            "learning-rate": self.learning_rate,
            "batch": self.batch,
            "nodes": self.nodes,
            "round-timeout": self.round_timeout,
            "patience": self.patience,
        }
        for name, value in asdict(self.question).items():
            values[QUESTION_PREFIX + name.replace("_", "-")] = value
        return values
