from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tacit.data.table_file import read_idx, read_labels, read_mosaics
from tacit.errors import FileError, TacitError


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_round_trip(tmp_path: Path, pack: type[bytes]) -> None:
    array = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "a-idx3-ubyte"
    path.write_bytes(pack(idx(array)))
    assert (read_idx(path) == array).all()


GOOD = idx(np.arange(6, dtype=np.uint8).reshape(2, 3))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=60),
        st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)).map(
            lambda at: GOOD[: at[0]] + bytes([at[1]]) + GOOD[at[0] + 1 :]
        ),
        st.integers(0, len(GOOD)).map(lambda end: GOOD[:end]),
        st.integers(0, 30).map(lambda end: gzip.compress(GOOD)[:end]),
    )
)
@example(b"\0\0\x08\x03" + b"\xff" * 12)
@example(b"\0\0\x08\xff" + b"\0" * 1020)
@example(b"\0\0\x08\x60" + b"\0\0\0\x01" * 96 + b"x")
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    try:
        array = read_idx(path)
    except TacitError:
        return
    assert array.size > 0


def mosaic(tiles: np.ndarray, rows: int, columns: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    side = tiles.shape[1]
    whole = tiles.reshape(rows, columns, side, side, 3).transpose(0, 2, 1, 3, 4)
    buffer = io.BytesIO()
    image.fromarray(whole.reshape(rows * side, columns * side, 3)).save(
        buffer, "WEBP", lossless=True, exact=True
    )
    return buffer.getvalue()


def test_mosaics_one_after_the_other(tmp_path: Path) -> None:
    tiles = np.random.default_rng(0).integers(0, 256, (12, 5, 5, 3), dtype=np.uint8)
    path = tmp_path / "m.webps"
    data = mosaic(tiles[:6], 2, 3) + mosaic(tiles[6:], 2, 3)
    path.write_bytes(data)
    assert (read_mosaics(path, 2, 3, 5) == tiles).all()
    with pytest.raises(FileError, match="wrong size"):
        read_mosaics(path, 3, 2, 4)
    for broken in (data[:-3], b"x" + data, data[:20] + b"\xff" * 20 + data[40:], b""):
        path.write_bytes(broken)
        with pytest.raises(FileError, match=r"m\.webps"):
            read_mosaics(path, 2, 3, 5)


def test_labels_are_counted_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "l.gz"
    path.write_bytes(gzip.compress(bytes([0, 2, 1])))
    assert read_labels(path, 3, 3).tolist() == [0, 2, 1]
    for count, classes in ((4, 3), (3, 2)):
        with pytest.raises(FileError, match="labels"):
            read_labels(path, count, classes)
