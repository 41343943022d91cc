"""Plans as JSON: canonical, versioned, read back strictly."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.errors import ArgumentError, FileError
from tacit.files import decode_json, write_json
from tacit.plan.phase import Phase
from tacit.plan.record import Plan
from tacit.plan.sources import source_from_record, source_to_record

FORMAT = "tacit-plan"
VERSION = 1

_PLAN_FIELDS = tuple(field.name for field in dataclasses.fields(Plan))
_PHASE_FIELDS = tuple(field.name for field in dataclasses.fields(Phase))


def plan_to_record(plan: Plan) -> dict[str, Any]:
    """The JSON form of a plan. An infinite epsilon is written as the string "inf"."""
    record: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    record.update({name: getattr(plan, name) for name in _PLAN_FIELDS})
    record["epsilon"] = "inf" if math.isinf(plan.epsilon) else plan.epsilon
    record["phases"] = [
        {name: getattr(phase, name) for name in _PHASE_FIELDS} | {"support": source_to_record(phase.support)}
        for phase in plan.phases
    ]
    return record


def canonical(record: Mapping[str, Any]) -> str:
    """The one JSON text of a record: sorted keys, no spaces, no infinities."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plan_digest(plan: Plan) -> str:
    """SHA-256 of the canonical JSON form: equal for equal plans, and different for any other."""
    return hashlib.sha256(canonical(plan_to_record(plan)).encode()).hexdigest()


def _check_fields(record: Any, expected: tuple[str, ...], where: str) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise FileError(f"{where} must be a JSON object.")
    missing = [name for name in expected if name not in record]
    unknown = [name for name in record if name not in expected]
    if missing:
        raise FileError(f"{where} lacks the field {missing[0]!r}; it is not a complete plan.")
    if unknown:
        raise FileError(
            f"{where} has the unknown field {unknown[0]!r}; it comes from another version or was edited."
        )
    return record


def plan_from_record(record: Any, where: str = "The plan") -> Plan:
    """Read what ``plan_to_record`` wrote.

    Refused are unknown and missing fields, values no plan can have, and phases that cost more than promised.
    """
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        raise FileError(f"{where} is not a Tacit plan.")
    if record.get("version") != VERSION:
        raise FileError(f"{where} has version {record.get('version')!r}; this Tacit reads version {VERSION}.")
    _check_fields(record, ("format", "version", *_PLAN_FIELDS), where)
    if not isinstance(record["phases"], list):
        raise FileError(f"{where} must hold a list of phases.")
    try:
        phases = []
        for index, item in enumerate(record["phases"]):
            place = f"{where}, phase {index + 1},"
            _check_fields(item, _PHASE_FIELDS, place)
            support = source_from_record(item["support"], f"{place} support")
            phases.append(Phase(**{**item, "support": support}))
        values = {name: record[name] for name in _PLAN_FIELDS}
        values["epsilon"] = math.inf if values["epsilon"] == "inf" else values["epsilon"]
        values["phases"] = tuple(phases)
        plan = Plan(**values)
        plan.check_promise()
    except (ArgumentError, TypeError) as error:
        raise FileError(f"{where} cannot be used: {error}") from error
    return plan


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan as JSON: to a temporary file, synced, then renamed, so that no half plan is left."""
    write_json(path, plan_to_record(plan))


def load_plan(path: str | Path) -> Plan:
    """Read a plan written by ``save_plan``."""
    path = Path(path)
    try:
        record = decode_json(path.read_bytes())
    except OSError as error:
        raise FileError(f"The plan {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FileError(f"The plan {path} is not JSON: {error}.") from error
    return plan_from_record(record, f"The plan {path}")
