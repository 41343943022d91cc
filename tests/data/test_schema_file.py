from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.data import Category, Date, Number, Schema, Skip, Target, Text, read_schema, write_schema
from tacit.errors import FileError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
FLAG = st.booleans()
COLUMNS = st.one_of(
    st.builds(
        Number,
        st.floats(-1e9, 0),
        st.floats(1, 1e9),
        st.sampled_from(["linear", "log"]),
        st.none() | st.floats(0, 1),
        st.lists(NAMES, max_size=2).map(tuple),
        FLAG,
        FLAG,
    ),
    st.builds(
        Category, st.lists(NAMES, min_size=2, max_size=4, unique_by=lambda s: s.strip().casefold()).map(tuple)
    ),
    st.builds(Text, st.integers(1, 99), FLAG),
    st.builds(Date, st.dates(max_value=date(2000, 1, 1)), st.dates(min_value=date(2000, 1, 2)), missing=FLAG),
    st.builds(Skip, FLAG),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES.filter(lambda n: n != "y"), COLUMNS, max_size=4), FLAG)
def test_what_is_written_is_read(tmp_path: Path, columns: dict[str, Skip], public: bool) -> None:
    schema = Schema(Target("y", "multiclass", ("0", "1", "zwei"), public=public), columns)
    path = tmp_path / "schema.toml"
    write_schema(schema, path)
    assert read_schema(path) == schema
    assert [p.name for p in tmp_path.iterdir()] == ["schema.toml"]


def test_json_and_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    raw = {
        "target": {"name": "y", "kind": "binary", "classes": [False, True]},
        "columns": {
            "d": {"type": "date", "low": "2020-01-01", "high": "2021-01-01"},
            "c": {"type": "category", "values": [1, 2]},
        },
    }
    path.write_text(json.dumps(raw))
    schema = read_schema(path)
    assert schema.target.classes == ("false", "true")
    assert schema.columns == {"d": Date(date(2020, 1, 1), date(2021, 1, 1)), "c": Category(("1", "2"))}


TARGET = '[target]\nname = "y"\nkind = "binary"\nclasses = ["0", "1"]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must hold a table"),
        ("[target", "not a readable schema"),
        ('[target]\nkind = "binary"\n', "lacks 'name'"),
        ('[target]\nname = "y"\nkind = "binary"\nclasses = ["1"]\n', "exactly two"),
        (TARGET + "[columns.a]\nlow = 1\n", "needs a type"),
        (TARGET + '[columns.a]\ntype = "number"\nlow = 1\n', "lacks 'high'"),
        (TARGET + '[columns.a]\ntype = "number"\nlow = 1\nhigh = "x"\n', "high cannot be 'x'"),
        (TARGET + '[columns.a]\ntype = "number"\nlow = 1\nhigh = 0\n', "low must be below high"),
        (TARGET + '[columns.a]\ntype = "text"\nbucket = 3\n', "unknown keys 'bucket'"),
        (TARGET + '[columns.a]\ntype = "date"\nlow = 3\nhigh = 4\n', "must be a day"),
        (TARGET + '[columns.y]\ntype = "skip"\n', "cannot also be a column"),
        (TARGET + "[extra]\n", "unknown keys 'extra'"),
    ],
)
def test_bad_schema_files_get_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(FileError, match=sentence):
        read_schema(path)


def test_missing_file_and_unwritable_place(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no schema file"):
        read_schema(tmp_path / "absent.toml")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written"):
        write_schema(Schema(Target("y", "binary", ("0", "1"))), tmp_path / "file" / "s.toml")
