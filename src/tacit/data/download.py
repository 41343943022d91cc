"""Fetching public files: over https, resumed where a try broke off, checked, and never half there."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tacit.errors import FileError

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 30
_ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}


@dataclass(frozen=True)
class Source:
    """A public file.

    ``file`` is where it belongs under the data directory. ``digest`` (MD5, SHA-1 or SHA-256, told by its
    length) is that of the file, or of its gunzipped contents if ``unpacked``. With ``member``, the
    address is that of a zip file and this member of it is what is checked and kept.
    """

    url: str
    file: str
    digest: str
    unpacked: bool = False
    member: str | None = None


def fetch(source: Source, data_dir: Path) -> Path:
    """Return the path of ``source`` under ``data_dir``, downloading it if it is not there.

    A download goes to a ``.part`` file beside the goal; a later try takes up where the last one broke
    off. The goal appears by an atomic rename and only after the digest was found right.
    """
    goal = data_dir / source.file
    if goal.is_file():
        return goal
    part = goal.with_name(f".{goal.name}.part")
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        _download(source.url, part)
        ready = _extract(part, source.member) if source.member is not None else part
        _check(ready, source)
        os.replace(ready, goal)
        if ready != part:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{goal} cannot be written: {error}.") from error
    return goal


def _download(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            resumed = response.status == 206
            if not resumed:
                have = 0
            length = response.headers.get("Content-Length")
            with part.open("ab" if resumed else "wb") as file:
                while chunk := response.read(_CHUNK):
                    have += len(chunk)
                    length = None if length is None else int(length) - len(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
    except HTTPError as error:
        error.close()
        if error.code == 416:
            part.unlink(missing_ok=True)
            raise FileError(f"{url} could not be resumed; run it again to start anew.") from error
        raise FileError(
            f"{url} cannot be downloaded: the server answered {error.code} {error.reason}."
        ) from error
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise FileError(f"{url} cannot be downloaded: {reason}; run it again to resume.") from error
    if length:
        raise FileError(f"{url} broke off after {have} bytes, {length} are missing; run it again to resume.")


def _extract(part: Path, member: str) -> Path:
    inner = part.with_suffix(".member")
    try:
        with zipfile.ZipFile(part) as archive, archive.open(member) as packed, inner.open("wb") as file:
            shutil.copyfileobj(packed, file)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        inner.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
        raise FileError(f"The downloaded zip file has no readable {member}: {error}.") from error
    return inner


def _check(path: Path, source: Source) -> None:
    digest = hashlib.new(_ALGORITHMS[len(source.digest)], usedforsecurity=False)
    try:
        with gzip.open(path) if source.unpacked else path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        found = digest.hexdigest()
    except (gzip.BadGzipFile, EOFError, zlib.error):
        found = "no whole gzip file"
    if found != source.digest:
        path.unlink(missing_ok=True)
        path.with_suffix(".part").unlink(missing_ok=True)
        raise FileError(
            f"What {source.url} sent is not the known file (expected {digest.name} {source.digest}, "
            f"found {found}); it was thrown away."
        )
