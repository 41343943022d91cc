from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.data import (
    Category,
    Date,
    Number,
    Schema,
    Skip,
    Target,
    Text,
    infer_schema,
    read_table,
    write_schema,
)
from tacit.data.task import COUNT_NOT_COVERED, HELD_OUT_NOT_COVERED
from tacit.errors import ArgumentError, FileError, TacitError

HEADER = ["customer_id", "age", "income", "joined", "city", "comment", "plan", "const", "churn"]


def mixed_rows(count: int = 300, seed: int = 0) -> list[list[object]]:
    rng = random.Random(seed)
    words = ["slow", "good", "price", "never", "again", "support"]
    rows: list[list[object]] = []
    for i in range(count):
        age = rng.randint(18, 90)
        rows.append(
            [
                1000 + i,
                age if rng.random() > 0.1 else "",
                rng.choice(["unknown", *[round(rng.lognormvariate(9, 1.5), 2)] * 20]),
                f"{rng.randint(1, 28):02d}.{rng.randint(1, 12):02d}.{rng.randint(2015, 2022)}",
                f"city {rng.randint(0, 200)}",
                " ".join(rng.choices(words, k=5)),
                rng.choice(["A", "B", "b", "C", "NA"]),
                7,
                "Yes" if age > 50 else "no",
            ]
        )
    return rows


@pytest.fixture
def mixed(write_csv: Callable[..., Path]) -> Path:
    return write_csv(HEADER, mixed_rows(), sep=";")


def test_types_are_guessed(mixed: Path) -> None:
    schema = infer_schema(mixed, "churn")
    columns = schema.columns
    assert schema.target == Target("churn", "binary", ("no", "Yes"), public=False)
    assert isinstance(columns["customer_id"], Skip)
    assert isinstance(columns["const"], Skip)
    age, income = columns["age"], columns["income"]
    assert isinstance(age, Number)
    assert (age.low, age.high, age.scale, age.missing) == (10, 90, "linear", True)
    assert isinstance(income, Number)
    assert income.missing_values == ("unknown",)
    assert income.scale == "log"
    assert isinstance(columns["joined"], Date)
    assert columns["joined"].format == "%d.%m.%Y"
    assert isinstance(columns["city"], Text)
    assert isinstance(columns["comment"], Text)
    assert isinstance(columns["plan"], Category)
    assert [v.lower() for v in columns["plan"].values] == ["a", "b", "c"]
    assert not any(column.public for column in columns.values())


def test_a_guessed_table_trains_and_names_exactly_what_was_guessed(mixed: Path) -> None:
    task = read_table(mixed, "churn")
    x, y = task.train.tensors  # type: ignore[attr-defined]
    assert task.kind == "binary"
    assert x.dtype == y.dtype == torch.float32
    assert x.shape == (len(y), len(task.features))
    assert y.shape[1:] == (1,)
    assert torch.isfinite(x).all()
    assert len(task.train) + len(task.held_out) == 300  # type: ignore[arg-type]
    assert task.norm_bound is not None
    assert x.norm(dim=1).max() <= task.norm_bound
    assert task.not_covered == (
        "The type, range, scale, typical value (a median), cuts (quantiles) and missing-value marks of 'age', "
        "'income': read off the private rows.",
        "The type, list of values and missing-value marks of 'plan': read off the private rows.",
        "The type, format, range and missing-value marks of 'joined': read off the private rows.",
        "The choice to treat as free text 'city', 'comment': read off the private rows.",
        "The choice to leave out 'customer_id', 'const': read off the private rows.",
        "The kind and the classes of the target 'churn': read off the private rows.",
        HELD_OUT_NOT_COVERED,
        COUNT_NOT_COVERED,
    )


def test_a_declared_schema_leaves_only_the_guessed_columns_uncovered(mixed: Path, tmp_path: Path) -> None:
    declared = Schema(
        Target("churn", "binary", ("no", "yes")),
        {"age": Number(0, 120), "plan": Category(("A", "B", "C")), "city": Text(8), "customer_id": Skip()},
    )
    write_schema(declared, tmp_path / "s.toml")
    task = read_table(mixed, schema=tmp_path / "s.toml", drop=["comment", "const", "income"])
    assert task.not_covered == (
        "The type, format, range and missing-value marks of 'joined': read off the private rows.",
        HELD_OUT_NOT_COVERED,
        COUNT_NOT_COVERED,
    )
    assert any("'customer_id', 'age', 'city', 'plan'" in s and "s.toml" in s for s in task.public_sources)


def test_with_a_declared_schema_a_row_changes_nothing_but_itself(write_csv: Callable[..., Path]) -> None:
    schema = Schema(
        Target("churn", "binary", ("no", "yes")),
        {
            "age": Number(0, 120),
            "income": Number(0, 1e6, "log", missing_values=("unknown",)),
            "joined": Date_range(),
            "plan": Category(("A", "B")),
            "comment": Text(8),
            **dict.fromkeys(("customer_id", "city", "const"), Skip()),
        },
    )
    rows = mixed_rows(80)
    whole = read_table(write_csv(HEADER, rows), schema=schema)
    outlier = [5, 999, 1e12, "01.01.2030", "x", "strange words", "Z", 8, "yes"]
    more = read_table(write_csv(HEADER, [outlier, *rows], name="more.csv"), schema=schema)
    before, after = (
        sorted(tuple(row) for row in torch.cat(part.tensors, 1).tolist())  # type: ignore[attr-defined]
        for part in (whole.train, more.train)
    )
    assert len(after) - len(before) in (0, 1)
    assert all(row in after for row in before)


def Date_range() -> Date:
    from datetime import date

    return Date(date(2010, 1, 1), date(2025, 1, 1), "%d.%m.%Y")


def test_decimal_commas(write_csv: Callable[..., Path]) -> None:
    rows = [[f"{i},5", f"{i}.234,5", f"{i},500", i % 2] for i in range(1, 60)]
    path = write_csv(["x", "thousands", "unclear", "y"], rows, sep=";")
    with pytest.raises(FileError, match="does the comma part thousands or decimals"):
        read_table(path, "y")
    task = read_table(path, "y", drop=["unclear"])
    assert not any("word hash" in name for name in task.features)
    kept = write_csv(["x", "thousands", "y"], [[a, b, y] for a, b, _, y in rows], sep=";")
    columns = infer_schema(kept, "y").columns
    x, thousands = columns["x"], columns["thousands"]
    assert isinstance(x, Number)
    assert isinstance(thousands, Number)
    assert (x.decimal, x.low, x.high) == (",", 0, 60)
    assert (thousands.decimal, thousands.low, thousands.high) == (",", 0, 60_000)
    assert task.train.tensors[0].std() > 0.4  # type: ignore[attr-defined]


def test_a_schema_can_be_written_where_a_comma_is_unclear(write_csv: Callable[..., Path]) -> None:
    path = write_csv(
        ["unclear", "money", "y"], [[f"{i},500", f"${i},250", i % 2] for i in range(1, 60)], sep=";"
    )
    columns = infer_schema(path, "y").columns
    assert {name: (column.decimal, column.high) for name, column in columns.items()} == {  # type: ignore[union-attr]
        "unclear": (".", 60_000),
        "money": (".", 60_000),
    }
    with pytest.raises(FileError, match=r"'unclear' .* `tacit data schema` writes a schema"):
        read_table(path, "y")
    read_table(path, "y", drop=["unclear"])


def test_split_by_keeps_people_together_and_out_of_the_features(write_csv: Callable[..., Path]) -> None:
    rows = [[f"p{i % 40}", i % 40, i, i % 2] for i in range(200)]
    task = read_table(write_csv(["person", "mark", "value", "y"], rows), "y", split_by="person")
    place = task.features.index("mark")
    sides = [
        {round(v, 4) for v in part.tensors[0][:, place].tolist()} for part in (task.train, task.held_out)
    ]  # type: ignore[attr-defined]
    assert not sides[0] & sides[1]
    assert not any("person" in feature for feature in task.features)


def test_kinds_of_targets(write_csv: Callable[..., Path]) -> None:
    rows = [[i, i % 3, i * 1.5, "ja" if i % 2 else "nein"] for i in range(100)]
    path = write_csv(["x", "three", "real", "word"], rows)
    assert read_table(path, "three").kind == "multiclass"
    assert read_table(path, "three").train[0][1].dtype == torch.int64
    task = read_table(path, "real")
    assert task.kind == "regression"
    y = task.train.tensors[1]  # type: ignore[attr-defined]
    assert y.min() >= -1
    assert y.max() <= 1
    assert read_table(path, "word").classes == ("nein", "ja")
    assert read_table(path, "word", positive="nein").classes == ("ja", "nein")


@pytest.mark.parametrize(
    ("low", "high", "classes"),
    [
        ("no", "yes", None),
        ("false", "true", None),
        ("0", "1", None),
        ("n", "y", None),
        ("negative", "positive", None),
    ],
)
def test_usual_negative_words_are_class_zero(
    write_csv: Callable[..., Path], low: str, high: str, classes: None
) -> None:
    rows = [[i, (low if i % 2 else high).upper()] for i in range(50)]
    assert [c.lower() for c in read_table(write_csv(["x", "y"], rows), "y").classes] == [low, high]


def test_wrong_use_gets_one_sentence(write_csv: Callable[..., Path], mixed: Path) -> None:
    with pytest.raises(ArgumentError, match="no column 'churned'"):
        read_table(mixed, "churned")
    with pytest.raises(ArgumentError, match="Which column"):
        read_table(mixed)
    with pytest.raises(FileError, match="'const' is '7' in every row"):
        read_table(mixed, "const")
    with pytest.raises(ArgumentError, match=r"'plan' has 3 different values.*not two"):
        read_table(mixed, "plan", kind="binary")
    with pytest.raises(ArgumentError, match="different values that are no numbers"):
        read_table(mixed, "city")
    with pytest.raises(FileError, match=r"holds 'unknown'.*no number"):
        read_table(mixed, "income", kind="regression")
    with pytest.raises(ArgumentError, match="positive class 'maybe'"):
        read_table(mixed, "churn", positive="maybe")
    with pytest.raises(ArgumentError, match="no column 'nope'"):
        read_table(mixed, "churn", drop=["nope"])
    with pytest.raises(ArgumentError, match="cannot be dropped"):
        read_table(mixed, "churn", drop=["churn"])
    with pytest.raises(ArgumentError, match="no column 'nope'"):
        read_table(mixed, "churn", split_by="nope")
    with pytest.raises(FileError, match="No column"):
        read_table(write_csv(["id", "y"], [[i, i % 2] for i in range(30)]), "y")
    with pytest.raises(FileError, match="missing in every row"):
        read_table(write_csv(["x", "y"], [[i, ""] for i in range(30)]), "y")
    with pytest.raises(FileError, match="too few rows"):
        read_table(write_csv(["x", "y"], [[1, 0], [2, 1]]), "y")


def test_schema_that_does_not_fit_the_file(mixed: Path) -> None:
    target = Target("churn", "binary", ("no", "yes"))
    with pytest.raises(FileError, match=r"'income' is a number"):
        read_table(mixed, schema=Schema(target, {"income": Number(0, 1)}))
    with pytest.raises(ArgumentError, match="no column 'height'"):
        read_table(mixed, schema=Schema(target, {"height": Number(0, 1)}))
    with pytest.raises(ArgumentError, match="declares the target 'churn'"):
        read_table(mixed, "plan", schema=Schema(target))
    with pytest.raises(FileError, match="none of the classes"):
        read_table(mixed, schema=Schema(Target("churn", "binary", ("no", "maybe"))))


CELL = st.one_of(
    st.sampled_from(
        ["", "NA", "yes", "no", "0", "1", "-0", "1e308", "-1e308", "5e-324", "1e400", "inf", "nan"]
    ),
    st.floats().map(str),
    st.integers().map(str),
    st.dates().map(str),
    st.text(max_size=6),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=30))
def test_any_table_is_read_or_refused(
    write_csv: Callable[..., Path], rows: list[tuple[str, str, str]]
) -> None:
    rows = [tuple(cell.encode("utf-8", "ignore").decode() for cell in row) for row in rows]  # type: ignore[misc]
    try:
        task = read_table(write_csv(["a", "b", "y"], rows * 3), "y")
    except TacitError:
        return
    x = task.train.tensors[0]  # type: ignore[attr-defined]
    assert torch.isfinite(x).all()
    assert x.abs().max() <= 1 + 1e-6
