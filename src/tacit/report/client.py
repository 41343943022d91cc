"""The page on a client under local differential privacy: what it has spent, by which mechanism, in which trainings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.errors import FileError
from tacit.files import write_text
from tacit.report.markup import Markup, bar, element, listed, note, section, table, tile, tiles
from tacit.report.page import GENERATOR, framed
from tacit.report.plot import number


def write_client_page(account: Mapping[str, Any], out: Path) -> None:
    """Write the page on a client, whose ``account`` has its certificate and a check of its files."""
    if out.is_dir():
        raise FileError(f"{out} is a directory; name the file to write, as in {out / 'client.html'}.")
    if out.exists() and GENERATOR.encode() not in out.read_bytes()[:2000]:
        raise FileError(f"{out} exists and is not a report; choose another --out.")
    write_text(out, client_page(account))


def client_page(account: Mapping[str, Any]) -> str:
    """The whole page. The same account gives the same page, to the byte."""
    return framed(f"Client {account['name']}", _client(account))


def _client(account: Mapping[str, Any]) -> Markup:
    verdict, trainings = account["verdict"], account.get("trainings", [])
    spent, budget = float(account.get("epsilon spent", 0.0)), float(account.get("budget", 0.0))
    used = spent / budget if budget else 1.0
    return section(
        "client",
        f"{account['name']}: {'verified' if verdict['agrees'] else 'does NOT verify'}",
        2,
        listed(verdict["problems"]) if verdict["problems"] else element("p", account["statement"]),
        bar(min(used, 1.0), 2 if used < 0.8 else 3),
        tiles(
            [
                tile("ε spent", number(spent), "over all trainings, δ = 0"),
                tile("Budget", number(budget), "for the lifetime of the client"),
                tile("Answers", f"{verdict['answers']:,}", "each charged before it was sent"),
            ]
        ),
        table(
            ("Training", "Answers", "Planned", "ε of an answer", "ε", "Mechanism"),
            [
                (
                    training["training"],
                    f"{training['answers']:,}",
                    f"{training['answers planned']:,}",
                    number(training["epsilon per answer"]),
                    number(training["epsilon"]),
                    ", ".join(f"{name} {value}" for name, value in training["mechanism"].items()),
                )
                for training in trainings
            ],
            "Trainings",
        )
        if trainings
        else element("p", "There is no certificate that agrees with the ledger."),
        element("h3", "Who is protected"),
        element("p", str(account.get("unit of privacy", ""))),
        element("h3", "Not covered"),
        listed(account.get("not covered", [])),
        element("h3", "This check does not show"),
        listed(verdict["unchecked"]),
        note("ε is computed anew from the plans and the ledger for this page; nothing is spent."),
    )
