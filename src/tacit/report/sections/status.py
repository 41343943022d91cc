"""Whether a run holds what it promises: a word, a sign and the reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tacit.report.markup import Markup, element
from tacit.report.reading import RunView
from tacit.report.scale import number
from tacit.report.tables import listed

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
    """The verdict on a run as it stands in its directory."""
    verdict, certificate = run.verdict, run.certificate
    if certificate is None and run.spending is not None and run.spending.releases[-1] < run.plan.steps:
        return Status(
            "warn",
            "Not finished",
            f"The run stopped after {run.spending.releases[-1]:,} of {run.plan.steps:,} releases, which cost "
            f"ε = {number(run.spending.epsilons[-1])} of the {number(run.plan.epsilon)} promised. It has no "
            "certificate yet; tacit resume goes on with it.",
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
