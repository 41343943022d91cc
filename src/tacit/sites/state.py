"""What the files of a site say about it, without opening its vault."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tacit.federated.local_ledger import read_lines
from tacit.files import read_json
from tacit.plan import epsilon_of, load_plan
from tacit.release.ledger_file import read_ledger
from tacit.runs import load_certificate
from tacit.runs.certificate import spends_of
from tacit.runs.description import load_description
from tacit.runs.layout import CERTIFICATE_FILE, LEDGER_FILE, PLAN_FILE, RUN_FILE
from tacit.sites.terms import TERMS_FILE, Terms, read_terms


def site_state(folder: Path) -> dict[str, Any]:
    """Plan, charges and ε of a site, and whether its certificate is of its last answer."""
    terms = read_terms(folder / TERMS_FILE)
    if terms.local is not None:
        return _local_state(folder, terms)
    plan, ledger = load_plan(folder / PLAN_FILE), read_ledger(folder / LEDGER_FILE)
    charged = len(ledger.charges)
    certificate = "none yet"
    if (folder / CERTIFICATE_FILE).is_file():
        counted = load_certificate(folder / CERTIFICATE_FILE).charged_releases
        certificate = (
            "up to date" if counted == charged else f"of {counted} answers; the vault writes it as it stops"
        )
    return {
        "training": terms.training.name,
        "terms": terms.digest,
        "unit": load_description(folder / RUN_FILE).unit,
        "count": plan.examples,
        "counted": plan.counted,
        "answers": plan.steps,
        "charged": charged,
        "epsilon": plan.epsilon,
        "epsilon_spent": epsilon_of(spends_of(ledger.charges), plan.delta, plan.accountant, plan.relation)
        if charged
        else 0.0,
        "delta": plan.delta,
        "certificate": certificate,
    }


def _local_state(folder: Path, terms: Terms) -> dict[str, Any]:
    assert terms.local is not None
    path, written = folder / LEDGER_FILE, folder / CERTIFICATE_FILE
    charges = read_lines(path)[0] if path.exists() else ()
    certificate = "none yet"
    if written.is_file():
        counted = read_json(written).get("answers")
        certificate = (
            "up to date"
            if counted == len(charges)
            else f"of {counted} answers; the vault writes it as it stops"
        )
    return {
        "training": terms.training.name,
        "terms": terms.digest,
        "unit": "all records of the site as one",
        "count": 1,
        "counted": "clients",
        "answers": terms.training.rounds,
        "charged": len(charges),
        "epsilon": terms.local.epsilon,
        "epsilon_spent": math.fsum(charge.epsilon for charge in charges),
        "delta": 0.0,
        "certificate": certificate,
    }
