"""compare, diagnose, verify, data: what they print and what they write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.table import Table

from cli.conftest import Tacit
from tacit.cli.data import ABOUT
from tacit.cli.output import console, sparkline
from tacit.data import LOADERS
from tacit.jobs import comparison
from tacit.warning import warn

QUICK = "--target renewed --epochs 6 --batch-size 64"
TRAIN = f"{QUICK} --accountant rdp --quiet"


def test_compare_pairs_seeds_draws_and_goes_on(
    tacit: Tacit, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    plain = comparison.run_cell

    def counted(cell: comparison.Cell) -> comparison.CellResult:
        runs.append((cell.method, cell.epsilon, cell.seed))
        if len(runs) == 5:
            raise KeyboardInterrupt
        return plain(cell)

    monkeypatch.setattr(comparison, "run_cell", counted)
    Path("c.toml").write_text('[privacy]\naccountant = "rdp"\n')
    line = (
        f"compare {orders} {QUICK} --config c.toml --methods dp-sgd,tp-topk:0.3,no-noise --epsilons 1,8 "
        "--seeds 2 --workers 1 --out cmp"
    )
    assert tacit(line).code == 130
    assert len(list(Path("cmp/runs").iterdir())) == 4
    done = tacit(f"{line} --json")
    assert done.code == 0, done.err
    assert len(runs) == 5 + 6, "what was done is not done again"
    found = done.json
    assert found["for_release"] is False
    rows = {(row["method"], row["epsilon"]): row for row in found["rows"]}
    assert set(rows) == {
        ("dp-sgd", 1),
        ("dp-sgd", 8),
        ("tp-topk:0.3", 1),
        ("tp-topk:0.3", 8),
        ("no-noise", "inf"),
    }
    per_run = {(run["method"], run["epsilon"], run["seed"]): run["held_out"]["auc"] for run in found["runs"]}
    pairs = [per_run["tp-topk:0.3", 8, seed] - per_run["dp-sgd", 8, seed] for seed in (0, 1)]
    assert rows["tp-topk:0.3", 8]["difference"]["mean"] == pytest.approx(sum(pairs) / 2)
    assert rows["tp-topk:0.3", 8]["difference"]["deviation"] == pytest.approx(abs(pairs[0] - pairs[1]) / 2)
    assert rows["dp-sgd", 8]["difference"] is None
    assert rows["tp-topk:0.3", 1]["active"] < rows["tp-topk:0.3", 1]["coordinates"]
    assert json.loads(Path("cmp/comparison.json").read_text())["rows"] == found["rows"]
    assert Path("cmp/comparison.png").read_bytes().startswith(b"\x89PNG")
    table = tacit(line).out
    assert "tp-topk:0.3" in table
    assert "not for release" in table
    assert "made with other settings" in tacit(f"{line} --learning-rate 3").sentence


def test_compare_over_processes_gives_the_same(tacit: Tacit, orders: Path) -> None:
    Path("c.toml").write_text('[privacy]\naccountant = "rdp"\n')
    line = f"compare {orders} {QUICK} --config c.toml --methods dp-sgd --seeds 2 --json"
    alone = tacit(f"{line} --workers 1 --out a").json["runs"]
    together = tacit(f"{line} --workers 2 --out b").json["runs"]
    assert [run["held_out"] for run in alone] == [run["held_out"] for run in together]


def test_diagnose_a_run(tacit: Tacit, orders: Path) -> None:
    assert tacit(f"train {orders} {TRAIN} --epsilon 20 --model mlp --width 4 --out run").code == 0
    found = tacit("diagnose run --json").json
    assert found["coordinates"] == sum(layer["coordinates"] for layer in found["layers"])
    assert found["active"] == sum(layer["active"] for layer in found["layers"])
    energy = found["energy"]
    judged = [layer["coordinates"] for layer in found["layers"] if not layer["name"].endswith("bias")]
    assert energy["counts"][-1] == sum(judged)
    assert energy["captured"][-1] == pytest.approx(1)
    assert found["epsilons"] == sorted(found["epsilons"])
    assert found["epsilons"][0] == 0
    assert found["epsilons"][-1] <= 20
    assert found["steps"][-1] == found["phase_ends"][-1]
    assert Path("run/diagnosis.png").read_bytes().startswith(b"\x89PNG")
    text = tacit("diagnose run --figure d.png").out
    assert "█" in text
    assert "ε over releases" in text
    assert Path("d.png").exists()
    assert "epsilon is for data" in tacit("diagnose run --epsilon 3").sentence


def test_diagnose_data_trains_first_and_a_dense_run_has_no_curve(tacit: Tacit, orders: Path) -> None:
    done = tacit(f"diagnose {orders} {QUICK} --out run --quiet")
    assert done.code == 0, done.err
    assert tacit("verify run").code == 0
    assert tacit(f"train {orders} {TRAIN} --method dp-sgd --out dense").code == 0
    assert "No energy curve" in tacit("diagnose dense").out


def test_verify_says_yes_and_no(tacit: Tacit, orders: Path) -> None:
    assert tacit(f"train {orders} {TRAIN} --out run").code == 0
    done = tacit("verify run --json")
    assert done.code == 0
    assert done.json["verified"] is True
    assert done.json["for_release"] is True
    assert done.json["epsilon"] <= 3
    assert "The run verifies" in tacit("verify run").out
    ledger = Path("run/ledger.jsonl")
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:-1]))
    done = tacit("verify run --json")
    assert done.code == 1
    assert done.json["verified"] is False
    assert done.json["problems"]
    assert "does NOT verify" in tacit("verify run").out


def test_data_list_names_every_built_in_set(tacit: Tacit) -> None:
    assert list(ABOUT) == list(LOADERS)
    assert [entry["name"] for entry in tacit("data list --json").json] == list(LOADERS)
    assert "nhanes" in tacit("data list").out


def test_data_show(tacit: Tacit, orders: Path) -> None:
    found = tacit("data show nhanes --json").json
    assert (found["training"], found["held_out"], found["kind"]) == (6677, 1685, "binary")
    assert len(found["features"]) == 190
    text = tacit(f"data show {orders} --target renewed").out
    assert "private rows" in text
    assert "yes" in text


def test_a_guessed_schema_can_be_trained_with(tacit: Tacit, orders: Path) -> None:
    done = tacit(f"data schema {orders} --target renewed --out s.toml")
    assert "7 columns" in done.out
    text = Path("s.toml").read_text().replace("public = false\n", "")
    Path("s.toml").write_text(text)
    found = tacit(f"train {orders} {TRAIN} --schema s.toml --out run --json").json
    assert not any("private rows" in sentence for sentence in found["not_covered"])


def test_sparklines() -> None:
    assert sparkline([0, 1]) == "▁█"
    assert sparkline([2, 2, 2]) == "▁▁▁"
    assert sparkline([]) == ""
    assert len(sparkline([float(i) for i in range(1000)])) == 48
    assert sparkline([0.0, float("nan"), 1.0]) == "▁ █"


def test_cells_of_tables_and_warnings_show_names_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("a\x1bb", title="[red]c")
    table.add_row("[/d] :smile: \x9b")
    console().print(table)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    for name in (r"a\x1bb", "[red]c", r"[/d] :smile: \x9b"):
        assert name in shown
    with pytest.warns(UserWarning, match=r"^a\\x1bb$"):
        warn("a\x1bb")
