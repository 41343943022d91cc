"""``tacit fed run`` and ``tacit fed status`` for clients under local differential privacy, on this machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tacit.cli.output import console, print_json
from tacit.errors import ArgumentError
from tacit.files import read_json
from tacit.name_lists import listed

if TYPE_CHECKING:
    from tacit.federated.flower.loopback import Outcome

NEEDS_FLOWER = "This command needs Flower: run pip install 'tacit-dp[federated]'."
L2 = 1e-4
"""Regularisation of every model."""


def run_on_this_machine(
    folder: Path,
    data: str,
    asked: Mapping[str, Any],
    *,
    extend: str | None,
    nodes: int,
    learning_rate: float | None,
    round_timeout: float,
    timeout: float,
    quorum: int | None,
    budget: float | None,
    simulation: bool,
    secure: bool,
    seed: int,
    data_dir: str | None,
    schema: str | None,
) -> None:
    """Share a data set, or with ``schema`` a table, out among clients, train, and measure on held-out records.

    ``asked`` is what a question says. With ``extend`` clients of an earlier training in ``folder`` go on from its
    weights: their ledgers stay, and by default they may spend what all these trainings plan together.
    """
    try:
        from tacit.federated.flower.bundle import RunSettings
        from tacit.federated.flower.loopback import (
            check_budget,
            run_in_simulation,
            run_on_loopback,
            server_folder,
            trainings,
        )
        from tacit.federated.flower.processes import stop_on_signals
    except ImportError as error:
        raise ArgumentError(NEEDS_FLOWER) from error
    from tacit.federated.plan import certificate
    from tacit.federated.protocol import Question
    from tacit.federated.server import default_rate, start_of, trained
    from tacit.federated.simulation import load_cached, split_off_test
    from tacit.sites.reserving import reserve_clients

    before = trainings(folder)
    name = asked["training"] or ("fedsel" if extend is None else _next(extend))
    if extend is not None and extend not in before:
        raise ArgumentError(
            f"{folder} has no training {extend!r} to extend; there is {listed(list(before)) or 'none'}."
        )
    records = load_cached(data, data_dir or os.environ.get("TACIT_DATA"), seed, schema)
    clients, rest = split_off_test(records, seed)
    question = Question(**{**asked, "training": name}, round=1, d=records.d, l2=L2)
    start = None if extend is None else before[extend]
    if start is not None:
        start_of(start, question)  # refuses what does not fit before anything starts
    rate = default_rate(question.solution) if learning_rate is None else learning_rate
    settings = RunSettings(question, rate, nodes, nodes, round_timeout, round_timeout, quorum, start)
    if name in before and before[name].parent != server_folder(folder, settings):
        raise ArgumentError(f"{folder} has a training {name!r} already; choose another --training.")
    if budget is None:
        planned = {other: trained(path).epsilon for other, path in before.items() if other != name}
        budget = question.epsilon + (0.0 if extend is None else sum(planned.values()))
    check_budget(settings, budget)
    folder.mkdir(parents=True, exist_ok=True)
    reserve_clients(folder, data, budget)
    stop_on_signals()
    with Console(stderr=True).status(f"{question.rounds} rounds on {nodes} nodes; logs in {folder}"):
        if simulation:
            result = run_in_simulation(folder, settings, clients, rest, budget)
        else:
            result = run_on_loopback(folder, settings, clients, rest, budget, timeout, secure=secure)
    where = "virtual nodes" if simulation else "nodes on Flower"
    console().print(_table(f"{data}, {question.model}, {nodes} {where}", result))
    console().print(certificate(question.plan(), "system")["statement"])
    if schema is not None:
        console().print(
            f"d = {records.d}. Test figures are measured on held-out rows without noise; ε does not cover them."
        )
    if extend is not None:
        console().print(
            f"This is about {name!r} alone; with the trainings before it a client may spend ε = {budget:g}."
        )


def status(folder: Path, as_json: bool) -> None:
    """How far the trainings of a folder have got, and what their clients have spent over all of them."""
    from tacit.federated.client import LEDGER_FILE
    from tacit.federated.local_ledger import read_lines

    found = {
        place.name: read_json(place / "result.json")
        for place in sorted(folder.glob("server*"))
        if (place / "result.json").is_file()
    }
    ledgers = {place.parent.name: place for place in sorted(folder.glob(f"client-*/{LEDGER_FILE}"))}
    spent = {name: sum(charge.epsilon for charge in read_lines(path)[0]) for name, path in ledgers.items()}
    if as_json:
        print_json({"trainings": list(found.values()), "epsilon spent": spent})
        return
    table = Table("training", "rounds", "answers used / asked for", "state")
    for result in found.values():
        table.add_row(
            str(result["training"]),
            f"{result['rounds']} of {result['rounds planned']}",
            f"{result['answers used']} / {result['answers asked for']}",
            "finished" if result["finished"] else str(result["stopped because"]),
        )
    console().print(table if found else "No training has ended here yet.")
    if spent:
        console().print(f"ε spent by client: {by_client([f'{value:.4g}' for value in spent.values()])}")


def _next(extended: str) -> str:
    """The name of the training after this one: fedsel, fedsel-2, fedsel-3, …"""
    base, dash, number = extended.rpartition("-")
    return f"{base}-{int(number) + 1}" if dash and number.isdecimal() else f"{extended}-2"


def _table(title: str, result: Outcome) -> Table:
    table = Table("figure", "value", title=title)
    table.add_row("rounds", str(result.rounds))
    table.add_row("answers used / paid", f"{result.used} / {sum(result.answers)}")
    table.add_row("answers by client", by_client([str(number) for number in result.answers]))
    table.add_row("ε spent by client", by_client([f"{spent:.4g}" for spent in result.spent]))
    quality = result.quality
    constant = f"(a constant: {100 * quality.constant_accuracy:.2f} %)"
    table.add_row("test accuracy", f"{100 * quality.accuracy:.2f} % {constant}")
    table.add_row("AUC", f"{quality.auc:.3f} (a constant: 0.500)")
    table.add_row("balanced accuracy", f"{100 * quality.balanced_accuracy:.2f} % (a constant: 50.00 %)")
    return table


def by_client(figures: list[str]) -> str:
    """The figures of a few clients, or how many of many have each."""
    if len(figures) <= 12:
        return ", ".join(figures)
    return ", ".join(f"{figure} ({number:,} clients)" for figure, number in Counter(figures).most_common(8))
