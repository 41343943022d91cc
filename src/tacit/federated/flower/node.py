"""A node that runs the installed client and nothing that a server sends.

A plain SuperNode unpacks the app that the server sends and runs it with the rights of its user: whoever controls
the server then reads the client's records. Here Flower's SuperNode only carries messages (``--isolation process``:
it starts no app), and this process takes each message from it, compares the digest of the app that came along with
the one that it knows, and answers with the code of the installed package. Flower reads the configuration in the
app; nothing in it is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import secrets
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from tacit.errors import ArgumentError, FileError, TacitError
from tacit.federated.accounts import certify
from tacit.federated.client import LOCK_FILE, RECORDS_FILE, LocalClient
from tacit.federated.flower.bundle import bundle_digest
from tacit.federated.flower.client_app import FAILED, make_app
from tacit.federated.flower.logs import show_log
from tacit.federated.flower.processes import (
    LOOPBACK,
    DeploymentError,
    end_with_parent,
    free_port,
    supernode_command,
)
from tacit.federated.folder_lock import FolderLock
from tacit.files import write_bytes

log = logging.getLogger("tacit.federated")

WRONG_APP = 103

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_SECONDS_BETWEEN_TASKS = 0.2
_TRIES = 5
_SECONDS_TO_END = 5.0


@dataclass(frozen=True)
class Connection:
    """How to reach the server; without ``insecure`` by TLS, with the system's certificates by default."""

    superlink: str
    root_certificates: Path | None = None
    key: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.insecure and (self.root_certificates or self.key):
            raise ArgumentError("An insecure connection has no certificates and no key; leave them out.")
        if self.insecure and not _is_loopback(self.superlink):
            raise ArgumentError(
                f"{self.superlink} is not on this machine; connect to it with TLS, without --insecure."
            )

    def arguments(self) -> list[str]:
        """Return this as arguments of ``flower-supernode``."""
        result = ["--superlink", self.superlink]
        if self.insecure:
            result.append("--insecure")
        if self.root_certificates is not None:
            result += ["--root-certificates", str(self.root_certificates)]
        if self.key is not None:
            result += ["--auth-supernode-private-key", str(self.key)]
        return result


def run_node(client: LocalClient, connection: Connection) -> None:
    """Answer for ``client`` until the process is told to stop or its SuperNode ends."""
    if not (client.folder / RECORDS_FILE).is_file():
        raise FileError(f"The client has no records: {client.folder / RECORDS_FILE} is not there.")
    show_log()
    port = free_port()
    with (
        FolderLock(client.folder / LOCK_FILE, "The client's folder"),
        tempfile.TemporaryDirectory(prefix="tacit-node-") as folder,
    ):
        secret = secrets.token_bytes(32)
        secret_file = Path(folder) / "secret"
        write_bytes(secret_file, secret, mode=0o600)
        supernode = subprocess.Popen(
            [
                *supernode_command(),
                *connection.arguments(),
                *("--isolation", "process", "--host", LOOPBACK, "--port", str(port)),
                *("--superexec-auth-secret-file", str(secret_file)),
            ],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"},
            preexec_fn=end_with_parent,
        )
        try:
            _serve(make_app(lambda _: client), f"{LOOPBACK}:{port}", secret, supernode)
        finally:
            supernode.terminate()
            try:
                supernode.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                supernode.kill()
                supernode.wait()
            _certify(client)


def _certify(client: LocalClient) -> None:
    try:
        certify(client.folder, client.budget)
    except (TacitError, OSError) as error:
        log.error("the certificate was not written: %s", error)


def answer(app: ClientApp, bundle: bytes, message: Message, context: Context) -> Message:
    """Return the reply of ``app``, or an error without content if the message came with another ``bundle``."""
    if hashlib.sha256(bundle).hexdigest() != bundle_digest():
        log.warning("refused: the server sent another app; it was not run")
        reason = f"This node runs the installed Tacit only, bundle {bundle_digest()}; another one was sent."
        return Message(Error(WRONG_APP, reason), reply_to=message)
    try:
        return app(message, context)
    except Exception as error:
        # The guard of the app turns every failure of an answer into an error; what is left is a message that is
        # none for the app. The text of an exception may quote private values, so it stays here.
        log.error("failed with %s; nothing was sent", type(error).__name__)
        return Message(Error(FAILED, "The client failed; nothing was sent."), reply_to=message)


def _serve(app: ClientApp, address: str, secret: bytes, supernode: subprocess.Popen[bytes]) -> None:
    sign = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE})
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    client = RuntimeHttpClient.from_server_address(
        server_address=address, insecure=True, root_certificates=None, interceptors=[version, sign]
    )
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while supernode.poll() is None:
        try:
            given = client.AcquireTask(request)
        except httpx.TransportError:
            time.sleep(_SECONDS_BETWEEN_TASKS)  # the SuperNode does not listen yet, or ends
            continue
        if given.HasField("task") and given.token:
            try:
                _do_task(app, address, given.token)
            except Exception as error:
                log.error("a message got no reply: %s", type(error).__name__)
        else:
            time.sleep(_SECONDS_BETWEEN_TASKS)
    raise DeploymentError(f"The SuperNode has ended with code {supernode.returncode}; its log says why.")


def _do_task(app: ClientApp, address: str, token: str) -> None:
    retry = make_simple_http_retry_invoker()
    retry.max_tries = _TRIES
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(token),
        ],
        retry_invoker=retry,
    )
    done = SubStatus.FAILED
    try:
        message, context, _, bundle = pull_task_input(client)
        push_message(client, answer(app, bundle.content, message, context), context)
        done = SubStatus.COMPLETED
    finally:
        push_task_output(client, None, done, "")
        client.close()


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
