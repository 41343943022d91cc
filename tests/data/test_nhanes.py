from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tacit.data import load
from tacit.data.nhanes import COLUMNS, GIVES_ANSWER_AWAY, NOT_USED, TARGET, load_nhanes, nhanes_file
from tacit.data.schema import Number
from tacit.data.table_file import Table, read_columns
from tacit.data.task import Task
from tacit.errors import ArgumentError


@pytest.fixture(scope="module")
def table() -> Table:
    return read_columns(nhanes_file(), separator="\t")


@pytest.fixture(scope="module")
def task() -> Task:
    return load("nhanes")


def test_every_column_is_used_or_left_out_with_a_reason(table: Table) -> None:
    sorted_out = [*COLUMNS, *GIVES_ANSWER_AWAY, *NOT_USED, TARGET]
    assert len(sorted_out) == len(set(sorted_out)) == len(table.columns) == 198
    assert set(sorted_out) == set(table.columns)
    assert (table.rows, len(table.columns) - 1) == (8366, 197)


def test_no_question_of_the_diabetes_questionnaire_is_used() -> None:
    told = ["Diabet", "A1C", "Glyco", "Insulin", "Prediabetes", "FamilyHistory", "BloodSugar"]
    assert not [name for name in COLUMNS if any(word in name for word in told)]


def test_blanks_in_used_columns_do_not_tell_the_answer(table: Table) -> None:
    """Which follow-up questions were asked must not depend on the answer (age explains most of the rest)."""
    adult = np.array([float(a) >= 50 for a in table.columns["AgeInYearsAtScreening"]])
    answer = np.array(table.columns[TARGET])
    yes, no = adult & (answer == "1"), adult & (answer == "0")
    for name in COLUMNS:
        blank = np.array([cell == "" for cell in table.columns[name]])
        assert abs(blank[yes].mean() - blank[no].mean()) < 0.35, name
    for name in ("EverToldHaveHealthRiskForDiabetes", "EverToldYouHavePrediabetes"):
        blank = np.array([cell == "" for cell in table.columns[name]])
        assert abs(blank[yes].mean() - blank[no].mean()) > 0.9


def test_codebook_knows_the_cells(table: Table) -> None:
    """Few cells fall outside the declared values, and ranges hold most measured values."""
    for name, column in COLUMNS.items():
        cells = [cell for cell in table.columns[name] if cell]
        if isinstance(column, Number):
            codes = set(column.missing_values)
            values = np.array([float(c) for c in cells if c.removesuffix(".0") not in codes])
            inside = ((values >= column.low) & (values <= column.high)).mean()
            assert inside > 0.8, name
            assert values.std() > 0, name
        else:
            known = {value.casefold() for value in column.values}  # type: ignore[union-attr]
            inside = np.mean([cell.removesuffix(".0").casefold() in known for cell in cells])
            assert inside > 0.95, name


def test_shapes_split_and_norms(task: Task) -> None:
    x, y = task.train.tensors  # type: ignore[attr-defined]
    xh, yh = task.held_out.tensors  # type: ignore[attr-defined]
    assert (len(x), len(xh)) == (6677, 1685)
    assert x.shape[1] == len(task.features) == 190
    assert (int(y.sum()), int(yh.sum())) == (683, 170)
    assert x.abs().max() <= 1
    assert task.norm_bound is not None
    assert max(x.norm(dim=1).max(), xh.norm(dim=1).max()) <= task.norm_bound
    assert not any("read off the private rows" in sentence for sentence in task.not_covered)


def test_a_person_more_changes_one_item(tmp_path: Path) -> None:
    lines = nhanes_file().read_text().splitlines(keepends=True)
    few = lines[:400]
    (tmp_path / "few.tsv").write_text("".join(few))
    (tmp_path / "less.tsv").write_text("".join(few[:9] + few[10:]))
    whole, less = (load_nhanes(tmp_path / name) for name in ("few.tsv", "less.tsv"))
    rows = [[tuple(r) for r in t.train.tensors[0].tolist()] for t in (whole, less)]  # type: ignore[attr-defined]
    assert len(rows[0]) - len(rows[1]) in (0, 1)
    assert [row for row in rows[0] if row in set(rows[1])] == rows[1]


def test_logistic_regression_reaches_the_known_auc(task: Task) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    metrics = pytest.importorskip("sklearn.metrics")
    x, y = (part.numpy() for part in task.train.tensors)  # type: ignore[attr-defined]
    xh, yh = (part.numpy() for part in task.held_out.tensors)  # type: ignore[attr-defined]
    model = linear.LogisticRegression(C=0.1, max_iter=2000).fit(x, y[:, 0])
    assert 0.90 < metrics.roc_auc_score(yh[:, 0], model.decision_function(xh)) < 0.93


def test_a_table_without_the_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("SEQN\tage\n1\t2\n")
    with pytest.raises(ArgumentError, match="no column 'DoctorToldYouHaveDiabetes'"):
        load_nhanes(tmp_path / "x.tsv")
