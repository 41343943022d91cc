from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cli.conftest import Done, Tacit
from tacit.data import read_schema
from tacit.release.ledger_file import read_ledger
from tacit.runs import load_certificate
from tacit.tensors import read_tensors

QUICK = "--target renewed --epochs 4 --batch-size 64 --accountant rdp --quiet"


def train(tacit: Tacit, orders: Path, extra: str = "") -> Done:
    done = tacit(f"train {orders} {QUICK} --out run {extra}")
    assert done.code == 0, done.err
    return done


def test_a_table_nobody_prepared_trains_and_says_what_is_not_covered(tacit: Tacit, orders: Path) -> None:
    done = train(tacit, orders, "--epsilon 8 --learning-rate 2 --epochs 20")
    certificate = load_certificate(Path("run/certificate.json"))
    assert certificate.for_release
    assert certificate.epsilon == 8
    assert certificate.epsilon_spent <= 8
    for column in ("'Age', 'income'", "'plan', 'member'", "'signed up'", "'city'", "'Order No'", "'renewed'"):
        assert any(column in sentence and "private rows" in sentence for sentence in certificate.not_covered)
        assert column in done.out
    assert certificate.statement[:40] in done.out
    result = json.loads(Path("run/result.json").read_text())
    assert result["measured"]["auc"] > 0.75
    tensors, _ = read_tensors(Path("run/model.safetensors"))
    assert set(tensors) == {"shapes.weight", "intercept.weight"}


def test_the_schema_in_the_run_directory_is_the_one_that_was_used(tacit: Tacit, orders: Path) -> None:
    Path("s.toml").write_text(
        '[target]\nname = "renewed"\nkind = "binary"\nclasses = ["No", "yes"]\n'
        '[columns.Age]\ntype = "number"\nlow = 0\nhigh = 120\n'
    )
    found = tacit(f"train {orders} {QUICK} --schema s.toml --drop city --split-by plan --out run --json").json
    used = read_schema("run/schema.toml")
    assert used.columns["Age"].high == 120  # type: ignore[union-attr]
    assert not {"city", "plan"} & set(used.columns)
    guessed = [sentence for sentence in found["not_covered"] if "private rows" in sentence]
    assert not any("'Age'" in sentence or "'renewed'" in sentence for sentence in guessed)
    assert any("'income'" in sentence for sentence in guessed)


def test_json_holds_the_figures_and_the_files(tacit: Tacit, orders: Path) -> None:
    found = train(tacit, orders, "--seed 1 --json").json
    assert found["finished"] is True
    assert set(found["held_out"]) == {"loss", "auc", "balanced_accuracy", "sensitivity", "specificity"}
    assert found["for_release"] is False
    assert "seeded noise" in found["reasons_against_release"][0]
    assert 0 < found["active"] <= found["coordinates"]
    for key in ("model", "certificate"):
        assert Path(found[key]).is_file()


def test_a_seed_repeats_the_run_and_without_one_noise_differs(tacit: Tacit, orders: Path) -> None:
    weights = []
    for name, seed in (("a", "--seed 5"), ("b", "--seed 5"), ("c", "--seed 6"), ("d", ""), ("e", "")):
        assert tacit(f"train {orders} {QUICK} --out {name} {seed}").code == 0
        weights.append(read_tensors(Path(name, "model.safetensors"))[0]["shapes.weight"])
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[3], weights[4])


def test_a_run_directory_says_nothing_of_the_size_of_the_table(tacit: Tacit, orders: Path) -> None:
    """Whoever knows all rows but one could tell the length of that one."""
    train(tacit, orders)
    size = orders.stat().st_size
    for path in Path("run").rglob("*.json"):
        assert str(size) not in path.read_text()
    noted = json.loads(Path("run/experiment.json").read_text())["source"]
    assert set(noted) == {"modified_ns", "content", "key"}
    # A digest without a key would let somebody who knows all other rows try out the last one.
    assert noted["content"] != hashlib.sha256(orders.read_bytes()).hexdigest()


@pytest.mark.parametrize("changed", [False, True])
def test_a_run_of_version_0_1_that_noted_the_size_is_resumed_if_it_is_still_that(
    tacit: Tacit, orders: Path, changed: bool
) -> None:
    train(tacit, orders)
    about = Path("run/experiment.json")
    record = json.loads(about.read_text())
    record["source"] = {
        "modified_ns": record["source"]["modified_ns"],
        "bytes": orders.stat().st_size + changed,
    }
    about.write_text(json.dumps(record))
    Path("run/certificate.json").unlink()  # it names the file as it was
    done = tacit("resume run")
    assert ("has changed since" in done.err) is changed
    assert done.code == (2 if changed else 0)


def test_dry_run_shows_every_setting_and_writes_nothing(tacit: Tacit, orders: Path) -> None:
    done = tacit(f"train {orders} --target renewed --dry-run")
    assert done.code == 0
    assert {path.name for path in Path().iterdir()} == {"orders.csv"}
    shown = done.out  # all of it is a configuration
    for line in (
        'name = "additive"',
        'name = "dp-sgd"',
        "delta = 1e-05",
        "momentum = 0.9",
        'schedule = "linear"',
        "# active_ratio is not set",
    ):
        assert line in shown
    assert "# schema is not set" in shown
    Path("back.toml").write_text(shown)
    again = tacit("train --config back.toml --dry-run")
    assert again.out == done.out
    assert "'Age', 'income'" in done.out
    record = tacit(f"train {orders} --target renewed --dry-run --json").json
    training = record["experiment"]["training"]
    assert round(training["epochs"] * record["examples"] / training["batch_size"]) == 400
    assert [phase["name"] for phase in record["plan"]["phases"]] == ["train"]


def test_the_command_line_goes_before_the_file_and_paths_are_beside_it(
    tacit: Tacit, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text(
        '[data]\nsource = "orders.csv"\ntarget = "renewed"\n[privacy]\nepsilon = 5\naccountant = "rdp"\n'
        "[training]\nepochs = 2\nbatch_size = 50\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    plan = tacit("train --config ../c.toml --epsilon 2 --dry-run --json").json["plan"]
    assert (plan["epsilon"], plan["batch_size"], plan["accountant"]) == (2, 50, "rdp")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[date]\n", "no section [date]; did you mean 'data'"),
        ("[training]\nepoch = 3\n", "no key 'epoch'; did you mean 'epochs'"),
        ('[training]\nepochs = "many"\n', "epochs in [training] must be a number, got 'many'"),
        ('[training]\noptimizer = "rmsprop"\n', "must be 'sgd' or 'adam'"),
        ("[training]\nclip_norm = true\n", "must be a number or a list"),
        ("[model]\nwidth = 1.5\n", "must be a whole number"),
        ("[method\n", "is not valid TOML"),
        ("model = 3\n", "[model] must be a table"),
    ],
)
def test_bad_configurations_are_one_sentence(tacit: Tacit, text: str, words: str) -> None:
    Path("c.toml").write_text(text)
    assert words in tacit("train nhanes --config c.toml").sentence


def test_a_stopped_run_is_resumed_from_its_directory_alone(
    orders: Path, tmp_path: Path, tacit: Tacit
) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nimport tacit.training.course as t\nplain = t.Course._step\n"
        "def step(self, *a):\n"
        "    done = plain(self, *a)\n"
        "    if done.number == 8:\n"
        "        import os, signal\n"
        "        os.kill(os.getpid(), getattr(signal, sys.argv[1]))\n"
        "    return done\n"
        "t.Course._step = step\n"
        "from tacit.cli.main import main\nmain(sys.argv[2:])\n"
    )
    base = ["train", orders.name, *QUICK.split(), "--seed", "3"]
    ends = {}
    for name, signal_name in (("stopped", "SIGINT"), ("killed", "SIGKILL")):
        done = subprocess.run(
            [sys.executable, "-c", script, signal_name, *base, "--out", name],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        ends[name] = done
        assert not Path(name, "certificate.json").exists()
    assert ends["stopped"].returncode == 1, ends["stopped"].stderr
    assert "tacit resume" in ends["stopped"].stdout
    assert ends["killed"].returncode == -signal.SIGKILL
    assert tacit("verify stopped").code == 1
    assert tacit(" ".join([*base, "--out whole"])).code == 0
    Path("s").mkdir()
    for name in ends:
        os.chdir("s")
        try:
            done = tacit(f"resume ../{name} --json")
        finally:
            os.chdir(tmp_path)
        assert done.code == 0, done.err
        assert done.json["finished"] is True
        assert tacit(f"verify {name}").code == 0
    whole = read_tensors(Path("whole/model.safetensors"))[0]
    stopped = read_tensors(Path("stopped/model.safetensors"))[0]
    assert all(torch.equal(whole[key], stopped[key]) for key in whole)
    killed, unharmed = (read_ledger(f"{name}/ledger.jsonl").charges for name in ("killed", "whole"))
    assert [charge.noise_multiplier for charge in killed] == [charge.noise_multiplier for charge in unharmed]
    assert max(charge.step for charge in killed) < max(charge.step for charge in unharmed)


def test_resume_refuses_data_that_has_changed_and_not_data_that_was_touched(
    tacit: Tacit, orders: Path
) -> None:
    train(tacit, orders)
    time.sleep(0.01)
    os.utime(orders)
    assert tacit("resume run").code == 0
    orders.write_text(orders.read_text().replace("basic", "basis"))
    assert "has changed since" in tacit("resume run").sentence
    orders.unlink()
    assert "has changed since" in tacit("resume run").sentence


def test_resume_refuses_what_is_no_run(tacit: Tacit) -> None:
    assert "no run directory" in tacit("resume nowhere").sentence
    Path("empty").mkdir()
    assert "not started by tacit train" in tacit("resume empty").sentence
    Path("empty/experiment.json").write_text('{"format": "other"}')
    assert "not from this version" in tacit("resume empty").sentence


def test_images_in_folders(tacit: Tacit) -> None:
    image = pytest.importorskip("PIL.Image")
    for kind, colour in (("cat", 40), ("dog", 200)):
        Path("pets", kind).mkdir(parents=True)
        for number in range(30):
            image.new("RGB", (9, 9), (colour + number % 30, number, colour)).save(f"pets/{kind}/{number}.png")
    done = tacit(
        "train pets --image-size 8 --model mlp --width 4 --epochs 5 --batch-size 20 --out run --json"
    )
    assert done.code == 0, done.err
    assert done.json["coordinates"] == 3 * 64 * 4 + 4 + 4 + 1
    assert "auc" in done.json["held_out"]


OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, (x[:, 0] > 0).long())

def pair():
    return TensorDataset(*data[:160]), TensorDataset(*data[160:])

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 2))

three = 3
"""


def test_a_dataset_and_a_model_of_ones_own(
    tacit: Tacit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine_for_tests.py").write_text(OWN)
    quick = "--kind multiclass --model mine_for_tests:Net --epochs 6 --batch-size 40 --accountant rdp --quiet"
    done = tacit(f"train mine_for_tests:pair {quick} --epsilon 8 --out a --json")
    assert done.json["held_out"]["accuracy"] > 0.6
    bare = tacit(f"train mine_for_tests:data {quick} --out b --json")
    assert bare.json["held_out"] == {}
    Path("other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert tacit("resume ../b --quiet").code == 0
    monkeypatch.chdir(tmp_path)
    assert "Say --kind" in tacit("train mine_for_tests:data --model mine_for_tests:Net").sentence
    assert "needs its own model" in tacit("train mine_for_tests:data --kind multiclass").sentence
    assert "gives a int" in tacit("train mine_for_tests:three").sentence
    assert (
        "a Module is needed"
        in tacit("train mine_for_tests:pair --kind binary --model mine_for_tests:three").sentence
    )
