"""The certificate as a page of plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from tacit.certificate.record import Certificate, PhaseRecord

_WIDTH = 96
_COLUMN = 24


def certificate_page(certificate: Certificate) -> str:
    """Everything the certificate says, for a reader with no tool but an editor."""
    title = f"PRIVACY CERTIFICATE of the run {certificate.run}"
    lines = [title, "=" * len(title), ""]
    if certificate.for_release:
        lines += ["FOR RELEASE, within the limits stated below.", ""]
    else:
        lines += ["NOT FOR RELEASE, because", *_list(certificate.reasons_against_release), ""]
    lines += [*textwrap.wrap(certificate.statement, _WIDTH), ""]
    lines += _table(
        [
            ("epsilon (promised)", f"{certificate.epsilon:g}"),
            ("epsilon (spent)", f"{certificate.epsilon_spent:.6g}, by {certificate.accountant} accounting"),
            ("delta", f"{certificate.delta:g}"),
            ("neighbouring data sets", certificate.relation),
            ("unit of privacy", certificate.unit),
            ("method", certificate.method),
            ("sampler", certificate.sampler),
            ("mechanism", certificate.mechanism),
            ("examples, batch size", f"{certificate.examples}, {certificate.batch_size}"),
            ("releases", f"{certificate.charged_releases} charged, {certificate.planned_releases} planned"),
            ("torn ledger lines", str(certificate.ledger_torn_lines)),
        ]
    )
    lines += ["", "Phases", "------"]
    for phase in certificate.phases:
        lines += _phase(phase)
    lines += ["", "Not covered by these figures", "----------------------------"]
    lines += _list(certificate.not_covered)
    lines += ["", "Evidence", "--------"]
    lines += _table(
        [
            ("plan, SHA-256", certificate.plan_digest),
            ("ledger head, SHA-256", certificate.ledger_head),
            *((f"{name}, SHA-256", digest) for name, digest in certificate.files),
            ("written", certificate.created),
            ("software", ", ".join(f"{name} {version}" for name, version in certificate.software)),
        ]
    )
    return "\n".join(lines) + "\n"


def _phase(phase: PhaseRecord) -> list[str]:
    used = ", ".join(f"{noise:.6g} ({count} times)" for noise, count in phase.noise_multipliers) or "none"
    return [
        f"{phase.name}: {phase.releases} releases of {phase.planned_steps} planned, support: {phase.support}",
        f"  sampling rate {phase.sampling_rate:.6g}, clip norm {phase.clip_norm:g}, "
        f"noise multiplier {phase.planned_noise_multiplier:.6g} planned",
        *textwrap.wrap(f"used: {used}", _WIDTH, initial_indent="  ", subsequent_indent="    "),
    ]


def _list(items: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for item in items:
        lines += textwrap.wrap(item, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return lines


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    for name, value in rows:
        if len(name) >= _COLUMN:
            lines.append(name)
            name = ""
        indents = {"initial_indent": f"{name:<{_COLUMN}}", "subsequent_indent": " " * _COLUMN}
        lines += textwrap.wrap(value, _WIDTH, **indents)  # type: ignore[arg-type]
    return lines
