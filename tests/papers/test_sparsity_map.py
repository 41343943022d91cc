"""The sparsity map: its runs are kept, its comparisons are fair, its page says what its JSON says."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import TensorDataset

from tacit.errors import ArgumentError, FileError
from tacit_papers.sparsity_map import cells as single
from tacit_papers.sparsity_map import wide_tables
from tacit_papers.sparsity_map.cells import Cell, Outcome, run_cell, run_cells
from tacit_papers.sparsity_map.figure import draw_map
from tacit_papers.sparsity_map.grid import AUTO, DENSE, PARTS, SOFT, Setting, cells, moved, quick
from tacit_papers.sparsity_map.mapping import difference, holm, make_map, runs_of
from tacit_papers.sparsity_map.page import comparisons, filled, tables
from tacit_papers.sparsity_map.problems import _tensors, problem_of, uninformative
from tacit_papers.sparsity_map.reproduce import grid_of, with_other_parts
from tacit_papers.sparsity_map.wide_tables import wide_task

ROOT = Path(__file__).parents[2]
SMALL = Setting("padding", "nhanes", "logistic", 0, 20, 500, 100, 10, 1.0, (2.0, 8.0), seeds=2)


def test_a_run_is_reproducible_and_measures_on_rows_it_was_not_trained_on() -> None:
    cell = Cell(SMALL, SOFT, 2.0, 0)
    one, other = run_cell(cell, None), run_cell(cell, None)
    assert replace(one, seconds=0) == replace(other, seconds=0)
    assert 0 < one.test < 1
    assert one.coordinates == problem_of("nhanes", 20, 500, None).train.tensors[0].shape[1] + 1


def test_the_parts_of_a_problem_do_not_overlap_and_padding_is_mixed_in() -> None:
    plain, padded = problem_of("nhanes", 0, 0, None), problem_of("nhanes", 20, 0, None)
    assert padded.train.tensors[0].shape[1] == plain.train.tensors[0].shape[1] + 20
    total = len(plain.train) + len(plain.tuning)
    assert len(plain.tuning) == total // 6
    width = plain.train.tensors[0].shape[1]
    assert not torch.equal(padded.train.tensors[0][:, :width], plain.train.tensors[0])


def test_uninformative_columns_have_the_values_of_real_ones_and_say_nothing() -> None:
    x = torch.arange(2000.0).view(1000, 2)
    made = uninformative(x, 3, torch.Generator().manual_seed(0))
    assert torch.equal(made[:, 2].sort().values, x[:, 0])
    assert abs(float(np.corrcoef(made[:, 0], x[:, 0])[0, 1])) < 0.15


def fake(cell: Cell, data_dir: str | None) -> Outcome:
    """Dense is best at the larger rate, soft at the smaller; soft is two points better, seed by seed."""
    right = (cell.rate == 8.0) == (cell.arm == DENSE)
    value = 0.8 + 0.01 * cell.seed + (0.02 if cell.arm == SOFT else 0) - (0 if right else 0.1)
    if cell.seed < 1000:
        value -= 0.3  # the test part is another part: a choice made on it would be seen
    return Outcome(value if cell.seed >= 1000 else 0.0, value, 5, 10, "because", 0.1)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, object]:
    monkeypatch.setattr(single, "run_cell", fake)
    setting = replace(SMALL, seeds=3)
    return make_map([(setting, (DENSE, SOFT, AUTO))], tmp_path, workers=1, data_dir=None)


def test_every_method_is_tuned_on_the_tuning_part_and_compared_by_seed(made: dict[str, object]) -> None:
    (setting,) = made["settings"]  # type: ignore[misc]
    assert [method["rate"] for method in setting["methods"]] == [8.0, 2.0, 2.0]
    found, _ = comparisons(made)["padding", setting["name"], "soft"]
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert comparisons(made)["padding", setting["name"], "auto"][0].mean == pytest.approx(0)


def test_runs_that_are_there_are_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Cell] = []

    def counted(cell: Cell, data_dir: str | None) -> Outcome:
        made.append(cell)
        return fake(cell, data_dir)

    monkeypatch.setattr(single, "run_cell", counted)
    todo = [Cell(SMALL, DENSE, rate, 1000) for rate in (2.0, 8.0)]
    first = run_cells(todo[:1], tmp_path, workers=1, data_dir=None)
    again = run_cells(todo, tmp_path, workers=1, data_dir=None)
    assert len(made) == 2
    assert again[todo[0]] == first[todo[0]]
    other_table = Cell(replace(SMALL, part="size", seeds=9), DENSE, 2.0, 1000)
    assert other_table.file == todo[0].file
    assert Cell(replace(SMALL, steps=11), DENSE, 2.0, 1000).file != todo[0].file
    assert Cell(SMALL, moved(0.1), 2.0, 1000).file != todo[0].file


def test_students_interval_and_p_value() -> None:
    found = difference([0.51, 0.52, 0.56], [0.50, 0.50, 0.50])
    assert found.mean == pytest.approx(3.0)
    assert (found.high - found.low) / 2 == pytest.approx(
        4.302653 * np.std([1, 2, 6], ddof=1) / 3**0.5, rel=1e-5
    )
    assert found.p == pytest.approx(stats.ttest_1samp([1, 2, 6], 0).pvalue)
    assert difference([0.5, 0.5], [0.5, 0.5]).p == 1


def test_holm_stops_at_the_first_that_is_not_shown() -> None:
    assert holm([0.001, 0.03, 0.012, 0.6]) == [True, False, True, False]
    assert holm([0.02, 0.02, 0.02]) == [False, False, False]
    assert holm([]) == []


def test_the_grid_covers_what_it_should() -> None:
    assert all(len({arm.label for arm in arms}) == len(arms) for _, arms in cells())
    assert all(arms[0] == DENSE for _, arms in cells())
    assert set(PARTS) == {"padding", "size", "cnn", "tables", "text", "wide", "now", "rate", "warm-up"}
    fast = grid_of(PARTS, fast=True)
    assert len(fast) == len(PARTS)
    assert runs_of(fast) < 300
    assert all(setting.seeds == 2 for setting, _ in fast)
    assert quick(SMALL).steps == 10
    with pytest.raises(ArgumentError, match="no part 'nowhere'"):
        grid_of(("nowhere",), fast=False)


def test_a_part_that_is_run_alone_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    old = [{"part": "wide", "name": "old"}, {"part": "padding", "name": "kept"}]
    path.write_text(json.dumps({"settings": old}))
    new = {"settings": [{"part": "wide", "name": "new"}]}
    assert [s["name"] for s in with_other_parts(new, path)["settings"]] == ["kept", "new"]
    assert with_other_parts(new, tmp_path / "none.json") == new


def test_hospital_stays_have_a_column_for_every_value(tmp_path: Path) -> None:
    (tmp_path / "tabular").mkdir()
    rows = ["encounter_id,patient_nbr,time_in_hospital,diag_1,admission_type_id,readmitted"]
    rows += [f"{n},{n // 2},{n % 7},{'abc'[n % 3]},{n % 2},{'NO' if n % 4 else '>30'}" for n in range(400)]
    with gzip.open(tmp_path / "tabular" / "diabetes130.csv.gz", "wt") as file:
        file.write("\n".join(rows))
    problem = problem_of("diabetes130", 0, 100, str(tmp_path))
    assert problem.task.input_shape == (1 + 3 + 1,)  # first stays have even numbers, so one kind of admission
    assert len(problem.train) == 100
    x, _ = problem.train.tensors
    assert torch.equal(x[:, 1:].sum(1), torch.full((100,), 2.0))
    with pytest.raises(FileError, match="TACIT_DATA"):
        wide_task("diabetes130", str(tmp_path / "nowhere"))


def test_pairs_of_columns_stand_beside_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    part = TensorDataset(torch.tensor([[1.0, 2.0, 3.0], [0.0, 5.0, 7.0]]), torch.tensor([[0.0], [1.0]]))
    adult = SimpleNamespace(train=part, held_out=part)
    monkeypatch.setattr(wide_tables, "load", lambda *_, **__: adult)
    x, _ = _tensors(wide_task("adult-pairs", "anywhere").train)
    assert x.tolist() == [[1, 2, 3, 2, 3, 6], [0, 5, 7, 0, 0, 35]]


def test_words_of_reviews_are_those_of_a_public_data_set(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for part in ("train", "dev"):
        with gzip.open(tmp_path / "text" / f"sst2-{part}.tsv.gz", "wt") as file:
            file.write("sentence\tlabel\ngood fun\t1\ngood grief\t0\n")
    for part in ("train", "test"):
        with lzma.open(tmp_path / "text" / f"imdb-{part}.tsv.xz", "wt") as file:
            file.write("1\t9\tGood, good fun.\n0\t2\tno fun (bad)\n")
    x, y = _tensors(wide_task("imdb-words", str(tmp_path)).train)
    assert x[:, 0].tolist() == [1, 0]  # "good" is the most frequent word of the public phrases
    assert x.sum(1).tolist() == [2, 1]
    assert y.tolist() == [[1], [0]]


def test_tables_figure_and_page(made: dict[str, object], tmp_path: Path) -> None:
    draw_map(made, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000
    page = "Before.\n<!-- map: padding -->\nold\n<!-- end -->\nAfter.\n"
    new = filled(page, made)
    assert new == f"Before.\n<!-- map: padding -->\n{tables(made)['padding']}<!-- end -->\nAfter.\n"
    assert filled(new, made) == new
    with pytest.raises(ArgumentError, match="'nothing'"):
        filled("<!-- map: nothing -->\n<!-- end -->", made)


def test_the_page_says_what_the_map_measured() -> None:
    record = json.loads((ROOT / "docs/results/sparsity-map.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/results/where-sparsity-wins.md").read_text(encoding="utf-8")
    assert filled(page, record) == page
    assert page.count("<!-- map: ") == len(tables(record))


@pytest.mark.skipif("TACIT_DATA" not in os.environ, reason="needs the data of TACIT_DATA")
def test_images_of_the_map_are_there() -> None:
    problem = problem_of("fmnist", 0, 300, os.environ["TACIT_DATA"])
    assert (len(problem.train), len(problem.tuning), len(problem.test)) == (300, 10_000, 10_000)
    with pytest.raises(ArgumentError, match="padded"):
        problem_of("fmnist", 5, 300, os.environ["TACIT_DATA"])
