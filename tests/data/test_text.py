from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from tacit.data import load
from tacit.data.text import LENGTH, VOCABULARY, parse_sst2, token_ids
from tacit.errors import FileError

LINES = 'sentence\tlabel\na fine film\t1\n"dull -lrb- and long -rrb-\t0\n'


def test_ids_are_fixed_and_bounded() -> None:
    ids = token_ids(["a fine film", "film", "", "x " * 100])
    assert ids.shape == (4, LENGTH)
    assert (ids[0, 2], ids[0, 3]) == (ids[1, 0], 0)
    assert (ids[2] == 0).all()
    assert (ids[3] > 0).all()
    assert ids.max() < VOCABULARY
    # A public constant: models trained on one machine must fit the ids of another.
    assert token_ids(["film"])[0, 0] == 7828


def test_sst2_in_both_layouts(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain" / "text", tmp_path / "zip" / "text"
    plain.mkdir(parents=True)
    packed.mkdir(parents=True)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for part in ("train", "dev"):
            (plain / f"sst2-{part}.tsv.gz").write_bytes(gzip.compress(LINES.encode()))
            archive.writestr(f"SST-2/{part}.tsv", LINES)
    (packed / "SST-2.zip").write_bytes(buffer.getvalue())
    for root in (plain.parent, packed.parent):
        task = load("sst2", root, download=False)
        x, y = task.train.tensors  # type: ignore[attr-defined]
        assert x.shape == (2, LENGTH)
        assert y[:, 0].tolist() == [1, 0]
        assert task.vocabulary == VOCABULARY
    (packed / "SST-2.zip").write_bytes(b"PK\x05\x06broken")
    with pytest.raises(FileError, match="not the SST-2 archive"):
        load("sst2", packed.parent, download=False)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [(b"h\nno label\n", "line 2"), (b"h\nx\t2\n", "line 2"), (b"h\n", "empty"), (b"h\n\xff\t1\n", "UTF-8")],
)
def test_lines_that_do_not_fit(data: bytes, sentence: str) -> None:
    with pytest.raises(FileError, match=sentence):
        parse_sst2(Path("x.tsv"), data)
