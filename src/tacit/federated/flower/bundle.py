"""What a run on Flower is told.

The Flower App Bundle of a FedSel training: a description without code, the same for every training.

Flower's way is that the server sends each node a bundle and the node runs what is in it. Here the bundle holds
no code, only the names of the installed apps and the keys of the run configuration; what differs from training
to training travels as an override. So its digest is known beforehand, and a node refuses every other bundle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flwr.cli.build import build_fab_from_files

from tacit.federated.protocol import Question
from tacit.files import toml_value

QUESTION_PREFIX = "question-"


@dataclass(frozen=True)
class RunSettings:
    """What the server is told: the question, how to update, for how many answers and how long to wait.

    ``start`` is the checkpoint of a training that this one extends.
    """

    question: Question
    learning_rate: float
    batch: int
    nodes: int
    round_timeout: float = 60.0
    patience: float = 60.0
    quorum: int | None = None
    start: Path | None = None

    @property
    def needed(self) -> int:
        """How many answers a round needs: ``quorum``, or more than half of the nodes."""
        return self.nodes // 2 + 1 if self.quorum is None else self.quorum

    def run_config(self, folder: Path) -> dict[str, Any]:
        """Return all of this as the flat table that the ServerApp reads; its files go to ``folder``."""
        values: dict[str, Any] = {
            "folder": str(folder),
            "learning-rate": self.learning_rate,
            "batch": self.batch,
            "nodes": self.nodes,
            "quorum": self.needed,
            "round-timeout": self.round_timeout,
            "patience": self.patience,
            "start": "" if self.start is None else str(self.start.resolve()),
        }
        for name, value in asdict(self.question).items():
            values[QUESTION_PREFIX + name.replace("_", "-")] = value
        return values


_EXAMPLE = RunSettings(
    Question("fedsel", 1, 1, 2, "logistic", 1e-4, "ps", "pm", 1.0, 0.1, 0.1, 0.0), 1.0, 1, 1
)

_PROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "tacit"

[tool.flwr.app.components]
serverapp = "{server}:app"
clientapp = "{client}:app"

[tool.flwr.app.config]
{config}
"""


def app_project(name: str, server: str, client: str, config: Mapping[str, Any]) -> str:
    """Return the project file of an app of Flower whose code is installed: the modules of both sides."""
    return _PROJECT.format(name=name, server=server, client=client, config=toml_table(config))


def project_file() -> str:
    """Return the one file of the bundle; its values are examples, and every run overrides them all."""
    return app_project(
        "tacit-fedsel",
        "tacit.federated.flower.server_app",
        "tacit.federated.flower.client_app",
        _EXAMPLE.run_config(Path("server")),
    )


@cache
def bundle_digest() -> str:
    """Return the SHA-256 of the bundle as Flower builds it."""
    content, _ = build_fab_from_files({"pyproject.toml": project_file().encode()})
    return hashlib.sha256(content).hexdigest()


def write_app(folder: Path, settings: RunSettings) -> tuple[Path, Path]:
    """Write the app and the run configuration that ``flwr run`` submits; return both places."""
    app, config = folder / "app", folder / "run.toml"
    app.mkdir(parents=True, exist_ok=True)
    (app / "pyproject.toml").write_text(project_file())
    config.write_text(toml_table(settings.run_config(folder.resolve())) + "\n")
    return app, config


def toml_table(values: Mapping[str, Any]) -> str:
    """Return ``values`` as lines of TOML."""
    return "\n".join(f"{name} = {toml_value(value)}" for name, value in values.items())
