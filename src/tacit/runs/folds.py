"""Cross-validation: several runs on the same data, and one promise for all of them together.

Each run holds one part of the data out and is trained on the others. A unit is in one part, so all runs but one are
trained on it: with K runs, adding or removing it changes K - 1 of them. Which part it is in follows from the unit
alone, so the runs compose as mechanisms decided on beforehand, and the worst choice of the one to leave out is the
promise. Where neighbours differ by a unit that is replaced, the new one may be in another part, and all K runs count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import FileError, TacitError, is_number
from tacit.files import file_digest, read_json, write_json, write_text
from tacit.plan import Plan, Spend, epsilon_of, load_plan
from tacit.plan.accountants import RELATION, REPLACE_ONE, ZERO_OUT
from tacit.plan.budgets import Cost, together
from tacit.release.ledger_file import read_ledger
from tacit.rounding import rounded_up
from tacit.runs.certificate import Certificate, spends_of
from tacit.runs.certificate_file import load_certificate
from tacit.runs.layout import (
    CERTIFICATE_FILE,
    EXPERIMENT_FILE,
    FOLDS_FILE,
    FOLDS_PAGE,
    LEDGER_FILE,
    PLAN_FILE,
)
from tacit.runs.recounting import TOLERANCE, recount
from tacit.runs.verification import Verdict, verify

FORMAT = "tacit-cross-validation-1"


@dataclass(frozen=True)
class Promise:
    """What holds for all runs together; ``touched`` is how many of them one unit can influence."""

    epsilon: float
    delta: float
    touched: int
    runs: int


def promise_of(
    costs: Sequence[Cost], delta: float, relation: str, epsilon: Callable[[Sequence[Spend], float], float]
) -> Promise:
    """The promise of runs of these costs, by ``epsilon`` (of spends, at a δ).

    A δ that runs have set aside for events of their own comes on top of ``delta``.
    """
    if relation not in (RELATION, ZERO_OUT):
        whole = together(costs)
        return Promise(epsilon(whole.spends, delta), delta + whole.aside, len(costs), len(costs))
    # Every way to leave one out counts, and the worst of them is the promise.
    parts = [together([*costs[:place], *costs[place + 1 :]]) for place in range(len(costs))]
    different = dict.fromkeys(parts)
    return Promise(
        max(epsilon(part.spends, delta) for part in different),
        delta + max(part.aside for part in parts),
        len(costs) - 1,
        len(costs),
    )


def planned_promise(plans: Sequence[Plan]) -> Promise:
    """What runs by these plans would promise together, before anything is spent."""
    first = plans[0]
    costs = [Cost(plan.spends(), max(0.0, plan.delta - plan.gaussian_delta)) for plan in plans]
    return promise_of(
        costs, first.delta, first.relation, lambda s, d: epsilon_of(s, d, first.accountant, first.relation)
    )


def write_promise(folder: Path, names: Sequence[str], figures: Mapping[str, Any]) -> Promise:
    """Certify the finished runs ``names`` in ``folder`` together; ``figures`` are kept beside the promise."""
    certificates = {name: load_certificate(folder / name / CERTIFICATE_FILE) for name in names}
    first = next(iter(certificates.values()))
    plan = load_plan(folder / names[0] / PLAN_FILE)
    found = promise_of(
        [_charged(folder / name) for name in names],
        plan.delta,
        plan.relation,
        lambda spends, delta: epsilon_of(spends, delta, plan.accountant, plan.relation),
    )
    record = {
        "format": FORMAT,
        "statement": statement(found, first),
        "epsilon": "inf" if math.isinf(found.epsilon) else found.epsilon,
        "delta": found.delta,
        "touched": found.touched,
        "for_release": all(one.for_release for one in certificates.values()),
        "runs": {name: file_digest(folder / name / CERTIFICATE_FILE) for name in names},
        **figures,
    }
    write_text(folder / FOLDS_PAGE, page(record, certificates))
    write_json(folder / FOLDS_FILE, record)
    return found


def statement(found: Promise, certificate: Certificate) -> str:
    """The promise of all runs in words."""
    if not found.epsilon <= 500:
        return "These runs together promise no privacy worth the name."
    return (
        f"All {found.runs} runs together: {found.touched} of them were trained on any one unit of privacy "
        f"({certificate.unit}). It changes the probability of any outcome of all of them by at most a factor of "
        f"{rounded_up(math.exp(found.epsilon))} (epsilon = {rounded_up(found.epsilon)}), except with probability "
        f"{found.delta:g}."
    )


def page(record: Mapping[str, Any], certificates: Mapping[str, Certificate]) -> str:
    """The promise for a reader with no tool but an editor."""
    state = (
        "FOR RELEASE, within the limits stated by each run" if record["for_release"] else "NOT FOR RELEASE"
    )
    lines = [
        "PRIVACY CERTIFICATE of a cross-validation",
        "=" * 41,
        "",
        f"{state}.",
        "",
        record["statement"],
        "",
    ]
    lines += ["Each run by itself, and what it does not cover, is certified in its own folder:", ""]
    lines += [
        f"  {name}: epsilon spent {one.epsilon_spent:.6g}, certificate SHA-256 {record['runs'][name]}"
        for name, one in certificates.items()
    ]
    lines += [
        "",
        "Not covered, besides: a choice among several cross-validations, and any later run on the same data.",
    ]
    return "\n".join(lines) + "\n"


def verify_folds(folder: str | Path, *, trust: str | Path | None = None) -> Verdict:
    """Verify every run of a cross-validation, and recount what they promise together."""
    folder = Path(folder)
    try:
        record = read_json(folder / FOLDS_FILE)
        if not isinstance(record, Mapping) or record.get("format") != FORMAT:
            raise FileError(f"{folder / FOLDS_FILE} is no cross-validation of this version of Tacit.")
        runs = record.get("runs")
        if not isinstance(runs, Mapping) or len(runs) < 2:
            raise FileError(
                f"{folder / FOLDS_FILE} is not finished: the same command as before continues it."
            )
    except TacitError as error:
        return Verdict(False, False, None, None, (str(error).rstrip("."),))
    problems: list[str] = []
    unchecked: list[str] = []
    release = True
    for name, digest in runs.items():
        verdict = verify(folder / name, trust=trust)
        problems += [f"{name}: {problem}" for problem in verdict.problems]
        unchecked += verdict.unchecked
        release = release and verdict.for_release
        certificate = folder / name / CERTIFICATE_FILE
        if certificate.is_file() and file_digest(certificate) != digest:
            problems.append(f"{name}: its certificate is not the one of this cross-validation")
    claimed = record.get("epsilon")
    claimed = math.inf if claimed == "inf" else float(claimed) if is_number(claimed) else math.nan
    epsilon = None
    if not problems:
        epsilon, found = _recounted(folder, record, list(runs))
        problems += found
    problems += _beside(folder, list(runs))
    return Verdict(
        agrees=not problems,
        for_release=not problems and release,
        epsilon=epsilon,
        claimed=claimed,
        problems=tuple(dict.fromkeys(problems)),
        unchecked=tuple(dict.fromkeys(unchecked)),
    )


def _beside(folder: Path, names: list[str]) -> list[str]:
    """What else the folder tells: runs that are not listed, and parts of the data that two runs, or none, held out."""
    problems = []
    if unlisted := sorted({path.name for path in folder.glob("fold-*") if path.is_dir()} - set(names)):
        problems.append(f"{FOLDS_FILE} does not list {unlisted[0]}, which lies beside it")
    held_out = []
    for name in names:
        path = folder / name / EXPERIMENT_FILE
        if Path(name).name != name or name in (".", ".."):
            problems.append(f"{FOLDS_FILE} lists {name!r}, which is no run in its folder")
        elif path.is_file():
            try:
                held_out.append(str(read_json(path)["experiment"]["data"]["fold"]))
            except (KeyError, TypeError, TacitError):
                held_out.append("nothing")
    # A unit is trained on in all runs but one only if every part is held out once.
    parts = [f"{part}/{len(names)}" for part in range(1, len(names) + 1)]
    if held_out and sorted(held_out) != sorted(parts):
        problems.append("the runs do not hold out every part of the data once")
    return problems


def _recounted(folder: Path, record: Mapping[str, Any], names: list[str]) -> tuple[float, list[str]]:
    plans = [load_plan(folder / name / PLAN_FILE) for name in names]
    first, problems = plans[0], []
    if any((plan.relation, plan.delta) != (first.relation, first.delta) for plan in plans):
        problems.append("the runs promise for different neighbours or at different deltas")
    again = promise_of(
        [_charged(folder / name) for name in names],
        first.delta,
        first.relation,
        lambda spends, delta: recount(
            Counter({(s.sampling_rate, s.noise_multiplier): s.steps for s in spends}),
            delta,
            replaced=first.relation == REPLACE_ONE,
        ),
    )
    claimed = math.inf if record.get("epsilon") == "inf" else record.get("epsilon")
    if not is_number(claimed) or not again.epsilon <= claimed * (1 + TOLERANCE):
        problems.append(
            f"all runs together cost epsilon = {again.epsilon:.6g} by an independent accountant, above the "
            f"{claimed} of {FOLDS_FILE}"
        )
    if record.get("delta") != again.delta or record.get("touched") != again.touched:
        problems.append(
            f"{FOLDS_FILE} gives another delta, or another number of runs per unit, than the runs"
        )
    certificates = {name: load_certificate(folder / name / CERTIFICATE_FILE) for name in names}
    if record.get("for_release") is not all(one.for_release for one in certificates.values()):
        problems.append(f"{FOLDS_FILE} says otherwise than its runs whether it is for release")
    if is_number(claimed):
        told = Promise(float(claimed), again.delta, again.touched, again.runs)
        if record.get("statement") != statement(told, certificates[names[0]]):
            problems.append(f"the statement in {FOLDS_FILE} does not fit its figures: it was edited")
        elif not problems and _read(folder / FOLDS_PAGE) != page(record, certificates):
            problems.append(f"{FOLDS_PAGE} does not say what {FOLDS_FILE} says: one of the two was edited")
    return again.epsilon, problems


def _charged(run_dir: Path) -> Cost:
    plan = load_plan(run_dir / PLAN_FILE)
    charges = read_ledger(run_dir / LEDGER_FILE).charges
    return Cost(spends_of(charges), max(0.0, plan.delta - plan.gaussian_delta))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
