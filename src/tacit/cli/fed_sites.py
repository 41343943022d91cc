"""``tacit fed init``, ``run`` and ``status`` for sites that keep their records and add their own noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from tacit.cli import options
from tacit.cli.options import Settings
from tacit.cli.output import console, examples, print_json
from tacit.errors import ArgumentError, FileError
from tacit.files import read_json
from tacit.sites.options import Training, training_of

if TYPE_CHECKING:
    from tacit.sites.coordinator import Facts, Progress

INIT_EXAMPLE = examples(
    "tacit fed init study --schema schema.toml --model additive --rounds 100",
    "tacit fed init study --schema schema.toml --member north=KEY --member south=KEY --member west=KEY --epsilon 1",
)
_SHOWN = 20
"""How often ε is computed over a run that is shown."""


@options.job_options(options.offer_of("training", Training))
def init(
    settings: Settings,
    folder: Annotated[
        Path, typer.Argument(help="Folder of the coordinator, to be made.", show_default=False)
    ],
    schema: Annotated[Path, typer.Option("--schema", help="Public schema of the records of all sites.")],
    member: Annotated[
        list[str] | None,
        typer.Option(
            "--member",
            help="Secure sum: a site and its public key, as NAME=KEY; repeatable. Only the sum over all can be read.",
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Secure sum: ε of every record over all rounds.")
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Secure sum: δ. (default: 1e-5)")] = None,
    honest: Annotated[
        int | None,
        typer.Option("--honest", help="Secure sum: sites whose noise counts. (default: all but one)"),
    ] = None,
) -> None:
    """Write the terms of a training: one public file, which every site needs for tacit site init.

    With members it is a secure sum: sites share the noise, and nobody can read the answer of one of them.
    """
    from tacit.sites.terms import TERMS_FILE, terms_of
    from tacit.sites.vault import secure_sum_of

    training, sums = training_of(settings["training"]), None
    if member:
        if epsilon is None:
            raise ArgumentError("Say --epsilon: the noise of a secure sum is part of its terms.")
        keys = tuple(_pairs(member, "--member names a site and its public key once, as in north=KEY"))
        sums = secure_sum_of(training, keys, epsilon, 1e-5 if delta is None else delta, honest)
    elif epsilon is not None or delta is not None or honest is not None:
        raise ArgumentError(
            "--epsilon, --delta and --honest are for a secure sum (--member); without one every site says its own."
        )
    terms = terms_of(training, schema, sums)
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
    """How far a training with sites has got, and what each site has spent."""
    from tacit.runs.layout import CHECKPOINT_FILE, RESULT_FILE
    from tacit.runs.tensor_file import read_tensor_file
    from tacit.sites.terms import TERMS_FILE, read_terms

    terms = read_terms(folder / TERMS_FILE)
    checkpoint, result = folder / CHECKPOINT_FILE, folder / RESULT_FILE
    done = read_tensor_file(checkpoint).numbers["round"] if checkpoint.exists() else 0
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
) -> None:
    """Run the training in ``folder`` with vaults that listen at the sockets that ``sites`` name.

    With ``flower`` questions travel through real Flower processes on the loopback interface.
    """
    from tacit.federated.folder_lock import FolderLock
    from tacit.sites.coordinator import Coordinator
    from tacit.sites.one_machine import LOCK_FILE, judged
    from tacit.sites.records import read_records
    from tacit.sites.transport import Sockets

    named = _named(sites)
    if flower:
        try:
            from tacit.sites.flower.deploy import run_on_flower
        except ImportError as error:
            raise ArgumentError("--flower needs Flower: run pip install 'tacit-dp[federated]'.") from error
        paths = {name: path.absolute() for name, path in named.items()}
        with Console(stderr=True).status(f"{len(paths)} sites on Flower; logs in {folder}"):
            run_on_flower(
                folder,
                paths,
                timeout=timeout,
                secure=secure,
                quorum=quorum,
                learning_rate=learning_rate,
                seconds=seconds,
            )
    # After Flower nothing is left to ask for, and this reads the model and what each site has charged.
    with FolderLock(folder / LOCK_FILE, "The coordinator's folder"):
        coordinator = Coordinator(
            folder, list(named), Sockets(named, seconds), quorum=quorum, learning_rate=learning_rate
        )
        rows = None if test is None else read_records(test, coordinator.terms.schema).dataset
        training = coordinator.terms.training
        with _shown(training.name, training.rounds, coordinator.facts) as on_round:
            coordinator.run(on_round)
    _print(coordinator.summary(), {} if rows is None else judged(coordinator, rows))
    console().print(f"Model: {folder / 'model.safetensors'}")


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
def _shown(name: str, rounds: int, facts: Mapping[str, Facts]) -> Iterator[Callable[[Progress], None]]:
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
    table.add_row("rounds", f"{summary['rounds']} of {summary['rounds planned']}")
    table.add_row("answers used / paid", f"{summary['answers used']} / {summary['answers paid']}")
    for name, value in measured.items():
        table.add_row(name.replace("_", " "), f"{value:.4f}")
    console().print(table)
    console().print(_sites_table(summary["sites"]))


def _sites_table(sites: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("site", "records or units", "answers paid", "ε spent", "ε at most", "δ")
    for name, facts in sites.items():
        table.add_row(
            name,
            f"{facts['count']:,} {facts['counted']}",
            f"{facts['charged']} of {facts['answers']}",
            f"{facts['epsilon spent']:.4f}",
            f"{facts['epsilon']:g}",
            f"{facts['delta']:g}",
        )
    return table
