"""Audits: empirical lower bounds on ε, beside what is claimed."""

from __future__ import annotations

from tacit.audit.bounds import Claim, Guesses, Tradeoff, Trials, lower_epsilon, lower_scale
from tacit.audit.mechanism import QUICK, Effort, audit_phases, audit_plan, audit_release, audit_run
from tacit.audit.record import Audit, Finding, LocalFinding, audit_record, write_audit
from tacit.audit.sequential import explains_sequential
from tacit.audit.shipped import audit_local

__all__ = [
    "QUICK",
    "Audit",
    "Claim",
    "Effort",
    "Finding",
    "Guesses",
    "LocalFinding",
    "Tradeoff",
    "Trials",
    "audit_local",
    "audit_phases",
    "audit_plan",
    "audit_record",
    "audit_release",
    "audit_run",
    "explains_sequential",
    "lower_epsilon",
    "lower_scale",
    "write_audit",
]
