"""Real Flower processes on one machine: a SuperLink, SuperNodes, and a run submitted to them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tacit.errors import ArgumentError, check_count
from tacit.federated.flower.bundle import RunSettings, write_app
from tacit.federated.flower.certificates import (
    AUTHORITY_FILE,
    SERVER_CERTIFICATE_FILE,
    SERVER_KEY_FILE,
    make_certificates,
    make_node_key,
)
from tacit.federated.flower.processes import (
    LOOPBACK,
    DeploymentError,
    ProcessTree,
    end_with_parent,
    free_port,
    listens,
    program,
    supernode_command,
)
from tacit.federated.flower.server_app import APP_LOCK_FILE, RESULT_FILE
from tacit.federated.folder_lock import is_locked
from tacit.files import read_json, toml_value

log = logging.getLogger("tacit.federated")

CONNECTION = "tacit"
_GRACE = 3.0


class Deployment:
    """The processes of one deployment, with their logs and Flower's own files below ``folder``.

    Everything listens on the loopback interface, or the server at ``address`` for nodes on other machines; that needs
    ``secure``. With it the processes speak TLS under the certificate authority in ``keys``, a fresh one if there is
    none, and the server admits only nodes whose keys it was given. Use as a context manager: leaving it stops every
    process that is still running.
    """

    def __init__(
        self, folder: str | Path, *, secure: bool = False, address: tuple[str, int] | None = None
    ) -> None:
        if address is not None and not secure:
            raise ArgumentError("A server for other machines needs TLS and keys.")
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.host, self.port = address or (LOOPBACK, free_port())
        self._secure = secure
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lost: set[str] = set()
        self._environment = {
            **os.environ,
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "OMP_NUM_THREADS": "1",
        }

    @property
    def result_file(self) -> Path:
        """Where the server writes its result once every round is done."""
        return self.folder / RESULT_FILE

    def start_server(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self._start(
            "superlink",
            [
                program("flower-superlink"),
                *self._server_security(),
                "--host",
                self.host,
                "--port",
                str(self.port),
                "--disable-runtime-dependency-installation",
                "--database",
                str(self.folder / "superlink.db"),
            ],
        )
        self._wait_for(lambda: listens(self.port, self.host), 60.0, "superlink")

    def start_node(self, number: int, client_folder: Path, budget: float) -> None:
        """Start the node of one client; a secure server is told its public key first."""
        self._start(
            f"node-{number}",
            [
                *(sys.executable, "-m", "tacit", "fed", "node"),
                *("--superlink", f"{LOOPBACK}:{self.port}", *self._node_security(number)),
                *("--folder", str(client_folder.resolve()), "--budget", repr(budget)),
            ],
        )

    def start_relay(self, number: int, config: Mapping[str, str]) -> None:
        """Start a plain SuperNode, which runs what the server sends; ``config`` is all that its apps are told."""
        security = self._node_security(number)
        if self._secure:
            security = [*security[:2], "--auth-supernode-private-key", security[3]]
        told = " ".join(f"{name}={toml_value(value)}" for name, value in config.items())
        self._start(
            f"node-{number}",
            [
                *(*supernode_command(), "--superlink", f"{LOOPBACK}:{self.port}", *security),
                *("--node-config", told, "--host", LOOPBACK, "--port", str(free_port())),
            ],
        )

    def submit(self, settings: RunSettings) -> None:
        """Submit the run; `wait` waits for its result."""
        check_count("nodes", settings.nodes)
        app, config = write_app(self.folder, settings)
        self.submit_app(app, "--run-config", str(config))

    def submit_app(self, app: Path, *options: str) -> None:
        """Submit a Flower app of any kind."""
        self._write_connection()
        self._start("run", [program("flwr"), "run", str(app), CONNECTION, "--stream", *options])

    def wait(self, seconds: float, needed: int = 1) -> None:
        """Return once the training has finished; raise if it stops early, takes longer, or a part of it ends.

        A node that ends is logged; with fewer than ``needed`` left no round can count, so that is an error.
        """
        deadline = time.monotonic() + seconds
        app_seen, gone_since = False, None
        while not self.result_file.exists():
            self._check_running("superlink")
            self._check_nodes(needed)
            app_runs = is_locked(self.folder / APP_LOCK_FILE)
            app_seen |= app_runs
            # The app may have ended well a moment ago; then its result is on the way.
            if (app_seen and not app_runs) or self._ended("run"):
                gone_since = gone_since or time.monotonic()
                if time.monotonic() > gone_since + _GRACE and not self.result_file.exists():
                    raise DeploymentError(
                        f"The server's app has ended without a result; see the logs in {self.folder}."
                    )
            if time.monotonic() > deadline:
                raise DeploymentError(f"No result after {seconds:g} seconds; see the logs in {self.folder}.")
            time.sleep(0.1)
        check_finished(self.result_file)

    def kill(self, name: str) -> None:
        """Kill a process and all its children, as a power cut would."""
        process = self._processes.pop(name, None)
        if process is None:
            raise ArgumentError(f"There is no process {name!r}; there are {', '.join(self._processes)}.")
        ProcessTree.of(process.pid).signal(signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        """Return what a process has printed so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop every process, politely first."""
        processes = list(self._processes.values())
        # Whose parent is gone cannot be found any more, so the trees are taken before the first signal.
        trees = [ProcessTree.of(process.pid) for process in processes]
        for tree in trees:
            tree.signal(signal.SIGTERM)
        deadline = time.monotonic() + 5.0
        while any(tree.runs() for tree in trees) and time.monotonic() < deadline:
            for process in processes:
                process.poll()
            time.sleep(0.05)
        for tree, process in zip(trees, processes, strict=True):
            ProcessTree.of(process.pid).signal(signal.SIGKILL)
            tree.signal(signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def _server_security(self) -> list[str]:
        if not self._secure:
            return ["--insecure"]
        make_certificates(self._keys)
        return [
            "--ssl-ca-certfile",
            str(self._keys / AUTHORITY_FILE),
            "--ssl-certfile",
            str(self._keys / SERVER_CERTIFICATE_FILE),
            "--ssl-keyfile",
            str(self._keys / SERVER_KEY_FILE),
            "--enable-supernode-auth",
        ]

    def _node_security(self, number: int) -> list[str]:
        if not self._secure:
            return ["--insecure"]
        key = self._keys / f"node-{number}.key"
        if not key.exists():
            public = make_node_key(key)
            try:
                self.register(public)
            except DeploymentError:
                key.unlink()
                raise
        return [
            "--root-certificates",
            str(self._keys / AUTHORITY_FILE),
            "--key",
            str(key),
        ]

    def register(self, public: Path) -> None:
        """Tell the server the public key of a node that it shall admit; one that it knows already is fine."""
        self._write_connection()
        done = subprocess.run(
            [program("flwr"), "supernode", "register", str(public), CONNECTION],
            capture_output=True,
            text=True,
            env=self._environment,
            cwd=self.folder,
            check=False,
        )
        said = f"{done.stdout} {done.stderr}".strip()
        if done.returncode and "already" not in said.lower():
            raise DeploymentError(f"The server did not take the key {public}: {said}")

    @property
    def _keys(self) -> Path:
        return self.folder / "keys"

    def _write_connection(self) -> None:
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        trust = (
            f"root-certificates = {toml_value(self._keys / AUTHORITY_FILE)}"
            if self._secure
            else "insecure = true"
        )
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{self.host}:{self.port}"\n{trust}\n'
        )

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def _ended(self, name: str) -> bool:
        process = self._processes.get(name)
        return process is None or process.poll() is not None

    def _check_running(self, name: str) -> None:
        if self._ended(name):
            raise DeploymentError(f"{name} has ended; see {self.folder / (name + '.log')}.")

    def _check_nodes(self, needed: int) -> None:
        nodes = [name for name in self._processes if name.startswith("node-")]
        for name in nodes:
            if self._ended(name) and name not in self._lost:
                self._lost.add(name)
                log.warning("%s has ended; see %s", name, self.folder / f"{name}.log")
        if nodes and len(nodes) - len(self._lost & set(nodes)) < needed:
            raise DeploymentError(
                f"Of {len(nodes)} nodes {len(self._lost)} have ended, and a round needs {needed} answers; "
                f"see the logs in {self.folder}."
            )

    def _wait_for(self, ready: Any, seconds: float, needed: str) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            self._check_running(needed)
            if time.monotonic() > deadline:
                raise DeploymentError(f"Nothing after {seconds:g} seconds; see the logs in {self.folder}.")
            time.sleep(0.1)


def check_finished(result_file: Path) -> None:
    """Raise, with the reason, unless the training that wrote ``result_file`` has finished."""
    if not result_file.exists():
        raise DeploymentError("The training has ended without a result; its log says why.")
    result = read_json(result_file)
    if not result["finished"]:
        raise DeploymentError(f"The training stopped early. {result['stopped because']}")
