"""``tacit report``: runs and comparisons as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import options
from tacit.cli.output import console, examples, print_json

REPORT_EXAMPLE = examples(
    "tacit report runs/diabetes",
    "tacit report runs/diabetes runs/dense comparison --out report.html",
    "tacit report runs --out all.html",
)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run directories, comparisons, or folders that hold some.",
            metavar="RUN...",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write. (default: RUN/report.html, or report.html for several)"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write one HTML file on runs: certificate, ε over steps, figures, coordinates, predictions.

    RUN is a run directory, what tacit compare or tacit demo wrote, or a folder of runs. Every run is verified
    for the page. Only released values, public numbers and figures on held-out data are read; nothing is spent.

    The file needs no network and no other file.
    """
    from tacit.federated.accounts import account_of, is_client
    from tacit.report import write_report
    from tacit.report.sections.promise import status_of

    place = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    if len(runs) == 1 and is_client(runs[0]):
        from tacit.report.client import write_client_page

        account = account_of(runs[0])
        write_client_page(account, place)
        if as_json:
            print_json({"report": str(place), "bytes": place.stat().st_size, "client": account["verdict"]})
        else:
            console().print(f"Written: {place}")
        return
    material = write_report(runs, place)
    found = [(run.name, status_of(run)) for run in material.runs]
    if as_json:
        print_json(
            {
                "report": str(place),
                "bytes": place.stat().st_size,
                "runs": [{"name": name, "state": status.word} for name, status in found],
                "comparisons": len(material.comparisons),
            }
        )
        return
    for name, status in found:
        console().print(f"{name}: {status.word}")
    console().print(f"Written: {place} ({place.stat().st_size / 1000:.0f} kB)")
