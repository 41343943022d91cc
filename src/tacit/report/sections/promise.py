"""What the run promises, whether it may be released, and how far it got."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tacit.name_lists import shortened
from tacit.report.markup import Markup, element, facts, joined, listed, note, section, subheading, table
from tacit.report.plot import Scale, number, share
from tacit.report.reading import RunView
from tacit.runs import Certificate

_SIGNS = {
    "ok": "M4 10.5 8.2 14.7 16 6",
    "warn": "M10 4v7.5M10 15.4v.1",
    "bad": "M5 5l10 10M15 5 5 15",
}


@dataclass(frozen=True)
class Status:
    """``kind`` decides the colour; ``word`` and ``sentence`` say the same without it."""

    kind: Literal["ok", "warn", "bad"]
    word: str
    sentence: str
    reasons: tuple[str, ...] = ()


def status_of(run: RunView) -> Status:
    """The verdict on a run as found in its directory."""
    verdict, certificate = run.verdict, run.certificate
    if certificate is None and run.spending is not None and run.spending.releases[-1] < run.plan.steps:
        return Status(
            "warn",
            "Not finished",
            f"The run stopped after {run.spending.releases[-1]:,} of {run.plan.steps:,} releases, which cost "
            f"ε = {number(run.spending.epsilons[-1])} of the {number(run.plan.epsilon)} promised. It has no "
            "certificate yet; tacit resume continues it.",
        )
    if not verdict.agrees or certificate is None or verdict.epsilon is None:
        return Status(
            "bad",
            "Does not verify",
            "The files of this run do not agree, so it proves nothing about privacy:",
            verdict.problems,
        )
    counted = (
        f"An independent accountant, run on the ledger when this page was made, finds "
        f"ε = {number(verdict.epsilon, 5)}; the certificate says {number(certificate.epsilon_spent, 5)} "
        f"and promises {number(certificate.epsilon)}."
    )
    if math.isinf(certificate.epsilon):
        counted = "All files of the run agree: it adds no noise."
    if not certificate.for_release:
        return Status(
            "warn",
            "Verified, not for release",
            f"{counted} The outcome must not be released as private, because",
            certificate.reasons_against_release,
        )
    return Status("ok", "Verified, for release", f"{counted} What ε does not cover is listed below.")


def shown(status: Status) -> Markup:
    """The status, in full."""
    return element(
        "div",
        sign(status),
        element(
            "div",
            element("p", element("strong", status.word), class_="word"),
            element("p", status.sentence),
            listed(status.reasons) if status.reasons else None,
        ),
        class_=f"status {status.kind}",
    )


def badge(status: Status) -> Markup:
    """The status, in a word."""
    return element("span", sign(status), status.word, class_=f"badge {status.kind}")


def sign(status: Status) -> Markup:
    """A tick, an exclamation mark or a cross."""
    stroke = element("path", d=_SIGNS[status.kind])
    return element("svg", stroke, viewBox="0 0 20 20", class_="sign", aria_hidden="true")


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
            listed(shortened(sentence[:1].upper() + sentence[1:]) for sentence in certificate.not_covered),
        ]
        if noisy
        else None,
        [
            subheading("Warnings about the model", level),
            listed(certificate.warnings),
            note("What they say of held-out rows rests on exact figures, which ε does not cover."),
        ]
        if certificate.warnings
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
                (
                    f"{certificate.counted.capitalize()}, batch size",
                    f"{certificate.examples:,}, {certificate.batch_size:,}",
                ),
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
            (f"{plan.counted.capitalize()}, batch size", f"{plan.examples:,}, {plan.batch_size:,}"),
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
