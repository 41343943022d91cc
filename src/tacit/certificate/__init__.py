"""Certificates: what a run promises, written down and checked again."""

from __future__ import annotations

from tacit.certificate.files import (
    CERTIFICATE_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PAGE_FILE,
    PLAN_FILE,
    load_certificate,
    write_certificate,
)
from tacit.certificate.page import certificate_page
from tacit.certificate.record import (
    DEFAULT_NOT_COVERED,
    DEFAULT_UNIT,
    ISOLATION,
    Certificate,
    PhaseRecord,
    certify,
)
from tacit.certificate.recounting import recount
from tacit.certificate.signing import SIGNATURE_FILE, make_key
from tacit.certificate.verification import Verdict, sign, verify

__all__ = [
    "CERTIFICATE_FILE",
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
