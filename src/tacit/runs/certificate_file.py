"""Certificates as files: JSON for machines, a page of plain text for people."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tacit.errors import ArgumentError, FileError, TacitError, is_number
from tacit.files import decode_json, file_digest, write_json, write_text
from tacit.plan import load_plan
from tacit.release.ledger_file import read_ledger
from tacit.runs.certificate import (
    DEFAULT_NOT_COVERED,
    DEFAULT_UNIT,
    VERSION,
    Certificate,
    PhaseRecord,
    certificate_page,
    certify,
)
from tacit.runs.description import load_description
from tacit.runs.layout import (
    CERTIFICATE_FILE,
    CHECKPOINT_FILE,
    EXPERIMENT_FILE,
    INPUTS_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PAGE_FILE,
    PLAN_FILE,
    RUN_FILE,
    SCHEMA_FILE,
    STATISTICS_FILE,
)
from tacit.runs.tensor_file import read_tensor_file

FORMAT = "tacit-certificate"
BOUND_FILES = (
    RUN_FILE,
    CHECKPOINT_FILE,
    MODEL_FILE,
    STATISTICS_FILE,
    SCHEMA_FILE,
    INPUTS_FILE,
    EXPERIMENT_FILE,
)
"""Files that a certificate names with their digests; plan and ledger it names by digests of their content."""
READING_FILES = (SCHEMA_FILE, INPUTS_FILE)
"""Those that say how data is read, where the command line read it."""
DESCRIBING_FILES = (*READING_FILES, EXPERIMENT_FILE)
"""Those that are written when a run begins, and stay as they are."""


def write_certificate(
    run_dir: str | Path,
    *,
    unit: str | None = None,
    not_covered: Sequence[str] | None = None,
    warnings: Sequence[str] = (),
) -> Certificate:
    """Certify the run in ``run_dir`` from its plan and ledger; write the certificate and its page there.

    ``unit`` and ``not_covered`` are those that the run was started with. Where it was started with none (by hand, or by
    version 0.1) they may be given, and have defaults. What was not covered from the start cannot be left out.
    ``warnings`` are sentences for whoever uses the model.
    """
    directory = Path(run_dir)
    plan = load_plan(directory / PLAN_FILE)
    ledger = read_ledger(directory / LEDGER_FILE)
    begun = load_description(directory / RUN_FILE) if (directory / RUN_FILE).exists() else None
    bound_unit = None if begun is None else begun.unit
    bound = () if begun is None else begun.not_covered or ()
    if bound_unit is not None and unit not in (None, bound_unit):
        raise ArgumentError(
            f"The run was started with the unit {bound_unit!r}; its certificate cannot name another."
        )
    checkpoint = directory / CHECKPOINT_FILE
    noted = read_tensor_file(checkpoint).numbers if checkpoint.exists() else {}
    chosen = bound_unit or (DEFAULT_UNIT if unit is None else unit)
    listed = (() if bound else DEFAULT_NOT_COVERED) if not_covered is None else tuple(not_covered)
    certificate = certify(
        plan,
        ledger,
        unit=chosen,
        not_covered=tuple(dict.fromkeys((*bound, *listed))),
        files={name: file_digest(directory / name) for name in BOUND_FILES if (directory / name).exists()},
        coordinates=None if begun is None else begun.coordinates or coordinates_in(noted),
        reasons=reasons_in(noted),
        warnings=warnings,
    )
    before = _written(directory)
    if before is not None and dataclasses.replace(certificate, created=before.created) == before:
        return before  # a signature, or a cross-validation, may speak of it
    write_text(directory / PAGE_FILE, certificate_page(certificate))
    write_json(directory / CERTIFICATE_FILE, certificate_to_record(certificate))
    return certificate


def _written(directory: Path) -> Certificate | None:
    """The certificate that lies there with its page, if both are whole."""
    try:
        found = load_certificate(directory / CERTIFICATE_FILE)
        page = (directory / PAGE_FILE).read_text(encoding="utf-8")
    except (TacitError, OSError, UnicodeError):
        return None
    return found if page == certificate_page(found) else None


def check_certified(
    directory: Path, shown: Path, names: Sequence[str] = (MODEL_FILE, *READING_FILES)
) -> None:
    """Refuse a model, or a way to read data, that is not the one which the certificate names."""
    if not (directory / CERTIFICATE_FILE).is_file():
        return
    certified = dict(load_certificate(directory / CERTIFICATE_FILE).files)
    for name in names:
        if name in certified and (
            not (directory / name).is_file() or file_digest(directory / name) != certified[name]
        ):
            raise FileError(
                f"{name} of {shown} is not the one that the certificate speaks of; tacit verify {shown} says more."
            )


def coordinates_in(numbers: Mapping[str, Any]) -> int | None:
    """The number of trainable coordinates among a checkpoint's numbers, for a run that began without a model."""
    noted = numbers.get("coordinates")
    return noted if type(noted) is int and noted > 0 else None


def reasons_in(numbers: Mapping[str, Any]) -> dict[str, str]:
    """The reasons among a checkpoint's numbers."""
    noted = numbers.get("selections")
    if not isinstance(noted, Mapping):
        return {}
    return {phase: reason for phase, reason in noted.items() if isinstance(reason, str)}


def certificate_to_record(certificate: Certificate) -> dict[str, Any]:
    """The JSON form. Infinite epsilons are written as the string "inf"; the statement comes first."""
    record = dataclasses.asdict(certificate)
    version = record.pop("version")
    for name in ("epsilon", "epsilon_spent"):
        record[name] = "inf" if math.isinf(record[name]) else record[name]
    for name in ("software", "files"):
        record[name] = dict(record[name])
    for name in _missing(version):
        del record[name]
    for phase in record["phases"] if version < 3 else ():
        del phase["active"], phase["reason"]
    return {"format": FORMAT, "version": version, "statement": certificate.statement, **record}


def load_certificate(path: str | Path) -> Certificate:
    """Read a certificate; unknown or missing fields, or a statement that was edited, are refused."""
    path = Path(path)
    try:
        record = decode_json(path.read_bytes())
    except OSError as error:
        raise FileError(f"The certificate {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FileError(f"The certificate {path} is not JSON: {error}.") from error
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        raise FileError(f"{path} is not a Tacit certificate.")
    version = record.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise FileError(
            f"The certificate {path} has version {version!r}; this Tacit reads version {VERSION}."
        )
    names = {field.name for field in dataclasses.fields(Certificate)} - {"version", *_missing(version)}
    given = set(record) - {"format", "version", "statement"}
    for name in sorted(given ^ names):
        state = "lacks the" if name in names else "has the unknown"
        raise FileError(f"The certificate {path} {state} field {name!r}.")
    try:
        certificate = _from_record({name: record[name] for name in names}, version)
        statement = certificate.statement
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileError(f"The certificate {path} holds values that no certificate has: {error}.") from error
    if record.get("statement") != statement:
        raise FileError(f"The statement of the certificate {path} does not fit its figures: it was edited.")
    return certificate


def _missing(version: int) -> tuple[str, ...]:
    """The fields that a certificate of an earlier version does not have."""
    later = {
        "files": 2,
        "coordinates": 3,
        "groups": 4,
        "gaussian_mu": 4,
        "curve": 4,
        "warnings": 5,
        "tuning": 5,
    }
    return tuple(name for name, since in later.items() if version < since)


def _from_record(values: dict[str, Any], version: int) -> Certificate:
    for name in ("epsilon", "epsilon_spent"):
        values[name] = math.inf if values[name] == "inf" else float(values[name])
    values["software"] = tuple(values["software"].items())
    values["files"] = tuple(values.get("files", {}).items())
    for name in ("groups", "curve"):
        values[name] = tuple(map(tuple, values.get(name, ())))
    values["phases"] = tuple(_phase_from(phase, version) for phase in values["phases"])
    for name in ("reasons_against_release", "not_covered", "warnings"):
        values[name] = tuple(values.get(name, ()))
    certificate = Certificate(**values, version=version)
    datetime.fromisoformat(certificate.created)
    for record in (certificate, *certificate.phases):
        for name, kind in typing.get_type_hints(type(record)).items():
            if not _fits(getattr(record, name), kind):
                raise ValueError(f"{name} cannot be {getattr(record, name)!r:.80}")
    if not (certificate.epsilon > 0 and certificate.epsilon_spent >= 0 and 0 < certificate.delta < 1):
        raise ValueError("epsilon and delta are no figures of a promise")
    return certificate


def _phase_from(record: Mapping[str, Any], version: int) -> PhaseRecord:
    listed = ("noise_multipliers",) if version < 3 else ("noise_multipliers", "active")
    names = {field.name for field in dataclasses.fields(PhaseRecord)}
    if set(record) != names - (set() if version >= 3 else {"active", "reason"}):
        raise ValueError("a phase has other fields")
    return PhaseRecord(**{**record, **{name: tuple(map(tuple, record[name])) for name in listed}})


def _fits(value: Any, kind: Any) -> bool:
    """Whether ``value`` is of the type that a field of a certificate states."""
    if typing.get_origin(kind) is tuple:
        kinds = typing.get_args(kind)
        kinds = kinds[:1] * len(value) if kinds[1:] == (Ellipsis,) else kinds
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    if isinstance(kind, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(kind))
    if kind is float:
        return is_number(value)
    return type(value) is kind
