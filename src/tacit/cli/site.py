"""``tacit site``: one site of a federated training, with its own records, ledger and budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import options
from tacit.cli.options import Settings
from tacit.cli.output import console, examples, print_figures, print_json
from tacit.errors import ArgumentError, FileError
from tacit.sites.options import Training, training_of
from tacit.units import ROWS_PER_UNIT

app = typer.Typer(
    help="One site of a federated training: its records stay with it, and it adds its own noise.",
    no_args_is_help=True,
)

INIT_EXAMPLE = examples(
    "tacit site init --csv patients.csv --terms training.toml --unit patient_id --budget 3 --out hospital",
    "tacit site init --csv patients.csv --schema schema.toml --budget 1 --rounds 50 --out hospital",
)


@app.command(epilog=INIT_EXAMPLE)
@options.job_options(options.offer_of("training", Training))
def init(
    settings: Settings,
    csv: Annotated[Path, typer.Option("--csv", help="The site's own records: CSV, Parquet or Excel.")],
    budget: Annotated[
        float, typer.Option("--budget", help="ε that the site spends on this training, at most.")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the site, to be made; only its owner can enter.")
    ],
    terms_file: Annotated[
        Path | None, typer.Option("--terms", help="The terms of the training, as tacit fed init wrote them.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="Public schema of the records, where there are no terms yet."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Column to predict; must be the target of the schema.")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="Column that says whose record it is. (default: every record is a unit)"),
    ] = None,
    rows_per_unit: Annotated[
        int, typer.Option("--rows-per-unit", help="Records of one unit that take part in a round, at most.")
    ] = ROWS_PER_UNIT,
    delta: Annotated[
        float | None, typer.Option("--delta", help="δ of the site. (default: 1e-5, or less for many records)")
    ] = None,
    witness: options.WitnessFile = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Key of tacit site key, for a secure sum; it moves into the folder."),
    ] = None,
) -> None:
    """Make the folder of a site: records by the public schema, a plan for all rounds, an empty ledger."""
    from tacit.data.records import read_records
    from tacit.federated.own_records import read_own_records
    from tacit.sites.local_vault import create_local_site
    from tacit.sites.terms import read_terms, terms_of
    from tacit.sites.vault import Site, create_site

    given = {name: value for name, value in settings["training"].items() if value is not None}
    if (terms_file is None) == (schema is None):
        raise ArgumentError("Give the terms of the training with --terms, or a schema with --schema.")
    if terms_file is not None and given:
        raise ArgumentError(
            f"The terms decide about {', '.join(given)}; leave {'them' if len(given) > 1 else 'it'} out."
        )
    terms = (
        read_terms(terms_file) if terms_file is not None else terms_of(training_of(given), schema or Path())
    )
    if target not in (None, terms.schema.target.name):
        raise ArgumentError(f"The target of the schema is {terms.schema.target.name!r}, not {target!r}.")
    site = Site(unit, rows_per_unit, None if witness is None else str(witness.absolute()))
    if terms.local is not None:
        if key is not None or delta is not None:
            raise ArgumentError("A local site has no key and no δ; leave them out.")
        rows = read_own_records(csv, terms.schema)
        create_local_site(out, terms, rows, site, epsilon=budget, source=str(csv))
        console().print(
            f"{out}: {len(rows):,} records as one client, {terms.training.rounds} rounds, ε = "
            f"{terms.local.epsilon:g} for all of them together."
        )
        console().print(f"Terms {terms.digest[:16]}. Next: tacit site serve {out}")
        return
    records = read_records(csv, terms.schema, unit)
    plan = create_site(out, terms, records, site, epsilon=budget, delta=delta, source=str(csv), key=key)
    (phase,) = plan.phases
    console().print(
        f"{out}: {plan.examples:,} {plan.counted}, {terms.training.rounds} rounds of about {plan.batch_size:,} and "
        f"{terms.training.spare} spare answers, noise multiplier "
        f"{phase.noise_multiplier:.4g}, ε = {plan.epsilon:g} at δ = {plan.delta:g} for all of them together."
    )
    if terms.sum is not None:
        over = f"{plan.fewest} or more of {plan.sites} sites" if plan.fewest else f"all {plan.sites} sites"
        console().print(
            f"Only sums over {over} can be read; their noise is counted for {plan.honest} of them. Ask "
            "each of the others, not the coordinator, whether this is its key:"
        )
        for name, public in terms.members.items():
            console().print(f"  {name} {public}", soft_wrap=True)
    console().print(f"Terms {terms.digest[:16]}. Next: tacit site serve {out}")


@app.command(epilog=examples("tacit site key north.key"))
def key(
    file: Annotated[Path, typer.Argument(help="Where the private key goes.", show_default=False)],
) -> None:
    """Make the key of a site for a secure sum, and print its public part, which the coordinator needs.

    A key serves one training: tacit site init moves it into the folder of the site.
    """
    from tacit.sites.masks import make_key

    print(make_key(file))


@app.command(epilog=examples("tacit site serve hospital --socket /run/tacit/hospital.sock --group relay"))
def serve(
    folder: Annotated[Path, typer.Argument(help="Folder of the site.", show_default=False)],
    socket: Annotated[
        Path | None, typer.Option("--socket", help="Where to listen. (default: FOLDER.sock)")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="Group that may connect, besides the user that runs this."),
    ] = None,
) -> None:
    """Run the vault: answer questions at a local socket until the budget is spent, and certify at the end.

    Run it as a user whose files nobody else reads; the relay, which runs what a server sends, as another.
    """
    import grp
    import logging

    from tacit.sites.serving import default_socket, serve

    number = None
    if group is not None:
        try:
            number = grp.getgrnam(group).gr_gid
        except KeyError as error:
            raise ArgumentError(f"There is no group {group!r} on this machine.") from error
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    folder = folder.absolute()
    serve(folder, (socket or default_socket(folder)).absolute(), number)


@app.command(name="relay-key", epilog=examples("tacit site relay-key relay.key"))
def relay_key(
    file: Annotated[Path, typer.Argument(help="Where the private key goes.", show_default=False)],
) -> None:
    """Make the key by which the coordinator's server knows the relay of a site; FILE.pub is for the coordinator."""
    from tacit.federated.flower.certificates import make_node_key

    if file.exists():
        raise FileError(f"{file} already exists; choose another place.")
    console().print(f"Made: {file}. Send {make_node_key(file)} to the coordinator.")


RELAY_EXAMPLE = examples(
    "tacit site relay --superlink 10.0.0.1:9092 --site north --socket /run/tacit/north.sock --root-certificates ca.crt "
    "--key relay.key"
)


@app.command(epilog=RELAY_EXAMPLE)
def relay(
    superlink: Annotated[str, typer.Option("--superlink", help="The coordinator's server, as HOST:PORT.")],
    site: Annotated[str, typer.Option("--site", help="Name of the site.")],
    socket: Annotated[Path, typer.Option("--socket", help="Socket of the vault.")],
    root_certificates: Annotated[
        Path | None, typer.Option("--root-certificates", help="ca.crt of the coordinator.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Private key of tacit site relay-key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS: for a server on this machine only.")
    ] = False,
) -> None:
    """Run the relay of a site: a Flower SuperNode, which runs what the server sends and reaches the socket.

    It waits for the server, also for one that does not know its key yet, and serves until it is stopped. Run it as
    another user than the vault, one that cannot enter the vault's folder.
    """
    try:
        from tacit.federated.flower.processes import stop_on_signals
        from tacit.sites.flower.deploy import keep_relaying, relay_command
    except ImportError as error:
        raise ArgumentError("A relay needs Flower: run pip install 'tacit-dp[federated]'.") from error
    command = relay_command(superlink, site, socket.absolute(), root_certificates, key, insecure)
    stop_on_signals()
    keep_relaying(command)


@app.command(epilog=examples("tacit site status hospital"))
def status(
    folder: Annotated[Path, typer.Argument(help="Folder of the site.", show_default=False)],
    as_json: options.AsJson = False,
) -> None:
    """What a site has spent, and what is left; also while its vault runs."""
    from tacit.sites.state import site_state

    if not folder.is_dir():
        raise FileError(f"There is no folder {folder}.")
    state = site_state(folder)
    if as_json:
        print_json(state)
        return
    print_figures(
        f"Site {folder}",
        [
            ("training", f"{state['training']}, terms {state['terms'][:16]}"),
            ("unit", state["unit"]),
            (state["counted"], f"{state['count']:,}"),
            ("answers charged", f"{state['charged']} of {state['answers']}"),
            ("ε spent", f"{state['epsilon_spent']:.4g} of {state['epsilon']:g}, δ = {state['delta']:g}"),
            ("certificate", state["certificate"]),
        ],
    )
