from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tacit_papers.images.results_page import recorded
from tacit_papers.pages import PAGES
from tacit_papers.sparsity_map.page import comparisons
from tacit_papers.tp_topk import claims, networks, table2
from tacit_papers.tp_topk.published import best
from tacit_papers.tp_topk.results_page import FINDINGS, FOLDER, PAGE, page

RECORDS = [path for name in FINDINGS if (path := FOLDER / f"{name.rpartition('/')[2]}.json").exists()]


def test_the_page_is_what_the_numbers_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tacit_papers.tp_topk.results_page"


def test_the_page_changes_with_the_numbers(tmp_path: Path) -> None:
    if not RECORDS:
        pytest.skip("no results yet")
    for path in RECORDS:
        text = path.read_text(encoding="utf-8")
        changed = text.replace('"mean": 0.', '"mean": 0.1', 1)
        (tmp_path / path.name).write_text(changed if changed != text else text.replace("0.9", "0.8", 1))
    assert page(tmp_path) != page()


def _table2(topk: list[float], dense: list[float]) -> dict[str, Any]:
    methods = {
        name: {"accuracy": {"values": values, "mean": sum(values) / 3}, "published": None}
        for name, values in (("dp-sgd", dense), ("tp-rand", dense), ("on-rand", dense), ("tp-topk", topk))
    }
    row = {"dataset": "mnist", "epsilon": 3.0, "methods": {**methods, "on-topk": methods["tp-topk"]}}
    return {"rows": [row]}


def test_the_summary_counts_a_claim_only_where_its_interval_lies_above_zero() -> None:
    low, high, noisy = [0.80, 0.81, 0.82], [0.85, 0.86, 0.87], [0.80, 0.99, 0.81]
    assert "| 1 of 1 | – | – | **holds** |" in "\n".join(claims.in_short({table2.NAME: _table2(high, low)}))
    both = {table2.NAME: _table2(noisy, low), networks.CNN.NAME: _table2(low, high)}
    said, *_, limits = claims.in_short(both)
    assert said.endswith("tested. 3 are not confirmed: no such claim holds in more than 0 of its cells.")
    made = "\n".join(claims.in_short(both))
    assert (
        "| sparse training beats dense (Table 2) | 0 of 1 | – | 0 of 1, opposite 1 | **not confirmed** |"
        in made
    )
    assert "the mean of TP-TopK is below that of DP-SGD in 1 of 2 cells" in limits
    assert "below the paper's best in 1 of 1 cells" in limits
    half = {table2.NAME: {"rows": _table2(high, low)["rows"] * 2 + _table2(noisy, low)["rows"]}}
    assert "3 hold in most cells: a learned support beats" in claims.in_short(half)[0]


def test_the_summary_reads_ratios_splits_collapses_and_energy_from_the_rows() -> None:
    def ratio(active: float, topk: list[float]) -> dict[str, Any]:
        ours = {
            name: {"accuracy": {"values": values}} for name, values in (("tp-topk", topk), ("tp-rand", rand))
        }
        gain = {"mean": sum(topk) / 3 - sum(rand) / 3}
        return {"active_ratio": active, "gain": gain, **ours}

    rand = [0.80, 0.81, 0.82]
    large, small, noisy = [0.85, 0.86, 0.87], [0.81, 0.82, 0.83], [0.80, 0.99, 0.81]
    assert claims.gains_fall([ratio(0.2, large), ratio(0.4, small)])
    assert claims.gains_fall([ratio(0.4, small), ratio(0.2, large)])
    assert not claims.gains_fall([ratio(0.2, small), ratio(0.4, large)])
    assert not claims.gains_fall([ratio(0.2, noisy), ratio(0.4, small)])
    splits = [
        {"share_of_steps": 0.3, "share_of_epsilon": share, "accuracy": {"mean": mean}}
        for share, mean in ((0.3, 0.9), (0.4, 0.8))
    ]
    assert claims.at_three_tenths(claims.best_split(splits))
    assert not claims.at_three_tenths(claims.best_split(splits[1:]))
    dense = {"method": "dp-sgd", "sensitivity": {"mean": 0.04}, "specificity": {"mean": 0.99}}
    assert claims.collapsed([dense])
    assert not claims.collapsed([{**dense, "sensitivity": {"mean": 0.5}}])
    assert claims.most_in_a_tenth({"ratios": [0.05, 0.1], "best": [0.4, 0.6]})
    assert not claims.most_in_a_tenth({"ratios": [0.1, 0.2], "best": [0.4, 0.6]})


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_result_says_how_it_was_made(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["format"] == "tacit-results-1"
    assert record["name"] in PAGES
    assert record["name"] in FINDINGS
    assert record["command"].startswith(f"tacit reproduce {record['name']}")
    assert record["commit"]
    assert not record["quick"]
    assert record["processor_minutes"] > 0


def test_the_readme_gives_the_recipes_figures() -> None:
    readme = (PAGE.parents[2] / "README.md").read_text(encoding="utf-8")
    rows = recorded(FOLDER)[0]["rows"]
    for dataset, title in (("mnist", "MNIST"), ("fmnist", "Fashion-MNIST"), ("cifar10", "CIFAR-10")):
        cells = [
            f"{100 * row['accuracy']['mean']:.2f} ({best(dataset, row['epsilon']):.2f})"
            for row in rows
            if row["dataset"] == dataset
        ]
        assert f"| {title} | {' | '.join(cells)} |" in readme


def test_the_readme_gives_the_maps_figures() -> None:
    readme = (PAGE.parents[2] / "README.md").read_text(encoding="utf-8")
    compared = comparisons(json.loads((FOLDER / "sparsity-map.json").read_text(encoding="utf-8")))
    for part, method in (("now", "soft"), ("padding", "movement, 0.1"), ("padding", "squares, 0.1")):
        found, _ = compared[part, "adult + 2000 columns, logistic, ε = 0.5", method]
        if method != "squares, 0.1":
            assert f"{found.mean:.2f} ± {(found.high - found.low) / 2:.2f}" in readme
        else:
            assert f"loses {-found.mean:.2f} with the logistic" in readme
    found, _ = compared["wide", "diabetes130, logistic, ε = 2", "soft"]
    assert f"soft is {-found.mean:.2f} ± {(found.high - found.low) / 2:.2f} points below" in readme


def test_no_sparse_method_is_shown_to_beat_dense_on_real_wide_tables() -> None:
    compared = comparisons(json.loads((FOLDER / "sparsity-map.json").read_text(encoding="utf-8")))
    wide = {key: found for key, (found, _) in compared.items() if key[0] == "wide"}
    assert {name.split(",")[0] for _, name, _ in wide} == {"diabetes130", "adult-pairs", "imdb-words"}
    assert all(found.low <= 0 for found in wide.values())


def test_the_map_says_how_far_soft_weights_fell_behind() -> None:
    compared = comparisons(json.loads((FOLDER / "sparsity-map.json").read_text(encoding="utf-8")))
    page = (FOLDER / "where-sparsity-wins.md").read_text(encoding="utf-8")
    worst = min(found.mean for (_, _, method), (found, _) in compared.items() if method == "soft")
    assert f"Soft is {-worst:.2f} points below dense" in page
    found, _ = compared["wide", "diabetes130, logistic, ε = 2", "soft"]
    assert found.mean == worst
    assert f"({found.low:.2f} to {found.high:.2f})".replace("-", "−") in page
