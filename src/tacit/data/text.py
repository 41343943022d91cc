"""SST-2: is a sentence of a film review positive? Words become token ids by a fixed hash."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.data import sources
from tacit.data.table_file import read_gzip
from tacit.data.table_task import labels, tensors
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED, Task
from tacit.data.values import word_hash, words
from tacit.errors import FileError

VOCABULARY = 8192
LENGTH = 48
PHRASES_NOT_COVERED = (
    "That several rows can be phrases of one sentence: epsilon holds for a row, not for a sentence."
)


def token_ids(texts: Sequence[str], vocabulary: int = VOCABULARY, length: int = LENGTH) -> NDArray[np.int64]:
    """Hash the first ``length`` words of each text to ids 1 .. vocabulary - 1; 0 fills up short texts."""
    out = np.zeros((len(texts), length), np.int64)
    for row, text in enumerate(texts):
        for place, word in enumerate(words(text)[:length]):
            out[row, place] = 1 + word_hash(word) % (vocabulary - 1)
    return out


def load_sst2(data_dir: Path, download: bool) -> Task:
    """The sentences and phrases of SST-2; the published development part is held out."""
    pairs = [tensors(token_ids(texts), labels(y, binary=True)) for texts, y in sst2_texts(data_dir, download)]
    return Task(
        name="sst2",
        train=pairs[0],
        held_out=pairs[1],
        kind="binary",
        input_shape=(LENGTH,),
        classes=("negative", "positive"),
        vocabulary=VOCABULARY,
        not_covered=(
            PHRASES_NOT_COVERED,
            HELD_OUT_NOT_COVERED,
            COUNT_NOT_COVERED,
        ),
        public_sources=(
            f"Token ids: a fixed hash of each word into {VOCABULARY - 1} ids; the first {LENGTH} words "
            "count.",
            "Held-out sentences: the development part that was published with the data.",
        ),
    )


def sst2_texts(data_dir: Path, download: bool) -> list[tuple[list[str], NDArray[np.int64]]]:
    """Texts and labels (1 is positive) of the training and the development part."""
    return [_read_part(data_dir, part, download) for part in ("train", "dev")]


def _read_part(data_dir: Path, part: str, download: bool) -> tuple[list[str], NDArray[np.int64]]:
    found = sources.find(data_dir, f"text/sst2-{part}.tsv.gz")
    if found is not None:
        return parse_sst2(found[0], read_gzip(found[0]))
    path = sources.find_or_fetch(data_dir, sources.SST2.file, sources.SST2, download=download)
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            return parse_sst2(path, archive.read(f"SST-2/{part}.tsv"))
    except (OSError, zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
        raise FileError(f"{path} is not the SST-2 archive: {error}.") from error


def parse_sst2(path: Path, data: bytes) -> tuple[list[str], NDArray[np.int64]]:
    """Parse lines of ``sentence <tab> label`` below a header line; quotes have no meaning in them."""
    try:
        lines = data.decode("utf-8").split("\n")[1:]
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text.") from error
    texts, marks = [], []
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        text, _, mark = line.rstrip("\r").rpartition("\t")
        if mark not in ("0", "1"):
            raise FileError(f"{path}, line {number}, does not end in a tab and a label 0 or 1.")
        texts.append(text.replace("-lrb-", "(").replace("-rrb-", ")"))
        marks.append(int(mark))
    if not texts:
        raise FileError(f"{path} is empty.")
    return texts, np.array(marks, np.int64)
