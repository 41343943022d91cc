"""``tacit fed init``, ``run`` and ``status`` for sites that keep their records and add their own noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from tacit.cli import fed_local, options
from tacit.cli.options import Settings
from tacit.cli.output import console, examples, print_json
from tacit.errors import ArgumentError, FileError
from tacit.files import read_json
from tacit.sites.options import Local, Training, training_of

if TYPE_CHECKING:
    from tacit.sites.coordinator import Facts, Progress
    from tacit.sites.local_coordinator import LocalFacts

INIT_EXAMPLE = examples(
    "tacit fed init study --schema schema.toml --model additive --rounds 100",
    "tacit fed init more --extend study --rounds 50",
    "tacit fed init study --schema schema.toml --member north=KEY --member south=KEY --member west=KEY --epsilon 1",
)
_NO_FLOWER = "Relays need Flower: run pip install 'tacit-dp[federated]'."
_SHOWN = 20
"""How often ε is computed over a run that is shown."""


@options.job_options(options.offer_of("training", Training))
def init(
    settings: Settings,
    folder: Annotated[
        Path, typer.Argument(help="Folder of the coordinator, to be made.", show_default=False)
    ],
    schema: Annotated[
        Path | None, typer.Option("--schema", help="Public schema of the records of all sites.")
    ] = None,
    extend: Annotated[
        Path | None,
        typer.Option(
            "--extend", help="Go on where this training has ended or was left, with its schema and options."
        ),
    ] = None,
    member: Annotated[
        list[str] | None,
        typer.Option(
            "--member",
            help="Secure sum: a site and its public key, as NAME=KEY; repeatable. Only the sum over all can be read.",
        ),
    ] = None,
    local: Annotated[
        bool,
        typer.Option("--local", help="Local privacy: every site is one client, with all its records as one."),
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(
            "--epsilon", help="Secure sum: ε of every record over all rounds; local: of every site."
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Secure sum: δ. (default: 1e-5)")] = None,
    honest: Annotated[
        int | None,
        typer.Option("--honest", help="Secure sum: sites whose noise counts. (default: all but one)"),
    ] = None,
    fewest: Annotated[
        int | None,
        typer.Option(
            "--fewest",
            help="Secure sum: members that a sum takes; a round goes on without the others. (default: all)",
        ),
    ] = None,
) -> None:
    """Write the terms of a training: one public file, which every site needs for tacit site init.

    With members it is a secure sum: sites share the noise, and nobody can read the answer of one of them. With --local
    a site protects all its records as one, with pure ε. A training
    that extends another starts at its weights; for sites it is a new one, with a folder and a budget of its own.
    """
    from tacit.sites.terms import TERMS_FILE, extended, read_terms, terms_of
    from tacit.sites.vault import secure_sum_of

    if (schema is None) == (extend is None):
        raise ArgumentError("Say --schema, or --extend with an earlier training, which has one.")
    given = {name: value for name, value in settings["training"].items() if value is not None}
    before = {} if extend is None else asdict(read_terms(extend / TERMS_FILE).training)
    training, sums = (
        training_of({**({"model": "logistic", "clip_norm": 0.3} if local else {}), **before, **given}),
        None,
    )
    if member:
        if epsilon is None:
            raise ArgumentError("Say --epsilon: the noise of a secure sum is part of its terms.")
        keys = tuple(_pairs(member, "--member names a site and its public key once, as in north=KEY"))
        sums = secure_sum_of(training, keys, epsilon, 1e-5 if delta is None else delta, honest, fewest)
    elif any(value is not None for value in (None if local else epsilon, delta, honest, fewest)):
        raise ArgumentError(
            "--epsilon, --delta, --honest and --fewest are for a secure sum (--member); without one every site says "
            "its own."
        )
    if local and (epsilon is None or member or extend is not None):
        raise ArgumentError("A local training needs --epsilon, and has no --member and no --extend.")
    terms = (
        extended(extend, training, sums)
        if extend is not None
        else terms_of(
            training, schema or Path(), sums, Local(epsilon) if local and epsilon is not None else None
        )
    )
    path = folder / TERMS_FILE
    if path.exists():
        raise FileError(f"{path} already exists; choose another folder.")
    terms.build_model()  # refuses what cannot be trained before anybody is told
    terms.write(path)
    console().print(
        f"Terms {terms.digest[:16]}: {path}. Send this file to every site: tacit site init --terms {path.name}"
    )


def status(
    folder: Annotated[Path, typer.Argument(help="Folder of the coordinator.", show_default=False)],
    as_json: options.AsJson = False,
) -> None:
    """Show how far a training has got, and what each site or client has spent."""
    if not (folder / "training.toml").exists() and any(folder.glob("server*")):
        fed_local.status(folder, as_json)
        return
    from tacit.federated.server import rounds_done
    from tacit.runs.layout import CHECKPOINT_FILE, RESULT_FILE
    from tacit.runs.tensor_file import read_tensor_file
    from tacit.sites.terms import TERMS_FILE, read_terms

    terms = read_terms(folder / TERMS_FILE)
    checkpoint, result = folder / CHECKPOINT_FILE, folder / RESULT_FILE
    done = 0
    if checkpoint.exists():
        local = terms.local is not None
        done = rounds_done(checkpoint) if local else read_tensor_file(checkpoint).numbers["round"]
    summary: dict[str, Any] = read_json(result) if result.exists() else {}
    state = {
        "training": terms.training.name,
        "terms": terms.digest,
        "round": done,
        "rounds": terms.training.rounds,
        "finished": summary.get("finished", False),
        "stopped because": summary.get("stopped because"),
        "sites": summary.get("sites", {}),
    }
    if as_json:
        print_json(state)
        return
    word = "finished" if state["finished"] else state["stopped because"] or "not finished"
    console().print(
        f"{terms.training.name}, terms {terms.digest[:16]}: round {done} of {terms.training.rounds}, {word}"
    )
    if state["sites"]:
        console().print(_sites_table(state["sites"]))


def keys(
    folder: Annotated[Path, typer.Argument(help="Folder of the coordinator.", show_default=False)],
    host: Annotated[
        list[str],
        typer.Option("--host", help="Name or address by which sites reach the coordinator; repeatable."),
    ],
    days: Annotated[int, typer.Option("--days", help="How long the certificate is good for.")] = 365,
) -> None:
    """Make the certificates of the coordinator's server: sites need ca.crt, and nobody else the rest."""
    from tacit.federated.flower.certificates import AUTHORITY_FILE, SERVER_KEY_FILE, make_certificates

    place = folder / "keys"
    if (place / SERVER_KEY_FILE).exists():
        raise FileError(f"{place} already has certificates; delete it to make new ones.")
    if days < 1:
        raise ArgumentError(f"--days must be at least 1, got {days}.")
    make_certificates(place, host, days)
    console().print(f"Made: {place}. Send {place / AUTHORITY_FILE} to every site, with the terms.")


def stop(
    folder: Annotated[Path, typer.Argument(help="Folder of a training.", show_default=False)],
    seconds: Annotated[float, typer.Option("--seconds", help="How long to wait for its end.")] = 60.0,
) -> None:
    """Stop the training that runs in a folder on this machine; the same tacit fed run goes on with it later.

    Vaults at sites are not stopped: without questions they spend nothing.
    """
    from tacit.federated.folder_lock import stop_holder
    from tacit.sites.one_machine import LOCK_FILE

    if not folder.is_dir():
        raise FileError(f"There is no folder {folder}.")
    stopped = stop_holder(folder / LOCK_FILE, seconds)
    console().print(f"{folder}: {'stopped' if stopped else 'nothing runs here'}.")


def run_with_sites(
    folder: Path,
    sites: Sequence[str],
    *,
    quorum: int | None,
    learning_rate: float | None,
    seconds: float,
    test: Path | None,
    flower: bool,
    timeout: float,
    secure: bool,
    listen: str | None,
    relays: Sequence[str],
) -> None:
    """Run the training in ``folder`` with vaults that listen at the sockets that ``sites`` name.

    With ``flower`` questions travel through real Flower processes on the loopback interface, with ``listen`` to
    ``relays`` on other machines.
    """
    from tacit.data.records import read_records
    from tacit.federated.flower.processes import stop_on_signals
    from tacit.federated.folder_lock import FolderLock
    from tacit.sites.one_machine import LOCK_FILE, judged
    from tacit.sites.terms import TERMS_FILE, read_terms

    terms = read_terms(folder / TERMS_FILE)
    rows = None if test is None else read_records(test, terms.schema).dataset
    settings = {"quorum": quorum, "learning_rate": learning_rate, "seconds": seconds}
    if (listen is None) != (not relays) or (listen is not None and (sites or flower or secure)):
        raise ArgumentError(
            "For relays on other machines say --listen HOST:PORT and --relay NAME=KEY for each, and no --site."
        )
    stop_on_signals()
    with FolderLock(folder / LOCK_FILE, "The coordinator's folder"):
        if listen is not None:
            summary, model = _over_network(folder, relays, listen, timeout, settings)
        else:
            summary, model = _at_sockets(folder, sites, flower, secure, timeout, settings)
    _print(summary, {} if rows is None else judged(terms, model, rows))
    console().print(f"Model: {folder / 'model.safetensors'}")


def _at_sockets(
    folder: Path, sites: Sequence[str], flower: bool, secure: bool, timeout: float, settings: dict[str, Any]
) -> tuple[Mapping[str, Any], Any]:
    from tacit.sites.local_coordinator import coordinator_of
    from tacit.sites.transport import Sockets

    named = _named(sites)
    if flower:
        try:
            from tacit.sites.flower.deploy import run_on_flower
        except ImportError as error:
            raise ArgumentError(_NO_FLOWER) from error
        paths = {name: path.absolute() for name, path in named.items()}
        with Console(stderr=True).status(f"{len(paths)} sites on Flower; logs in {folder}"):
            run_on_flower(folder, paths, timeout=timeout, secure=secure, **settings)
    # After Flower nothing is left to ask for, and this reads the model and what each site has charged.
    coordinator = coordinator_of(folder)(
        folder,
        list(named),
        Sockets(named, settings["seconds"]),
        quorum=settings["quorum"],
        learning_rate=settings["learning_rate"],
    )
    training = coordinator.terms.training
    with _shown(training.name, training.rounds, coordinator.facts) as on_round:
        coordinator.run(on_round)
    return coordinator.summary(), coordinator.model


def _over_network(
    folder: Path, relays: Sequence[str], listen: str, timeout: float, settings: dict[str, Any]
) -> tuple[Mapping[str, Any], Any]:
    from tacit.runs.layout import MODEL_FILE, RESULT_FILE
    from tacit.sites.terms import TERMS_FILE, read_terms
    from tacit.tensors import read_tensors

    try:
        from tacit.sites.flower.deploy import run_over_network
    except ImportError as error:
        raise ArgumentError(_NO_FLOWER) from error
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ArgumentError(
            f"--listen is an address of this machine and a port, as 10.0.0.1:9092, not {listen!r}."
        )
    rule = "--relay names a site and the file of its relay's public key once, as in north=north.pub"
    public = {name: Path(path) for name, path in _pairs(relays, rule)}
    with Console(stderr=True).status(f"{len(public)} sites through {listen}; logs in {folder}"):
        run_over_network(
            folder, public, (host, int(port)), timeout=timeout, patience=settings["seconds"], **settings
        )
    model = read_terms(folder / TERMS_FILE).build_model()
    model.load_state_dict(read_tensors(folder / MODEL_FILE)[0])
    return read_json(folder / RESULT_FILE), model


def run_shared_out(
    folder: Path,
    data: str,
    given: Mapping[str, Any],
    *,
    sites: int,
    epsilon: float,
    seed: int,
    split_by: str | None,
    data_dir: str | None,
    quorum: int | None,
    learning_rate: float | None,
    secure_sum: bool,
    honest: int | None,
) -> None:
    """Share a public data set out among sites on this machine, train with them, and measure on its held-out rows."""
    from tacit.federated.flower.processes import stop_on_signals
    from tacit.sites.one_machine import run_on_this_machine

    training = training_of(dict(given))
    stop_on_signals()
    with _shown(data, training.rounds, {}) as on_round:
        outcome = run_on_this_machine(
            folder,
            data,
            training,
            sites=sites,
            epsilon=epsilon,
            seed=seed,
            column=split_by,
            data_dir=data_dir,
            quorum=quorum,
            learning_rate=learning_rate,
            secure_sum=secure_sum,
            honest=honest,
            on_round=on_round,
        )
    constant = {"accuracy of a constant": outcome.constant} if outcome.constant else {}
    _print(outcome.summary, {**outcome.measured, **constant})
    for place in outcome.folders:
        console().print(f"tacit verify {place}")


def _pairs(entries: Sequence[str], rule: str) -> Iterator[tuple[str, str]]:
    found = set()
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name or not value or name in found:
            raise ArgumentError(f"{rule}; got {entry!r}.")
        found.add(name)
        yield name, value


def _named(sites: Sequence[str]) -> dict[str, Path]:
    rule = "--site names a site and its socket once, as in ward=/run/ward.sock"
    found = {name: Path(path) for name, path in _pairs(sites, rule)}
    if not found:
        raise ArgumentError("Name the sites: --site NAME=SOCKET, once for each.")
    return found


@contextmanager
def _shown(
    name: str, rounds: int, facts: Mapping[str, Facts | LocalFacts]
) -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr: round, answers, ε of the site that has spent most."""
    screen = Console(stderr=True)
    with Bar(
        TextColumn(name),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=screen,
        disable=not screen.is_terminal,
    ) as bar:
        task = bar.add_task(name, total=rounds, figures="")

        def show(progress: Progress) -> None:
            figures = f"{progress.answered} of {progress.sites} answers"
            if progress.round % max(1, rounds // _SHOWN) == 0 and facts:
                spent = ", ".join(
                    f"{site} {facts[site].spent(count):.3f}" for site, count in progress.charged.items()
                )
                figures += f" · ε {spent}"
            bar.update(task, completed=progress.round, figures=figures)

        yield show


def _print(summary: Mapping[str, Any], measured: Mapping[str, float]) -> None:
    table = Table("figure", "value", title=str(summary["training"]), title_justify="left")
    void = f", {summary['rounds void']} void" if "rounds void" in summary else ""
    table.add_row("rounds", f"{summary['rounds']} of {summary['rounds planned']}{void}")
    table.add_row("answers used / paid", f"{summary['answers used']} / {summary['answers paid']}")
    for name, value in measured.items():
        table.add_row(name.replace("_", " "), f"{value:.4f}")
    console().print(table)
    console().print(_sites_table(summary["sites"]))


def _sites_table(sites: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("site", "records or units", "answers paid", "ε spent", "ε at most", "δ")
    for name, facts in sites.items():
        least = "at least " if facts.get("left") else ""  # a site that left may have charged since
        table.add_row(
            name,
            f"{facts['count']:,} {facts['counted']}",
            f"{least}{facts['charged']} of {facts['answers']}",
            f"{least}{facts['epsilon spent']:.4f}",
            f"{facts['epsilon']:g}",
            f"{facts['delta']:g}",
        )
    return table
