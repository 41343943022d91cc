"""``tacit verify`` and ``tacit certificate``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import options
from tacit.cli.output import console, examples, print_json
from tacit.errors import ArgumentError, FileError
from tacit.files import read_json, write_text
from tacit.name_lists import listed, spelled
from tacit.runs import Verdict, certificate_page, load_certificate, make_key, sign
from tacit.runs import verify as verify_run
from tacit.runs.bundle import BundleVerdict, is_bundle, verify_bundle
from tacit.runs.folds import verify_folds
from tacit.runs.layout import (
    CERTIFICATE_FILE,
    CHECKPOINT_FILE,
    COMPARISON_FILE,
    EXPERIMENT_FILE,
    FOLDS_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PLAN_FILE,
    RUN_FILE,
    SIGNATURE_FILE,
)
from tacit.runs.registry import registry_entry, to_yaml

VERIFY_EXAMPLE = examples(
    "tacit verify runs/nhanes",
    "tacit verify runs/nhanes --trust lab.key.pub",
    "tacit verify model.tacit",
    "tacit verify runs/nhanes --json",
)


def verify(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run directory, a bundle of tacit export, or a cross-validation.", show_default=False
        ),
    ],
    trust: Annotated[
        Path | None,
        typer.Option("--trust", help="Public key: fail unless the certificate is signed with it."),
    ] = None,
    witness: Annotated[
        Path | None,
        typer.Option("--witness", help="The run's witness, if it is not where the run was started with."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a run or a bundle: recount ε independently and compare all files. Exit code 1 if it fails.

    RUN is a run directory: plan, ledger, checkpoint, model, certificate and figures must agree. Or it is a bundle
    (model.tacit): the model must be the one that the certificate speaks of, and no part edited. Or it is the folder of
    a cross-validation: all its runs, and what they cost together. Every contradiction is named. Nothing is changed,
    and the data is not needed.
    """
    from tacit.federated.accounts import ClientVerdict, is_client, statement_of, verify_client

    verdict: Verdict | BundleVerdict | ClientVerdict
    if run.is_file():
        verdict, statement = _bundle_verdict(run, trust, witness)
    elif (run / FOLDS_FILE).is_file():
        if witness is not None:
            raise ArgumentError("--witness is for a single run; a cross-validation has several.")
        verdict = verify_folds(run, trust=trust)
        statement = str(read_json(run / FOLDS_FILE).get("statement")) if verdict.agrees else None
    elif is_client(run):
        if trust is not None:
            raise ArgumentError("--trust is for runs; the certificate of a client is not signed.")
        verdict = verify_client(run, witness)
        statement = statement_of(run) if verdict.agrees else None
    else:
        _check_is_run(run)
        verdict = verify_run(run, trust=trust, witness=witness)
        statement = load_certificate(run / CERTIFICATE_FILE).statement if verdict.agrees else None
    if as_json:
        print_json(
            {
                "run": str(run),
                "verified": verdict.agrees,
                **{
                    key: value
                    for key, value in dataclasses.asdict(verdict).items()
                    if key not in ("agrees", "statement")
                },
                "statement": statement,
            }
        )
    else:
        console().print(str(verdict))
        if statement is not None:
            console().print(statement)
        elif run.is_dir() and not any((run / name).exists() for name in (CERTIFICATE_FILE, FOLDS_FILE)):
            console().print(f"The run is not finished; tacit resume {run} continues it.")
        if verdict.agrees and verdict.unchecked:
            console().print("\nThis check does not show:")
            for sentence in verdict.unchecked:
                console().print(f"  - {sentence}")
    if not verdict.agrees:
        raise typer.Exit(1)


def _bundle_verdict(
    path: Path, trust: Path | None, witness: Path | None
) -> tuple[Verdict | BundleVerdict, str | None]:
    if not is_bundle(path):
        raise FileError(
            f"{path} is {_what(path)}; tacit verify takes a run directory or a bundle (model.tacit)."
        )
    if witness is not None:
        raise ArgumentError("--witness is for run directories; a bundle has none.")
    verdict = verify_bundle(path, trust=trust)
    return verdict, verdict.statement


def _check_is_run(path: Path) -> None:
    """Refuse, saying what it is, a folder that holds nothing of a run."""
    if not path.exists():
        raise FileError(f"There is no run directory {path}.")
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if names & {PLAN_FILE, LEDGER_FILE, RUN_FILE, CERTIFICATE_FILE, CHECKPOINT_FILE, EXPERIMENT_FILE}:
        return
    if runs := sorted(name for name in names if (path / name / PLAN_FILE).is_file()):
        raise FileError(f"{path} is a folder of runs ({listed(runs, 4)}), not a run; verify one of them.")
    if COMPARISON_FILE in names:
        raise FileError(f"{path} is a comparison: its runs were made in memory and keep nothing to verify.")
    if names:
        raise FileError(
            f"{path} is a folder that holds {listed(sorted(names), 4)} and nothing of a run: neither plan nor ledger."
        )
    raise FileError(f"{path} is an empty folder, not a run.")


def _what(path: Path) -> str:
    known = {
        CERTIFICATE_FILE: "a certificate by itself, which is a claim; verify the run directory it lies in",
        MODEL_FILE: "a model by itself; verify the run directory it lies in",
        LEDGER_FILE: "a ledger by itself; verify the run directory it lies in",
        PLAN_FILE: "a plan by itself; verify the run directory it lies in",
    }
    return known.get(path.name, f"a file of {path.stat().st_size:,} bytes and no bundle")


CERTIFICATE_EXAMPLE = examples(
    "tacit certificate runs/nhanes",
    "tacit certificate --new-key lab.key",
    "tacit certificate runs/nhanes --sign lab.key",
    "tacit certificate runs/nhanes --registry entry.yaml",
)


def certificate(
    run: Annotated[
        Path | None, typer.Argument(help="Directory of a finished run.", show_default=False)
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--sign", help="Private key (Ed25519, PEM) to sign with.")
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option("--new-key", help="Make a private key here, and its public key beside it as .pub."),
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            "--registry", help="Write an entry for the public registry of deployments here, as YAML."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="TOML file whose section [deployment] has the owner's words. Default: the run's own.",
        ),
    ] = None,
) -> None:
    """Show the certificate of a run, or sign it for people who do not hold the run directory.

    A signature binds the certificate, the ledger, the plan, the checkpoint and the model as they are now. A run that
    does not verify is not signed. Others check it with tacit verify RUN --trust KEY.pub.
    """
    others = (key, registry, config)
    if (run is None) == (new_key is None) or (new_key is not None and any(others)):
        raise ArgumentError("Give a run directory, to show, to sign or to register, or --new-key alone.")
    if (key is not None and registry is not None) or (config is not None and registry is None):
        raise ArgumentError("Say --sign or --registry, one at a time; --config is for --registry.")
    if new_key is not None:
        public = make_key(new_key)
        console().print(f"Private key: {new_key} (keep it to yourself)\nPublic key: {public}")
        return
    assert run is not None
    if not run.is_dir():
        raise FileError(f"There is no run directory {run}.")
    if registry is not None:
        _write_entry(run, registry, config)
        return
    if key is None:
        print(spelled(certificate_page(load_certificate(run / CERTIFICATE_FILE))), end="")
        return
    sign(run, key)
    console().print(f"Signed: {run / SIGNATURE_FILE}")


def _write_entry(run: Path, out: Path, config: Path | None) -> None:
    """An entry for the registry, from a run that verifies and its owner's words."""
    from tacit.jobs.settings import experiment_of, from_record, read_experiment

    if out.exists():
        raise FileError(f"{out} already exists; choose another file, or delete it.")
    verdict = verify_run(run)
    if not verdict.agrees:
        raise FileError(f"{run} does not verify, so there is no entry: {verdict.problems[0]}.")
    if config is not None:
        deployment = experiment_of(read_experiment(config)).deployment
    else:
        path = run / EXPERIMENT_FILE
        record = read_json(path) if path.is_file() else {}
        deployment = from_record(record.get("experiment") or {}, path).deployment
    entry = registry_entry(load_certificate(run / CERTIFICATE_FILE), vars(deployment))
    write_text(out, to_yaml(entry))
    console().print(f"Entry for the registry: {out}. Read it, correct it, and send it in.")
