"""``tacit site`` and ``tacit fed init``: folders from a site's own CSV, and what is refused before anything is made."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cli.conftest import Tacit
from tacit.data import Number, Schema, Target, write_schema


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    rng = random.Random(0)
    rows = [f"P{n // 2},{rng.randint(18, 90)},{rng.choice(['yes', 'no'])}" for n in range(200)]
    path = tmp_path / "patients.csv"
    path.write_text("patient_id,age,ill\n" + "\n".join(rows) + "\n")
    write_schema(
        Schema(Target("ill", "binary", ("no", "yes")), {"age": Number(18, 90)}), tmp_path / "schema.toml"
    )
    return path


def test_a_site_is_made_from_terms_or_from_a_schema_with_the_same_options(
    tacit: Tacit, patients: Path
) -> None:
    assert tacit("fed init study --schema schema.toml --rounds 3").code == 0
    by_terms = (
        "site init --csv patients.csv --terms study/training.toml --unit patient_id --budget 3 --out one"
    )
    assert "100 units, 3 rounds of about 25" in tacit(by_terms).out
    by_schema = (
        "site init --csv patients.csv --schema schema.toml --target ill --rounds 3 --budget 3 --out two"
    )
    assert "200 examples, 3 rounds of about 50" in tacit(by_schema).out
    states = [tacit(f"site status {name} --json").json for name in ("one", "two")]
    assert states[0]["terms"] == states[1]["terms"]
    assert "'patient_id'" in states[0]["unit"]
    assert [state["charged"] for state in states] == [0, 0]
    assert states[0]["epsilon_spent"] == 0
    assert "0 of 3" in tacit("site status one").out
    assert "round 0 of 3" in tacit("fed status study").out
    assert "already exists" in tacit(by_terms).sentence
    assert "already exists" in tacit("fed init study --schema schema.toml").sentence


REFUSED = {
    "site init --csv patients.csv --budget 3 --out s": "--terms",
    "site init --csv patients.csv --schema schema.toml --target age --budget 3 --out s": "target of the schema",
    "site init --csv patients.csv --schema schema.toml --unit nobody --budget 3 --out s": "nobody",
    "site init --csv patients.csv --schema schema.toml --budget 0 --out s": "epsilon",
    "site init --csv patients.csv --schema schema.toml --sampling-rate 2 --budget 3 --out s": "sampling_rate",
    "site init --csv nothing.csv --schema schema.toml --budget 3 --out s": "nothing.csv",
    "site serve nowhere": "nowhere",
    "site status nowhere": "nowhere",
    "fed run study --site a": "its socket once",
    "fed run study": "--site",
    "fed run study --site a=/none.sock": "'a' does not answer",
    "fed run study --site a=/none.sock --epsilon 3": "--epsilon",
    "fed run adult --guarantee sites --folder f --select ps": "--select",
    "fed run adult --guarantee everything --folder f": "sites, secure-sum or local",
    "fed run adult --guarantee sites": "--folder",
    "fed run syn-L-0.1-0.6 --folder f --split-by age": "--guarantee sites",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_meant_is_one_sentence_and_nothing_is_made(
    tacit: Tacit, patients: Path, tmp_path: Path, line: str
) -> None:
    if line.startswith("fed run study"):
        tacit("fed init study --schema schema.toml --rounds 3")
    assert REFUSED[line] in tacit(line).sentence
    assert not (tmp_path / "s").exists()
    assert not (tmp_path / "f").exists()


def test_terms_decide_and_cannot_be_overridden(tacit: Tacit, patients: Path) -> None:
    tacit("fed init study --schema schema.toml --rounds 3")
    line = "site init --csv patients.csv --terms study/training.toml --rounds 5 --budget 3 --out s"
    assert "terms decide about rounds" in tacit(line).sentence


def test_a_site_is_paid_from_the_budget_of_its_data(tacit: Tacit, patients: Path, tmp_path: Path) -> None:
    assert tacit("budget init patients.csv --epsilon 4 --delta 1e-4").code == 0
    made = "site init --csv patients.csv --schema schema.toml --rounds 3 --budget 3 --out"
    assert tacit(f"{made} one").code == 0
    assert tacit(f"{made} two").code == 2
    assert not (tmp_path / "two").exists()
