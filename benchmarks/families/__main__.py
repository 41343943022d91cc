"""``python -m benchmarks.families``: is what a private step computes right, for every family of models?"""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path

import torch

from benchmarks.families import adapters, hugging_face, layers
from benchmarks.families.judging import JUDGES, Verdict
from benchmarks.families.page import document, page
from benchmarks.families.torchvision import declare_operators
from benchmarks.machine import commit
from benchmarks.output import write_atomically

FAMILIES = [*layers.FAMILIES, *hugging_face.FAMILIES, *adapters.FAMILIES]


def main() -> None:
    """Judge every family and, with --write, record the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="judge the families whose name contains this text")
    parser.add_argument("--by", default="tacit,hooks,ghost", help="judges, separated by commas")
    parser.add_argument("--write", action="store_true", help="write docs/results/models.md and models.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    declare_operators()
    logging.disable(logging.WARNING)
    found: dict[str, dict[str, Verdict]] = {}
    for family in FAMILIES:
        if options.only.lower() not in family.name.lower():
            continue
        started = time.monotonic()
        found[family.name] = {name: JUDGES[name](family) for name in options.by.split(",")}
        words = [f"{name} {_short(verdict)}" for name, verdict in found[family.name].items()]
        print(f"{family.name}: {', '.join(words)} ({time.monotonic() - started:.1f} s)", flush=True)
        tacit = found[family.name].get("tacit")
        if tacit is not None and (tacit.sentence and tacit.word != "exact"):
            print(f"    {tacit.sentence}")
    if options.write:
        place = Path(__file__).parents[2] / "docs" / "results"
        content = document(commit(), FAMILIES, found)
        write_atomically(place / "models.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        write_atomically(place / "models.md", page(content))


def _short(verdict: Verdict) -> str:
    figure = "" if verdict.error is None else f" {verdict.error:.0e}"
    return f"{verdict.word}{' (no rule)' if verdict.fallback else ''}{figure}"


if __name__ == "__main__":
    main()
