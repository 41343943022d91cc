from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tacit.data import Number, Schema, Target, infer, read_schema, read_table, write_schema
from tacit.data.encode import encode, encoded_cuts
from tacit.data.infer import guess_target, quantile_cuts
from tacit.data.table_file import Table
from tacit.data.values import sentinels
from tacit.errors import ArgumentError

TARGET = Target("y", "binary", ("no", "yes"))


def test_parts_hold_about_equally_many_rows() -> None:
    numbers = np.random.default_rng(0).lognormal(size=10_000)
    cuts = quantile_cuts(numbers.tolist())
    counts = np.histogram(numbers, [-np.inf, *cuts, np.inf])[0]
    assert len(cuts) == 17
    assert counts[0] + counts[1] == pytest.approx(625, abs=2)
    assert counts[2:-2].tolist() == pytest.approx([625] * 14, abs=2)


def test_a_value_that_fills_most_rows_leaves_cuts_for_the_others() -> None:
    others = np.random.default_rng(0).uniform(1, 100, 500)
    cuts = quantile_cuts([0.0] * 9500 + others.tolist())
    assert len(cuts) >= 14
    assert min(cuts) == others.min()
    assert np.diff([1, *cuts]).max() < 15


def test_few_values_have_a_part_each() -> None:
    assert quantile_cuts([3, 1, 1, 2, 3]) == (2, 3)
    assert quantile_cuts([0, 1] * 50) == (1,)


def test_cuts_are_encoded_as_values_are() -> None:
    column = Number(0, 1000, "log", 10, missing=False, cuts=(1, 10, 123.456))
    table = Table("t.csv", {"c": ["1", "10", "123.456"]}, 3, 2)
    encoded = encode(table, Schema(TARGET, {"c": column}))
    assert encoded.x[:, 0].tolist() == list(encoded_cuts(column))
    assert (encoded.numbers[0].at, encoded.numbers[0].missing, encoded.columns) == (0, None, 1)


def test_a_range_without_cuts_is_divided_evenly_on_its_scale() -> None:
    cuts = encoded_cuts(Number(0, 10, typical=2))
    assert len(cuts) == 15
    assert np.diff(cuts).tolist() == pytest.approx([(1 + 0.25) / 16] * 14, rel=1e-4)


def test_cuts_survive_a_schema_file_and_are_checked(tmp_path: Path) -> None:
    schema = Schema(TARGET, {"age": Number(0, 120, cuts=(18, 30.5, 65)), "size": Number(0, 1)})
    write_schema(schema, tmp_path / "s.toml")
    assert "cuts = [18, 30.5, 65]" in (tmp_path / "s.toml").read_text()
    assert read_schema(tmp_path / "s.toml") == schema
    for cuts in [(2.0, 1.0), (1.0, 1.0), (-1.0,), (float("nan"),)]:
        with pytest.raises(ArgumentError, match="cuts must increase"):
            Number(0, 10, cuts=cuts)


@pytest.mark.parametrize(
    ("numbers", "codes"),
    [
        ([*range(20, 90), 999, 999, 999], [999]),
        ([*range(100, 180), *[-999] * 5], [-999]),
        ([*range(0, 50), *[-99] * 4, *[9999] * 4], [9999]),
        ([*range(20, 90), 999], []),  # one outlier is no code
        ([*range(20, 90), *[1000] * 5], []),  # a round number may be meant
        ([*range(0, 100), *[99] * 50], []),
        ([0, 1, 1, 9, 9, 9], []),
    ],
)
def test_codes_among_numbers_are_noticed(numbers: list[float], codes: list[float]) -> None:
    assert sentinels(np.array(numbers, dtype=float)) == codes


def test_a_table_with_codes_names_the_column(write_csv: Callable[..., Path]) -> None:
    rows = [(30 + row % 40, row % 7, "yes" if row % 3 else "no") for row in range(200)]
    path = write_csv(["age", "visits", "y"], [*rows, *[(999, 3, "yes")] * 4])
    (warning,) = read_table(path, "y").warnings
    assert "'age' holds 999 far from" in warning
    declared = Schema(TARGET, {"age": Number(0, 100, missing_values=("999",))})
    assert read_table(path, schema=declared).warnings == ()


def test_the_range_of_a_target_is_not_that_of_its_outliers() -> None:
    values = [str(value) for value in range(1000)] + ["1000000"]
    target = guess_target(Table("t.csv", {"y": values}, len(values), 2), "y", None, None)
    assert (target.low, target.high) == (0, 1000)
    few = ["5"] * 1000 + [str(value) for value in range(40)]
    assert guess_target(Table("t.csv", {"y": few}, len(few), 2), "y", "regression", None).range == (0, 40)


@pytest.mark.parametrize(
    "odd", [[], ["", ""], ["nan", "NaN"], ["1.0", "1", "01"], ["-1e300", "+.5"], ["n/a"], ["1_0"]]
)
def test_a_long_column_of_numbers_is_guessed_as_a_short_one(
    monkeypatch: pytest.MonkeyPatch, odd: list[str]
) -> None:
    drawn = np.random.default_rng(0).normal(50, 20, 1500).round(2)
    table = Table("t.csv", {"x": [*map(str, drawn.tolist()), *odd]}, 1500 + len(odd), 2)
    quick = infer.guess_column(table, "x")
    monkeypatch.setattr(infer, "_MANY", 10**9)
    assert quick == infer.guess_column(table, "x")
    assert isinstance(quick, infer.Number)
