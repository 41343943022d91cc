"""Measuring a table's columns before training: rounds of counts, charged like every release, kept in the run directory.

A round is charged, noised and written to disk before the next one starts. A round that a crash has lost stays charged
and is not repeated: the rounds that are left make do without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.data.open_table import OpenTable, Round
from tacit.data.schema import Schema
from tacit.distributed.ranks import Ranks
from tacit.errors import FileError, LedgerError, is_number
from tacit.files import read_json, write_json
from tacit.plan import Phase, Plan
from tacit.plan.sources import Columns
from tacit.release.columns import count_columns, release_columns
from tacit.release.ledger import Ledger
from tacit.release.ledger_file import Charge
from tacit.release.noise import Noise, SecureNoise, SeededNoise
from tacit.runs.layout import STATISTICS_FILE

FORMAT = "tacit-statistics-1"


def measure_columns(
    table: OpenTable, plan: Plan, ledger: Ledger, directory: Path | None, seed: int | None, ranks: Ranks
) -> Schema:
    """The schema that follows from the rounds of counts that ``plan`` begins with; those already released count too.

    The first rank counts, and its ledger pays; the others hear what was released.
    """

    def lead() -> dict[str, Any]:
        rounds = _measure(table, plan, ledger, directory, seed)
        return {
            "rounds": list(map(_record, rounds)),
            "charges": [charge.record() for charge in ledger.charges],
        }

    found = ranks.lead(lead)
    for charge in found["charges"][len(ledger) :]:  # the other ranks keep count in memory
        ledger.charge(Charge(**charge))
    return table.measured([_round(record) for record in found["rounds"]])


def _measure(
    table: OpenTable, plan: Plan, ledger: Ledger, directory: Path | None, seed: int | None
) -> list[Round]:
    phase = plan.phases[0]
    assert isinstance(phase.support, Columns)
    noise: Noise = SecureNoise() if seed is None else SeededNoise(seed)
    rounds = [] if directory is None else read_rounds(directory, len(ledger))
    while len(ledger) < plan.counts:
        rounds.append(_one_round(table, plan, phase, rounds, ledger, noise))
        if directory is not None:
            write_json(
                directory / STATISTICS_FILE,
                {"format": FORMAT, "rounds": [_record(entry) for entry in rounds]},
            )
    if not rounds:
        raise LedgerError(
            "All counts of the table's columns were charged, and then lost before they were written; they cannot be "
            "released again within ε: start a new run, and add its ε to this one's."
        )
    return rounds


def _one_round(
    table: OpenTable, plan: Plan, phase: Phase, before: list[Round], ledger: Ledger, noise: Noise
) -> Round:
    asked = table.questions(before)
    counts = count_columns(asked.binned, asked.named, asked.weights)
    index = len(ledger)
    charge = Charge(
        index=index,
        step=index,
        phase=phase.name,
        sampling_rate=phase.sampling_rate,
        noise_multiplier=phase.noise_multiplier,
        clip_norm=phase.clip_norm,
        batch_size=plan.batch_size,
        active=counts.size,
        secure_noise=noise.secure,
    )
    released = release_columns(counts, charge, ledger, noise, log_delta=names_log_delta(plan))
    target = table.guess.target.name
    return Round(
        index,
        {name: tuple(edges.tolist()) for name, edges in asked.edges.items()},
        {name: released.binned[name] for name in asked.edges},
        released.named,
        () if target in asked.edges else released.binned.get(target, ()),
        released.deviations,
    )


def names_log_delta(plan: Plan) -> float:
    """The logarithm of the probability with which one row may make a name appear in one round.

    The promise sets δ' aside for names. Somebody who is told of a name that only one row has can tell the two data
    sets apart, in the worst case after everything else has been told at the price of ε: hence e^-ε. Each round may try.
    """
    support = plan.phases[0].support
    assert isinstance(support, Columns)
    return math.log(support.delta) - plan.epsilon - math.log(plan.counts)


def read_rounds(directory: Path, charges: int) -> list[Round]:
    """The rounds that a run directory holds; at most as many as were charged."""
    path = directory / STATISTICS_FILE
    if not path.exists():
        return []
    record = read_json(path)
    try:
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']!r}")
        rounds = [_round(entry) for entry in record["rounds"]]
        places = [entry.index for entry in rounds]
        if places != sorted(set(places)) or any(not 0 <= place < charges for place in places):
            raise ValueError("its rounds are not those that the ledger was charged for")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{path} does not hold what was released about the columns: {error}.") from error
    return rounds


def _record(entry: Round) -> dict[str, Any]:
    return {
        "index": entry.index,
        "edges": {name: list(edges) for name, edges in entry.edges.items()},
        "numbers": {name: list(counts) for name, counts in entry.numbers.items()},
        "names": {name: dict(counts) for name, counts in entry.names.items()},
        "classes": list(entry.classes),
        "deviations": dict(entry.deviations),
    }


def _round(record: Mapping[str, Any]) -> Round:
    if type(record["index"]) is not int:
        raise ValueError("a round has no place")
    entry = Round(
        record["index"],
        {str(name): _numbers(values) for name, values in record["edges"].items()},
        {str(name): _numbers(values) for name, values in record["numbers"].items()},
        {
            str(name): dict(zip(map(str, found), _numbers(list(found.values())), strict=True))
            for name, found in record["names"].items()
        },
        _numbers(record["classes"]),
        dict(zip(record["deviations"], _numbers(list(record["deviations"].values())), strict=True)),
    )
    for name, edges in entry.edges.items():
        if len(entry.numbers[name]) != len(edges) + 2 or name not in entry.deviations:
            raise ValueError(f"the counts of {name!r} do not fit their edges")
    return entry


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(is_number(value) and math.isfinite(value) for value in values):
        raise ValueError("it holds something that is no number")
    return tuple(float(value) for value in values)
