"""Certificates of other relations, of groups of units, and their entry in the public registry."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import ArgumentError
from tacit.plan import make_plan
from tacit.plan.relations import POINTS, gaussian_mu
from tacit.runs import load_certificate, verify
from tacit.runs.certificate import certificate_page
from tacit.runs.registry import registry_entry, to_yaml
from training.small import BATCH, EXAMPLES, trainer

WORDS = {
    "add-or-remove-one": "Including or leaving out one example",
    "replace-one": "Exchanging the contents of one example of the training data for any others",
    "zero-out": "Using one example of the training data or letting it count for nothing",
}

FIELDS: dict[str, Any] = {
    "url_slug": str,
    "status": {"Draft"},
    "tier": {3},
    "deployment": {
        "basic": {
            "name": str,
            "data_curators": list,
            "intended_use": str,
            "data_product_type": {"Machine learning model"},
            "data_product_region": str,
            "description": str,
            "publication_date": str,
            "data_product_sector": {
                "Technology",
                "Healthcare",
                "Education",
                "Government",
                "Energy",
                "Finance",
            },
        },
        "dp_variant": {"variant_name": {"Approximate DP"}, "data_domain": str, "unprotected_quantities": str},
        "privacy_loss": {
            "privacy_unit": str,
            "privacy_unit_details": str,
            "privacy_parameters": {"epsilon": float, "delta": float},
            "privacy_parameters_details": str,
        },
        "deployment_model": {
            "model_name": {"Local", "Central", "Shuffle", "Federated"},
            "actors": str,
            "release_type": {"One release", "Many releases"},
            "release_type_details": str,
            "data_source_type": {"Static", "Dynamic"},
            "access_type": {"Interactive", "Non-interactive"},
        },
        "accounting": {"post_processing": str, "composition": str},
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": str,
            "mechanisms": str,
            "justification": str,
        },
        "administrative": {"sources": str, "notes": str, "registry_authors": list},
    },
}
"""The fields of the registry's schema that an entry may have, and what each may hold."""

OWNER = {
    "name": "Readmission model",
    "curators": ("A hospital", "A university"),
    "description": 'Predicts readmission: "yes" or "no".',
    "intended_use": "Planning of beds",
    "region": "USA",
    "authors": ("The owner",),
}


def finished(tmp_path: Path, relation: str = "add-or-remove-one", **options: Any) -> Path:
    plan = make_plan(
        "dp-sgd",
        epsilon=3.0,
        delta=1e-5,
        examples=EXAMPLES,
        batch_size=BATCH,
        epochs=1,
        relation=relation,
    )
    trainer(plan, run_dir=tmp_path / "run", **{"seed": None, **options}).fit(progress=False)
    return tmp_path / "run"


@pytest.mark.parametrize("relation", WORDS)
def test_a_run_of_any_relation_is_certified_in_words_and_verified(tmp_path: Path, relation: str) -> None:
    run = finished(tmp_path, relation)
    certificate = load_certificate(run / "certificate.json")
    assert certificate.relation == relation
    assert certificate.statement.startswith(WORDS[relation])
    verdict = verify(run)
    assert verdict.agrees, verdict
    assert dict(certificate.groups)[1] == pytest.approx(certificate.epsilon_spent, rel=3e-3)
    assert certificate.gaussian_mu is not None
    assert len(certificate.curve) == POINTS
    page = certificate_page(certificate)
    assert "Several units together" in page
    assert "mu = " in page


@pytest.mark.parametrize(
    ("field", "change", "problem"),
    [
        (
            "groups",
            lambda value: [[size, 0.9 * epsilon] for size, epsilon in value],
            "by an independent accountant",
        ),
        (
            "curve",
            lambda value: [[epsilon, 0.5 * delta] for epsilon, delta in value],
            "the certificate's curve",
        ),
        (
            "curve",
            lambda value: [[e, 0.5 * d if place == 100 else d] for place, (e, d) in enumerate(value)],
            "the certificate's curve",
        ),
        ("curve", lambda value: [[0.0, 1e-9], [0.001, 1e-9]], "the certificate's curve"),
        ("gaussian_mu", lambda value: 0.9 * value, "mu of Gaussian DP"),
        ("relation", lambda value: "replace-one", "the neighbouring relation"),
    ],
)
def test_edited_figures_do_not_verify(tmp_path: Path, field: str, change: Any, problem: str) -> None:
    run = finished(tmp_path)
    path = run / "certificate.json"
    record = json.loads(path.read_text())
    record[field] = change(record[field])
    if field == "relation":
        record["statement"] = (
            record["statement"]
            .replace("Including or leaving out one example of the training data", WORDS["replace-one"])
            .replace("whether it was used", "which of two versions of it was used")
        )
    if field == "curve":
        record["gaussian_mu"] = gaussian_mu(record["curve"])
    path.write_text(json.dumps(record))
    (run / "certificate.txt").write_text(certificate_page(load_certificate(path)))
    assert any(problem in found for found in verify(run).problems), verify(run)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("groups", [[2, 0.0]]),
        ("groups", [[2, 1e6]]),
        ("groups", [[-3, 1.0]]),
        ("groups", [[10**9, 1.0]]),
        ("curve", [[0.0, 2.0], [1.0, 1e-9]]),
        ("curve", [[0.0, 0.9], [1e9, 1e-9]]),
        ("curve", [[0.0, 1e-9]]),
    ],
)
@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_figures_that_nobody_would_write_are_problems_and_no_exceptions(
    runs: Any, relation: str, field: str, value: Any
) -> None:
    run = runs(relation)
    path = run / "certificate.json"
    before = path.read_text()
    record = json.loads(before)
    record[field] = value
    try:
        path.write_text(json.dumps(record))
        assert not verify(run).agrees
    finally:
        path.write_text(before)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run of each relation, made once."""
    return functools.cache(lambda relation: finished(tmp_path_factory.mktemp("run"), relation))


def test_a_certificate_of_version_3_is_read_and_keeps_its_form(tmp_path: Path) -> None:
    run = finished(tmp_path)
    path = run / "certificate.json"
    record = json.loads(path.read_text())
    for name in ("groups", "gaussian_mu", "curve", "warnings", "tuning"):
        del record[name]
    record["version"] = 3
    path.write_text(json.dumps(record))
    certificate = load_certificate(path)
    assert certificate.version == 3
    assert "Several units together" not in certificate_page(certificate)
    (run / "certificate.txt").write_text(certificate_page(certificate))
    assert verify(run).agrees, verify(run)


def check(value: Any, allowed: Any, where: str = "") -> None:
    """Every field is known to the registry and holds what it may."""
    if isinstance(allowed, dict):
        assert isinstance(value, dict), where
        assert set(value) <= set(allowed), f"{where}: {set(value) - set(allowed)}"
        for key, item in value.items():
            check(item, allowed[key], f"{where}.{key}")
    elif isinstance(allowed, set):
        assert value in allowed, where
    elif allowed is list:
        assert isinstance(value, list), where
        assert value, where
        assert all(isinstance(item, str) for item in value), where
    else:
        assert isinstance(value, allowed), where


@pytest.mark.parametrize("more", [{}, {"sector": "Healthcare", "justification": "A: b\n- c", "actors": "x"}])
def test_the_entry_has_the_form_of_the_registry_and_survives_yaml(
    tmp_path: Path, more: dict[str, str]
) -> None:
    certificate = load_certificate(finished(tmp_path) / "certificate.json")
    entry = registry_entry(certificate, {**OWNER, **more})
    check(entry, FIELDS)
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(to_yaml(entry)) == entry
    loss = entry["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 3.0, "delta": 1e-5}
    assert certificate.statement in loss["privacy_unit_details"]
    for item in certificate.not_covered:
        assert item in entry["deployment"]["dp_variant"]["unprotected_quantities"]


def test_what_the_registry_cannot_do_without_is_asked_for(tmp_path: Path) -> None:
    certificate = load_certificate(finished(tmp_path) / "certificate.json")
    with pytest.raises(ArgumentError, match="say curators, region in the section"):
        registry_entry(certificate, {k: v for k, v in OWNER.items() if k not in ("curators", "region")})
    with pytest.raises(ArgumentError, match="sector in"):
        registry_entry(certificate, {**OWNER, "sector": "Magic"})
    with pytest.raises(ArgumentError, match="publication_date"):
        registry_entry(certificate, {**OWNER, "publication_date": "1/2/2026"})


def test_a_run_that_is_not_for_release_is_not_registered(tmp_path: Path) -> None:
    certificate = load_certificate(finished(tmp_path, seed=3) / "certificate.json")
    with pytest.raises(ArgumentError, match="not for release"):
        registry_entry(certificate, OWNER)
