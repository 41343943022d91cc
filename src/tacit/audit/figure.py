"""The figure of an audit: claimed against measured trade-off curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tacit.audit.findings import Curve, Finding
from tacit.experiments.figures import COLOURS, save

_ACROSS, _MOST = 3, 9


def draw_audit(findings: Sequence[Finding], path: Path) -> None:
    """One panel per finding: what the claim allows, what the tests of the audit reached, what the bound says.

    The first nine, broken ones before all others.
    """
    findings = sorted(findings, key=lambda finding: finding.holds)[:_MOST]
    down = math.ceil(len(findings) / _ACROSS)
    across = min(_ACROSS, len(findings))
    figure = Figure(figsize=(3.9 * across, 3.9 * down), dpi=120, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes in panels[len(findings) :]:
        axes.set_visible(False)
    for axes, finding in zip(panels, findings, strict=False):
        axes.plot([0, 1], [1, 0], color="0.6", linewidth=1, linestyle=":", label="a coin")
        axes.plot(
            *_axes(finding.claimed_curve),
            color=COLOURS[0],
            label=f"claimed: ε = {finding.epsilon_claimed:.3g}",
        )
        lower = f"lower bound: ε = {finding.epsilon_lower:.3g}"
        axes.plot(*_axes(finding.lower_curve), color=COLOURS[2], linestyle="--", label=lower)
        axes.plot(
            *_axes(finding.measured_curve), color=COLOURS[1], linewidth=1, label=f"{finding.trials:,} trials"
        )
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_aspect("equal")
        axes.set_xlabel("false alarms")
        axes.set_ylabel("misses")
        state = "" if finding.holds else ": BROKEN"
        axes.set_title(f"{finding.kind} {finding.name}{state}", fontsize=10)
        axes.legend(frameon=False, fontsize=8, loc="upper right")
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _axes(curve: Curve) -> tuple[list[float], list[float]]:
    return [point[0] for point in curve], [point[1] for point in curve]
