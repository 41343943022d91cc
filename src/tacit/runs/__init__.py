"""Certificates: what a run promises, written down and checked again."""

from __future__ import annotations

from tacit.runs.certificate import (
    DEFAULT_GROUP,
    DEFAULT_NOT_COVERED,
    DEFAULT_UNIT,
    ISOLATION,
    Certificate,
    PhaseRecord,
    certificate_page,
    certify,
)
from tacit.runs.certificate_file import load_certificate, write_certificate
from tacit.runs.layout import CERTIFICATE_FILE, LEDGER_FILE, MODEL_FILE, PAGE_FILE, PLAN_FILE, SIGNATURE_FILE
from tacit.runs.recounting import recount
from tacit.runs.signing import make_key
from tacit.runs.verification import Verdict, sign, verify

__all__ = [
    "CERTIFICATE_FILE",
    "DEFAULT_GROUP",
    "DEFAULT_NOT_COVERED",
    "DEFAULT_UNIT",
    "ISOLATION",
    "LEDGER_FILE",
    "MODEL_FILE",
    "PAGE_FILE",
    "PLAN_FILE",
    "SIGNATURE_FILE",
    "Certificate",
    "PhaseRecord",
    "Verdict",
    "certificate_page",
    "certify",
    "load_certificate",
    "make_key",
    "recount",
    "sign",
    "verify",
    "write_certificate",
]
