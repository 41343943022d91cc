"""The certificate in plain words: the promise, what it does not cover, and the evidence."""

from __future__ import annotations

import math

from tacit.certificate import Certificate
from tacit.report.markup import Markup, element, joined
from tacit.report.reading import RunView
from tacit.report.scale import Scale, number, share
from tacit.report.sections.layout import note, section, subheading
from tacit.report.sections.status import shown, status_of
from tacit.report.tables import facts, listed, table

_MEANINGFUL = 500
"""Above this ε the certificate itself says that no privacy worth the name is promised."""


def promise(run: RunView, key: str, level: int) -> Markup:
    """What the run promises, whether that was verified, and what it rests on."""
    certificate = run.certificate
    return section(
        f"{key}-promise",
        "What is promised",
        level,
        shown(status_of(run)),
        None if certificate is None or not run.verdict.agrees else _words(certificate, key, level),
        _planned(run) if certificate is None else None,
        None if certificate is None else _evidence(certificate),
    )


def _words(certificate: Certificate, key: str, level: int) -> Markup:
    noisy = math.isfinite(certificate.epsilon)
    return joined(
        element("p", certificate.statement, class_="statement"),
        _belief(certificate.epsilon, key) if certificate.epsilon <= _MEANINGFUL else None,
        [
            subheading("Not covered by ε", level),
            listed(sentence[:1].upper() + sentence[1:] for sentence in certificate.not_covered),
        ]
        if noisy
        else None,
        subheading("By what means", level),
        facts(
            [
                ("ε promised, δ", f"{number(certificate.epsilon)}, {number(certificate.delta)}"),
                (
                    "ε spent",
                    f"{number(certificate.epsilon_spent, 5)} by {certificate.accountant} accounting",
                ),
                ("Unit of privacy", certificate.unit),
                ("Neighbouring data sets", certificate.relation),
                ("Sampling", certificate.sampler),
                ("Mechanism", certificate.mechanism),
                ("Examples, batch size", f"{certificate.examples:,}, {certificate.batch_size:,}"),
                (
                    "Releases",
                    f"{certificate.charged_releases:,} charged, {certificate.planned_releases:,} planned",
                ),
            ]
        ),
        _phases(certificate),
    )


def _belief(epsilon: float, key: str) -> Markup:
    """How sure an observer can become of one example's use, on a scale from 0 to 100 %."""
    most = 1 / (1 + math.exp(-epsilon))
    x = Scale(0.0, 1.0, 12, 468)
    summary = (
        f"An observer who thinks the use of one example as likely as not, 50 %, can become at most "
        f"{share(most, 2)} sure of it, or of its absence."
    )
    low = 1 - most
    drawing = element(
        "svg",
        element("line", class_="track", x1=x(0), x2=x(1), y1=34, y2=34),
        element("line", class_="span c1", x1=x(low), x2=x(most), y1=34, y2=34),
        element("circle", class_="dot c6", cx=x(0.5), cy=34, r=6),
        [element("circle", class_="dot c1", cx=x(at), cy=34, r=6) for at in (low, most)],
        element("text", "before: 50 %", class_="tick middle", x=x(0.5), y=18),
        element("text", f"at most {share(most, 2)}", class_="tick strong end", x=x(1), y=18),
        element("text", f"at least {share(low, 2)}", class_="tick strong", x=x(0), y=18),
        element("text", "surely not used", class_="tick", x=x(0), y=58),
        element("text", "surely used", class_="tick end", x=x(1), y=58),
        viewBox="0 0 480 66",
        role="img",
        aria_label=summary,
        class_="belief",
    )
    return element(
        "figure",
        element("figcaption", "How sure can an observer become that one example was used?"),
        drawing,
        note("Holds whatever else the observer knows, but for the exceptional probability δ."),
        class_="plot wide",
        id=f"{key}-belief",
    )


def _phases(certificate: Certificate) -> Markup:
    rows = [
        (
            phase.name,
            phase.support,
            f"{phase.releases:,} of {phase.planned_steps:,}",
            number(phase.sampling_rate),
            number(phase.clip_norm),
            number(phase.planned_noise_multiplier),
            ", ".join(f"{number(noise)} × {count:,}" for noise, count in phase.noise_multipliers) or "none",
        )
        for phase in certificate.phases
    ]
    header = ("Phase", "Support", "Releases", "Sampling rate", "Clip norm", "Noise planned", "Noise used")
    found = table(header, rows, "Phases of the run, noise as multiples of the clip norm")
    few = 8
    if len(rows) <= few:
        return found
    return element("details", element("summary", f"The {len(rows)} phases"), found)


def _planned(run: RunView) -> Markup:
    plan = run.plan
    return facts(
        [
            ("ε planned, δ", f"{number(plan.epsilon)}, {number(plan.delta)}"),
            ("Method", plan.method),
            ("Examples, batch size", f"{plan.examples:,}, {plan.batch_size:,}"),
            ("Releases planned", f"{plan.steps:,}"),
        ]
    )


def _evidence(certificate: Certificate) -> Markup:
    return element(
        "details",
        element("summary", "Evidence: digests and software"),
        facts(
            [
                ("Run", element("code", certificate.run)),
                ("Plan, SHA-256", element("code", certificate.plan_digest)),
                ("Ledger head, SHA-256", element("code", certificate.ledger_head)),
                ("Torn ledger lines", number(certificate.ledger_torn_lines)),
                ("Certified", certificate.created),
                ("Software", ", ".join(f"{name} {version}" for name, version in certificate.software)),
            ]
        ),
    )
