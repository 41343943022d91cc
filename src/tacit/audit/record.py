"""An audit as JSON: ``audit.json`` in the directory of a run.

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
from pathlib import Path
from typing import Any

from tacit.audit.findings import Finding, verdict
from tacit.audit.local import LocalFinding
from tacit.files import write_text

AUDIT_FILE = "audit.json"
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
    from tacit.audit.figure import draw_audit

    # In one line: with a line for every number the curves would fill thousands.
    write_text(directory / AUDIT_FILE, json.dumps(audit_record(audit), allow_nan=False) + "\n")
    if audit.findings:
        draw_audit(audit.findings, directory / FIGURE_FILE)


def _plain(finding: Finding | LocalFinding) -> dict[str, Any]:
    record = {
        key: _finite(value)
        for key, value in dataclasses.asdict(finding).items()
        if not key.endswith("_curve")
    }
    return {**record, "holds": finding.holds}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
