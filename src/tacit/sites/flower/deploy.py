"""A training with sites through real Flower processes: a SuperLink, a plain SuperNode per site, and the app to run."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tacit.errors import ArgumentError
from tacit.federated.flower.bundle import app_project, toml_table
from tacit.federated.flower.certificates import AUTHORITY_FILE
from tacit.federated.flower.deploy import Deployment
from tacit.federated.flower.processes import (
    LOOPBACK,
    ProcessTree,
    end_with_parent,
    free_port,
    supernode_command,
)
from tacit.files import toml_value
from tacit.runs.layout import RESULT_FILE
from tacit.sites.terms import TERMS_FILE, read_terms

log = logging.getLogger("tacit.sites")


def write_app(folder: Path, sites: Iterable[str], settings: Mapping[str, Any]) -> tuple[Path, Path]:
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
        terms = read_terms(folder / TERMS_FILE)
        needed = len(sites) if terms.sum is None else terms.sum.needed
        if terms.local is not None:
            needed = len(sites) // 2 + 1
        deployment.wait(timeout, settings.get("quorum") or needed)


def run_over_network(
    folder: Path, keys: Mapping[str, Path], address: tuple[str, int], *, timeout: float, **settings: Any
) -> None:
    """Start a SuperLink at ``address`` for relays on other machines, train with them, and stop it.

    ``keys`` are the public keys of the relays, by the name of the site; others are not admitted. The certificates are
    those of ``tacit fed keys``.
    """
    folder = folder.resolve()
    if not (folder / "keys" / AUTHORITY_FILE).is_file():
        raise ArgumentError(f"There are no certificates in {folder / 'keys'}; tacit fed keys makes them.")
    for name, key in keys.items():
        if not key.is_file():
            raise ArgumentError(f"There is no file {key} with the public key of the relay of {name!r}.")
    with Deployment(folder, secure=True, address=address) as deployment:
        (folder / RESULT_FILE).unlink(missing_ok=True)
        deployment.start_server()
        for key in keys.values():
            deployment.register(key.resolve())
        app, run_file = write_app(folder, keys, settings)
        deployment.submit_app(app, "--run-config", str(run_file))
        deployment.wait(timeout)


def relay_command(
    superlink: str, site: str, socket: Path, root_certificates: Path | None, key: Path | None, insecure: bool
) -> list[str]:
    """The SuperNode of a site, as a command: it is told the socket of the vault and no other file."""
    security = ["--insecure"]
    if not insecure:
        if root_certificates is None or key is None:
            raise ArgumentError(
                "Say --root-certificates and --key, or --insecure for a server on this machine."
            )
        security = ["--root-certificates", str(root_certificates), "--auth-supernode-private-key", str(key)]
    told = f"site={toml_value(site)} socket={toml_value(str(socket))}"
    return [
        *(*supernode_command(), "--superlink", superlink, *security),
        *("--node-config", told, "--host", LOOPBACK, "--port", str(free_port())),
    ]


def keep_relaying(command: list[str], seconds: float = 3.0) -> None:
    """Run a SuperNode until this process is stopped; one that ends is started again after so many seconds.

    A SuperNode whose key the server does not know yet gives up, so that it would matter who starts first.
    """
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": beside,
    }
    while True:
        process = subprocess.Popen(command, env=environment, preexec_fn=end_with_parent)
        try:
            code = process.wait()
        finally:
            ProcessTree.of(process.pid).signal(signal.SIGTERM)
        log.warning("the relay has ended with code %d; it starts again in %g seconds", code, seconds)
        time.sleep(seconds)
