"""Signatures: who vouches for a certificate, its ledger, its plan and its files.

A signature is an Ed25519 signature over the digests of everything that the certificate rests on. It says that the
holder of the key vouches for these files, and nothing about whether the run behind them took place.
"""

from __future__ import annotations

import base64
import binascii
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacit.errors import FileError, TacitError
from tacit.files import file_digest, read_json, write_bytes, write_json
from tacit.plan import load_plan, plan_digest
from tacit.plan.plan import canonical
from tacit.release.ledger_file import read_ledger
from tacit.runs.certificate_file import BOUND_FILES
from tacit.runs.layout import CERTIFICATE_FILE, LEDGER_FILE, PAGE_FILE, PLAN_FILE, SIGNATURE_FILE

FORMAT = "tacit-signature"
VERSION = 1
_CONTEXT = b"tacit certificate, version 1\n"


@dataclass(frozen=True)
class Signature:
    """``signed`` says what was signed, by the names of the parts; ``key`` is the public key that it claims."""

    signed: Mapping[str, str]
    key: bytes
    signature: bytes


def make_key(path: str | Path) -> Path:
    """Write a new private key to ``path``, readable by its owner only, and its public key beside it as ``.pub``."""
    path = Path(path)
    public = path.with_name(f"{path.name}.pub")
    if public.exists():
        raise FileError(f"{public} exists already; a key is never overwritten.")
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_bytes(path, private, 0o600, new=True)
    write_bytes(
        public,
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        new=True,
    )
    return public


def write_signature(directory: Path, key_file: Path) -> None:
    """Sign the certificate in ``directory`` and all that it rests on, as it lies there."""
    key = _private_key(key_file)
    parts = signed_parts(directory)
    record = {
        "format": FORMAT,
        "version": VERSION,
        "signed": parts,
        "key": _text(key.public_key().public_bytes_raw()),
        "signature": _text(key.sign(_message(parts))),
    }
    write_json(directory / SIGNATURE_FILE, record)


def signed_parts(directory: Path) -> dict[str, str]:
    """What a signature of the run in ``directory`` is about: a digest of every part, by name."""
    parts = {
        PLAN_FILE: plan_digest(load_plan(directory / PLAN_FILE)),
        LEDGER_FILE: read_ledger(directory / LEDGER_FILE).head,
    }
    for name in (CERTIFICATE_FILE, PAGE_FILE, *BOUND_FILES):
        if (directory / name).exists():
            parts[name] = file_digest(directory / name)
    return parts


def load_signature(path: Path) -> Signature:
    """Read a signature file; that it is genuine is for ``check_signature`` to say."""
    record = read_json(path)
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        raise FileError(f"{path} is not a signature of Tacit.")
    if record.get("version") != VERSION:
        raise FileError(
            f"The signature {path} has version {record.get('version')!r}; this Tacit reads {VERSION}."
        )
    signed = record.get("signed")
    if not isinstance(signed, Mapping) or not all(isinstance(digest, str) for digest in signed.values()):
        raise FileError(f"The signature {path} does not say what was signed.")
    return Signature(
        signed=dict(signed),
        key=_bytes(record.get("key"), 32, path),
        signature=_bytes(record.get("signature"), 64, path),
    )


def sign_detached(key_file: Path, message: bytes) -> dict[str, str]:
    """A signature of ``message`` that stands by itself, with the private key in ``key_file``."""
    key = _private_key(key_file)
    return {"key": _text(key.public_key().public_bytes_raw()), "signature": _text(key.sign(message))}


def check_detached(record: Any, message: bytes) -> bytes:
    """The public key that has signed ``message``; raises unless the signature is genuine."""
    place = Path("the bundle")
    if not isinstance(record, Mapping):
        raise FileError("It is no signature of Tacit.")
    key, signature = _bytes(record.get("key"), 32, place), _bytes(record.get("signature"), 64, place)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise FileError("It does not fit what it stands beside.") from None
    return key


def signature_key(signature: Signature) -> bytes:
    """The public key of a signature; raises unless it is genuine for what it says was signed."""
    try:
        Ed25519PublicKey.from_public_bytes(signature.key).verify(
            signature.signature, _message(signature.signed)
        )
    except (InvalidSignature, ValueError):
        raise FileError("the signature is not genuine: it does not fit what it says was signed") from None
    return signature.key


def signature_problems(directory: Path, trusted: bytes | None) -> list[str]:
    """What is wrong with the signature in ``directory``; with a ``trusted`` public key also if there is none by it."""
    path = directory / SIGNATURE_FILE
    if not path.is_file():
        return (
            []
            if trusted is None
            else ["the certificate is not signed, so there is nothing that the key vouches for"]
        )
    try:
        signature = load_signature(path)
        found = signed_parts(directory)
    except TacitError as error:
        return [str(error).rstrip(".")]
    try:
        signature_key(signature)
    except FileError as error:
        return [str(error)]
    problems = []
    if trusted is not None and signature.key != trusted:
        problems.append("the certificate is signed with another key than the trusted one")
    for name in sorted(set(found) | set(signature.signed)):
        if name not in found:
            problems.append(f"{name} was signed and is missing")
        elif name not in signature.signed:
            problems.append(f"{name} was not signed with the certificate; it came later")
        elif found[name] != signature.signed[name]:
            problems.append(f"{name} has changed since it was signed")
    return problems


def load_public_key(path: str | Path) -> bytes:
    """The raw bytes of an Ed25519 public key in a PEM file."""
    content = _read(Path(path))
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        if b"PRIVATE KEY" in content:
            raise FileError(
                f"{path} holds a private key; trust the public one beside it ({path}.pub)."
            ) from None
        raise FileError(f"{path} holds no public key in PEM form.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise FileError(f"{path} holds a public key of another kind; Tacit signs with Ed25519.")
    return key.public_bytes_raw()


def _private_key(path: Path) -> Ed25519PrivateKey:
    content = _read(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FileError(f"{path} holds no private key in PEM form without a password.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise FileError(
            f"{path} holds a private key of another kind; make one with tacit certificate --new-key."
        )
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FileError(
            f"The private key {path} can be read by others, so nobody should trust it; chmod 600, or make another."
        )
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"The key {path} cannot be read: {error.strerror}.") from error


def _message(parts: Mapping[str, str]) -> bytes:
    return _CONTEXT + canonical(parts).encode()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: Any, size: int, path: Path) -> bytes:
    try:
        content = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        content = b""
    if len(content) != size:
        raise FileError(f"The signature {path} holds no Ed25519 key and signature.")
    return content
