"""Rows that stay in a folder of Parquet files: the same numbers as in memory, drawn exactly, read in few passes."""

from __future__ import annotations

import math
import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit import batches
from tacit.data import (
    Category,
    Date,
    Number,
    Schema,
    Skip,
    Target,
    Text,
    read_folder,
    read_table,
    write_schema,
)
from tacit.data.row_groups import RowGroups
from tacit.data.stored_rows import StoredRows
from tacit.errors import ArgumentError, FileError
from tacit.jobs.fingerprint import fingerprint
from tacit.jobs.problem import load_problem
from tacit.jobs.run import reload
from tacit.jobs.settings import DataConfig
from tacit.raw.sampling import PoissonBatches, PoissonSampler

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SCHEMA = Schema(
    Target("y", "binary", ("no", "yes")),
    {
        "age": Number(0, 100, missing_values=("-9",)),
        "count": Number(0, 1000, scale="log", missing=False),
        "written": Number(0, 10),
        "city": Category(("Oslo", "Rome", "Lima")),
        "code": Category(("a",), others=3),
        "day": Date(date(2020, 1, 1), date(2025, 1, 1)),
        "note": Text(8),
        "key": Skip(),
    },
)


def table(rows: int, seed: int, *, odd: bool = False) -> Any:
    draw = np.random.default_rng(seed)
    pick = lambda values: [values[i] for i in draw.integers(len(values), size=rows)]  # noqa: E731
    days = np.datetime64("2019-06-01") + draw.integers(2500, size=rows)
    return pa.table(
        {
            "age": pa.array(pick([1.5, 33.25, 99.0, 140.0, -9.0, None])),
            "count": pa.array(draw.integers(2000, size=rows)),
            "written": pick(["1.5", "2", "", *(["many"] if odd else [])]),
            "city": pick(["Oslo", "rome", "Lima", None]),
            "code": pick(["a", "b", "c", "dd", None]),
            "day": pa.array(days.astype("datetime64[D]")),
            "note": pick(["good day", "bad", "so so good", None]),
            "key": pa.array(draw.integers(2**40, size=rows)),
            "y": pick(["no", "yes"]),
        }
    )


def write(folder: Path, sizes: list[int], *, group: int = 7, **options: Any) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [table(rows, seed, **options) for seed, rows in enumerate(sizes)]
    for number, part in enumerate(parts):
        parquet.write_table(part, folder / f"part-{number}.parquet", row_group_size=group)
    return pa.concat_tables(parts)


def rows_of(folder: Path, schema: Schema = SCHEMA, memory: int = 1 << 20) -> StoredRows:
    task = read_folder(folder, schema=schema, held_out=0.0, memory=memory)
    assert isinstance(task.train, StoredRows)
    return task.train


def test_rows_are_encoded_as_in_memory(tmp_path: Path) -> None:
    whole = write(tmp_path / "folder", [23, 9, 40])
    parquet.write_table(whole, tmp_path / "one.parquet")
    expected = read_table(tmp_path / "one.parquet", schema=SCHEMA, held_out=0.0)
    task = read_folder(tmp_path / "folder", "y", schema=SCHEMA, held_out=0.0)
    assert len(task.train) == 72  # type: ignore[arg-type]
    assert (task.features, task.numbers, task.columns) == (
        expected.features,
        expected.numbers,
        expected.columns,
    )
    assert task.norm_bound == expected.norm_bound
    x, y = expected.train.tensors  # type: ignore[attr-defined]
    order = np.random.default_rng(5).integers(72, size=200)
    found = task.train.gather(order)(0, 200)  # type: ignore[attr-defined]
    assert torch.equal(found[0], x[order])
    assert torch.equal(found[1], y[order])
    several = task.train.__getitems__([*range(70, 0, -1), 70, 3])  # type: ignore[attr-defined]
    assert torch.equal(torch.stack([item[0] for item in several]), x[[*range(70, 0, -1), 70, 3]])
    one = task.train[50]
    assert torch.equal(one[0], x[50])
    assert torch.equal(one[1], y[50])


@pytest.mark.parametrize("kind", ["multiclass", "regression"])
def test_other_targets_too(tmp_path: Path, kind: Any) -> None:
    whole = write(tmp_path / "folder", [15, 15])
    target = (
        Target("city", kind, ("oslo", "rome", "lima"))
        if kind == "multiclass"
        else Target("age", kind, low=0, high=100)
    )
    schema = Schema(target, {"count": SCHEMA.columns["count"]})
    parquet.write_table(whole, tmp_path / "one.parquet")
    expected = read_table(
        tmp_path / "one.parquet", schema=schema, held_out=0.0, drop=["day", "note", "key", "y"]
    )
    kept = whole.column(target.name).is_valid().to_numpy()
    x, y = rows_of(tmp_path / "folder", schema).gather(np.arange(30))(0, 30)  # type: ignore[misc]
    assert len(x) == kept.sum() < 30
    assert torch.equal(y, expected.train.tensors[1])  # type: ignore[attr-defined]
    assert y.dtype == expected.train.tensors[1].dtype  # type: ignore[attr-defined]


def test_an_odd_row_stops_nothing_and_moves_no_other_row(tmp_path: Path) -> None:
    write(tmp_path, [30], odd=True)
    odd = parquet.read_table(tmp_path / "part-0.parquet").to_pydict()
    odd["age"][3], odd["y"][4], odd["y"][5] = math.inf, "perhaps", None
    parquet.write_table(pa.table(odd), tmp_path / "part-0.parquet", row_group_size=7)
    rows = rows_of(tmp_path)
    x, y = rows.gather(np.arange(30))(0, 30)  # type: ignore[misc]
    assert len(x) == len(y) == 28
    assert torch.isfinite(x).all()
    assert x[3, 0] == 0  # what is no number counts as missing, and is marked so
    assert x[3, 1] == 1
    alone = rows.gather(np.array([6]))(0, 1)
    assert alone is not None
    assert torch.equal(alone[0][0], x[4])
    assert rows.gather(np.array([4]))(0, 1) is None


def test_every_row_group_is_read_once_for_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [70, 35])
    read: list[tuple[str, int]] = []
    plain = parquet.ParquetFile.read_row_group

    def counted(self: Any, group: int, **options: Any) -> Any:
        read.append((str(self), group))
        return plain(self, group, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", counted)
    rows = rows_of(tmp_path)
    steps = list(PoissonBatches(rows, PoissonSampler(105, 0.2, seed=1), chunk_size=8).steps(0, 40))
    assert len(read) == 15
    assert len(steps) == 40
    read.clear()
    rows.gather(np.array([3, 4, 100]))
    assert len(read) == 2  # row groups that hold nothing of it are not touched


def drawn(rows: StoredRows, steps: int, **options: Any) -> list[list[tuple[Any, ...]]]:
    sampler = PoissonSampler(len(rows), 0.15, seed=3, **options)
    made = PoissonBatches(rows, sampler, chunk_size=5)
    return [
        [tuple(row.tolist()) for chunk in chunks for row in chunk[0]] for _, chunks in made.steps(0, steps)
    ]


def test_steps_get_the_rows_that_were_drawn_however_far_is_read_ahead(tmp_path: Path) -> None:
    write(tmp_path, [60, 45])
    far = rows_of(tmp_path)
    every = [tuple(row.tolist()) for row in far.gather(np.arange(105))(0, 105)[0]]  # type: ignore[index]
    sampler = PoissonSampler(105, 0.15, seed=3)
    expected = [[every[place] for place in sampler.draw(step)] for step in range(30)]
    near = rows_of(tmp_path, memory=1)
    assert near.rows_ahead == 1 < 200 < far.rows_ahead
    assert drawn(far, 30) == drawn(near, 30) == expected
    shares = [drawn(far, 30, rank=rank, size=3) for rank in range(3)]
    assert [[*one, *two, *three] for one, two, three in zip(*shares, strict=True)] == expected


def test_ranks_read_different_row_groups(tmp_path: Path) -> None:
    positions = [
        np.concatenate(
            [PoissonSampler(10_000, 0.05, seed=3, rank=rank, size=2).draw(step) for step in range(50)]
        )
        for rank in range(2)
    ]
    both = len(np.intersect1d(positions[0] // 100, positions[1] // 100))
    assert both < 20  # of a hundred: those in the middle


def test_an_empty_draw_and_a_draw_of_nobody_with_a_target_are_steps(tmp_path: Path) -> None:
    write(tmp_path, [12])
    rows = parquet.read_table(tmp_path / "part-0.parquet").to_pydict()
    rows["y"] = [None] * 11 + ["yes"]
    parquet.write_table(
        pa.table({**rows, "y": pa.array(rows["y"], pa.string())}), tmp_path / "part-0.parquet"
    )
    for isolated in (False, True):
        made = PoissonBatches(rows_of(tmp_path), PoissonSampler(12, 0.1, seed=0), isolated=isolated)
        steps = [len(list(chunks)) for _, chunks in made.steps(0, 60)]
        assert len(steps) == 60
        assert 0 < sum(steps) < 30


def test_files_are_held_out_by_their_names(tmp_path: Path) -> None:
    write(tmp_path, [20] * 10)
    task = read_folder(tmp_path, schema=SCHEMA)
    assert len(task.train) == 160  # type: ignore[arg-type]
    assert len(task.held_out) == 40  # type: ignore[arg-type]
    parts = [read_folder(tmp_path, schema=SCHEMA, held_out=(i / 4, (i + 1) / 4)).train for i in range(4)]
    kept = [set(part.groups.files) for part in parts]  # type: ignore[attr-defined]
    assert all(sum(file in part for part in kept) == 3 for file in set.union(*kept))
    with pytest.raises(FileError, match="too few to be divided"):
        read_folder(tmp_path, schema=SCHEMA, held_out=(0.0, 0.01))
    one = write(tmp_path / "one", [20])
    assert one.num_rows == 20
    with pytest.raises(FileError, match="rows are held out by file"):
        read_folder(tmp_path / "one", schema=SCHEMA)
    write(tmp_path / "two" / "train", [20])
    write(tmp_path / "two" / "test", [8])
    task = read_folder(tmp_path / "two", schema=SCHEMA)
    assert (len(task.train), len(task.held_out)) == (20, 8)  # type: ignore[arg-type]


def test_what_cannot_be_read_is_said_before_training(tmp_path: Path) -> None:
    write(tmp_path, [10, 10])
    with pytest.raises(FileError, match="lacks the columns 'height'"):
        read_folder(tmp_path, schema=Schema(SCHEMA.target, {"height": Number(0, 2)}))
    with pytest.raises(FileError, match="cannot read"):
        read_folder(tmp_path, schema=Schema(SCHEMA.target, {"day": Number(0, 2)}))
    with pytest.raises(ArgumentError, match="declares the target 'y'"):
        read_folder(tmp_path, "city", schema=SCHEMA)
    (tmp_path / "part-1.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(FileError, match="not a readable Parquet file"):
        read_folder(tmp_path, schema=SCHEMA)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileError, match="no Parquet files"):
        read_folder(empty, schema=SCHEMA)


def test_a_file_that_changes_under_a_run_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, [10, 10])
    rows = rows_of(tmp_path)
    parquet.write_table(table(11, 0), tmp_path / "part-1.parquet", row_group_size=8)
    with pytest.raises(FileError, match="has changed"):
        rows.gather(np.arange(20))
    (tmp_path / "part-1.parquet").unlink()
    with pytest.raises(FileError, match="no longer be read"):
        rows.gather(np.arange(20))


def test_batches_are_made_by_the_data_set_alone(tmp_path: Path) -> None:
    write(tmp_path, [10])
    rows = rows_of(tmp_path)
    assert isinstance(rows, batches.Stored)
    assert not isinstance(torch.utils.data.TensorDataset(torch.zeros(3)), batches.Stored)
    for options in ({"workers": 1}, {"collate": list}):
        with pytest.raises(ArgumentError, match="leave out collate"):
            PoissonBatches(rows, PoissonSampler(10, 0.5), **options)  # type: ignore[arg-type]


def test_the_fingerprint_is_that_of_names_sizes_and_footers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    write(tmp_path / "data", [20, 20])
    first = fingerprint(tmp_path / "data")
    assert first is not None
    assert fingerprint(tmp_path / "data") == first
    file = tmp_path / "data" / "part-0.parquet"
    content = bytearray(file.read_bytes())
    content[20] ^= 1  # in the middle of a row group: not noticed, as documented
    file.write_bytes(bytes(content))
    assert fingerprint(tmp_path / "data") == first
    content[-40] ^= 1
    file.write_bytes(bytes(content))
    assert fingerprint(tmp_path / "data") != first
    parquet.write_table(table(21, 0), file)
    assert fingerprint(tmp_path / "data") != first


def test_no_row_is_read_to_open_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [30])
    monkeypatch.setattr(RowGroups, "read", lambda *_: pytest.fail("a row was read"))
    assert len(rows_of(tmp_path)) == 30


def test_the_command_line_trains_on_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from tacit.cli.main import app

    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    write(tmp_path / "data", [200] * 5, group=64)
    line = ["train", str(tmp_path / "data"), "--target", "y", "--epsilon", "2", "--quiet"]
    refused = CliRunner().invoke(app, [*line, "--out", str(tmp_path / "no")])
    assert refused.exit_code != 0
    assert "--schema" in str(refused.output) + str(refused.exception)
    write_schema(SCHEMA, tmp_path / "schema.toml")
    line += ["--schema", str(tmp_path / "schema.toml"), "--epochs", "2", "--batch-size", "100"]
    line += ["--method", "dp-sgd", "--model", "logistic"]
    refused = CliRunner().invoke(app, [*line, "--unit", "key", "--out", str(tmp_path / "no")])
    assert "stay in their files" in str(refused.output) + str(refused.exception)
    made = CliRunner().invoke(app, [*line, "--out", str(tmp_path / "run")])
    assert made.exit_code == 0, made.output
    assert CliRunner().invoke(app, ["verify", str(tmp_path / "run")]).exit_code == 0
    assert len(reload(tmp_path / "run")[1].train) == 800  # type: ignore[arg-type]
    (tmp_path / "data" / "part-3.parquet").unlink()
    with pytest.raises(FileError, match="content has changed"):
        reload(tmp_path / "run")


def linked(made: Path, source: Path) -> None:
    made.symlink_to(source)


@pytest.mark.parametrize("double", [linked, Path.hardlink_to, lambda made, source: shutil.copy(source, made)])
@pytest.mark.parametrize("place", ["part-9.parquet", "test/part-0.parquet"])
def test_a_file_that_stands_in_a_folder_twice_is_refused(tmp_path: Path, place: str, double: Any) -> None:
    """Its rows would be two each, or be measured on although they are trained on."""
    write(tmp_path / "train", [20, 20, 20])
    write(tmp_path / "test", [7])
    for number in (1, 2):  # files without rows may be alike
        parquet.write_table(table(7, 8).slice(0, 0), tmp_path / "test" / f"part-{number}.parquet")
    (tmp_path / "test" / "part-0.parquet").rename(tmp_path / "test" / "part-3.parquet")
    read_folder(tmp_path, schema=SCHEMA)
    double(
        tmp_path / place if "/" in place else tmp_path / "train" / place,
        tmp_path / "train" / "part-1.parquet",
    )
    with pytest.raises(FileError, match=r"part-1.parquet and .*part-[09].parquet are one file, or copies"):
        read_folder(tmp_path, schema=SCHEMA)


def test_rows_that_are_trained_on_are_no_test(tmp_path: Path) -> None:
    write(tmp_path / "folder", [20, 20])
    write_schema(SCHEMA, tmp_path / "schema.toml")
    settings = {"source": str(tmp_path / "folder"), "schema": str(tmp_path / "schema.toml"), "target": "y"}
    shutil.copy(tmp_path / "folder" / "part-0.parquet", tmp_path / "mine.parquet")
    for test in (tmp_path / "folder" / "part-1.parquet", tmp_path / "mine.parquet"):
        with pytest.raises(FileError, match="one file, or copies"):
            load_problem(DataConfig(**settings, test=str(test)))


def test_a_file_that_is_exchanged_while_training_is_noticed(tmp_path: Path) -> None:
    """As many rows in as many row groups, and other people."""
    write(tmp_path, [20, 20])
    rows = rows_of(tmp_path)
    rows.gather(np.arange(40))
    parquet.write_table(table(20, 5), tmp_path / "new", row_group_size=7)
    os.replace(tmp_path / "new", tmp_path / "part-1.parquet")
    rows.gather(np.arange(20))
    with pytest.raises(FileError, match=r"part-1\.parquet has changed since training began"):
        rows.gather(np.arange(40))


def test_what_a_cell_means_does_not_depend_on_the_rows_that_are_read_with_it(tmp_path: Path) -> None:
    """A column of plain numbers is parsed at once, one with an odd cell text by text: both must read alike."""
    odd = ["1\0", "２", "+3.", "nan", "-nan", " 4\x85", "1e400", "$5", "(6)", "many", "7_0", "", None, "1,5"]
    part = table(len(odd), 3).set_column(2, "written", pa.array(odd))
    parquet.write_table(part, tmp_path / "part.parquet")
    rows = rows_of(tmp_path)
    together = rows.gather(np.arange(len(odd)))(0, len(odd))
    assert together is not None
    for place in range(len(odd)):
        for company in range(len(odd)):
            found = rows.gather(np.array([place, company]))(0, 2)
            assert found is not None
            assert torch.equal(found[0][0], together[0][place]), (odd[place], odd[company])


def test_bytes_that_are_no_text_count_as_missing(tmp_path: Path) -> None:
    """Parquet says that a column is text, and nobody checks; an error would tell of one row."""
    part = table(2, 3)
    for place, name in enumerate(part.column_names):
        if part.schema.field(name).type == pa.string():
            good = part.column(name)[1].as_py() or "no"
            raw = pa.array([b"ab\xff\xfe", good.encode()], pa.binary())
            part = part.set_column(place, name, pa.Array.from_buffers(pa.string(), 2, raw.buffers()))
    parquet.write_table(part, tmp_path / "part.parquet")
    whole = rows_of(tmp_path).gather(np.array([0, 1]))(0, 2)
    assert whole is not None
    assert len(whole[0]) == 1  # a row without a target is in no batch
    others = {name: column for name, column in SCHEMA.columns.items() if name != "count"}
    schema = Schema(Target("count", "regression", low=0, high=2000), others)
    found = rows_of(tmp_path, schema).gather(np.array([0, 1]))(0, 2)
    assert found is not None
    names = read_folder(tmp_path, schema=schema, held_out=0.0).features
    marks = {name: float(found[0][0, place]) for place, name in enumerate(names)}
    assert all(marks[f"{name} missing"] == 1 for name in ("written", "city", "code"))
