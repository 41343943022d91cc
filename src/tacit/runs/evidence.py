"""Everything that a run directory holds about its run, read once, each file by itself."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tacit.errors import FileError, TacitError
from tacit.files import decode_json, file_digest, read_json
from tacit.plan import Plan, load_plan
from tacit.release.ledger_file import LedgerRecord, head_file, read_ledger
from tacit.runs.certificate import Certificate
from tacit.runs.certificate_file import READING_FILES, load_certificate
from tacit.runs.description import Description, load_description
from tacit.runs.layout import (
    ADAPTER_DIRECTORY,
    ADAPTER_FILE,
    CERTIFICATE_FILE,
    CHECKPOINT_FILE,
    EXPERIMENT_FILE,
    LEDGER_FILE,
    METRICS_FILE,
    MODEL_FILE,
    PAGE_FILE,
    PLAN_FILE,
    RESULT_FILE,
    RUN_FILE,
    SCHEMA_FILE,
    SIGNATURE_FILE,
    STATISTICS_FILE,
)
from tacit.runs.shard_files import read_checkpoint
from tacit.runs.tensor_file import TensorFile, read_tensor_file, tensor_digests

Read = TypeVar("Read")

HEAD_FILE = head_file(Path(LEDGER_FILE)).name
READ = (
    PLAN_FILE,
    RUN_FILE,
    LEDGER_FILE,
    HEAD_FILE,
    CHECKPOINT_FILE,
    MODEL_FILE,
    CERTIFICATE_FILE,
    PAGE_FILE,
    SIGNATURE_FILE,
    EXPERIMENT_FILE,
    RESULT_FILE,
    METRICS_FILE,
    STATISTICS_FILE,
    SCHEMA_FILE,
)
"""The files that verification reads."""


@dataclass(frozen=True)
class Evidence:
    """What each file says; None where it is missing or cannot be read.

    ``problems`` are sentences about files that cannot be read, ``digests`` those of the files' bytes, ``others`` the
    names of files that are no evidence.
    """

    directory: Path
    plan: Plan | None
    run: Description | None
    ledger: LedgerRecord | None
    head: str | None
    checkpoint: TensorFile | None
    model: TensorFile | None
    adapter: Mapping[str, str] | None
    certificate: Certificate | None
    page: bytes | None
    experiment: Mapping[str, Any] | None
    statistics: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    metrics: tuple[Mapping[str, Any], ...]
    digests: Mapping[str, str]
    problems: tuple[str, ...]
    others: tuple[str, ...] = field(default=())


def gather(directory: Path) -> Evidence:
    """Read a run directory, which may be anybody's: nothing in it is run, waited for or written."""
    problems: list[str] = []

    def attempt(name: str, read: Callable[[Path], Read], *, needed: bool = False) -> Read | None:
        path = directory / name
        try:
            if not _is_there(path, needed=needed):
                return None
            return read(path)
        except TacitError as error:
            problems.append(str(error).rstrip("."))
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}")
        return None

    ledger = attempt(LEDGER_FILE, read_ledger, needed=True)
    plan = attempt(PLAN_FILE, load_plan, needed=True)
    certificate = attempt(CERTIFICATE_FILE, load_certificate, needed=True)
    run = attempt(RUN_FILE, load_description)
    named = [] if certificate is None else [name for name, _ in certificate.files]
    looked_at = {*READ, *(name for name in READING_FILES if name in named)}
    digests = {name: attempt(name, file_digest) for name in {*named, RUN_FILE} if name in looked_at}
    return Evidence(
        directory=directory,
        plan=plan,
        run=run,
        ledger=ledger,
        head=attempt(HEAD_FILE, lambda path: path.read_bytes().decode("ascii", errors="replace").strip()),
        checkpoint=attempt(CHECKPOINT_FILE, read_checkpoint),
        model=attempt(MODEL_FILE, read_tensor_file),
        adapter=attempt(ADAPTER_FILE, tensor_digests),
        certificate=certificate,
        page=attempt(PAGE_FILE, Path.read_bytes),
        experiment=attempt(EXPERIMENT_FILE, _object),
        statistics=attempt(STATISTICS_FILE, _object),
        result=attempt(RESULT_FILE, _object),
        metrics=attempt(METRICS_FILE, _rows) or (),
        digests={name: digest for name, digest in digests.items() if digest is not None},
        problems=tuple(dict.fromkeys(problems)),
        others=tuple(
            sorted(
                path.name for path in _listed(directory) if path.name not in {*looked_at, ADAPTER_DIRECTORY}
            )
        ),
    )


def _is_there(path: Path, *, needed: bool) -> bool:
    """Whether there is a file; a pipe or a device in its place would keep us waiting for ever, so it is refused."""
    try:
        about = path.stat()
    except FileNotFoundError:
        if needed:
            raise FileError(f"{path} is missing.") from None
        return False
    if not stat.S_ISREG(about.st_mode):
        raise FileError(f"{path} is not an ordinary file.")
    return True


def _listed(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _object(path: Path) -> Mapping[str, Any]:
    record = read_json(path)
    if not isinstance(record, dict):
        raise FileError(f"{path} does not hold what it should.")
    return record


def _rows(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The rows of the figures; a line that a crash has cut is left out."""
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            row = decode_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return tuple(rows)
