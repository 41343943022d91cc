"""The audit of everything that ships: central methods, hostile scenes, local mechanisms.

Every configuration that Tacit ships, at a small size.

All methods, secure and seeded noise, small models with hostile rows, all local mechanisms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tacit.audit.hostile import audit_scene
from tacit.audit.mechanism import Effort, audit_phases, audit_release, audit_run, say_nothing
from tacit.audit.record import Audit, LocalFinding
from tacit.audit.scenes import scenes
from tacit.federated.check import check_mechanism
from tacit.federated.perturbation import BOUNDED_PERTURBATIONS
from tacit.federated.selection import PRIVATE_SELECTIONS
from tacit.plan import All, Phase, Plan, Spend, make_plan
from tacit.plan.calibrate import least_noise
from tacit.plan.methods import METHODS


def audit_local(
    selection: str,
    perturbation: str,
    *,
    d: int = 100,
    k: int = 10,
    epsilon1: float = 0.5,
    epsilon2: float = 1.5,
    samples: int = 200_000,
    confidence: float = 0.999,
    seed: int = 0,
) -> LocalFinding:
    """Check one local mechanism. ``pe-paper`` claims what its certificate states, which is its exact ε."""
    report = check_mechanism(
        selection, d, k, epsilon1, perturbation, epsilon2, samples=samples, confidence=confidence, seed=seed
    )
    assert report.sampled is not None
    claimed = report.exact_epsilon if selection == "pe-paper" else report.claimed_epsilon
    return LocalFinding(
        selection,
        perturbation,
        d,
        k,
        confidence,
        claimed,
        report.exact_epsilon,
        max(0.0, report.sampled.lower),
    )


DELTA = 1e-5
EXAMPLES, BATCH, EPOCHS = 8192, 512, 4.0
SOFT = "tp-topk with soft weights"
OPTIONS: dict[str, dict[str, object]] = {
    "dp-sgd": {},
    "centred": {},
    "tp-topk": {"active_ratio": "auto"},
    "only": {"active": ("*",)},
    "adafest": {},
    SOFT: {"active_ratio": "soft"},
}
SEED = 20


def one_release(epsilon: float, name: str = "one release") -> Phase:
    """A phase of one step on all examples, with noise for ``epsilon`` at δ = 1e-5."""
    noise = least_noise(lambda sigma: (Spend(1.0, sigma, 1),), epsilon, DELTA, "pld", start=4 / epsilon)
    return Phase(name, 1, 1.0, 1.0, noise, All())


def shipped_plan(name: str) -> Plan:
    """The plan of a method, or of soft weights, at which it is audited."""
    options = OPTIONS.get(name, {"active_ratio": 0.3})
    return make_plan(
        "tp-topk" if name == SOFT else name,
        epsilon=3.0,
        delta=DELTA,
        examples=EXAMPLES,
        batch_size=BATCH,
        epochs=EPOCHS,
        **options,  # type: ignore[arg-type]
    )


def audit_shipped(effort: Effort, done: Callable[[str], None] = say_nothing) -> Audit:
    """Audit all of it."""
    findings = []
    for epsilon in (1.0, 8.0):
        for seed, noise in ((None, "secure"), (SEED, "seeded")):
            phase = one_release(epsilon, f"ε = {epsilon:g}, {noise} noise")
            findings.append(audit_release(phase, delta=DELTA, batch_size=BATCH, effort=effort, seed=seed))
            done(phase.name)
    hostile = one_release(8.0)
    for scene in scenes():
        findings.append(
            audit_scene(
                scene,
                noise_multiplier=hostile.noise_multiplier,
                delta=DELTA,
                trials=effort.hostile,
                confidence=effort.confidence,
            )
        )
        done(scene.name)
    for method in (*METHODS, SOFT):
        plan = shipped_plan(method)
        phases = audit_phases(plan, effort=effort)
        seeded = audit_run(plan, effort=effort, seed=SEED)
        findings += [replace(finding, name=f"{method}: {finding.name}") for finding in phases]
        findings.append(replace(audit_run(plan, effort=effort), name=method))
        findings.append(replace(seeded, name=f"{method}, seeded noise"))
        done(method)
    local = tuple(
        audit_local(selection, perturbation, confidence=effort.confidence)
        for selection in PRIVATE_SELECTIONS
        for perturbation in BOUNDED_PERTURBATIONS
    )
    done("local mechanisms")
    return Audit("every shipped configuration", tuple(findings), local)
