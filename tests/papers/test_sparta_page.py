from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tacit.jobs.settings import to_record
from tacit_papers.sparsity_map.mapping import difference
from tacit_papers.sparta.regime_page import findings as regime_findings
from tacit_papers.sparta.regime_page import in_short, over_head
from tacit_papers.sparta.results_page import FOLDER, PAGE, REASONS, findings, page, record
from tacit_papers.sparta.table import TASKS


def test_the_page_is_what_the_numbers_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tacit_papers.sparta.results_page"


def test_the_page_changes_with_the_numbers(tmp_path: Path) -> None:
    found = record()
    found["rows"][0]["active"] += 1
    (tmp_path / "table.json").write_text(json.dumps(found))
    assert page(tmp_path) != page()


def test_the_result_says_how_it_was_made() -> None:
    found = record()
    assert found["format"] == "tacit-results-1"
    assert found["command"].startswith("tacit reproduce sparta/table")
    assert not found["quick"]


def test_the_kept_runs_are_those_that_the_command_would_make() -> None:
    kept = {
        path.name: json.loads(path.read_text())["experiment"] for path in (FOLDER / "runs").glob("*.json")
    }
    rows = [row for row in record()["rows"] if row["method"] == "sparta"]
    for row in rows:
        for seed in range(2):
            name = f"{row['dataset']}-sparta-rate-{row['learning_rate']:g}_{row['epsilon']:g}_{seed}.json"
            task = TASKS[row["dataset"]]
            described = to_record(replace(task, privacy=replace(task.privacy, epsilon=row["epsilon"])))
            for section in ("data", "model", "privacy"):  # later versions have more options
                for key, value in kept[name][section].items():
                    if key == "image_size" and row["dataset"] == "sst2":
                        continue  # texts have none; the option once had a default for them, too
                    assert described[section][key] == value


def _rows(method: str, differences: list[float], rate: float = 1.0) -> list[dict[str, object]]:
    """One row per ε; two seeds that differ by a little from each other."""
    return [
        {
            "dataset": "sst2",
            "method": method,
            "epsilon": epsilon,
            "learning_rate": rate,
            "auc": {"values": [0.8 + difference, 0.8 + difference + 0.01]},
        }
        for epsilon, difference in zip((1.0, 2.0, 4.0), differences, strict=False)
    ]


def test_one_lucky_cell_is_no_win() -> None:
    rows = [
        *_rows("sparta", [0.0, 0.0, 0.0]),
        *_rows("random-rows", [-0.1, -0.1, -0.1]),
        *_rows("full", [-0.1, 0.0, 0.0], rate=16.0),
        *_rows("last-layer", [0.1, 0.1, 0.1]),
    ]
    won, tied, lost, edge, missing = findings({"rows": rows})
    assert won.startswith("SPARTA − random-rows: +0.100 ± 0.000 (ε = 1)")
    assert "; it wins (above twice the standard error in 3, below minus that in 0 of 3)." in won
    assert (
        "; no difference is shown (above twice the standard error in 1, below minus that in 0 of 3)." in tied
    )
    assert "; it loses (" in lost
    assert edge.endswith("full (16).")
    assert missing == "Not measured yet: ε = 8."


def test_a_choice_beats_random_rows_only_if_its_interval_lies_above_zero() -> None:
    values = {
        "sparta": [0.80, 0.81, 0.82],
        "random-rows": [0.80, 0.82, 0.81],
        "magnitude-rows": [0.70, 0.71, 0.72],
        "last-layer": [0.90, 0.91, 0.92],
    }
    rows = [
        {"method": way, "epsilon": 2.0, "learning_rate": rate, "auc": {"values": of, "mean": sum(of) / 3}}
        for (way, of), rate in zip(values.items(), (1.0, 4.0, 1.0, 1.0), strict=True)
    ]
    tied, won, lost, best, edge = regime_findings(rows)
    assert tied.startswith("ε = 2: SPARTA is not told apart from random-rows, +0.00 points of AUC (-2.48")
    assert won.startswith("ε = 2: SPARTA beats magnitude-rows, +10.00")
    assert lost.startswith("ε = 2: SPARTA loses to last-layer, -10.00")
    assert best.endswith("is that of last-layer.")
    assert edge.endswith("for random-rows.")
    said = in_short([{**row, "dataset": "shirts"} for row in rows])
    assert "In 0 of 1 comparisons; in 0 it loses" in said
    better = [
        {**row, "dataset": "shirts", "method": "sparta, votes"}
        for row in rows
        if row["method"] == "last-layer"
    ]
    said = in_short([{**row, "dataset": "shirts"} for row in rows] + better)
    assert "In 1 of 2 comparisons: SPARTA by votes on Shirt or T-shirt at ε = 2; in 0 it loses" in said
    said = over_head([{**row, "dataset": "shirts"} for row in rows])
    assert said.endswith(
        "Shirt or T-shirt: in 0 of 3 comparisons, and it loses in 3 (means from -20.00 to -10.00 points of AUC)."
    )


def test_what_is_said_of_efficientnet_is_what_was_recorded() -> None:
    regime = json.loads((FOLDER.parent / "regime" / "regime.json").read_text(encoding="utf-8"))
    values = {
        (row["epsilon"], row["method"]): row["auc"]["values"]
        for row in regime["rows"]
        if row["dataset"] == "shirts-efficientnet"
    }
    text = " ".join(REASONS.split())
    for epsilon in (2.0, 8.0):
        found = difference(values[epsilon, "random-rows"], values[epsilon, "last-layer"])
        assert f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f}) at ε = {epsilon:g}" in text
    private = [
        difference(values[epsilon, way], values[epsilon, "random-rows"])
        for epsilon in (2.0, 8.0)
        for way in ("sparta", "sparta, votes")
    ]
    means = [one.mean for one in private]
    assert f"{min(means):.1f} to {max(means):.1f} points of AUC above that of random rows" in text
    assert all(one.low < 0 < one.high for one in private)  # "all four intervals contain zero"
    above = [
        difference(of, values[epsilon, "last-layer"]).mean
        for (epsilon, way), of in values.items()
        if way != "last-layer"
    ]
    assert f"{min(above):.1f} to {max(above):.1f} points above last-layer" in text
