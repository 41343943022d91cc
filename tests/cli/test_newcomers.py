"""Commands as somebody types them who has never seen Tacit, on tables that nobody has prepared."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import pytest

from cli.conftest import Tacit
from tacit.files import decode_toml

QUICK = "--epochs 1 --batch-size 32 --accountant rdp --quiet"


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Semicolons, decimal commas, an encoding of its own, several rows per patient."""
    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    rng = random.Random(3)
    lines = ["Patient-Nr;Größe;prediction;krank?"]
    for _ in range(200):
        size = rng.gauss(1.7, 0.1)
        lines.append(
            f"{rng.randint(1, 40)};{size:.2f};{rng.randint(0, 5)};".replace(".", ",")
            + ("ja" if size > 1.7 else "nein")
        )
    path = tmp_path / "visits.csv"
    path.write_bytes("\n".join(lines).encode("cp1252"))
    return path


def test_every_command_that_reads_a_table_takes_its_encoding_and_its_columns(
    tacit: Tacit, visits: Path
) -> None:
    refused = tacit("budget init visits.csv --epsilon 9 --unit Patient-Nr").sentence
    assert "--encoding, such as cp1252" in refused
    started = tacit("budget init visits.csv --epsilon 9 --unit Patient-Nr --encoding cp1252")
    assert started.code == 0, started.err
    done = tacit(
        "data schema visits.csv --target krank? --unit Patient-Nr --encoding cp1252 --drop prediction"
    )
    assert done.code == 0, done.err
    assert "--unit Patient-Nr --drop prediction" in done.out.replace("\n", " ")
    assert list(decode_toml(Path("schema.toml").read_text(encoding="utf-8"))["columns"]) == ["Größe"]
    line = "train visits.csv --schema schema.toml --encoding cp1252 --unit Patient-Nr --drop prediction"
    assert tacit(f"{line} {QUICK} --out run").code == 0
    assert tacit("predict run visits.csv --encoding cp1252 --out scores.csv").code == 0


def test_a_column_that_is_kept_never_hides_an_answer(tacit: Tacit, visits: Path) -> None:
    line = f"train visits.csv --target krank? --encoding cp1252 --statistics rows {QUICK} --out run"
    assert tacit(line).code == 0
    refused = tacit("predict run visits.csv --encoding cp1252 --keep prediction --out scores.csv").sentence
    assert "the result has a column of that name" in refused
    assert not Path("scores.csv").exists()


def test_a_dry_run_says_before_anything_is_spent_what_speaks_against_it(tacit: Tacit, visits: Path) -> None:
    wide = Path("wide.csv")
    names = [f"gene {number}" for number in range(80)]
    rows = (",".join([str(row * place % 97) for place in range(80)] + [str(row % 2)]) for row in range(100))
    wide.write_text("\n".join([",".join([*names, "ill"]), *rows]))
    shown = tacit("train wide.csv --target ill --epsilon 1 --dry-run")
    assert "# Warning: " in shown.out
    assert "are few for" in shown.out
    assert any(
        "are few for" in line
        for line in tacit("train wide.csv --target ill --epsilon 1 --dry-run --json").json["warnings"]
    )
    measured = tacit("train visits.csv --target krank? --encoding cp1252 --epsilon 50 --dry-run --json").json
    assert measured["experiment"]["data"]["statistics"] == "private"
    assert any("held-out rows" in sentence for sentence in measured["not_covered"])
    assert "The positive class is 'ja'" in " ".join(measured["facts"])
    assert any("--unit 'Patient-Nr'" in sentence for sentence in measured["warnings"])
    counted = tacit("train visits.csv --target prediction --encoding cp1252 --dry-run --json").json
    assert "say --kind regression" in " ".join(counted["facts"])


def test_what_was_read_off_rows_is_said_to_their_owner_and_to_nobody_else(tacit: Tacit, visits: Path) -> None:
    rows = [f"{row % 37},{999 if row % 20 == 0 else row % 60},{row % 2}" for row in range(60)]
    Path("codes.csv").write_text("\n".join(["x,age,y", *dict.fromkeys(rows)]))
    done = tacit(f"train codes.csv --target y --statistics rows --epsilon 1 {QUICK} --out run --json")
    assert any("holds 999 far from" in warning for warning in done.json["warnings"])
    assert any("are few" in warning for warning in done.json["warnings"])
    shown = tacit("train codes.csv --target y --statistics private --epsilon 1 --dry-run --json").json
    assert any("holds 999 far from" in warning for warning in shown["warnings"])
    assert "holds 999 far from" in tacit("data schema codes.csv --target y").out.replace("\n", " ")
    assert tacit("verify run").code == 0
    assert tacit("export run --out model.tacit").code == 0
    with zipfile.ZipFile("model.tacit") as bundle:
        card = bundle.read("model_card.md").decode()
    for shared in (Path("run/certificate.txt").read_text(), Path("run/certificate.json").read_text(), card):
        assert "are few" in " ".join(shared.split())
        assert "far from" not in " ".join(shared.split())


def test_a_budget_lets_a_run_of_its_own_epsilon_in_and_says_what_is_used_up(
    tacit: Tacit, visits: Path
) -> None:
    assert tacit("budget init visits.csv --epsilon 6").code == 0
    by_patient = "train visits.csv --target krank? --encoding cp1252 --unit Patient-Nr --epsilon 1 --dry-run"
    told = tacit(f"{by_patient} --json").json["budget"]
    assert not told["admitted"]
    assert "leave out --unit" in told["refused"]
    assert "The run would be refused" in tacit(by_patient).out
    line = f"train visits.csv --target krank? --encoding cp1252 --statistics private {QUICK}"
    line = line.replace("--accountant rdp", "")  # the budget's own bound is that of pld
    assert tacit(f"{line} --epsilon 6 --out one").code == 0
    refused = tacit(f"{line} --epsilon 6 --out two").sentence
    assert "are used" in refused
    assert "--delta 1e-05" in refused
    assert not Path("two").exists()


def test_of_many_classes_a_terminal_shows_some(tacit: Tacit) -> None:
    rows = [f"{row % 37},class {row % 40}" for row in range(800)]
    Path("many.csv").write_text("\n".join(["x,y", *rows]))
    line = f"train many.csv --target y --kind multiclass --statistics rows --epsilon 1 {QUICK}"
    shown = tacit(f"{line} --out one").out
    assert shown.count("recall of ") == 8
    assert "more classes" in shown
    quality = tacit(f"{line} --out two --json").json["quality"]
    recalls = [one for one in quality if one["name"].startswith("recall of ")]
    assert len(recalls) > 12
    assert all(one["low"] == 0 for one in recalls if one["value"] == 0)


def test_a_test_file_that_does_not_fit_is_refused_before_anything_is_spent(tacit: Tacit) -> None:
    for name, answers in (("own.csv", ("yes", "no")), ("test.csv", ("ja", "nein"))):
        rows = [f"{row % 37},{answers[row % 2]}" for row in range(200)]
        Path(name).write_text("\n".join(["x,y", *rows]))
    line = "train own.csv --target y --test test.csv --statistics private --epsilon 20"
    assert "none of the classes" in tacit(f"{line} --out run").sentence
    assert not Path("run").exists()
    assert "none of the classes" in tacit(f"{line} --dry-run").sentence
