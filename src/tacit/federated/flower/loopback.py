"""A whole federation on this machine: real processes on loopback, or Flower's simulation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from tacit.errors import ArgumentError, check_count
from tacit.federated.client import LEDGER_FILE, RECORDS_FILE, LocalClient, write_records
from tacit.federated.data import FederatedData
from tacit.federated.flower.bundle import RunSettings
from tacit.federated.flower.client_app import make_app
from tacit.federated.flower.deploy import Deployment
from tacit.federated.flower.server_app import CHECKPOINT_FILE
from tacit.federated.local_ledger import LocalLedger
from tacit.federated.models import linear_model
from tacit.federated.server import Aggregator, Training


@dataclass(frozen=True)
class Outcome:
    """What a training on one machine came to: test accuracy, and what each client gave and spent."""

    accuracy: float
    rounds: int
    answers: tuple[int, ...]
    spent: tuple[float, ...]


def client_folders(folder: Path, nodes: int) -> list[Path]:
    """Return the folder of each client."""
    return [folder / f"client-{number}" for number in range(nodes)]


def prepare_clients(folder: Path, clients: FederatedData, nodes: int) -> list[Path]:
    """Give each node its share of the records, unless it has records already; return the clients' folders."""
    check_count("nodes", nodes)
    if len(clients) < nodes:
        raise ArgumentError(
            f"{clients.name} has {len(clients)} records; {nodes} nodes need at least one each."
        )
    folders = client_folders(folder, nodes)
    for number, client in enumerate(folders):
        client.mkdir(parents=True, exist_ok=True)
        if not (client / RECORDS_FILE).exists():
            share = FederatedData(clients.name, clients.x[number::nodes], clients.y[number::nodes])
            write_records(client / RECORDS_FILE, share)
    return folders


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
    folders = prepare_clients(folder, clients, settings.nodes)
    with Deployment(folder / "server", secure=secure) as deployment:
        deployment.result_file.unlink(missing_ok=True)
        deployment.start_server()
        for number, client in enumerate(folders):
            deployment.start_node(number, client, budget)
        deployment.submit(settings)
        deployment.wait(seconds)
    return outcome(folder, settings, test)


def outcome(folder: Path, settings: RunSettings, test: FederatedData) -> Outcome:
    """Read the checkpoint and the ledgers that a training has left."""
    question = settings.question
    training = Training(question, settings.learning_rate, settings.batch)
    state = Aggregator(training, folder / "server" / CHECKPOINT_FILE)
    predicted = linear_model(question.model, question.d, question.l2).predict(state.weights, test.x)
    answers, spent = [], []
    for client in client_folders(folder, settings.nodes):
        with LocalLedger(client / LEDGER_FILE) as ledger:
            answers.append(sum(charge.training == question.training for charge in ledger.charges))
            spent.append(ledger.spent)
    return Outcome(float(np.mean(predicted == test.y)), state.finished, tuple(answers), tuple(spent))


def run_in_simulation(
    folder: Path, settings: RunSettings, clients: FederatedData, test: FederatedData, budget: float
) -> Outcome:
    """Run the training on virtual nodes; clients keep files and ledgers as real ones do."""
    folder = folder.resolve()
    folders = prepare_clients(folder, clients, settings.nodes)
    server = folder / "server"
    server.mkdir(exist_ok=True)
    config = settings.run_config(server)

    def client_of_partition(context: Context) -> LocalClient:
        return LocalClient(folders[int(context.node_config["partition-id"])], budget)

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from tacit.federated.flower.server_app import run_training

        run_training(grid, config)

    run_simulation(
        app,
        make_app(client_of_partition),
        num_supernodes=settings.nodes,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return outcome(folder, settings, test)
