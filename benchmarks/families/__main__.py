"""``python -m benchmarks.families``: is what a private step computes right, for every family of models?"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import time
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.families import adapters, hugging_face, layers, more_hugging_face, unusual
from benchmarks.families.family import Family
from benchmarks.families.judging import JUDGES, Verdict
from benchmarks.families.page import document, page
from benchmarks.families.torchvision import declare_operators
from benchmarks.machine import ROOT, commit
from benchmarks.output import write_atomically

FAMILIES = [
    *layers.FAMILIES,
    *unusual.FAMILIES,
    *hugging_face.FAMILIES,
    *more_hugging_face.FAMILIES,
    *adapters.FAMILIES,
]
_PACKAGES = {"HF": "transformers", "peft": "peft", "timm": "timm", "x-transformers": "x_transformers"}
"""The first word of a family's name, where it tells which library the family needs."""
UNFINISHED = ROOT / "build" / "families.jsonl"


def main() -> None:
    """Judge every family and, with --write, record the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="judge the families whose name contains this text")
    parser.add_argument("--by", default="tacit,hooks,ghost", help="judges, separated by commas")
    parser.add_argument("--write", action="store_true", help="write docs/results/models.md and models.json")
    parser.add_argument(
        "--resume", action="store_true", help="keep what an interrupted run has found already"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    declare_operators()
    logging.disable(logging.WARNING)
    found = _unfinished() if options.resume else {}
    UNFINISHED.parent.mkdir(exist_ok=True)
    if not options.resume:
        UNFINISHED.unlink(missing_ok=True)
    missing = {family.name for family in FAMILIES if not _installed(family)}
    for family in FAMILIES:
        if family.name in missing:
            found.pop(family.name, None)
        elif options.only.lower() in family.name.lower() and family.name not in found:
            found[family.name] = _judged(family, options.by.split(","))
    if options.write:
        place = ROOT / "docs" / "results"
        content = document(commit(), FAMILIES, found, missing)
        write_atomically(place / "models.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        write_atomically(place / "models.md", page(content))


def _installed(family: Family) -> bool:
    """Whether the library that a family comes from is there."""
    package = _PACKAGES.get(family.name.split()[0])
    return package is None or importlib.util.find_spec(package) is not None


def _judged(family: Family, judges: list[str]) -> dict[str, Verdict]:
    started = time.monotonic()
    found = {name: JUDGES[name](family) for name in judges}
    words = [f"{name} {_short(verdict)}" for name, verdict in found.items()]
    print(f"{family.name}: {', '.join(words)} ({time.monotonic() - started:.1f} s)", flush=True)
    tacit = found.get("tacit")
    if tacit is not None and tacit.sentence and tacit.word != "exact":
        print(f"    {tacit.sentence}", flush=True)
    with UNFINISHED.open("a", encoding="utf-8") as file:
        record = {"family": family.name, **{name: asdict(verdict) for name, verdict in found.items()}}
        file.write(json.dumps(record) + "\n")
    return found


def _unfinished() -> dict[str, dict[str, Verdict]]:
    if not Path(UNFINISHED).exists():
        return {}
    records = [json.loads(line) for line in UNFINISHED.read_text(encoding="utf-8").splitlines()]
    return {r.pop("family"): {name: Verdict(**verdict) for name, verdict in r.items()} for r in records}


def _short(verdict: Verdict) -> str:
    figure = "" if verdict.error is None else f" {verdict.error:.0e}"
    return f"{verdict.word}{' (no rule)' if verdict.fallback else ''}{figure}"


if __name__ == "__main__":
    main()
