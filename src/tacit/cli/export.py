"""``tacit export``: a trained model for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli import options
from tacit.cli.output import console, examples, print_json
from tacit.errors import ArgumentError

EXPORT_EXAMPLE = examples(
    "tacit export runs/diabetes --out model.tacit",
    "tacit export runs/diabetes --out model.tacit --use 'Triage of letters, never a diagnosis.' --sign lab.key",
    "tacit export runs/diabetes --out model.onnx",
    "tacit export runs/reviews --out adapters --format peft",
)
_FORMATS = ("tacit", "onnx", "torch", "peft")


def export(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="File to write; a folder for peft.")] = Path(
        "model.tacit"
    ),
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="tacit (a bundle), onnx, torch (torch.export) or peft (low-rank adapters). (default: by the name)",
            metavar="FORMAT",
        ),
    ] = None,
    use: Annotated[
        str | None, typer.Option("--use", help="What the model is for, a sentence for its card.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--sign", help="Private key (Ed25519, PEM) to sign the bundle with.")
    ] = None,
    with_ledger: Annotated[
        bool, typer.Option("--with-ledger", help="Add plan and ledger, so that others can recount ε.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the model of a run as one file to share.

    A bundle holds weights, schema, encodings, settings, certificate and a model card, each with its digest, and
    neither rows nor checkpoint. tacit predict, tacit verify and tacit.load take it without the training data.

    A graph (onnx, torch) takes encoded rows, as tacit.load(RUN).encode(frame) gives them.
    """
    from tacit.jobs.export import FORMATS
    from tacit.jobs.export import export as write

    chosen: Any = form or FORMATS.get(out.suffix.lower(), "peft" if not out.suffix else None)
    if chosen not in _FORMATS:
        raise ArgumentError(
            f"--format must be one of {', '.join(_FORMATS)}; {form or out.suffix!r} is none, and {out.name!r} does not "
            "show it."
        )
    write(run, out, chosen, use=use, key=key, with_ledger=with_ledger)
    size = sum(part.stat().st_size for part in ([out] if out.is_file() else out.iterdir()))
    if as_json:
        print_json({"run": str(run), "out": str(out), "format": chosen, "bytes": size})
        return
    console().print(f"Written: {out} ({size / 1000:,.0f} kB)")
    if chosen == "tacit":
        console().print(f"Others check it with: tacit verify {out}")
