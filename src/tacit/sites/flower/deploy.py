"""A training with sites through real Flower processes: a SuperLink, a plain SuperNode per site, and the app to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.federated.flower.bundle import app_project, toml_table
from tacit.federated.flower.deploy import Deployment
from tacit.runs.layout import RESULT_FILE


def write_app(folder: Path, sites: Mapping[str, Path], settings: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write the app of a training and its run configuration below ``folder``, for ``flwr run``."""
    config = {
        "folder": str(folder),
        "sites": ",".join(sites),
        "quorum": settings.get("quorum") or 0,
        "learning-rate": float(settings.get("learning_rate") or 0.0),
        "round-timeout": float(settings.get("seconds", 120.0)),
        "patience": float(settings.get("patience", 60.0)),
    }
    app = folder / "app"
    app.mkdir(parents=True, exist_ok=True)
    project = app_project("tacit-sites", "tacit.sites.flower.server", "tacit.sites.flower.relay", config)
    (app / "pyproject.toml").write_text(project)
    run_file = folder / "run.toml"
    run_file.write_text(toml_table(config))
    return app, run_file


def run_on_flower(
    folder: Path, sites: Mapping[str, Path], *, timeout: float, secure: bool = False, **settings: Any
) -> None:
    """Start a SuperLink and a SuperNode for every site on the loopback interface, train, and stop them."""
    folder = folder.resolve()
    with Deployment(folder, secure=secure) as deployment:
        (folder / RESULT_FILE).unlink(missing_ok=True)
        deployment.start_server()
        for number, (name, path) in enumerate(sites.items()):
            deployment.start_relay(number, {"site": name, "socket": str(path)})
        app, run_file = write_app(folder, sites, settings)
        deployment.submit_app(app, "--run-config", str(run_file))
        deployment.wait(timeout, settings.get("quorum") or len(sites))
