"""``tacit fed``: federated training, with sites that add their own noise or under local differential privacy."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tacit.cli import fed_local, fed_own, fed_sites
from tacit.cli.output import console, examples, progress_bar
from tacit.errors import ArgumentError
from tacit.files import without_infinities, write_json
from tacit.plotting import check_figures

# Commands other than these need nothing of tacit.federated, so it is imported by those that run.
if TYPE_CHECKING:
    from tacit.federated.check import CheckReport
    from tacit.federated.simulation import Experiment, Scores

app = typer.Typer(
    help="Federated training: sites with record-level privacy, or local differential privacy (FedSel).",
    no_args_is_help=True,
)
app.command(epilog=fed_sites.INIT_EXAMPLE)(fed_sites.init)
app.command(epilog=fed_own.CLIENT_EXAMPLE)(fed_own.client)
app.command(epilog=fed_own.APP_EXAMPLE)(fed_own.app)
app.command()(fed_sites.status)
app.command(epilog=examples("tacit fed keys study --host coordinator.example.org"))(fed_sites.keys)
app.command(epilog=examples("tacit fed stop study"))(fed_sites.stop)

Select = Annotated[
    str,
    typer.Option(
        "--select", help="exp, pe, pe-paper, ps, random, or topk (not private); check: also vector."
    ),
]


@app.command()
def check(
    select: Select = "ps",
    d: Annotated[int, typer.Option("--d", help="Number of coordinates.")] = 100,
    k: Annotated[int, typer.Option("--k", help="How many coordinates count as large.")] = 10,
    epsilon1: Annotated[float, typer.Option("--epsilon1", help="ε claimed for the selection.")] = 1.0,
    perturb: Annotated[
        str | None, typer.Option("--perturb", help="Also perturb the value: pm, hm, duchi or laplace.")
    ] = None,
    epsilon2: Annotated[float | None, typer.Option("--epsilon2", help="ε claimed for the value.")] = None,
    samples: Annotated[int, typer.Option("--samples", help="Draws per input; 0 skips the test.")] = 200_000,
    confidence: Annotated[float, typer.Option("--confidence", help="Confidence of the bounds.")] = 0.999,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compute the exact ε of a local mechanism and test its samplers; exit code 1 if the claim fails."""
    from tacit.federated.check import check_mechanism

    result = check_mechanism(
        select, d, k, epsilon1, perturb, epsilon2, samples=samples, confidence=confidence, seed=seed
    )
    if as_json:
        print(json.dumps(without_infinities(dataclasses.asdict(result), word=lambda _, x: str(x)), indent=2))
    else:
        console().print(_check_table(result))
    sampled_above = result.sampled is not None and result.sampled.lower > result.claimed_epsilon
    if not result.holds or sampled_above:
        raise typer.Exit(1)


@app.command()
def simulate(
    data: Annotated[
        str,
        typer.Argument(
            help="adult, bank, kdd99, syn-L-C1-C2 or syn-H-C1-C2; with --schema a table in a file."
        ),
    ],
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="Public schema of your own table: CSV, Parquet or Excel."),
    ] = None,
    select: Select = "ps",
    perturb: Annotated[
        str, typer.Option("--perturb", help="pm, hm, duchi, laplace, or none (not private).")
    ] = "pm",
    solution: Annotated[
        str, typer.Option("--solution", help="two-stage, vector, flat, compressed, or full (not private).")
    ] = "two-stage",
    epsilon: Annotated[float, typer.Option("--epsilon", help="ε of a client over the run.")] = 2.0,
    epochs: Annotated[int, typer.Option("--epochs", help="Answers per client.")] = 1,
    model: Annotated[str, typer.Option("--model", help="logistic or svm.")] = "logistic",
    mu: Annotated[
        float | None, typer.Option("--mu", help="Share of ε for selection. (default: the paper's rule)")
    ] = None,
    top_share: Annotated[float, typer.Option("--top-share", help="k as a share of d.")] = 0.1,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate",
            help="α of the server. (default: vector: 0.5, less below ε = 1; others: 10)",
        ),
    ] = None,
    momentum: Annotated[float, typer.Option("--momentum", help="η of the clients.")] = 0.0,
    clip_norm: Annotated[
        float, typer.Option("--clip-norm", help="Longest gradient of the vector solution.")
    ] = 1.0,
    batch_share: Annotated[float, typer.Option("--batch-share", help="Clients per round.")] = 0.01,
    folds: Annotated[int, typer.Option("--folds", help="Folds of the cross-validation.")] = 5,
    repeats: Annotated[int, typer.Option("--repeats", help="Repeats of the cross-validation.")] = 10,
    workers: Annotated[int, typer.Option("--workers", help="Processes, over repeats.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of splits and noise.")] = 0,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where the data are (TACIT_DATA).")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
    figure: Annotated[Path | None, typer.Option("--figure", help="Draw accuracy by round.")] = None,
) -> None:
    """Simulate federated training on a data set and cross-validate it. Seeded noise: not for release."""
    if figure is not None:
        check_figures()
    from tacit.federated.plan import certificate
    from tacit.federated.simulation import Experiment, cross_validate, report

    fed_own.refuse_budget(
        data, "a simulation draws its noise from a seed, which can be undone, and measures without any"
    )
    folder = str(data_dir) if data_dir else os.environ.get("TACIT_DATA")
    options: dict[str, Any] = {
        "solution": solution,
        "select": select,
        "perturb": perturb,
        "epsilon": epsilon,
        "epochs": epochs,
        "top_share": top_share,
        "learning_rate": _rate(
            learning_rate, 0.5 * min(1.0, epsilon / max(1, epochs)) if solution == "vector" else 10.0
        ),
        "momentum": momentum,
        "mu": mu,
        "clip_norm": clip_norm,
    }
    task = Experiment(
        *(data, options, model, folds, repeats, batch_share, seed, folder),
        curve=figure is not None,
        schema=None if schema is None else str(schema),
    )
    plan = task.plan_for(task.records())
    started = time.perf_counter()
    with progress_bar(f"{data}, {model}", folds * repeats) as advance:
        scores = cross_validate(task, workers, advance)
    seconds = time.perf_counter() - started
    console().print(_scores_table(task, scores, seconds))
    console().print(certificate(plan, "seeded")["statement"])
    if json_file is not None:
        write_json(json_file, report(task, scores, seconds))
    if figure is not None and scores.curve is not None:
        from tacit.federated.plots import Line, draw_lines  # slow to import, and rarely needed

        line = Line(f"{solution} {select} {perturb}", scores.rounds, list(scores.curve.mean(axis=0)))
        spread = list(scores.curve.std(axis=0))
        line = dataclasses.replace(line, error=spread)
        draw_lines(figure, f"{data}, {model}, ε = {epsilon:g}", "round", "test accuracy", [line])


@app.command(
    epilog=examples(
        "tacit fed shuffle --epsilon 2 --answers 10000", "tacit fed shuffle --central 1 --answers 10000"
    )
)
def shuffle(
    answers: Annotated[int, typer.Option("--answers", help="Answers that are shuffled together in a round.")],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Local ε of one answer, to find the central one.")
    ] = None,
    central: Annotated[
        float | None, typer.Option("--central", help="Central ε, to find the local one of an answer.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="δ of the central guarantee.")] = 1e-6,
    rounds: Annotated[
        int, typer.Option("--rounds", help="Answers of one client; each round is shuffled by itself.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compute what local answers promise where a shuffler stands before the server. Accounting only."""
    from tacit.federated.shuffling import ASSUMED, local_epsilon, shuffled_epsilon

    if (epsilon is None) == (central is None):
        raise ArgumentError("Give --epsilon or --central; the other one is computed.")
    if epsilon is None:
        assert central is not None
        epsilon = local_epsilon(central, answers, delta, rounds)
    figures = {
        "local epsilon of an answer": epsilon,
        "answers shuffled together": answers,
        "answers of a client": rounds,
        "local epsilon of a client": rounds * epsilon,
        "central epsilon": shuffled_epsilon(epsilon, answers, delta, rounds),
        "delta": delta,
    }
    if as_json:
        print(json.dumps({**figures, "assumed": ASSUMED}, indent=2))
        return
    table = Table("figure", "value", title="Shuffled answers")
    for name, value in figures.items():
        table.add_row(name.replace("epsilon", "ε").replace("delta", "δ"), f"{value:.6g}")
    console().print(table)
    console().print(ASSUMED)


_SITES_ONLY = ("site", "split_by", "test", "flower", "honest", "method", "active_ratio", "listen", "relay")
_OF_BOTH = (
    *("data", "guarantee", "folder", "nodes", "rounds", "epsilon", "quorum", "model", "learning_rate"),
    *("clip_norm", "training", "seed", "data_dir"),
)
_OF_A_FOLDER = (
    *("data", "guarantee", "site", "test", "quorum", "learning_rate", "round_timeout"),
    *("flower", "timeout", "secure", "listen", "relay"),
)


@app.command()
def run(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="A folder of tacit fed init; or whose records are shared out: adult, syn-L-0.1-0.6, ...; local, with "
            "--schema: a table in a file."
        ),
    ],
    guarantee: Annotated[
        str,
        typer.Option(
            "--guarantee",
            help="sites: every site adds noise for each of its records; secure-sum: sites share the noise, and only "
            "their sum can be read; local: FedSel, the unit is a whole client.",
        ),
    ] = "local",
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Files of server and clients; reuse it to continue.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="local: public schema of your own table: CSV, Parquet or Excel."),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", help="sites: a site and the socket of its vault, as NAME=SOCKET; repeatable."),
    ] = None,
    split_by: Annotated[
        str | None,
        typer.Option("--split-by", help="sites: sort the records by this column, so that sites differ."),
    ] = None,
    test: Annotated[
        Path | None, typer.Option("--test", help="sites: table with public rows to measure the model on.")
    ] = None,
    flower: Annotated[
        bool,
        typer.Option(
            "--flower", help="sites: ask the vaults through Flower, with a relay for each, on loopback."
        ),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", help="sites: address and port for relays on other machines, as 10.0.0.1:9092."
        ),
    ] = None,
    relay: Annotated[
        list[str] | None,
        typer.Option("--relay", help="sites: a site and the public key of its relay, NAME=FILE; repeatable."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", help="sites: dp-sgd, tp-topk or sparta, on chosen coordinates. (default: dp-sgd)"
        ),
    ] = None,
    active_ratio: Annotated[
        float | None,
        typer.Option("--active-ratio", help="Share of coordinates, or rows, that tp-topk and sparta keep."),
    ] = None,
    honest: Annotated[
        int | None,
        typer.Option("--honest", help="secure-sum: sites whose noise counts. (default: all but one)"),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Sites, or SuperNodes of one client each.")] = 4,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Rounds; all answer in each. (default: 20, sites: 100)")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="ε of a client or site over all rounds. (default: 20, sites: 1)"),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget", help="ε that each client spends at most, 0 for none. (default: what is planned)"
        ),
    ] = None,
    solution: Annotated[str, typer.Option("--solution", help="vector or two-stage.")] = "vector",
    quorum: Annotated[
        int | None,
        typer.Option("--quorum", help="Answers that a round needs. (default: more than half, sites: all)"),
    ] = None,
    select: Select = "ps",
    perturb: Annotated[str, typer.Option("--perturb", help="pm, hm or duchi.")] = "pm",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="logistic or svm; sites: additive, logistic or mlp. (default: logistic, sites: additive)",
        ),
    ] = None,
    mu: Annotated[float, typer.Option("--mu", help="Share of ε for selection.")] = 0.1,
    top_share: Annotated[float, typer.Option("--top-share", help="k as a share of d.")] = 0.1,
    momentum: Annotated[float, typer.Option("--momentum", help="η of the clients.")] = 0.1,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            "--clip-norm", help="Longest gradient of a client; sites: of a record. (default: 0.3, sites: 1)"
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate",
            help="Step of the server. (default: vector: 0.1, two-stage: 1, sites: by a rule of public numbers)",
        ),
    ] = None,
    round_timeout: Annotated[
        float, typer.Option("--round-timeout", help="Seconds to wait for answers.")
    ] = 120.0,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds for the whole training.")] = 3600.0,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Virtual nodes in this process instead of real ones.")
    ] = False,
    secure: Annotated[bool, typer.Option("--secure", help="TLS and node authentication.")] = False,
    training: Annotated[
        str | None,
        typer.Option("--training", help="Name of the training. (default: fedsel, sites: training)"),
    ] = None,
    extend: Annotated[
        str | None,
        typer.Option(
            "--extend", help="local: go on from the weights of this training of the folder, with its clients."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the split (never of noise).")] = 0,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where the data are (TACIT_DATA).")
    ] = None,
) -> None:
    """Run a training: with the sites of a folder, or with a data set shared out on this machine.

    A folder of tacit fed init is run with vaults that listen at sockets. A data set is shared out among sites, each
    with a vault in its own process, or among clients of FedSel on Flower, on the loopback interface.
    """
    from_folder = (Path(data) / "training.toml").is_file()
    of_sites = guarantee in ("sites", "secure-sum")
    if of_sites or from_folder:
        shared = (
            *_OF_BOTH,
            "split_by",
            "method",
            "active_ratio",
            *(["honest"] if guarantee == "secure-sum" else []),
        )
        _refuse_given(context, _OF_A_FOLDER if from_folder else shared)
    if from_folder:
        fed_sites.run_with_sites(
            Path(data),
            site or [],
            quorum=quorum,
            learning_rate=learning_rate,
            seconds=round_timeout,
            test=test,
            flower=flower,
            timeout=timeout,
            secure=secure,
            listen=listen,
            relays=relay or [],
        )
        return
    if site or relay:
        raise ArgumentError(f"{data} holds no terms of a training; tacit fed init {data} makes them.")
    if folder is None:
        raise ArgumentError("Say --folder: where the files of server and clients go.")
    if of_sites:
        given = {
            "name": training,
            "model": model,
            "rounds": rounds,
            "clip_norm": clip_norm,
            "method": method,
            "active_ratio": active_ratio,
        }
        fed_sites.run_shared_out(
            folder,
            data,
            given,
            sites=nodes,
            epsilon=1.0 if epsilon is None else epsilon,
            seed=seed,
            split_by=split_by,
            data_dir=None if data_dir is None else str(data_dir),
            quorum=quorum,
            learning_rate=learning_rate,
            secure_sum=guarantee == "secure-sum",
            honest=honest,
        )
        return
    if guarantee != "local":
        raise ArgumentError(f"The guarantee is sites, secure-sum or local, not {guarantee!r}.")
    for name in _SITES_ONLY:
        if context.params[name]:
            raise ArgumentError(f"--{name.replace('_', '-')} is for --guarantee sites.")
    fed_local.run_on_this_machine(
        folder,
        data,
        {
            "training": training,
            "rounds": 20 if rounds is None else rounds,
            "model": model or "logistic",
            "select": select,
            "perturb": perturb,
            "epsilon": 20.0 if epsilon is None else epsilon,
            "mu": mu,
            "top_share": top_share,
            "momentum": momentum,
            "solution": solution,
            "clip_norm": 0.3 if clip_norm is None else clip_norm,
        },
        extend=extend,
        nodes=nodes,
        learning_rate=learning_rate,
        round_timeout=round_timeout,
        timeout=timeout,
        quorum=quorum,
        budget=budget,
        simulation=simulation,
        secure=secure,
        seed=seed,
        data_dir=None if data_dir is None else str(data_dir),
        schema=None if schema is None else str(schema),
    )


@app.command()
def node(
    folder: Annotated[Path, typer.Option("--folder", help="The client's own files, with its records.")],
    budget: Annotated[float, typer.Option("--budget", help="ε that the client spends in its lifetime.")],
    superlink: Annotated[str, typer.Option("--superlink", help="The server, as HOST:PORT.")],
    root_certificates: Annotated[
        Path | None, typer.Option("--root-certificates", help="Authorities that vouch for the server (PEM).")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Private key that the node proves itself with.")
    ] = None,
    witness: Annotated[
        Path | None,
        typer.Option(
            "--witness", help="A second file, on another disk, that notes how far the ledger reaches."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS: for a server on this machine only.")
    ] = False,
) -> None:
    """Answer a Flower server with the installed client; an app that the server sends is never run."""
    try:
        from tacit.federated.flower.node import Connection, run_node
        from tacit.federated.flower.processes import stop_on_signals
    except ImportError as error:
        raise ArgumentError(fed_local.NEEDS_FLOWER) from error
    from tacit.federated.client import LocalClient
    from tacit.sites.reserving import reserve_client

    client = LocalClient(folder, budget, witness=witness)
    reserve_client(folder, budget)
    stop_on_signals()
    run_node(client, Connection(superlink, root_certificates, key, insecure))


def _scores_table(task: Experiment, scores: Scores, seconds: float) -> Table:
    plan = task.plan_for(task.records())
    table = Table("figure", "value", title=f"{task.data}, {task.model}, {plan.solution} (simulation)")
    if plan.solution == "two-stage":
        table.add_row("selection", f"{plan.select}, k = {plan.k} of {plan.d}, ε₁ = {plan.epsilon1:.4g}")
        table.add_row("perturbation", f"{plan.perturb}, ε₂ = {plan.epsilon2:.4g}")
    elif plan.solution == "vector":
        replies = plan.vector_replies()
        shape = f"the best {replies.top} of {replies.directions} directions, clip norm {plan.clip_norm:g}"
        table.add_row("vector replies", shape)
    else:
        table.add_row("perturbation", f"{plan.perturb}, ε' = {plan.epsilon_per_epoch:.4g}")
    table.add_row("exact ε of a client", f"{plan.exact_epsilon():.6g}")
    table.add_row("clients per round", str(plan.batch))
    table.add_row("accuracy", f"{100 * scores.mean:.2f} % ± {100 * scores.half_width:.2f} (95 % interval)")
    table.add_row("accuracy of a constant", f"{100 * scores.constant.mean():.2f} %")
    table.add_row("AUC", f"{scores.auc.mean():.3f} (a constant: 0.500)")
    table.add_row("balanced accuracy", f"{100 * scores.balanced.mean():.2f} % (a constant: 50.00 %)")
    table.add_row("standard deviation", f"{100 * scores.deviation:.2f}")
    table.add_row("seconds", f"{seconds:.1f}")
    return table


def _check_table(result: CheckReport) -> Table:
    name = result.selection if result.perturbation is None else f"{result.selection} + {result.perturbation}"
    table = Table("figure", "value", title=f"{name}, d={result.d}, k={result.k}")
    table.add_row("claimed ε", f"{result.claimed_epsilon:.6f}")
    table.add_row("exact ε of the selection", f"{result.exact_selection_epsilon:.6f}")
    if result.perturbation is not None:
        table.add_row("exact ε of the value", f"{result.exact_perturbation_epsilon:.6f}")
    table.add_row("exact ε", f"{result.exact_epsilon:.6f}")
    if result.sampled is not None:
        bounds = f"{result.sampled.lower:.4f} … {result.sampled.upper:.4f}"
        table.add_row(f"ε seen in samples ({result.sampled.confidence:g} confidence)", bounds)
    table.add_row("the claim", "holds" if result.holds else "DOES NOT HOLD")
    return table


def _refuse_given(context: typer.Context, allowed: Sequence[str]) -> None:
    """Refuse options that were given and mean nothing for what was asked."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise ArgumentError(f"--{name.replace('_', '-')} is not for such a training; leave it out.")


def _rate(chosen: float | None, default: float) -> float:
    return default if chosen is None else chosen
