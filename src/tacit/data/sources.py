"""Where built-in data comes from: files by digest, downloads, the cache."""

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
            raise FileError(f"{url} could not be resumed; run it again to start over.") from error
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


DATA_DIR_VARIABLE = "TACIT_DATA"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FMNIST = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_SST2 = "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"


def _idx(base: str, folder: str, digests: dict[str, str]) -> dict[str, Source]:
    return {
        name: Source(f"{base}/{name}.gz", f"{folder}/{name}.gz", digest, unpacked=True)
        for name, digest in digests.items()
    }


MNIST = _idx(
    _MNIST,
    "mnist",
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
)
FMNIST = _idx(
    _FMNIST,
    "fashion-mnist",
    {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)
CIFAR10 = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "cifar10/cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
)
ADULT_TRAIN = Source(f"{_UCI}/adult/adult.data", "tabular/adult.data", "5d7c39d7b8804f071cdd1f2a7c460872")
ADULT_TEST = Source(f"{_UCI}/adult/adult.test", "tabular/adult.test", "35238206dfdf7f1fe215bbb874adecdc")
BANK = Source(
    f"{_UCI}/00222/bank.zip",
    "tabular/bank-full.csv",
    "e6b0ca77f3f200ec5428e04dd104da53",
    member="bank-full.csv",
)
KDD99 = Source(
    f"{_UCI}/kddcup99-mld/kddcup.data_10_percent.gz",
    "tabular/kddcup.data_10_percent.gz",
    "8045aca0d84e70e622d1148d7df782496f6333bf6eb979a1b0837c42a9fd9561",
)
PNEUMONIAMNIST = Source(
    "https://zenodo.org/records/10519652/files/pneumoniamnist.npz?download=1",
    "medical/pneumoniamnist.npz",
    "28209eda62fecd6e6a2d98b1501bb15f",
)
SST2 = Source(_SST2, "text/SST-2.zip", "9f81648d4199384278b86e315dac217c")


def default_data_dir() -> Path:
    """The directory named by TACIT_DATA, else a directory in the user's cache."""
    named = os.environ.get(DATA_DIR_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit" / "data"


def find(data_dir: Path, *files: str) -> list[Path] | None:
    """Return the paths of ``files`` under ``data_dir`` if all are there."""
    paths = [data_dir / file for file in files]
    return paths if all(path.is_file() for path in paths) else None


def find_or_fetch(data_dir: Path, file: str, source: Source, *, download: bool) -> Path:
    """Return ``file`` under ``data_dir`` if it is there, else the published file, fetched if it must be."""
    found = find(data_dir, file) or find(data_dir, source.file)
    if found:
        return found[0]
    if not download:
        raise FileError(
            f"{file} is not in {data_dir}; name the directory that holds it, or allow the download."
        )
    return fetch(source, data_dir)
