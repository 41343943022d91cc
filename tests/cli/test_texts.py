"""``tacit train reviews.csv --text``: from raw texts to a model, a certificate and predictions."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch

from cli.conftest import Tacit
from tacit import load
from tacit.jobs.defaults import adaptive_threshold
from tacit.jobs.inputs import read_inputs
from tacit.runs import load_certificate
from tacit.tensors import read_tensors

GOOD, BAD = ("great", "lovely", "fine"), ("awful", "boring", "poor")
QUICK = (
    "--text review --target liked --epsilon 20 --batch-size 64 --epochs 6 --buckets 4096 --length 32 --quiet"
)


def write_reviews(path: Path, rows: int = 600, seed: int = 0, odd: tuple[str, ...] = ()) -> Path:
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["writer", "review", "liked"])
        for row in range(rows):
            liked = draw.random() < 0.5
            words = [draw.choice(GOOD if liked else BAD), *(f"w{draw.randrange(300)}" for _ in range(6))]
            draw.shuffle(words)
            text = odd[row] if row < len(odd) else " ".join(words)
            out.writerow([f"writer {row // 3}", text, "yes" if liked else "no"])
    return path


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    return write_reviews(tmp_path / "reviews.csv")


def test_raw_texts_become_a_model_that_verifies_predicts_and_can_be_shared(
    tacit: Tacit, reviews: Path, tmp_path: Path
) -> None:
    done = tacit(f"train reviews.csv {QUICK} --out run --json")
    assert done.code == 0, done
    assert done.json["held_out"]["auc"] > 0.9
    assert tacit("verify run").code == 0
    certificate = load_certificate(Path("run/certificate.json"))
    assert certificate.for_release
    assert not any("vocabulary of" in sentence for sentence in certificate.not_covered)
    write_reviews(tmp_path / "new.csv", 200, seed=1)
    assert tacit("predict run new.csv --keep liked --out scores.csv").code == 0
    with Path("scores.csv").open(newline="") as file:
        scores = list(csv.DictReader(file))
    assert sum(row["liked"] == row["prediction"] for row in scores) > 170
    assert tacit("export run --out model.tacit").code == 0
    (tmp_path / "new.txt").write_text("a great film\nan awful film\n")
    lines = tacit("predict model.tacit new.txt").out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["prediction", "yes", "no"]
    assert tacit("verify model.tacit").code == 0
    assert tacit("report run --out page.html").code == 0
    page = Path("page.html").read_text()
    assert "reviews.csv" in page
    assert "lovely" not in page  # no word of a text


def test_an_exported_graph_answers_as_the_model_does(tacit: Tacit, reviews: Path) -> None:
    assert tacit(f"train reviews.csv {QUICK} --out run").code == 0
    assert tacit("export run --out model.pt2").code == 0
    model = load("run")
    ids = model.encode(["a great film", "", "boring"])
    assert ids.dtype == torch.int64
    graph = torch.export.load("model.pt2").module()
    assert torch.allclose(
        graph(ids)[1][:, 1].double(),
        torch.tensor(model.predict(["a great film", "", "boring"]).probabilities[:, 1]),
    )


@pytest.mark.parametrize(
    "method",
    [
        "--method dp-sgd --lazy-noise",
        "--method adafest --threshold 2",
        "--method adafest --model text-embedding --width 3",
        "--model text-embedding --lazy-noise",
        "--method counted-rows --rows 500 --selection-epochs 1",
        "--method tp-topk",
        "--method dp-sgd --optimizer adam",
        "--model text-mean --learning-rate 1",
        "--pairs",
    ],
)
def test_every_way_to_train_works_on_texts(tacit: Tacit, reviews: Path, method: str) -> None:
    done = tacit(f"train reviews.csv {QUICK} {method} --out run --json")
    assert done.code == 0, done
    assert tacit("verify run").code == 0
    timing = "how long steps take" in json.dumps(load_certificate(Path("run/certificate.json")).not_covered)
    assert timing == ("lazy" in method or "adafest" in method)


@pytest.mark.parametrize(
    "optimizer", ["--optimizer adam", "--momentum 0.9", "--weight-decay 0.1", "--average 0.9"]
)
def test_lazy_noise_is_refused_where_it_would_not_be_the_same_mechanism(
    tacit: Tacit, reviews: Path, optimizer: str
) -> None:
    assert "leave" in tacit(f"train reviews.csv {QUICK} --lazy-noise {optimizer} --out run").sentence
    assert not Path("run").exists()


def test_lazy_noise_needs_a_table_and_a_dense_method(tacit: Tacit, reviews: Path) -> None:
    assert "dp-sgd" in tacit(f"train reviews.csv {QUICK} --lazy-noise --method tp-topk --out run").sentence
    assert (
        "embedding tables"
        in tacit("train reviews.csv --target liked --drop review --lazy-noise --out run").sentence
    )


def test_odd_texts_train_and_predict(tacit: Tacit, tmp_path: Path) -> None:
    """Without words, missing, of a million words, not of letters, and repeated a thousand times."""
    million = " ".join(f"x{n}" for n in range(300_000))
    odd = ("", "   ", "NA", million, "\U0001f600 \u202e", "great " * 1000, "...")
    write_reviews(tmp_path / "reviews.csv", odd=odd)
    assert tacit(f"train reviews.csv {QUICK} --held-out 0 --out run").code == 0
    found = load("run").predict([*odd, "great"])
    assert len(found) == 8
    assert found.predicted[5] == "yes"
    # A text without a word gets the intercept's answer.
    assert found.scores[0] == found.scores[1] == found.scores[6]


def test_a_run_continues_after_a_stop_and_refuses_another_word_list(
    tacit: Tacit, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tacit.training.course import Course

    (tmp_path / "words.txt").write_text("\n".join((*GOOD, *BAD)))
    options = QUICK.replace("--buckets 4096", "--words words.txt")
    step, taken = Course._step, []

    def stopped(self: Course, *given: Any) -> Any:
        taken.append(None)
        if len(taken) == 5:
            raise KeyboardInterrupt
        return step(self, *given)

    monkeypatch.setattr(Course, "_step", stopped)
    assert tacit(f"train reviews.csv {options} --out run").code != 0
    monkeypatch.setattr(Course, "_step", step)
    (tmp_path / "words.txt").write_text("\n".join((*BAD, *GOOD)))
    assert "has changed" in tacit("resume run --quiet").sentence
    (tmp_path / "words.txt").write_text("\n".join((*GOOD, *BAD)))
    assert tacit("resume run --quiet").code == 0
    assert tacit("verify run").code == 0
    weights = read_tensors(Path("run/model.safetensors"))[0]["words.weight"]
    assert len(weights) == 7
    assert weights[1:4].min() > weights[4:].max()
    assert read_inputs(Path("run/inputs.json")).bags.listed == (*GOOD, *BAD)


def test_a_writer_can_be_the_unit_of_privacy(tacit: Tacit, reviews: Path) -> None:
    done = tacit(f"train reviews.csv {QUICK} --unit writer --method counted-rows --rows 300 --out run --json")
    assert done.code == 0, done
    assert "writer" in load_certificate(Path("run/certificate.json")).unit
    assert tacit("verify run").code == 0
    shown = tacit(f"train reviews.csv {QUICK} --unit writer --dry-run --json").json
    assert shown["examples"] < 200


def test_a_dry_run_shows_the_rule_and_gives_the_same_run_again(tacit: Tacit, reviews: Path) -> None:
    shown = tacit("train reviews.csv --text review --target liked --epsilon 3 --dry-run")
    assert shown.code == 0
    assert 'name = "text-linear"' in shown.out
    assert 'name = "dp-sgd"' in shown.out
    Path("config.toml").write_text(shown.out)
    again = tacit("train --config config.toml --dry-run")
    assert again.out == shown.out
    record = tacit("train reviews.csv --text review --target liked --epsilon 3 --dry-run --json").json
    training = record["experiment"]["training"]
    assert training["clip_norm"] == 0.1
    assert training["schedule"] == "linear"
    longer = tacit("train reviews.csv --text review --target liked --epsilon 6 --dry-run --json").json
    assert longer["experiment"]["training"]["learning_rate"] > 1.5 * training["learning_rate"]


def test_steps_that_choose_rows_are_few_on_large_batches_and_their_threshold_follows_the_table(
    tacit: Tacit, reviews: Path
) -> None:
    line = "train reviews.csv --text review --target liked --method adafest --dry-run --json"
    plain = tacit("train reviews.csv --text review --target liked --dry-run --json").json["experiment"]
    found = tacit(line).json["experiment"]
    assert found["training"]["batch_size"] >= plain["training"]["batch_size"]
    assert found["method"]["threshold"] > 1.5  # 20 rows per text of a batch are few of 262,144
    assert tacit(f"{line} --buckets 1000").json["experiment"]["method"]["threshold"] == 0.5
    assert tacit(f"{line} --threshold 3").json["experiment"]["method"]["threshold"] == 3
    given = tacit(f"{line} --batch-size 32 --epochs 4").json["experiment"]["training"]
    assert (given["batch_size"], given["epochs"]) == (32, 4.0)
    for vocabulary, batch in ((1 << 18, 2048), (10**7, 1024), (10**9, 1)):
        chance = 1 - NormalDist().cdf(adaptive_threshold(vocabulary, batch))
        assert chance * vocabulary == pytest.approx(20 * batch, rel=0.3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--text review", "Say --text and --target"),
        ("--text nothing --target liked", "no column 'nothing'"),
        ("--text review --target liked --schema s.toml", "schema is not for texts"),
        ("--text review --target liked --words none.txt", "cannot be read"),
        ("--text review --target liked --words w.txt --buckets 9", "buckets are for hashed words"),
        ("--text review --target liked --buckets 2000000000", "at most"),
        ("--text review --target liked --buckets 1", "buckets"),
        ("--text review --target liked --length 0", "length"),
        ("--text review --target liked --model text-transformer", "no order"),
        ("--text review --target liked --model logistic", "bags of words; use text-linear or text-embedding"),
        ("--text review --target liked --words w.txt --pairs", "pairs are for hashed words"),
        ("--target liked --buckets 9", "--text"),
        ("--target liked --pairs", "--text"),
        ("--target liked --words w.txt", "--text"),
        ("--text review --target liked --recipe best", "recipe"),
        ("--text liked --target liked", "text and target are the same column"),
        ("--text review --target liked --unit review", "text and unit are the same column"),
        ("--text review --target liked --method counted-rows", "Say how many rows to train"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence_before_anything_is_spent(
    tacit: Tacit, reviews: Path, tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "w.txt").write_text("good\n")
    assert said in tacit(f"train reviews.csv {line} --out run").sentence
    assert not Path("run").exists()


def test_what_looks_odd_in_the_rows_is_said_before_training(tacit: Tacit, tmp_path: Path) -> None:
    answers = ["good", "bad", "so so"] * 40
    answers[:5] = ["", "NA", "strange", "", ""]
    rows = [f"{'...' if row % 3 else 'nice'},writer{row % 30},{one}" for row, one in enumerate(answers)]
    (tmp_path / "odd.csv").write_text("\n".join(["review,author,said", *rows]))
    line = "train odd.csv --text review --target said --epsilon 3 --dry-run"
    shown = " ".join(tacit(line).out.replace("\n# ", " ").split())
    assert "4 of 120 rows have no answer in the target 'said' and are left out." in shown
    assert "fewer than 10 rows cannot be learnt: 'strange'" in shown
    assert "say --unit 'author'" in shown
    assert "texts to train on have no word in them" in shown
    assert "say --unit" not in tacit(f"{line} --unit author").out


def test_few_units_are_not_said_to_be_few_rows(tacit: Tacit, tmp_path: Path) -> None:
    rows = [f"word{row},{row % 2 + 7},{'yes' if row % 3 else 'no'}" for row in range(90)]
    (tmp_path / "two.csv").write_text("\n".join(["review,author,liked", *rows]))
    said = tacit("train two.csv --text review --target liked --unit author").sentence
    assert "too few different values of 'author'" in said
    assert "--held-out 0" in said


def test_a_vocabulary_larger_than_memory_is_refused(
    tacit: Tacit, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    real = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 1000 if name == "SC_PHYS_PAGES" else real(name))
    said = tacit("train reviews.csv --text review --target liked --out run").sentence
    assert "262,144 rows" in said
    assert "--buckets" in said
    assert not Path("run").exists()


def test_ids_that_the_table_does_not_have_are_refused(tacit: Tacit, reviews: Path) -> None:
    assert tacit(f"train reviews.csv {QUICK} --out run").code == 0
    model = load("run")
    ids = torch.zeros(2, 32, dtype=torch.int64)
    assert len(model.predict(ids)) == 2
    for wrong in (4096, -1):
        ids[1, 3] = wrong
        with pytest.raises(Exception, match="0 to 4,095"):
            model.predict(ids)


@pytest.mark.parametrize("wrong", [50, -1])
def test_a_task_whose_ids_go_past_its_vocabulary_is_refused_before_anything_is_spent(
    tacit: Tacit, tmp_path: Path, wrong: int
) -> None:
    """Even if one example of many holds such an id, which no probe need meet."""
    (tmp_path / "mytexts.py").write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "from tacit.data import Task\n"
        "ids, y = torch.randint(1, 50, (400, 6)), torch.randint(2, (400, 1)).float()\n"
        f"ids[-1, -1] = {wrong}\n"
        "task = Task('mine', TensorDataset(ids, y), None, 'binary', (6,), ('no', 'yes'), vocabulary=50)\n"
    )
    assert "token ids are 0 to 49" in tacit("train mytexts:task --out run").sentence
    assert not Path("run").exists()


def test_the_classes_of_texts_may_be_many(tacit: Tacit, tmp_path: Path) -> None:
    with (tmp_path / "news.csv").open("w") as file:
        file.write("text,topic\n")
        for row in range(300):
            file.write(f"{('ball goal', 'vote law', 'star moon')[row % 3]} w{row % 50},{'abc'[row % 3]}\n")
    done = tacit(
        "train news.csv --text text --target topic --epsilon 30 --buckets 999 --length 16 --quiet --out r --json"
    )
    assert done.code == 0, done
    assert done.json["held_out"]["accuracy"] > 0.8
    assert list(load("r").predict(["star moon", "vote law"]).predicted) == ["c", "b"]


def test_several_runs_and_parts_of_texts_can_be_compared(tacit: Tacit, reviews: Path) -> None:
    done = tacit(f"train reviews.csv {QUICK} --folds 2 --out folds --json")
    assert done.code == 0, done
    assert len(done.json["runs"]) == 2
    assert tacit("data show reviews.csv --text review --target liked --json").code == 0
