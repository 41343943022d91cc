"""Predictions for new data: the same answers from every form of a model, and no crash on whatever comes."""

from __future__ import annotations

import csv
import random
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.cli.main import main
from tacit.errors import ArgumentError, FileError, TacitError
from tacit.jobs.export import export
from tacit.jobs.run import run_job
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig

HEADER = ["id", 'Age, "years"', "naïve|BMI", "city\n(now)", "joined", "sex", "note", "code", "renewed?"]


def rows(count: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    table = []
    for number in range(count):
        age, bmi, sex = rng.randint(18, 90), round(rng.gauss(27, 5), 2), rng.choice(["m", "f", ""])
        renews = (age - 50) / 15 + (bmi - 27) / 5 + (sex == "m") + rng.gauss(0, 1) > 0
        table.append(
            [
                str(number),
                str(age),
                str(bmi),
                rng.choice(["Köln", "Paris", "Oslo"]),
                str(date(2015, 1, 1) + timedelta(days=rng.randint(0, 3000))),
                sex,
                " ".join(
                    rng.choice(["good", "bad", "late", "often"]) + str(rng.randint(0, 99)) for _ in "abc"
                ),
                rng.choice(["1", "2", "999", "3"]),
                "yes" if renews else "no",
            ]
        )
    return table


HOSTILE = ("", "nan", "NaN", "inf", "-inf", "1e999", "-1e300", "zzz", "0x10", "1,5", "١", "2099-12-31", "31.12.2020",
           "\x00", "' OR 1=1", "🙂" * 50, "1_000", "-0.0", "true", "None", "  m  ", "1" * 400)  # fmt: skip


def hostile_rows(count: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    table = rows(count, seed)
    for row in table:
        for place in range(len(row)):
            if rng.random() < 0.2:
                row[place] = rng.choice(HOSTILE)
    return table


def write(path: Path, table: list[list[str]], header: list[str] = HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(header)
        out.writerows(table)
    return path


def train(folder: Path, source: Path, name: str, model: str | None = None, **data: Any) -> Path:
    experiment = Experiment(
        data=DataConfig(str(source), **data),
        model=ModelConfig(name=model),
        method=MethodConfig("dp-sgd"),
        privacy=PrivacyConfig(epsilon=8, accountant="rdp"),
        training=TrainingConfig(batch_size=64, epochs=2.0, seed=1),
    )
    run_job(experiment, folder / name, progress=False)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prediction")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    source = write(folder / "train.csv", rows(600, 1))
    path = train(folder, source, "run", target="renewed?", statistics="rows")
    source.unlink()  # nobody needs it any more
    return path


@pytest.fixture(scope="module")
def bundle(folder: Path, run: Path) -> Path:
    export(run, folder / "model.tacit", "tacit")
    return folder / "model.tacit"


@pytest.fixture(scope="module")
def new(folder: Path) -> Path:
    return write(folder / "new.csv", hostile_rows(10_000, 2))


def test_run_bundle_frame_dictionary_and_every_kind_of_file_agree(run: Path, bundle: Path, new: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    predictor = tacit.load(run)
    found = predictor.predict(new)
    frame = pandas.DataFrame(
        hostile_rows(10_000, 2), columns=HEADER
    )  # read_csv once took a null byte for nothing
    assert len(found) == 10_000
    assert np.isfinite(found.scores).all()
    for other in (
        tacit.load(bundle).predict(new),
        predictor.predict(frame),
        predictor.predict({name: frame[name].tolist() for name in frame.columns}),
        predictor.predict(frame.drop(columns=["renewed?", "id"])),
    ):
        assert np.abs(other.scores - found.scores).max() < 1e-6
        assert other.predicted.tolist() == found.predicted.tolist()


def test_typed_frames_and_excel_and_parquet_are_read_as_the_csv_is(run: Path, folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    plain = write(folder / "plain.csv", rows(300, 3))
    predictor = tacit.load(run)
    expected = predictor.predict(plain).scores
    frame = pandas.read_csv(plain)
    frame["joined"] = pandas.to_datetime(frame["joined"])
    frame["sex"] = frame["sex"].astype("category")
    frame.to_excel(folder / "plain.xlsx", index=False)
    frame.to_parquet(folder / "plain.parquet")
    frame.to_csv(folder / "index.csv")  # with a first column that has no name
    for data in (frame, folder / "plain.xlsx", folder / "plain.parquet", folder / "index.csv"):
        assert np.abs(predictor.predict(data).scores - expected).max() < 1e-6


def test_graphs_of_onnx_and_torch_export_agree_on_hostile_rows(run: Path, folder: Path, new: Path) -> None:
    predictor = tacit.load(run)
    found, x = predictor.predict(new), predictor.encode(new)
    export(run, folder / "model.pt2", "torch")
    _, probabilities = torch.export.load(folder / "model.pt2").module()(x)
    assert np.abs(probabilities.detach().numpy() - found.probabilities).max() < 1e-6
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    export(run, folder / "model.onnx", "onnx")
    graph = runtime.InferenceSession(str(folder / "model.onnx"))
    score, probability = graph.run(None, {"x": x.numpy()})
    assert np.abs(score[:, 0] - found.scores).max() < 1e-6
    assert np.abs(probability - found.probabilities).max() < 1e-6
    assert graph.get_modelmeta().custom_metadata_map["classes"] == '["no", "yes"]'


def test_what_the_model_does_not_know_is_counted_by_column(run: Path) -> None:
    table = rows(8, 4)
    for place, value in enumerate(["x", "-5", "1e300", "inf", "", "30"]):
        table[place][1] = value
    table[0][3], table[1][3] = "Atlantis", "?"
    table[0][4], table[1][4], table[2][4] = "gestern", "1900-01-01", "2999-01-01"
    columns = {name: [row[place] for row in table] for place, name in enumerate(HEADER)}
    del columns["sex"]
    found = tacit.load(run).predict(columns)
    reports = {report.name: report for report in found.reports}
    age, city, joined = reports['Age, "years"'], reports["city\n(now)"], reports["joined"]
    assert (age.unreadable, age.below, age.above, age.missing) == (2, 1, 1, 1)
    assert (city.unknown, city.missing) == (1, 1)
    assert (joined.unreadable, joined.below, joined.above) == (1, 1, 1)
    assert reports["sex"].absent
    assert reports["note"].remarkable is False
    assert set(found.ignored) == {"id"} - set(tacit.load(run).schema.columns)  # type: ignore[union-attr]
    assert sum("'sex' is not in the data" in remark for remark in found.remarks) == 1
    assert np.isfinite(found.scores).all()


def test_a_cell_that_cannot_be_read_counts_as_missing_and_one_outside_as_the_end(run: Path) -> None:
    predictor = tacit.load(run)
    number = predictor.schema.columns["naïve|BMI"]  # type: ignore[union-attr]
    table = rows(6, 5)
    for row, value in zip(
        table, ("zzz", "", "1e300", repr(number.high), "-1e300", repr(number.low)), strict=True
    ):  # type: ignore[union-attr]
        row[1:] = table[0][1:]
        row[2] = value
    scores = predictor.predict(
        {name: [row[place] for row in table] for place, name in enumerate(HEADER)}
    ).scores
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)
    assert scores[2] == pytest.approx(scores[3], rel=1e-12)
    assert scores[4] == pytest.approx(scores[5], rel=1e-12)
    assert scores[2] != scores[4]


@pytest.mark.parametrize("kind", ["multiclass", "regression"])
def test_other_kinds_answer_in_classes_and_in_the_unit_of_the_target(folder: Path, kind: str) -> None:
    rng = random.Random(7)
    target = (
        (lambda a, b: "abc"[min(2, int(1.5 * (a + b)))])
        if kind == "multiclass"
        else (lambda a, b: str(1000 * (a + b)))
    )
    pairs = [(rng.random(), rng.random()) for _ in range(400)]
    source = write(
        folder / f"{kind}.csv", [[str(a), str(b), target(a, b)] for a, b in pairs], ["a", "b", "y"]
    )
    predictor = tacit.load(train(folder, source, kind, target="y", kind=kind))
    found = predictor.predict({"a": [0.1, 0.9], "b": [0.1, 0.9]})
    if kind == "multiclass":
        assert found.probabilities is not None
        assert found.probabilities.shape == (2, 3)
        assert found.probabilities.sum(1) == pytest.approx([1, 1])
        assert set(found.predicted) <= set("abc")
        assert list(found.columns()) == ["prediction", *(f"probability of {c}" for c in "abc")]
    else:
        assert found.probabilities is None
        assert found.predicted[0] < found.predicted[1]
        assert 0 < found.predicted.mean() < 2500
    assert len(predictor.predict({"a": [], "b": []})) == 0


def test_images_are_read_as_in_training_and_a_broken_one_keeps_its_row(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    rng = np.random.default_rng(0)
    for name, base in (("dark", 40), ("light", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(40):
            pixels = rng.integers(base - 30, base + 30, (20, 20, 3)).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    run = train(tmp_path, tmp_path / "photos", "images", model="logistic", image_size=8, grey=True)
    (tmp_path / "photos" / "dark" / "broken.png").write_bytes(b"no image")
    found = tacit.load(run).predict(tmp_path / "photos")
    assert len(found) == 81
    broken = found.rows.index("dark/broken.png")
    assert found.predicted[broken] == ""
    assert np.isnan(found.scores[broken])
    right = [
        Path(name).parent.name == predicted
        for name, predicted in zip(found.rows, found.predicted, strict=True)
    ]
    assert sum(right) > 70
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(run), str(tmp_path / "photos"), "--out", str(tmp_path / "scores.csv")])
    assert ended.value.code == 0
    with (tmp_path / "scores.csv").open(newline="") as file:
        [cells] = [line for line in csv.reader(file) if "broken" in line[0]]
    assert not any(cells[1:])  # no class, and no number that is none
    export(run, tmp_path / "images.tacit", "tacit")
    again = tacit.load(tmp_path / "images.tacit").predict(tmp_path / "photos")
    assert np.nanmax(np.abs(again.scores - found.scores)) < 1e-6


def test_own_code_is_imported_for_a_run_and_never_for_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_net.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "def net():\n    return torch.nn.Linear(3, 2)\n"
        "x = torch.randn(80, 3)\n"
        "data = (TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:9] + 1, torch.zeros(9).long()))\n"
    )
    experiment = Experiment(
        data=DataConfig("own_net:data", kind="multiclass"),
        model=ModelConfig(name="own_net:net"),
        method=MethodConfig("dp-sgd"),
        privacy=PrivacyConfig(epsilon=8, accountant="rdp", delta=1e-3),
        training=TrainingConfig(batch_size=20, epochs=1.0),
    )
    run_job(experiment, tmp_path / "run", progress=False)
    monkeypatch.chdir("/")
    x = torch.randn(5, 3)
    found = tacit.load(tmp_path / "run").predict(x)
    assert found.classes == ("0", "1")
    with pytest.raises(ArgumentError, match="give a tensor"):
        tacit.load(tmp_path / "run").predict("new.csv")
    export(tmp_path / "run", tmp_path / "own.tacit", "tacit")
    with pytest.raises(ArgumentError, match="code of its author"):
        tacit.load(tmp_path / "own.tacit")
    again = tacit.load(tmp_path / "own.tacit", model=torch.nn.Linear(3, 2)).predict(x)
    assert np.abs(again.scores - found.scores).max() < 1e-6
    with pytest.raises(FileError, match="do not fit"):
        tacit.load(tmp_path / "own.tacit", model=torch.nn.Linear(4, 2))


def test_the_fitted_estimator_serves_scikit_learn(run: Path, folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    frame = pandas.read_csv(write(folder / "score.csv", rows(300, 8)))
    estimator = tacit.load(run).estimator()
    assert estimator.score(frame, frame["renewed?"]) > 0.5
    assert metrics.roc_auc_score(frame["renewed?"] == "yes", estimator.predict_proba(frame)[:, 1]) > 0.7
    with pytest.raises(ArgumentError, match="trained already"):
        estimator.fit(frame, frame["renewed?"])


def test_a_model_or_schema_that_was_exchanged_is_not_used(run: Path, tmp_path: Path) -> None:
    import shutil

    for name, change in (
        ("model.safetensors", None),
        ("schema.toml", "[columns"),
        ("inputs.json", '"kind": "binary"'),
    ):
        copy = tmp_path / name
        shutil.copytree(run, copy)
        if change is None:
            (copy / name).unlink()
        else:
            text = (copy / name).read_text()
            assert change in text
            (copy / name).write_text(text + "\n")
        with pytest.raises(TacitError, match=r"certificate speaks of|no trained model"):
            tacit.load(copy)


def test_predicting_moves_no_random_generator_and_says_what_it_cannot_read(run: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    predictor = tacit.load(run)
    predictor.predict({'Age, "years"': ["30"]})
    assert torch.equal(before, torch.random.get_rng_state())
    for data, words in (
        ({"other": [1]}, "none of the columns"),
        ({}, "at least one"),
        ({"sex": "abc"}, "list of values"),
        ({"sex": ["m"], "joined": []}, "different lengths"),
        ({"sex": np.zeros((2, 2))}, "dimensions"),
        (7, "A table is"),
        (tmp_path / "nowhere.csv", "no file"),
        (torch.zeros(2, 3), "of shape"),
    ):
        with pytest.raises(TacitError, match=words):
            predictor.predict(data)
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileError):
            tacit.load(place)


def test_tables_are_predicted_at_the_speed_that_the_guide_states(run: Path) -> None:
    """A tenth of it, by the processor's clock: the machine may be busy."""
    table = rows(20_000, 9)
    columns = {name: [row[place] for row in table] for place, name in enumerate(HEADER) if name != "note"}
    predictor = tacit.load(run)
    predictor.predict(columns)
    started = time.process_time()
    predictor.predict(columns)
    assert 20_000 / (time.process_time() - started) > 10_000
