from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tacit.data.table_file import read_columns, row_keys
from tacit.data.task import held_out_mask
from tacit.errors import ArgumentError, FileError, TacitError


@pytest.mark.parametrize("sep", [",", ";", "\t", "|"])
def test_separator_is_found(tmp_path: Path, sep: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"a{sep}b\n1{sep}x\n 2 {sep}y\n")
    assert read_columns(path).columns == {"a": ["1", "2"], "b": ["x", "y"]}


def test_quotes_line_breaks_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes('﻿a,b\n\n"x, y","first\nsecond"\n,\n3,4\n'.encode())
    table = read_columns(path)
    assert table.columns == {"a": ["x, y", "3"], "b": ["first\nsecond", "4"]}
    assert table.rows == 2


def test_gzip_and_names_without_header(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n3,4\n"))
    assert read_columns(path, names=["u", "v"]).columns == {"u": ["1", "3"], "v": ["2", "4"]}


def test_parquet_has_the_same_cells_as_csv(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    import datetime

    data = pa.table(
        {
            "n": [1, None, 3],
            "f": [0.5, float("nan"), 2.0],
            "t": ["x", None, " y "],
            "b": [True, False, None],
            "d": [datetime.date(2020, 2, 29), None, datetime.date(2021, 1, 1)],
            "c": pa.array(["u", "v", "u"]).dictionary_encode(),
        }
    )
    path = tmp_path / "t.parquet"
    pq.write_table(data, path)
    columns = read_columns(path).columns
    assert columns["n"] == ["1", "", "3"]
    assert columns["t"] == ["x", "", "y"]
    assert columns["b"] == ["true", "false", ""]
    assert columns["d"] == ["2020-02-29", "", "2021-01-01"]
    assert columns["c"] == ["u", "v", "u"]


def test_parquet_that_is_none_or_holds_lists(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(FileError, match="not a readable Parquet"):
        read_columns(path)
    pq.write_table(pa.table({"a": [[1], [2]]}), path)
    with pytest.raises(FileError, match="'a'"):
        read_columns(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b\n", "has no rows"),
        (b"a,b\n1\n", "line 2, has 1 fields where 2"),
        (b"a,a\n1,2\n", "two columns called 'a'"),
        (b"a,,c\n1,2,3\n", "Column 2 of"),
        (b"a,b\n1,\xff\n", "not UTF-8"),
        (b"\x1f\x8bbroken", "cannot be read"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(FileError, match=sentence) as caught:
        read_columns(path)
    assert "\n" not in str(caught.value)


def test_missing_file_unknown_column_and_bad_separator(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no file"):
        read_columns(tmp_path / "absent.csv")
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ArgumentError, match="no column 'z'; its columns are 'a', 'b'"):
        read_columns(path).column("z")
    with pytest.raises(ArgumentError, match="one character"):
        read_columns(path, separator=",,")


def test_row_keys_tell_rows_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\nx,\n,x\nx,\n")
    keys = row_keys(read_columns(path))
    assert keys[0] == keys[2] != keys[1]


def test_rows_are_held_out_alike_with_and_without_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"Köln {i % 37},{i}\n" for i in range(500)), encoding="utf-8")
    quick = held_out_mask(row_keys(read_columns(path)), 0.3)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    slow = held_out_mask(row_keys(read_columns(path)), 0.3)
    assert quick.tolist() == slow.tolist()
    assert 0 < quick.sum() < 500


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n")
    with pytest.raises(FileError, match="no rows"):
        read_columns(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda s: s.encode("utf-8", "ignore"))))
@example(b"a\r1\r2")
@example(b'a,b\n"unclosed,1\n')
@example(b"a\x00,b\n1,\x002\n")
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    try:
        table = read_columns(path)
    except TacitError:
        return
    assert table.rows > 0
    assert all(len(column) == table.rows for column in table.columns.values())


def test_reading_a_csv_loads_no_pandas(tmp_path: Path) -> None:
    """pyarrow would load it for every list or array that it is given; that takes longer than a small table."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n" + "".join(f"{i / 7},w{i % 3},{i % 2}\n" for i in range(60)))
    code = (
        f"import sys\nfrom tacit.data import read_table\nread_table({str(path)!r}, target='y')\n"
        "print('pandas' in sys.modules, 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"]
