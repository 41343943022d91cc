"""A bundle: one file with a model and everything that others need to use it and to check what it promises.

It is a zip archive of stored (not compressed) parts in a fixed order, so that the same run gives the same bytes.
``manifest.json`` names the SHA-256 of every part. The certificate among them names the model, its schema and its inputs
once more: that is how a model that was swapped is told from the one that the certificate speaks of.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import stat
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import FileError, TacitError
from tacit.files import decode_json, file_digest, json_text, write_bytes
from tacit.release.ledger_file import head_file
from tacit.rounding import rounded_up
from tacit.runs.certificate import Certificate, certificate_page
from tacit.runs.certificate_file import READING_FILES, load_certificate
from tacit.runs.layout import (
    CARD_FILE,
    CERTIFICATE_FILE,
    INPUTS_FILE,
    LEDGER_FILE,
    MODEL_FILE,
    PAGE_FILE,
    PLAN_FILE,
    RUN_FILE,
    SCHEMA_FILE,
    SETTINGS_FILE,
    SIGNATURE_FILE,
)
from tacit.runs.signing import check_detached, load_public_key, load_signature, sign_detached, signature_key
from tacit.runs.tensor_file import read_tensor_file
from tacit.runs.verification import recount_paid

FORMAT = "tacit-bundle"
VERSION = 1
MANIFEST = "manifest.json"
MANIFEST_SIGNATURE = "manifest.sig"
HEAD_FILE = head_file(Path(LEDGER_FILE)).name
NEEDED = (MODEL_FILE, INPUTS_FILE, CERTIFICATE_FILE, PAGE_FILE, CARD_FILE)
PAID = (PLAN_FILE, RUN_FILE, LEDGER_FILE, HEAD_FILE)
"""What a bundle holds besides if the ledger goes along."""
PARTS = (*NEEDED, SCHEMA_FILE, SETTINGS_FILE, SIGNATURE_FILE, *PAID)
_CONTEXT = b"tacit bundle, version 1\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LARGEST_TEXT = 1 << 28


@dataclass(frozen=True)
class BundleVerdict:
    """Whether all parts of a bundle agree, and if not, where.

    ``epsilon`` is recounted from the ledger where the bundle holds one, ``claimed`` is what the certificate says.
    ``unchecked`` says what this check did not show.
    """

    agrees: bool
    for_release: bool
    epsilon: float | None
    claimed: float | None
    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    statement: str | None = None

    def __str__(self) -> str:
        if not self.agrees:
            return "The bundle does NOT verify:\n" + "\n".join(f"  - {problem}" for problem in self.problems)
        assert self.claimed is not None
        release = "" if self.for_release else " It is NOT FOR RELEASE, as its certificate says."
        if self.epsilon is None:
            return (
                "The bundle verifies: its model is the one that its certificate speaks of, which claims epsilon = "
                f"{rounded_up(self.claimed, 6)}.{release}"
            )
        return (
            f"The bundle verifies: its model is the one that its certificate speaks of, and the ledger costs epsilon = "
            f"{rounded_up(self.epsilon, 6)} by an independent accountant; the certificate claims "
            f"{rounded_up(self.claimed, 6)}.{release}"
        )


def write_bundle(
    path: Path, parts: Mapping[str, bytes], *, about: Mapping[str, str], key: Path | None = None
) -> None:
    """Write parts and their manifest as one file, whole or not at all; with ``key`` the manifest is signed."""
    digests = {name: hashlib.sha256(parts[name]).hexdigest() for name in sorted(parts)}
    manifest = json_text({"format": FORMAT, "version": VERSION, **about, "parts": digests}).encode()
    content = {MANIFEST: manifest, **{name: parts[name] for name in PARTS if name in parts}}
    if key is not None:
        content[MANIFEST_SIGNATURE] = json_text(sign_detached(key, _CONTEXT + manifest)).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, part in content.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, part)
    write_bytes(path, packed.getvalue(), new=True)


def is_bundle(path: Path) -> bool:
    """Whether a file is an archive as bundles are."""
    try:
        return path.is_file() and zipfile.is_zipfile(path)
    except OSError:
        return False


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The parts of a bundle in a temporary folder; one that was damaged or is none is refused."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as name:
        directory = Path(name)
        problems = list(_unpack(path, directory))
        if problems:
            raise FileError(f"{path} cannot be used: {problems[0]}.")
        yield directory


def _unpack(path: Path, directory: Path) -> Iterator[str]:
    """Write the parts of a bundle to a folder; what is wrong with them, one sentence each."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            size = path.stat().st_size
            names = Counter(entry.filename for entry in entries)
            if MANIFEST not in names:
                raise ValueError("it holds no manifest, so it is no bundle of tacit export")
            for entry in entries:
                if entry.filename not in (*PARTS, MANIFEST, MANIFEST_SIGNATURE) or names[entry.filename] > 1:
                    raise ValueError(f"it holds {entry.filename!r:.80}, which no bundle has, or has it twice")
                # Stored parts cannot unpack to more than the file holds.
                if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > size or entry.flag_bits & 1:
                    raise ValueError(f"its part {entry.filename} is packed in another way than Tacit does")
                with archive.open(entry) as part, (directory / entry.filename).open("wb") as out:
                    while chunk := part.read(1 << 20):
                        out.write(chunk)
    except (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError) as error:
        raise FileError(f"{path} is no bundle of tacit export, or is damaged: {error}.") from error
    except (ValueError, RuntimeError, NotImplementedError, KeyError) as error:
        raise FileError(f"{path} cannot be used: {error}.") from error
    digests = _digests(path, directory)
    for name in PARTS:
        present = (directory / name).is_file()
        if present and name not in digests:
            yield f"the manifest does not name {name}: it came later"
        elif not present and name in digests:
            yield f"{name} is missing, and the manifest names it"
        elif not present and name in NEEDED:
            yield f"{name} is missing"
        elif present and file_digest(directory / name) != digests[name]:
            yield f"{name} is not the one that the manifest names: it has another digest"


def _digests(path: Path, directory: Path) -> dict[str, str]:
    try:
        content = (directory / MANIFEST).read_bytes()
        if len(content) > _LARGEST_TEXT:
            raise ValueError("it is too long")
        record = decode_json(content)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError("it is of something else")
        if record.get("version") != VERSION:
            raise ValueError(f"it has version {record.get('version')!r}; this Tacit reads {VERSION}")
        parts = record["parts"]
        if not isinstance(parts, dict) or not all(isinstance(digest, str) for digest in parts.values()):
            raise ValueError("it does not say what the parts are")
        for name in parts:
            if name not in PARTS:
                raise ValueError(f"it names {name!r:.80}, which no bundle has")
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"The manifest of {path} cannot be used: {error}.") from error
    return dict(parts)


def verify_bundle(path: str | Path, *, trust: str | Path | None = None) -> BundleVerdict:
    """Check that the model of a bundle is what its certificate speaks of, and that nothing was edited.

    ``trust`` is a file with a public key: the bundle, or at least its certificate, must be signed with it. Nothing is
    run or changed. A file that is no bundle at all raises ``FileError``.
    """
    path = Path(path)
    if not is_bundle(path):
        raise FileError(f"{path} is no bundle of tacit export.")
    trusted = None if trust is None else load_public_key(trust)
    with tempfile.TemporaryDirectory(prefix="tacit-") as name:
        directory = Path(name)
        problems = list(_unpack(path, directory))
        certificate: Certificate | None = None
        epsilon = None
        if (directory / CERTIFICATE_FILE).is_file():
            try:
                certificate = load_certificate(directory / CERTIFICATE_FILE)
                problems += _against(directory, certificate)
                epsilon, found = _recounted(directory)
                problems += found
            except TacitError as error:
                problems.append(str(error).rstrip("."))
        signers, found = _signers(directory)
        problems += found
        if trusted is not None and trusted not in signers.values():
            problems.append("nothing in the bundle is signed with the trusted key")
        unchecked = tuple(_unchecked(directory, certificate, signers, trusted))
        return BundleVerdict(
            agrees=not problems,
            for_release=not problems and certificate is not None and certificate.for_release,
            epsilon=epsilon,
            claimed=None if certificate is None else certificate.epsilon_spent,
            problems=tuple(dict.fromkeys(problem.replace(f"{directory}/", "") for problem in problems)),
            unchecked=unchecked,
            statement=None if problems or certificate is None else certificate.statement,
        )


def _against(directory: Path, certificate: Certificate) -> Iterator[str]:
    """What the parts say against the certificate."""
    named = dict(certificate.files)
    for name in (MODEL_FILE, *READING_FILES):
        present = (directory / name).is_file()
        if name not in named:
            if name == MODEL_FILE:
                yield f"the certificate does not name {MODEL_FILE}: it speaks of no model"
        elif not present:
            yield f"{name} is missing, and the certificate was written with it"
        elif file_digest(directory / name) != named[name]:
            yield f"{name} is not the one that the certificate speaks of: it has another digest"
    if (directory / MODEL_FILE).is_file():
        steps = read_tensor_file(directory / MODEL_FILE).numbers.get("steps")
        if type(steps) is not int or not 0 <= steps <= certificate.charged_releases:
            yield f"{MODEL_FILE} has {steps} steps, the certificate {certificate.charged_releases} releases"
    page = directory / PAGE_FILE
    if page.is_file() and page.read_bytes() != certificate_page(certificate).encode():
        yield f"{PAGE_FILE} does not say what {CERTIFICATE_FILE} says: one of the two was edited"
    if certificate.for_release and certificate.reasons_against_release:
        yield "the certificate is for release, and gives reasons against it"


def _recounted(directory: Path) -> tuple[float | None, list[str]]:
    """ε by an independent accountant, where the ledger came along, and what it says against the certificate."""
    if not (directory / LEDGER_FILE).is_file():
        return None, []
    if missing := [name for name in PAID if not (directory / name).is_file()]:
        return None, [f"{missing[0]} is missing, which belongs to the ledger"]
    return recount_paid(directory)


def _signers(directory: Path) -> tuple[dict[str, bytes], list[str]]:
    """Whose keys have signed the manifest and the certificate, and what is wrong with the signatures."""
    signers: dict[str, bytes] = {}
    problems: list[str] = []
    path = directory / MANIFEST_SIGNATURE
    try:
        if path.is_file():
            record: Any = decode_json(path.read_bytes())
            signers[MANIFEST] = check_detached(record, _CONTEXT + (directory / MANIFEST).read_bytes())
    except (TacitError, ValueError) as error:
        problems.append(f"the signature of the manifest is not genuine: {str(error).rstrip('.')}")
    path = directory / SIGNATURE_FILE
    try:
        if path.is_file():
            signature = load_signature(path)
            signers[CERTIFICATE_FILE] = signature_key(signature)
            for name in (CERTIFICATE_FILE, PAGE_FILE, MODEL_FILE):
                if (directory / name).is_file() and signature.signed.get(name) != file_digest(
                    directory / name
                ):
                    problems.append(f"{name} is not the one that was signed")
    except TacitError as error:
        problems.append(str(error).rstrip("."))
    return signers, problems


def _unchecked(
    directory: Path, certificate: Certificate | None, signers: Mapping[str, bytes], trusted: bytes | None
) -> Iterator[str]:
    if not signers:
        yield "nothing is signed: whoever made this file could have made another, consistent in itself"
    elif trusted is None:
        yield "the signature is genuine, but no key was given to trust: anybody can sign"
    elif signers.get(MANIFEST) != trusted:
        yield f"the key vouches for the certificate and the model, not for {CARD_FILE} and {SETTINGS_FILE}"
    if not (directory / LEDGER_FILE).is_file():
        yield "the bundle holds no ledger: that the run cost what its certificate claims is not recounted"
    if certificate is not None and INPUTS_FILE not in dict(certificate.files):
        yield f"the certificate names no {INPUTS_FILE}: how new data is read is bound by the manifest alone"
