from __future__ import annotations

import math
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.encode import encode, encode_target
from tacit.data.schema import Category, Column, Date, Number, Schema, Skip, Target, Text
from tacit.data.table_file import Table
from tacit.errors import ArgumentError, FileError

TARGET = Target("y", "binary", ("no", "yes"))


def one(column: Column, *cells: str) -> np.ndarray:
    table = Table("t.csv", {"c": list(cells)}, len(cells), 2)
    return encode(table, Schema(TARGET, {"c": column})).x


def test_number_is_clipped_scaled_and_marked_when_missing() -> None:
    found = one(Number(0, 10, missing_values=("99",)), "0", "10", "5", "-3", "400", "", "NA", "99.0")
    assert found[:, 0].tolist() == [-1, 1, 0, -1, 1, 0, 0, 0]
    assert found[:, 1].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


def test_typical_value_is_zero_and_the_farther_end_is_one() -> None:
    assert one(Number(0, 10, typical=2, missing=False), "2", "10", "0").ravel().tolist() == [0, 1, -0.25]


def test_log_scale() -> None:
    found = one(Number(0, 99, "log", missing=False), "0", "9", "99").ravel()
    assert found.tolist() == pytest.approx([-1, 0, 1], abs=1e-6)


def test_category_one_hot_binary_and_ordered() -> None:
    assert one(Category(("a", "b", "c"), missing=False), "b", "C", "new").tolist() == [
        [0, 1, 0],
        [0, 0, 1],
        [0, 0, 0],
    ]
    assert one(Category(("0", "1")), "1.0", "0", "?").tolist() == [[1, 0], [0, 0], [0, 1]]
    ordered = Category(("low", "mid", "high"), ordered=True, missing=False)
    assert one(ordered, "low", "mid", "high", "?").ravel().tolist() == [-1, 0, 1, 0]


def test_date_has_place_season_and_weekday() -> None:
    column = Date(date(2020, 1, 1), date(2020, 12, 31), missing=False)
    found = one(column, "2020-01-01", "2020-12-31 23:59", "2031-05-05", "") * math.sqrt(3)
    assert found[:, 0].tolist() == pytest.approx([-1, 1, 1, 0])
    assert found[0, 1:3].tolist() == pytest.approx([0, 1])
    assert found[3].tolist() == [0] * 5
    assert one(column, "2020-06-01")[0, 3:].tolist() == one(column, "2020-06-08")[0, 3:].tolist()


def test_text_is_hashed_without_a_vocabulary() -> None:
    alone = one(Text(16), "slow and cold")
    among = one(Text(16), "something else", "slow and cold", "", "COLD and slow")
    assert (among[1] == alone[0]).all()
    assert (among[3] == alone[0]).all()
    assert (among[2] == 0).all()


CELLS = st.one_of(
    st.text(max_size=12),
    st.floats(allow_nan=True, allow_infinity=False).map(str),
    st.dates().map(str),
    st.sampled_from(["a", "b", "B", "", "NA", "yes"]),
)
ANY_CELL_COLUMNS: dict[str, Column] = {
    "cat": Category(("a", "b", "yes")),
    "ord": Category(("a", "b", "yes"), ordered=True),
    "text": Text(7),
    "off": Skip(),
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(CELLS, st.floats(width=32, allow_nan=False, allow_infinity=False), st.dates()), min_size=2
    )
)
def test_rows_have_bounded_norm_and_do_not_see_each_other(rows: list[tuple[str, float, date]]) -> None:
    columns: dict[str, Column] = {
        **ANY_CELL_COLUMNS,
        "num": Number(-3, 8, typical=1),
        "day": Date(date(1900, 1, 1), date(2100, 1, 1)),
    }

    def table(part: list[tuple[str, float, date]]) -> Table:
        cells = [c.strip() for c, _, _ in part]
        days = [d.isoformat() for _, _, d in part]
        values = {**dict.fromkeys(ANY_CELL_COLUMNS, cells), "num": [str(n) for _, n, _ in part], "day": days}
        return Table("t.csv", values, len(part), 2)

    schema = Schema(TARGET, columns)
    whole = encode(table(rows), schema)
    assert whole.norm_bound == math.sqrt(5)
    assert np.linalg.norm(whole.x, axis=1).max() <= whole.norm_bound * (1 + 1e-6)
    assert np.abs(whole.x).max() <= 1 + 1e-6
    assert len(whole.names) == whole.x.shape[1] == len(set(whole.names))
    assert (encode(table(rows[1:]), schema).x == whole.x[1:]).all()


def test_cells_that_do_not_fit_are_named() -> None:
    with pytest.raises(FileError, match=r"'c' is a number, but t.csv, about line 3, holds 'many'"):
        one(Number(0, 1), "1", "many")
    with pytest.raises(FileError, match=r"date written as %Y-%m-%d.*'31.12.2020'"):
        one(Date(date(2020, 1, 1), date(2021, 1, 1)), "31.12.2020")
    with pytest.raises(FileError, match="No column"):
        one(Skip(), "1")


def test_targets() -> None:
    table = Table("t.csv", {"y": ["No", "YES", "", "no"], "r": ["0", "10", "5", "NA"]}, 4, 2)
    y, known = encode_target(table, TARGET)
    assert y[:, 0].tolist()[:2] == [0, 1]
    assert known.tolist() == [True, True, False, True]
    y, known = encode_target(table, Target("r", "regression", low=0, high=10))
    assert y[:3, 0].tolist() == [-1, 1, 0]
    assert known.tolist() == [True, True, True, False]
    with pytest.raises(FileError, match=r"'y' is 'YES' in t.csv, about line 3.*none of the classes"):
        encode_target(table, Target("y", "multiclass", ("no", "maybe")))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Number(1, 1),
        lambda: Number(0, float("inf")),
        lambda: Number(0, 1, "cubic"),  # type: ignore[arg-type]
        lambda: Number(0, 1, typical=2),
        lambda: Category(("a",)),
        lambda: Category(("a", "A")),
        lambda: Text(0),
        lambda: Date(date(2020, 1, 1), date(2020, 1, 1)),
        lambda: Target("y", "binary", ("a", "b", "c")),
        lambda: Target("y", "regression"),
        lambda: Target("y", "ranking"),  # type: ignore[arg-type]
        lambda: Schema(TARGET, {"y": Skip()}),
    ],
)
def test_schemas_that_make_no_sense_are_refused(bad: object) -> None:
    with pytest.raises(ArgumentError):
        bad()  # type: ignore[operator]
