"""The whole way of a new user, on a table with a hostile header: from the budget to a model that others check."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.conftest import Tacit
from tacit.files import decode_toml
from tacit.release.budget import read_budget

TARGET = 'renewed? (yes|no), "final"'
HEADER = ["", "patient id", 'Age, "years"', "naïve\tBMI", "=SUM(A1)", "<b>sex</b>", TARGET]


def write_table(path: Path, count: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(HEADER)
        for number in range(count):
            age, bmi, sex = rng.randint(18, 90), round(rng.gauss(27, 5), 2), rng.choice(["m", "f", ""])
            renews = (age - 50) / 15 + (bmi - 27) / 5 + rng.gauss(0, 1) > 0
            city = rng.choice(["Köln", "Paris", "Oslo"])
            out.writerow([number, 1000 + number, age, bmi, city, sex, "yes" if renews else "no"])


@pytest.fixture
def budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_BUDGETS", str(tmp_path / "budgets"))
    return tmp_path / "budgets"


def test_the_whole_journey(tacit: Tacit, tmp_path: Path, budgets: Path) -> None:
    write_table(tmp_path / "p.csv", 10_000)
    write_table(tmp_path / "new.csv", 10_000, seed=2)
    seconds: dict[str, float] = {}

    def timed(line: str, code: int = 0) -> str:
        started = time.process_time()
        done = tacit(line)
        seconds[line.split(" ")[0]] = time.process_time() - started
        assert done.code == code, (line, done.err, done.out)
        return done.out

    timed("budget init p.csv --epsilon 3 --delta 1e-5")
    Path("config.toml").write_text(f"[data]\nsource = 'p.csv'\ntarget = '''{TARGET}'''\n")
    target = f"--target '{TARGET}'"
    timed(f"data schema p.csv {target} --out schema.toml")
    quick = "--epochs 2 --batch-size 1024 --epsilon 2 --accountant rdp"
    shown = timed(f"train p.csv {target} --schema schema.toml {quick} --dry-run")
    Path("again.toml").write_text(shown)
    assert decode_toml(shown)["data"]["target"] == TARGET
    repeated = timed("train --config again.toml --dry-run")
    assert repeated == shown  # the same run, whatever was said on the command line
    assert json.loads(timed("train --config again.toml --dry-run --json"))["budget"]["admitted"] is True
    assert read_budget(budgets / "p.jsonl").entries == ()  # a dry run reserves nothing

    command = [sys.executable, "-m", "tacit", "train", "--config", "again.toml", "--out", "run", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ) as process:
        end = time.monotonic() + 120
        ledger = Path("run/ledger.jsonl")
        while time.monotonic() < end and (not ledger.exists() or ledger.read_bytes().count(b"charge") < 2):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
    (reserved,) = read_budget(budgets / "p.jsonl").entries
    assert reserved.cost.spends
    os.utime("p.csv")  # touched, not edited
    resumed = json.loads(timed("resume run --json"))
    assert resumed["finished"] is True
    (settled,) = read_budget(budgets / "p.jsonl").entries
    assert settled.charged is not None
    assert resumed["budget"]["used"] == pytest.approx(read_budget(budgets / "p.jsonl").used)

    timed("verify run")
    timed("predict run new.csv --keep 'patient id' --out scores.csv")
    with Path("scores.csv").open(newline="") as file:
        scores = list(csv.reader(file))
    assert scores[0] == ["patient id", "prediction", "score", "probability of no", "probability of yes"]
    assert len(scores) == 10_001
    timed("export run --out model.tacit")
    timed("verify model.tacit")
    timed("predict model.tacit new.csv --out again.csv")
    with Path("again.csv").open(newline="") as file:
        assert [row[1:] for row in scores] == list(csv.reader(file))
    timed("report run --out report.html")
    page = timed("budget show p.csv --page budget.html")
    assert "settled" in page
    text = Path("budget.html").read_text()
    assert "Runs on this data" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert (
        tacit(f"train p.csv {target} --epsilon 3 --out second --accountant rdp").code == 2
    )  # beyond the budget
    assert not Path("second").exists()
    slow = {name: value for name, value in seconds.items() if name not in ("train", "resume") and value > 5}
    assert not slow, slow


def test_refusals_of_the_new_commands_are_sentences(tacit: Tacit, tmp_path: Path, budgets: Path) -> None:
    write_table(tmp_path / "p.csv", 50)
    assert "no run directory and no bundle" in tacit("predict nowhere p.csv").sentence
    assert "no bundle" in tacit("predict p.csv p.csv").sentence
    assert "no run directory" in tacit("export nowhere").sentence
    assert "--format must be one of" in tacit("export nowhere --out model.xyz").sentence
    assert "file of" in tacit("verify p.csv").sentence
    Path("folder").mkdir()
    assert "empty folder" in tacit("verify folder").sentence
    Path("folder/x").touch()
    assert "nothing of a run" in tacit("verify folder").sentence
    assert "There is no budget" in tacit("budget show p").sentence
    assert "no column 'who'" in tacit("budget init p.csv --epsilon 1 --unit who").sentence
    assert "epsilon must be" in tacit("budget init p.csv --epsilon 0").sentence
    assert tacit("budget init p.csv --epsilon 1 --unit 'patient id'").code == 0
    assert "already" in tacit("budget init p.csv --epsilon 9 --name other").sentence
    refused = tacit(f"train p.csv --target '{TARGET}' --accountant rdp --out run").sentence
    assert "counts what each unit of the column 'patient id' loses" in refused
    assert tacit("budget show").code == 0
    assert "no run of tacit train" in tacit("budget count folder").sentence


def test_a_comparison_on_data_with_a_budget_says_what_it_costs_and_reserves_it_first(
    tacit: Tacit, tmp_path: Path, budgets: Path
) -> None:
    write_table(tmp_path / "p.csv", 400)
    assert tacit("budget init p.csv --epsilon 6 --delta 1e-5").code == 0
    line = (
        f"compare p.csv --target '{TARGET}' --methods dp-sgd --epsilons 1 --seeds 2 --epochs 2 --batch-size 64 "
        "--workers 1 --out c"
    )
    refused = tacit(line.replace("--methods dp-sgd", "--methods no-noise")).err
    assert "adds no noise" in refused
    done = tacit(line)
    assert done.code == 0, done.err
    assert done.err.startswith("2 runs. Budget 'p'")
    (entry,) = read_budget(budgets / "p.jsonl").entries
    assert entry.what == "compare"
    assert sum(spend.steps for spend in entry.cost.spends) == 2 * 10
    assert all(
        json.loads(path.read_text())["experiment"]["training"]["seed"] is None
        for path in Path("c/runs").iterdir()
    )
    again = tacit(line)  # what is there costs nothing more
    assert again.code == 0
    assert again.err.startswith("0 runs.")
    assert len(read_budget(budgets / "p.jsonl").entries) == 1


def test_a_failed_start_gives_its_reservation_back_and_a_copy_of_a_run_needs_its_own(
    tacit: Tacit, tmp_path: Path, budgets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.training.trainer import Trainer

    write_table(tmp_path / "p.csv", 400)
    assert tacit("budget init p.csv --epsilon 6 --delta 1e-5").code == 0
    line = f"train p.csv --target '{TARGET}' --epsilon 1 --epochs 2 --batch-size 64 --accountant rdp --quiet --out "

    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "fit", broken)
        assert tacit(f"{line} a").code == 2
    assert not Path("a").exists()
    assert read_budget(budgets / "p.jsonl").used == 0
    assert tacit(f"{line} a").code == 0
    used = read_budget(budgets / "p.jsonl").used
    assert used > 0
    assert tacit("resume a").code == 0  # finished: costs nothing
    assert read_budget(budgets / "p.jsonl").used == used
    Path("a").rename("b")
    Path("b/model.safetensors").unlink()  # as if it had been stopped, and copied
    assert tacit("resume b").code == 0
    assert read_budget(budgets / "p.jsonl").used == pytest.approx(2 * used)
    assert tacit("budget count b").code == 0
    assert read_budget(budgets / "p.jsonl").used == pytest.approx(2 * used)


def test_a_copy_is_known_by_its_content_and_an_edited_one_once_it_is_named(
    tacit: Tacit, tmp_path: Path, budgets: Path
) -> None:
    write_table(tmp_path / "p.csv", 60)
    assert tacit("budget init p.csv --epsilon 6 --name clinic").code == 0
    Path("copy.csv").write_bytes(Path("p.csv").read_bytes())
    Path("edited.csv").write_bytes(Path("p.csv").read_bytes() + b"60,1060,30,20,Oslo,m,no\n")
    assert tacit("budget show copy.csv --json").json["name"] == "clinic"
    assert "There is no budget" in tacit("budget show edited.csv").sentence
    assert tacit("budget cover clinic edited.csv").code == 0
    assert tacit("budget show edited.csv --json").json["name"] == "clinic"
    Path("p.csv").write_bytes(b"a,b\n1,2\n")  # a newer version at the same place
    assert tacit("budget show p.csv --json").json["name"] == "clinic"
