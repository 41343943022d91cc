"""docs/attack.md, from what an attack found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tools.attack.jobs import CROWDED, violations
from tools.attack.peers import ALLOWANCE, MODES
from tools.attack.settings import SUPPORTS
from tools.attack.targets import TARGETS

Records = Sequence[dict[str, Any]]

INTRODUCTION = """\
The noise of a release is scaled by the sensitivity of the clipped sum. The attacker looks for a batch and one
example that move the sum further: dS / sensitivity above 1 would mean that ε is wrong. dS is the norm of the change
in the numbers that are about to be released, computed in extended precision. **Bold** figures are above 1.

The attacks: positions whose products cancel, extreme and opposite scales, subnormals (also flushed to zero),
infinities and NaN, gradient ascent on cancellation, and evolution of the worst rows so far together with type,
pieces, statistic, clip order and clip norm. A search is guided by what it finds; the same seed and number of
evaluations (`--evaluations`) give the same candidates. A ratio below 1 is what these attacks reached, not a proof;
the proof is in [numerics](concepts/numerics.md).
"""


def page(found: Records, facts: dict[str, Any]) -> str:
    """The whole page."""
    tacit = [record for record in found if record["kind"] in ("alone", "crowd")]
    total = sum(record["evaluations"] for record in tacit)
    broken = violations(found)
    verdict = (
        f"**{len(broken)} of the searches below broke the bound.**"
        if broken
        else "No attack moved a sum by more than its sensitivity."
    )
    lines = [
        "# Attack",
        "",
        f"Written by `make attack`: {total:,} rows in {facts['minutes']:.0f} minutes, seed {facts['seed']}, "
        f"torch {facts['torch']}, {facts['machine']}.",
        "",
        verdict,
        "",
        INTRODUCTION,
        *_one_odd_example(found),
        *_by_setting(tacit),
        *_hostile_companions(found),
        *_beside_opacus(found),
        *_through_the_trainer(found),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _one_odd_example(found: Records) -> list[str]:
    lines = [
        "## One odd example",
        "",
        "The worst dS / sensitivity by layer and support: whole parameters, half the rows, 10 % and 40 % of the",
        "coordinates, soft weights along dimension 0 and 1. *At the layer* the row sets inputs and output gradients",
        "freely; *through the data* it passes an ordinary model and loss.",
        "",
        "| target | " + " | ".join(SUPPORTS) + " | rows | worst by |",
        "|---|" + "--:|" * (len(SUPPORTS) + 1) + "---|",
    ]
    for title, through in (("at the layer", False), ("through the data", True)):
        lines.append(f"| *{title}* |" + " |" * (len(SUPPORTS) + 2))
        for target in (target for target in TARGETS if target.through_data is through):
            row = {r["variant"]: r for r in found if r["kind"] == "alone" and r["target"] == target.name}
            if not row:
                continue
            worst = max(row.values(), key=lambda r: r["ratio"])
            figures = " | ".join(_ratio(row[s]["ratio"]) if s in row else "–" for s in SUPPORTS)
            tried = sum(r["evaluations"] for r in row.values())
            lines.append(
                f"| {target.name} | {figures} | {tried:,} "
                f"| {worst.get('attack', '–')} ({worst['variant']}; {worst.get('setting', '–')}) |"
            )
    return [*lines, ""]


def _by_setting(tacit: Records) -> list[str]:
    worst: dict[str, float] = {}
    for record in tacit:
        for key, ratio in record["by_setting"].items():
            worst[key] = max(worst.get(key, 0.0), ratio)
    refused = sum(record["refused"] for record in tacit)
    return [
        "## The same by setting",
        "",
        "| setting | worst |",
        "|---|--:|",
        *(f"| {key} | {_ratio(ratio)} |" for key, ratio in sorted(worst.items())),
        "",
        f"Rows that were refused with an error: {refused:,}.",
        "",
    ]


def _hostile_companions(found: Records) -> list[str]:
    lines = [
        "## Hostile companions",
        "",
        "Here the attacker chose the whole batch, and one example more joins it. Matrix products of some shapes round",
        "a row differently in a batch of another size. For companions at an exact kink, or whose positions cancel",
        "exactly, that can switch their whole contribution. The proof assumes that what is computed for one example",
        "does not depend on its companions ([numerics](concepts/numerics.md#what-is-assumed)), so figures above 1 here",
        "show what the assumption is worth on the fast path. "
        'With `isolation="construction"` they must stay at or below 1.',
        "",
        "| target | " + " | ".join(CROWDED) + " | worst by |",
        "|---|" + "--:|" * len(CROWDED) + "---|",
    ]
    for target in TARGETS:
        row = {r["variant"]: r for r in found if r["kind"] == "crowd" and r["target"] == target.name}
        if row:
            worst = max(row.values(), key=lambda r: r["ratio"])
            figures = " | ".join(_ratio(row[s]["ratio"]) if s in row else "–" for s in CROWDED)
            lines.append(f"| {target.name} | {figures} | {worst.get('attack')} ({worst.get('setting')}) |")
    lines += ["", "| crowd | isolation | examples | dS / sensitivity | how |", "|---|---|--:|--:|---|"]
    for record in found:
        if record["kind"] == "large crowd":
            lines.append(
                f"| {record['name']} | {record['isolation']} | {record['examples']:,} | {_ratio(record['ratio'])} "
                f"| {record['what']} |"
            )
    return [*lines, ""]


def _beside_opacus(found: Records) -> list[str]:
    lines = [
        "## Beside Opacus",
        "",
        "The same search against Opacus 1.6: same model, same clip norm, whole parameters, the sum of its optimizer",
        f"before noise. Opacus states no allowance for rounding and is given C · (1 + {ALLOWANCE:g}). Rows whose sum",
        "is not finite are left out of its figures and marked †: there one odd row makes the whole sum NaN. – means",
        "that the mode does not take the model. fastDP is not on PyPI and is not compared.",
        "",
        "| target | Tacit | " + " | ".join(MODES) + " |",
        "|---|--:|" + "--:|" * len(MODES),
    ]
    for target in TARGETS:
        mine = [
            r for r in found if r["kind"] == "alone" and (r["target"], r["variant"]) == (target.name, "all")
        ]
        row = {r["variant"]: r for r in found if r["kind"] == "peer" and r["target"] == target.name}
        if mine and row:
            figures = " | ".join(_peer(row.get(mode)) for mode in MODES)
            lines.append(f"| {target.name} | {_ratio(mine[0]['ratio'])} | {figures} |")
    return [*lines, ""]


def _through_the_trainer(found: Records) -> list[str]:
    lines = []
    for record in found:
        if record["kind"] != "trainer":
            continue
        lines = [
            "## Through the Trainer",
            "",
            f"Secure noise, plan ε = {record['claimed']:g}, one step, {record['target']}. The row is the worst of the",
            f"known hard ones (dS / sensitivity {_ratio(record['ratio'])}). An observer of the final weights said",
            f"that the row was there in {record['seen']} of {record['runs']} runs with it and in "
            f"{record['false_alarms']} of {record['runs']}",
            f"without, which proves ε ≥ {record['epsilon']:.2f} at 99.9 %.",
        ]
        if record["refused"]:
            lines = [*lines[:2], f"The Trainer refused the data: {record['refused']}"]
    return lines


def _peer(record: dict[str, Any] | None) -> str:
    if record is None or "unsupported" in record:
        return "–"
    return _ratio(record["ratio"]) + (" †" if record["poisoned"] else "")


def _ratio(ratio: float) -> str:
    """Rounded down below 1, so that 1 is never shown for less."""
    if ratio > 1:
        return f"**{ratio:.5g}**" if ratio >= 1.00005 else f"**1 + {ratio - 1:.1g}**"
    return f"{math.floor(ratio * 1e5) / 1e5:.5f}"
