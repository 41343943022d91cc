"""What an audit found: as data, as a page and as a figure.

An audit as JSON: ``audit.json`` in the directory of a run.

    {"format": "tacit-audit", "version": 1, "source": ..., "verdict": one sentence, "holds": true or false,
     "findings": [{"kind", "name", "trials", "guesses", "right", "delta", "confidence", "epsilon_claimed",
                   "epsilon_lower", "epsilon_lower_any", "noise_scale" (null: nothing was learnt),
                   "sequential", "holds"}, ...],
     "local": [{"selection", "perturbation", "d", "k", "confidence", "epsilon_claimed", "epsilon_exact",
                "epsilon_lower", "holds"}, ...],
     "curves": [{"claimed", "measured", "lower": [[false alarms, misses], ...]}, ...]}

``curves`` has one entry per finding, in the same order.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tacit.audit.bounds import LEAST_TRIALS, RULES, Claim, Trials, guess_by_rules, lower_epsilon, lower_scale
from tacit.audit.sequential import explains_sequential
from tacit.errors import ArgumentError
from tacit.federated.check import TOLERANCE
from tacit.files import without_infinities, write_text
from tacit.plotting import COLOURS, new_figure, save
from tacit.runs.layout import AUDIT_FILE

Kind = Literal["release", "phase", "run", "data", "hostile"]
Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Finding:
    """One audited claim.

    ``kind`` says what was audited: one full-batch ``release`` of a phase, all steps of a ``phase``, the
    whole ``run``, or the run on one's own ``data``. With ``confidence`` the mechanism is no more private
    than ``epsilon_lower`` says: than the claimed one with its noise times ``noise_scale``.
    ``epsilon_lower_any`` assumes nothing but (ε, δ)-DP (Steinke et al.). ``sequential`` says whether
    ``epsilon_lower`` rests on every trial having a fair coin and being f-DP given the trials before it, as
    releases and phases are by construction, or on the one-run bound, which allows any dependence.
    """

    kind: Kind
    name: str
    trials: int
    guesses: int
    right: int
    delta: float
    confidence: float
    epsilon_claimed: float
    epsilon_lower: float
    epsilon_lower_any: float
    noise_scale: float
    sequential: bool
    claimed_curve: Curve = field(default=(), repr=False)
    measured_curve: Curve = field(default=(), repr=False)
    lower_curve: Curve = field(default=(), repr=False)

    @property
    def holds(self) -> bool:
        """Whether the claim is consistent with what was measured."""
        return self.noise_scale >= 1.0


def find(
    kind: Kind, name: str, trials: Trials, claim: Claim, *, confidence: float, sequential: bool
) -> Finding:
    """Guess, count and bound: thresholds from one part of the trials, the bound from the others."""
    if len(trials) < LEAST_TRIALS:
        raise ArgumentError(
            f"An audit needs at least {LEAST_TRIALS} trials, {name!r} has {len(trials)}; use more canaries or releases."
        )
    explains = explains_sequential if sequential else None
    each = 1 - (1 - confidence) / len(RULES)
    scale, guesses = math.inf, None
    for made in guess_by_rules(trials):
        found = lower_scale(made, claim, each, explains, below=scale)
        if found < scale or guesses is None:
            scale, guesses = found, made
    assert guesses is not None
    said = math.isfinite(scale)
    return Finding(
        kind=kind,
        name=name,
        trials=len(trials),
        guesses=guesses.made,
        right=guesses.right,
        delta=claim.delta,
        confidence=confidence,
        epsilon_claimed=claim.epsilon(),
        epsilon_lower=claim.epsilon(scale) if said else 0.0,
        epsilon_lower_any=lower_epsilon(guesses, claim.delta, each),
        noise_scale=scale,
        sequential=sequential,
        claimed_curve=tuple(claim.tradeoff().curve()),
        measured_curve=tuple(trials.roc()),
        lower_curve=tuple(claim.tradeoff(scale).curve()) if said else ((0.0, 1.0), (1.0, 0.0)),
    )


def verdict(broken: Sequence[str], count: int) -> str:
    """One sentence on ``count`` findings of which those named are ``broken``."""
    if broken:
        return (
            f"A claim is BROKEN: epsilon is above what is claimed for {', '.join(broken)}; "
            "the noise, the sampling or the accounting is wrong."
        )
    return f"No claim is contradicted: each of {count} lower bounds is at most the claimed epsilon."


_ACROSS, _MOST = 3, 9


def draw_audit(findings: Sequence[Finding], path: Path) -> None:
    """One panel per finding: what the claim allows, what the tests of the audit reached, what the bound says.

    The first nine, broken ones before all others.
    """
    findings = sorted(findings, key=lambda finding: finding.holds)[:_MOST]
    down = math.ceil(len(findings) / _ACROSS)
    across = min(_ACROSS, len(findings))
    figure = new_figure(3.9 * across, 3.9 * down, dpi=120)
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


FIGURE_FILE = "audit.png"


@dataclasses.dataclass(frozen=True)
class Audit:
    """Everything that one audit found."""

    source: str
    findings: tuple[Finding, ...]
    local: tuple[LocalFinding, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether no claim is contradicted."""
        return all(f.holds for f in self.findings) and all(f.holds for f in self.local)

    @property
    def verdict(self) -> str:
        """One sentence on all findings."""
        broken = [f"{f.kind} {f.name!r}" for f in self.findings if not f.holds]
        broken += [f"{f.selection} with {f.perturbation}" for f in self.local if not f.holds]
        return verdict(broken, len(self.findings) + len(self.local))


def audit_record(audit: Audit) -> dict[str, Any]:
    """The JSON form."""
    return {
        "format": "tacit-audit",
        "version": 1,
        "source": audit.source,
        "verdict": audit.verdict,
        "holds": audit.holds,
        "findings": [_plain(finding) for finding in audit.findings],
        "local": [_plain(finding) for finding in audit.local],
        "curves": [
            {"claimed": f.claimed_curve, "measured": f.measured_curve, "lower": f.lower_curve}
            for f in audit.findings
        ],
    }


def write_audit(directory: Path, audit: Audit) -> None:
    """Write the audit and its figure to a directory."""

    # In one line: with a line for every number the curves would fill thousands.
    write_text(directory / AUDIT_FILE, json.dumps(audit_record(audit), allow_nan=False) + "\n")
    if audit.findings:
        draw_audit(audit.findings, directory / FIGURE_FILE)


def _plain(finding: Finding | LocalFinding) -> dict[str, Any]:
    record = {key: value for key, value in dataclasses.asdict(finding).items() if not key.endswith("_curve")}
    return {**without_infinities(record), "holds": finding.holds}


@dataclass(frozen=True)
class LocalFinding:
    """A selection and a perturbation: claimed ε, exact ε by enumeration, and a lower bound from samples."""

    selection: str
    perturbation: str
    d: int
    k: int
    confidence: float
    epsilon_claimed: float
    epsilon_exact: float
    epsilon_lower: float

    @property
    def holds(self) -> bool:
        """Whether neither the law nor the samples contradict the claim."""
        return max(self.epsilon_exact, self.epsilon_lower) <= self.epsilon_claimed + TOLERANCE
