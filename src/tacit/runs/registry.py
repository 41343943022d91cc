"""An entry for the public registry of deployments of differential privacy, from a certificate and its owner's words.

The form is that of OpenDP's deployments-registry-data. What a run can know about itself is taken from its certificate;
what only its owner knows (who publishes the model, what for) comes from the section [deployment] of a configuration.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from tacit.errors import ArgumentError
from tacit.plan.accountants import RELATION, REPLACE_ONE, ZERO_OUT
from tacit.runs.certificate import Certificate

REQUIRED = ("name", "curators", "description", "intended_use", "region", "authors")
"""What an entry cannot do without, and no run knows."""

SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")

_ADJACENT = {
    RELATION: "Two data sets are adjacent if one is the other with one unit added or removed.",
    REPLACE_ONE: "Two data sets are adjacent if they have as many units and differ in the contents of one.",
    ZERO_OUT: "Two data sets are adjacent if they differ in one unit, which counts for nothing in one of them.",
}


def registry_entry(certificate: Certificate, deployment: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a run: a draft for its owner to read, complete, and send in.

    ``deployment`` holds the owner's words by the names of the section [deployment]. Refused are runs that are not for
    release, and words that are missing or that the registry does not know.
    """
    if not certificate.for_release or math.isinf(certificate.epsilon):
        why = ", ".join(certificate.reasons_against_release) or "it promises nothing"
        raise ArgumentError(f"The run is not for release ({why}), so there is no deployment to register.")
    said = {name: value for name, value in deployment.items() if value not in (None, "", ())}
    missing = [name for name in REQUIRED if name not in said]
    if missing:
        raise ArgumentError(
            f"The registry asks for what only you know: say {', '.join(missing)} in the section [deployment] of the "
            "configuration."
        )
    if said.get("sector") not in (None, *SECTORS):
        raise ArgumentError(
            f"sector in [deployment] must be one of {', '.join(SECTORS)}, got {said['sector']!r}."
        )
    date = said.get("publication_date", certificate.created[:10])
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        raise ArgumentError(
            f"publication_date in [deployment] must be a day such as 2026-01-31, got {date!r}."
        ) from None
    basic: dict[str, Any] = {
        "name": said["name"],
        "data_curators": list(said["curators"]),
        "intended_use": said["intended_use"],
        "data_product_type": "Machine learning model",
        "data_product_region": said["region"],
        "description": said["description"],
        "publication_date": date,
    }
    if "sector" in said:
        basic["data_product_sector"] = said["sector"]
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "_", said["name"].lower()).strip("_") or "deployment",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": basic,
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": said.get(
                    "data_domain", "All data sets of the form that the model was trained on."
                ),
                "unprotected_quantities": _list("Not covered by ε:", certificate.not_covered),
            },
            "privacy_loss": {
                "privacy_unit": certificate.unit,
                "privacy_unit_details": _ADJACENT[certificate.relation] + " " + certificate.statement,
                "privacy_parameters": {"epsilon": certificate.epsilon, "delta": certificate.delta},
                "privacy_parameters_details": _parameters(certificate),
            },
            "deployment_model": {
                "model_name": "Central",
                **({"actors": said["actors"]} if "actors" in said else {}),
                "release_type": "One release",
                "release_type_details": (
                    "The model is published once. Whoever sees all of its "
                    f"{certificate.charged_releases} noisy training steps learns no more than ε covers."
                ),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": (
                    "Choice of coordinates, optimizer, averaging and everything else after the noise uses released "
                    "values only."
                ),
                "composition": (
                    f"{certificate.charged_releases} releases, composed by {certificate.accountant} accounting of the "
                    f"Poisson-subsampled Gaussian mechanism; ε spent {certificate.epsilon_spent:.6g}."
                ),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": said.get(
                    "preprocessing", "See the unprotected quantities; none is accounted for in ε."
                ),
                "mechanisms": _mechanisms(certificate),
                **({"justification": said["justification"]} if "justification" in said else {}),
            },
            "administrative": {
                **({"sources": said["sources"]} if "sources" in said else {}),
                "notes": said.get(
                    "notes", f"Certificate of the run {certificate.run}, written {certificate.created}."
                ),
                "registry_authors": list(said["authors"]),
            },
        },
    }


def _parameters(certificate: Certificate) -> str:
    told = [
        f"{size} unit{'s' if size > 1 else ''}: ε = {epsilon:.4g}" for size, epsilon in certificate.groups
    ]
    groups = f" Units acting together, at the same δ: {'; '.join(told)}." if told else ""
    mu = certificate.gaussian_mu
    return (
        f"{certificate.examples} {certificate.counted}, {certificate.batch_size} per step on average."
        f"{groups}{'' if mu is None else f' Gaussian DP: μ = {mu:.4g}.'}"
    )


def _mechanisms(certificate: Certificate) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in certificate.software)
    phases = (
        f"{phase.name}: rate {phase.sampling_rate:.6g}, clip norm {phase.clip_norm:g}, noise multiplier "
        f"{phase.planned_noise_multiplier:.6g}"
        for phase in certificate.phases
    )
    return _list(
        f"{certificate.mechanism}. {certificate.sampler}. Noise comes from a cryptographic generator and is rounded to "
        f"a lattice; the bound on a unit's contribution includes rounding errors. Software: {versions}. Phases:",
        phases,
    )


def _list(title: str, items: Any) -> str:
    return "\n".join([title, "", *(f"- {item}" for item in items)])


def to_yaml(record: Mapping[str, Any], indent: int = 0) -> str:
    """A record as YAML: nested mappings, lists of texts, quoted texts and numbers."""
    lines = []
    for key, value in record.items():
        start = " " * indent + key
        if isinstance(value, Mapping):
            lines.append(f"{start}:\n{to_yaml(value, indent + 2).rstrip()}")
        elif isinstance(value, list):
            lines.append(f"{start}:")
            lines += [f"{' ' * indent}  - {json.dumps(item, ensure_ascii=False)}" for item in value]
        elif isinstance(value, str) and "\n" in value:
            lines.append(f"{start}: |-")
            lines += [f"{' ' * indent}  {line}".rstrip() for line in value.splitlines()]
        else:
            lines.append(f"{start}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: str | float) -> str:
    """A text or a number; to YAML 1.1, a number with an exponent but without a point is a text."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")
    return text
