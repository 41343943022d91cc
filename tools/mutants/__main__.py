"""Plant every mutant, one at a time, and report which test catches it.

python -m tools.mutants [--only NAME] [--jobs N] [--write]
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.mutants.catalogue import MUTANTS
from tools.mutants.running import ROOT, SOURCE, Outcome, attempt, first_failure

PAGE = ROOT / "docs" / "mutants.md"
_INTRODUCTION = """\
# Planted bugs

Written by `make mutants`. Each line is a realistic privacy bug, planted by itself in a copy of the package; the last column
is the test that fails first. All must be caught. A test of the suite (`tests/tools/test_mutants.py`) checks that every mutant
still fits the source; `tools/mutants` holds the replacements.
"""


def table(outcomes: list[Outcome]) -> str:
    """The page with one row per mutant."""
    rows = ["| bug | what it does | caught by |", "|---|---|---|"]
    for outcome in outcomes:
        caught = f"`{outcome.caught_by}`" if outcome.caught_by else "**nothing**"
        rows.append(f"| {outcome.mutant.name} | {outcome.mutant.what} | {caught} |")
    caught = sum(outcome.caught_by is not None for outcome in outcomes)
    return f"{_INTRODUCTION}\n" + "\n".join(rows) + f"\n\n{caught} of {len(outcomes)} caught.\n"


def main() -> int:
    """Try the mutants; the exit code says whether all were caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="name of a mutant; repeatable")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not given.only or mutant.name in given.only]
    unknown = set(given.only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {sorted(unknown)[0]!r}")
    broken = first_failure(SOURCE, ["tests/release/test_release.py"])
    if broken is not None:
        print(f"{broken} fails without any mutant; mend that first.", file=sys.stderr)
        return 2
    outcomes = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(attempt, chosen):
            outcomes.append(outcome)
            mark = "caught  " if outcome.caught_by else "SURVIVES"
            by = outcome.caught_by or ""
            print(f"{mark} {outcome.seconds:6.1f} s  {outcome.mutant.name:36s} {by}", flush=True)
    survivors = [outcome.mutant.name for outcome in outcomes if outcome.caught_by is None]
    print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} caught")
    if given.write and not given.only:
        Path(PAGE).write_text(table(outcomes), encoding="utf-8")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
