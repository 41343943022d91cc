"""A whole federation on this machine: real processes on loopback, or virtual nodes in this one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import Context

from tacit.errors import ArgumentError, check_count, check_non_negative
from tacit.federated.accounts import certify
from tacit.federated.client import LEDGER_FILE, RECORDS_FILE, LocalClient, read_records, write_records
from tacit.federated.data import FederatedData
from tacit.federated.flower.bundle import RunSettings
from tacit.federated.flower.client_app import make_app
from tacit.federated.flower.deploy import Deployment, check_finished
from tacit.federated.flower.server_app import CHECKPOINT_FILE, RESULT_FILE, run_training
from tacit.federated.flower.virtual import AT_ONCE, VirtualNodes
from tacit.federated.folder_lock import FolderLock
from tacit.federated.local_ledger import LocalLedger
from tacit.federated.models import linear_model
from tacit.federated.scores import Judgement, judge
from tacit.federated.server import Aggregator, Training, trained

RUN_LOCK_FILE = "run.lock"


@dataclass(frozen=True)
class Outcome:
    """What a training on one machine came to: how good the model is, and what each client gave and spent.

    ``answers`` are those that each client has paid for, ``used`` those that moved the model.
    """

    quality: Judgement
    rounds: int
    used: int
    answers: tuple[int, ...]
    spent: tuple[float, ...]


def server_folder(folder: Path, settings: RunSettings) -> Path:
    """Where the server of a training keeps its files: each training that extends another has a folder of its own."""
    return folder / ("server" if settings.start is None else f"server-{settings.question.training}")


def trainings(folder: Path) -> dict[str, Path]:
    """The checkpoints of the trainings that the clients in ``folder`` have taken part in, by name."""
    found = [place / CHECKPOINT_FILE for place in sorted(folder.glob("server*"))]
    return {trained(path).training: path for path in found if path.is_file()}


def client_folders(folder: Path, nodes: int) -> list[Path]:
    """Return the folder of each client."""
    return [_client_folder(folder, number) for number in range(nodes)]


def _client_folder(folder: Path, number: int) -> Path:
    return folder / f"client-{number}"


def prepare_clients(folder: Path, clients: FederatedData, nodes: int) -> list[Path]:
    """Give each node its share of the records, unless it has them already; return the clients' folders.

    Records of another data set, split or number of nodes are refused: some of them would be among the test records.
    """
    check_count("nodes", nodes)
    if len(clients) < nodes:
        raise ArgumentError(
            f"{clients.name} has {len(clients)} records; {nodes} nodes need at least one each."
        )
    folders = client_folders(folder, nodes)
    for number, client in enumerate(folders):
        client.mkdir(parents=True, exist_ok=True, mode=0o700)
        share = FederatedData(clients.name, clients.x[number::nodes], clients.y[number::nodes])
        if not (client / RECORDS_FILE).exists():
            write_records(client / RECORDS_FILE, share)
        elif not _same_records(read_records(client / RECORDS_FILE), share):
            raise ArgumentError(
                f"{client} has other records than this training gives it: another data set, seed or number of nodes. "
                "Use the same as before, or another folder."
            )
    return folders


def _same_records(one: FederatedData, other: FederatedData) -> bool:
    return np.array_equal(one.y, other.y) and np.array_equal(one.x, np.asarray(other.x, np.float32))


def check_budget(settings: RunSettings, budget: float) -> None:
    """Refuse a budget that covers not even one answer, before anything starts."""
    check_non_negative("budget", budget)
    cost = settings.question.plan().answer_epsilon()
    if budget < cost * (1 - 1e-12):
        raise ArgumentError(
            f"An answer costs ε = {cost:.6g}; with a budget of {budget:g} no client gives one."
        )


def run_on_loopback(
    folder: Path,
    settings: RunSettings,
    clients: FederatedData,
    test: FederatedData,
    budget: float,
    seconds: float,
    *,
    secure: bool = False,
) -> Outcome:
    """Start a SuperLink and ``settings.nodes`` SuperNodes, run the training to its end, and stop everything.

    Called again with the same folder and settings, it continues where it was interrupted.
    """
    check_budget(settings, budget)
    with (
        FolderLock(folder / RUN_LOCK_FILE, "The run's folder"),
        Deployment(server_folder(folder, settings), secure=secure) as deployment,
    ):
        folders = prepare_clients(folder, clients, settings.nodes)
        _state(folder, settings)  # refuses the checkpoint of another training before its result is deleted
        deployment.result_file.unlink(missing_ok=True)
        deployment.start_server()
        for number, client in enumerate(folders):
            deployment.start_node(number, client, budget)
        deployment.submit(settings)
        deployment.wait(seconds, settings.needed)
    return outcome(folder, settings, test)


def outcome(folder: Path, settings: RunSettings, test: FederatedData) -> Outcome:
    """Read the checkpoint and the ledgers that a training has left."""
    question, state = settings.question, _state(folder, settings)
    margins = linear_model(question.model, question.d, question.l2).margins(state.weights, test.x)
    answers, spent = [], []
    for client in client_folders(folder, settings.nodes):
        with LocalLedger(client / LEDGER_FILE) as ledger:
            answers.append(sum(charge.training == question.training for charge in ledger.charges))
            spent.append(ledger.spent)
    return Outcome(judge(margins, test.y), state.finished, state.accepted, tuple(answers), tuple(spent))


def _state(folder: Path, settings: RunSettings) -> Aggregator:
    training = Training(settings.question, settings.learning_rate, settings.batch, settings.needed)
    return Aggregator(training, server_folder(folder, settings) / CHECKPOINT_FILE, settings.start)


def run_in_simulation(
    folder: Path, settings: RunSettings, clients: FederatedData, test: FederatedData, budget: float
) -> Outcome:
    """Run the training on virtual nodes; clients keep files and ledgers as real ones do."""
    check_budget(settings, budget)
    folder = folder.resolve()
    server = server_folder(folder, settings)
    server.mkdir(parents=True, exist_ok=True)
    config = settings.run_config(server)

    def client_of(context: Context) -> LocalClient:
        return LocalClient(_client_folder(folder, int(context.node_config["partition-id"])), budget)

    with FolderLock(folder / RUN_LOCK_FILE, "The run's folder"):
        prepare_clients(folder, clients, settings.nodes)
        _state(folder, settings)
        (server / RESULT_FILE).unlink(missing_ok=True)
        run_training(VirtualNodes(make_app(client_of), settings.nodes), config)
        check_finished(server / RESULT_FILE)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(partial(certify, budget=budget), client_folders(folder, settings.nodes)))
        return outcome(folder, settings, test)
