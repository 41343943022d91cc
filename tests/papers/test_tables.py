"""The comparison of private models for tables: its accounting, its record, and the pages that are written from it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("sklearn", minversion="1.6")

from tacit.errors import ArgumentError, FileError
from tacit.files import read_json
from tacit_papers.tables import cells, linear
from tacit_papers.tables.cells import EPSILONS, Cell, cells_of, run_cells
from tacit_papers.tables.data import TABLES, Split, frame_of, split
from tacit_papers.tables.methods import METHODS, Method, auc_of
from tacit_papers.tables.page import differences, page, short_table
from tacit_papers.tables.reproduce import filled

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (1.0, 1e-5), (8.0, 1e-6)])
def test_zero_concentrated_privacy_is_converted_to_the_promise_and_hardly_wasted(
    epsilon: float, delta: float
) -> None:
    rho = linear.rho_of(epsilon, delta)
    assert linear.delta_of(rho, epsilon) <= delta < linear.delta_of(1.01 * rho, epsilon)
    simple = (math.sqrt(epsilon + math.log(1 / delta)) - math.sqrt(math.log(1 / delta))) ** 2
    assert simple < rho < 2 * simple  # Bun and Steinke's conversion is valid and looser


def test_the_gaussian_mechanism_of_that_rho_keeps_the_promise() -> None:
    epsilon, delta = 1.0, 1e-5
    rho = linear.rho_of(epsilon, delta)
    shift = math.sqrt(2 * rho)  # of a standard normal, exactly
    normal = [
        0.5 * math.erfc(place / math.sqrt(2))
        for place in (epsilon / shift - shift / 2, epsilon / shift + shift / 2)
    ]
    assert normal[0] - math.exp(epsilon) * normal[1] <= delta


class Noticed:
    """A generator that notes how much noise was asked for, and adds none."""

    def __init__(self) -> None:
        self.scales: list[tuple[str, float]] = []

    def gumbel(self, scale: float, size: int) -> Any:
        self.scales.append(("gumbel", scale))
        return np.zeros(size)

    def normal(self, scale: float) -> float:
        self.scales.append(("normal", scale))
        return 0.0


@pytest.mark.parametrize("method", ["frank-wolfe", "greedy"])
def test_the_noise_of_all_steps_together_costs_what_was_promised(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed = Noticed()
    monkeypatch.setattr(np.random, "default_rng", lambda seed: noticed)
    rows, steps = 50, 7
    x, y = np.ones((rows, 3)), np.arange(rows) % 2
    if method == "greedy":
        linear.greedy_coordinates(x, y, 1.0, 1e-5, 0, steps=steps)
    else:
        linear.frank_wolfe(x, y, 1.0, 1e-5, 0, radius=10.0, steps=steps)
    # A score moves by 1 / rows: the exponential mechanism at ε₀ = 2 / (rows · scale) costs ε₀² / 8.
    costs = {
        "gumbel": lambda scale: (2 / (rows * scale)) ** 2 / 8,
        "normal": lambda scale: 1 / (2 * (rows * scale) ** 2),
    }
    spent = sum(costs[kind](scale) for kind, scale in noticed.scales)
    assert len(noticed.scales) == (2 * steps if method == "greedy" else steps)
    assert spent == pytest.approx(linear.rho_of(1.0, 1e-5))


def test_one_row_moves_an_entry_of_the_gradient_by_at_most_one_over_rows() -> None:
    """Both methods clip what lies outside of [-1, 1], or the sensitivity would be a lie."""
    draw = np.random.default_rng(0)
    x, y = draw.uniform(-1, 1, (40, 3)), draw.integers(0, 2, 40)
    wild = x.copy()
    wild[0] = 1e6, -1e6, np.finfo(np.float64).max
    tame = np.clip(wild, -1, 1)
    for fit in (
        lambda data: linear.frank_wolfe(data, y, 1.0, 1e-5, 3, radius=5.0, steps=20),
        lambda data: linear.greedy_coordinates(data, y, 1.0, 1e-5, 3, steps=20),
    ):
        assert np.array_equal(fit(wild), fit(tame))


def test_both_linear_methods_find_the_column_that_matters() -> None:
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (5000, 50))
    y = (x[:, 3] + 0.1 * draw.normal(size=5000) > 0).astype(np.int64)
    for weights in (
        linear.frank_wolfe(x, y, 1.0, 1e-5, 0, radius=10.0, steps=40),
        linear.greedy_coordinates(x, y, 1.0, 1e-5, 0, steps=40),
    ):
        assert np.abs(weights).argmax() == 3
        assert auc_of(x @ weights, y) > 0.9


def test_all_methods_get_the_same_rows_and_no_row_is_on_both_sides() -> None:
    one, two = split("breast-cancer", 0, None), split("breast-cancer", 1, None)
    assert len(one.test.y) == round(0.25 * 569)
    assert len(one.train.y) + len(one.test.y) == 569
    assert not one.test.x.equals(two.test.x)
    rows = {tuple(row) for row in one.train.x.itertuples(index=False)}
    assert not any(tuple(row) in rows for row in one.test.x.itertuples(index=False))


def test_texts_become_numbers_where_all_of_them_are() -> None:
    frame = frame_of({"a": ["1", "?", "2.5"], "b": ["1", "x", ""]})
    assert str(frame["a"].dtype) == "float64"
    assert frame["b"].tolist() == ["1", "x", None]


def fake(value: float) -> Method:
    def fit(rows: Split, epsilon: float, seed: int) -> Any:
        noise = np.random.default_rng(seed).normal(size=len(rows.test.y))
        return rows.test.y + (2 - value) * noise / (1 + epsilon)

    return Method("fake", fit)


@pytest.fixture
def quick_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "tacit", fake(1.0))
    monkeypatch.setitem(METHODS, "dp-ebm", fake(0.0))


def test_an_interrupted_comparison_continues_and_a_method_can_be_run_again(
    quick_methods: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[Cell] = []
    run = cells.run_cell
    monkeypatch.setattr(cells, "run_cell", lambda cell, data_dir: fits.append(cell) or run(cell, data_dir))
    wanted = cells_of(["breast-cancer"], ["tacit", "dp-ebm", "dp-fw"], (1.0, 3.0), 2)
    assert len(wanted) == 12
    path = tmp_path / "tables.json"
    run_cells(wanted[:3], path, data_dir=None)
    record = run_cells(wanted, path, data_dir=None)
    assert len(fits) == len(set(fits)) == len(record["cells"]) == 8  # the table is too narrow for dp-fw
    run_cells(wanted, path, data_dir=None, again=["tacit"])
    assert [cell.method for cell in fits[8:]] == ["tacit"] * 4
    path.write_text('{"format": "another"}')
    with pytest.raises(FileError, match="no comparison"):
        run_cells(wanted, path, data_dir=None)


def test_the_page_says_who_is_ahead_and_where_tacit_loses() -> None:
    def entry(table: str, method: str, epsilon: float, auc: float) -> dict[str, Any]:
        return {
            "table": table,
            "method": method,
            "epsilon": epsilon,
            "seed": 0,
            "auc": auc,
            "seconds": 1.0,
            "commit": None,
        }

    about = {"about": "x", "rows": 30_000, "columns": 3, "features": 4, "positive": 0.5}
    found = []
    for epsilon in EPSILONS:
        found += [entry("adult", "tacit", epsilon, 0.9), entry("adult", "dp-ebm", epsilon, 0.88)]
        found += [entry("email", "tacit", epsilon, 0.7), entry("email", "dp-ebm", epsilon, 0.75)]
    found += [entry("adult", "logistic", 0.0, 0.91), entry("adult", "boosting", 0.0, 0.92)]
    found += [entry("adult", "tacit-soft", epsilon, 0.9) for epsilon in EPSILONS]
    record = {
        "tables": {"adult": about, "email": about},
        "cells": found,
        "without_diffprivlib": "ImportError",
    }
    assert differences(record, 1.0) == pytest.approx({"adult": 2.0, "email": -5.0})
    text = page(record)
    assert "above DP-EBM on 1 of 2 tables, by -1.5 points on average; worst on email (-5.0)" in text
    assert "- email, ε = 1: 5.0 points below DP-EBM." in text
    assert "adult -1.0" in text
    assert "| adult | **90.0** | **90.0** | 88.0 | 91.0 | 92.0 |" in text
    assert "Incomplete" in text
    assert "cannot be imported" in text.replace("be\nimported", "be imported")
    assert short_table(record).startswith("Not recorded yet: 0 tables")
    short = short_table(record, least_tables=1, least_seeds=1)  # not everything was recorded on email
    assert "| mean AUC, 1 tables |" in short
    assert "| Tacit | 0.900 | 0.900 | 0.900 | 0.900 |" in short
    assert "| tables on which Tacit is above DP-EBM | 1 | 1 | 1 | 1 |" in short


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no marks"):
        filled("nothing", {"tables": {}, "cells": []})


def test_the_recorded_page_and_the_readme_say_what_was_recorded() -> None:
    path = ROOT / "docs" / "results" / "tables.json"
    record = read_json(path)
    assert path.with_suffix(".md").read_text() == page(record), (
        "run tacit reproduce tables --out docs/results"
    )
    readme = (ROOT / "README.md").read_text()
    assert filled(readme, record) == readme, (
        "run tacit reproduce tables --out docs/results --readme README.md"
    )
    assert set(record["tables"]) <= set(TABLES)


def test_the_recorded_soft_form_is_nowhere_far_below_the_dense_one() -> None:
    """What the page of the promise says about this comparison."""
    record = read_json(ROOT / "docs" / "results" / "tables.json")
    for epsilon in EPSILONS:
        found = differences(record, epsilon, own="tacit-soft", other="tacit")
        assert set(found) == set(TABLES)
        assert min(found.values()) > -0.2, (epsilon, found)
