"""The same apps in Flower's simulation engine (Ray): virtual nodes in one machine's processes."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from tacit.federated.client import LocalClient
from tacit.federated.dataset import FederatedData
from tacit.federated.flower.client_app import make_app
from tacit.federated.flower.loopback import Outcome, outcome, prepare_clients
from tacit.federated.flower.settings import RunSettings


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
