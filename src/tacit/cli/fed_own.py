"""``tacit fed client`` and ``tacit fed app``: local clients with their own records, on their own machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.fed_local import L2, NEEDS_FLOWER
from tacit.cli.output import console, examples
from tacit.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from tacit.data import Schema

CLIENT_EXAMPLE = examples("tacit fed client --csv mine.csv --schema schema.toml --out CLIENT")
APP_EXAMPLE = examples("tacit fed app study --schema schema.toml --nodes 200 --rounds 20 --epsilon 4")
FEATURES_FILE, RUN_FILE = "features.txt", "run.toml"


def client(
    csv: Annotated[Path, typer.Option("--csv", help="The client's own records: CSV, Parquet or Excel.")],
    schema: Annotated[
        Path, typer.Option("--schema", help="Public schema of the records, the same file for every client.")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the client, to be made; only its owner can enter.")
    ],
    target: Annotated[
        str | None, typer.Option("--target", help="Column to predict; must be the target of the schema.")
    ] = None,
) -> None:
    """Make the folder of a local client from its own records, coded by the public schema alone.

    The target has two classes. tacit fed node then answers for the folder.
    """
    from tacit.federated.own_records import make_client, read_client_schema, read_own_records
    from tacit.sites.reserving import note_budget

    agreed = read_client_schema(schema, target)
    records = read_own_records(csv, agreed)
    make_client(out, records, agreed)
    budget = note_budget(out, str(csv))
    console().print(f"{out}: {len(records):,} records. {_facts(agreed)}")
    if budget is not None:
        console().print(
            f"tacit fed node will reserve its --budget from the budget {budget!r} of these records."
        )
    console().print("The coordinator must have the same d and schema.")
    console().print(
        f"Next: tacit fed node --folder {out} --budget EPSILON --superlink HOST:PORT", soft_wrap=True
    )


def app(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the coordinator, to be made.", show_default=False)
    ],
    schema: Annotated[Path, typer.Option("--schema", help="Public schema of the records of all clients.")],
    nodes: Annotated[int, typer.Option("--nodes", help="Clients that are expected.")],
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds; all clients answer in each.")] = 20,
    epsilon: Annotated[float, typer.Option("--epsilon", help="ε of a client over all rounds.")] = 20.0,
    solution: Annotated[str, typer.Option("--solution", help="vector or two-stage.")] = "vector",
    model: Annotated[str, typer.Option("--model", help="logistic or svm.")] = "logistic",
    training: Annotated[str, typer.Option("--training", help="Name of the training.")] = "fedsel",
) -> None:
    """Write the Flower app and run.toml of a local training with clients on other machines.

    run.toml has all other settings of tacit fed run --guarantee local, to be edited.
    """
    try:
        from tacit.federated.flower.bundle import RunSettings, write_app
    except ImportError as error:
        raise ArgumentError(NEEDS_FLOWER) from error
    from tacit.errors import check_count
    from tacit.federated.own_records import feature_names, read_client_schema
    from tacit.federated.protocol import Question, read_question
    from tacit.federated.server import default_rate
    from tacit.files import write_text

    agreed = read_client_schema(schema)
    names = feature_names(agreed)
    check_count("nodes", nodes)
    question = Question(
        *(training, 1, rounds, len(names), model, L2, "ps", "pm", epsilon, 0.1, 0.1, 0.1),
        solution=solution,
        clip_norm=0.3,
    )
    read_question(vars(question))  # refuses here what a client would refuse
    if (folder / RUN_FILE).exists():
        raise FileError(f"{folder / RUN_FILE} already exists; choose another folder.")
    place, config = write_app(folder, RunSettings(question, default_rate(solution), nodes, nodes))
    write_text(folder / FEATURES_FILE, "".join(f"{name}\n" for name in names))
    console().print(f"{_facts(agreed)} Each client prints the same two with tacit fed client.")
    console().print(f"The weights belong to the lines of {folder / FEATURES_FILE}, in this order.")
    console().print(f"Next: flwr run {place} CONNECTION --run-config {config} --stream", soft_wrap=True)


def refuse_budget(data: str, why: str) -> None:
    """Refuse what the budget of the data, where it has one, cannot count."""
    from tacit.jobs.budget import find_budget

    found = find_budget(data)
    if found is not None:
        raise ArgumentError(f"{data} has the budget {found.name!r}, which cannot count this: {why}.")


def _facts(schema: Schema) -> str:
    from tacit.data.records import schema_digest
    from tacit.federated.own_records import feature_names

    return f"d = {len(feature_names(schema))}, intercept included; schema {schema_digest(schema)[:16]}."
