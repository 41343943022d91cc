"""Write docs/audit/results.md from docs/audit/audit.json, which ``tacit audit --out docs/audit`` writes.

python -m tools.audit_page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOUND = ROOT / "docs" / "audit" / "audit.json"
PAGE = ROOT / "docs" / "audit" / "results.md"


def page(found: dict[str, Any]) -> str:
    """The tables."""
    rows = [
        "# What the audit measured",
        "",
        "Written by `make audit`: `tacit audit --out docs/audit`, then `python -m tools.audit_page`.",
        f"Every lower bound has a confidence of {found['findings'][0]['confidence']:g}.",
        "",
        found["verdict"],
        "",
        "![claimed against measured](audit.png)",
        "",
        "| audited | trials | right guesses | claimed ε | lower bound | noise as if times | without assumptions |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for f in found["findings"]:
        scale = "–" if f["noise_scale"] is None else f"{f['noise_scale']:.3g}"
        rows.append(
            f"| {f['kind']}: {f['name']} | {f['trials']:,} | {f['right']:,} of {f['guesses']:,} "
            f"| {f['epsilon_claimed']:.3f} | {f['epsilon_lower']:.3f} | {scale} | {f['epsilon_lower_any']:.3f} |"
        )
    rows += [
        "",
        "| local mechanism | d, k | claimed ε | exact ε | lower bound from samples |",
        "|---|--:|--:|--:|--:|",
    ]
    for f in found["local"]:
        rows.append(
            f"| {f['selection']}, {f['perturbation']} | {f['d']}, {f['k']} | {f['epsilon_claimed']:.3f} "
            f"| {f['epsilon_exact']:.3f} | {f['epsilon_lower']:.3f} |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(FOUND.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"Written to {PAGE}.")
