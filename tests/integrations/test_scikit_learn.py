"""The estimators, in what scikit-learn's own checks do not ask about: privacy, names, mixed columns."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tacit
from tacit import PrivateClassifier, PrivateRegressor
from tacit.data import Category, Number, Schema, Target
from tacit.data.encode import encode
from tacit.data.frames import table_of
from tacit.data.table_file import read_columns
from tacit.errors import ArgumentError, FileError, TacitError
from tacit.jobs.prediction import load
from tacit.runs.layout import SCHEMA_FILE

pytestmark = pytest.mark.filterwarnings(
    "ignore:Types, ranges or classes:UserWarning",
    "ignore:Column .* far from all its other values:UserWarning",
)
FEW = {"training": {"epochs": 20.0}}
"""Some forty steps on the small tables here."""


def people(rows: int = 400, seed: int = 0) -> tuple[Any, Any]:
    """A frame with a number, a category, a day and gaps; who is older than 50 or lives in b says yes."""
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(seed)
    age = draw.integers(18, 90, rows).astype(float)
    town = draw.choice(["a", "b", "c"], rows)
    frame = pandas.DataFrame(
        {
            "age": np.where(draw.random(rows) < 0.05, np.nan, age),
            "town": pandas.Categorical(town),
            "since": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(draw.integers(0, 900, rows), "D"),
            "weight": draw.normal(70, 10, rows),
            "member": draw.random(rows) < 0.5,
        }
    )
    return frame, np.where((age > 50) | (town == "b"), "yes", "no")


def test_columns_of_a_frame_are_read_as_those_of_a_file(tmp_path: Path) -> None:
    frame, _ = people()
    frame.to_csv(tmp_path / "people.csv", index=False)
    fitted = PrivateClassifier(settings=FEW, random_state=0).fit(*people())
    told = {name: type(column).__name__ for name, column in fitted.schema_.columns.items()}
    assert told == {
        "age": "Number",
        "town": "Category",
        "since": "Date",
        "weight": "Number",
        "member": "Category",
    }
    from_file, from_frame = read_columns(tmp_path / "people.csv"), table_of(frame, list(frame.columns))
    assert np.array_equal(encode(from_file, fitted.schema_).x, encode(from_frame, fitted.schema_).x)


def test_mixed_columns_are_learned_from_and_unseen_values_answered() -> None:
    frame, y = people(2000)
    fitted = PrivateClassifier(3.0, random_state=0).fit(frame, y)
    new, truth = people(500, seed=1)
    assert fitted.score(new, truth) > 0.85
    new["town"] = "elsewhere"
    new.loc[0, "age"] = 1e9
    assert np.isfinite(fitted.predict_proba(new)).all()
    new["weight"] = new["weight"].astype(object)
    new.loc[3, "weight"] = "heavy"
    with pytest.warns(UserWarning, match="'weight' that are no number"):
        assert np.isfinite(fitted.predict_proba(new)).all()
    assert list(fitted.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(new.rename(columns={"age": "years"}))


def test_probabilities_decisions_and_answers_agree() -> None:
    frame, y = people()
    fitted = PrivateClassifier(settings=FEW, random_state=0).fit(frame, y)
    shares, decided = fitted.predict_proba(frame), fitted.decision_function(frame)
    assert shares.sum(axis=1) == pytest.approx(np.ones(len(frame)))
    assert shares[:, 1] == pytest.approx(1 / (1 + np.exp(-decided)))
    assert (fitted.predict(frame) == np.where(decided > 0, "yes", "no")).all()


def test_epsilon_is_spent_and_the_certificate_is_there(tmp_path: Path) -> None:
    frame, y = people()
    with pytest.warns(UserWarning, match="read off the private rows"):
        fitted = PrivateClassifier(1.0, settings=FEW, run_dir=tmp_path / "run").fit(frame, y)
    assert 0.9 < fitted.epsilon_ <= 1.0
    assert fitted.plan_.epsilon == 1.0
    assert fitted.certificate_ is not None
    assert fitted.certificate_.for_release
    assert fitted.certificate_.epsilon_spent == pytest.approx(fitted.epsilon_)
    assert tacit.verify(tmp_path / "run").for_release
    assert (tmp_path / "run" / SCHEMA_FILE).is_file()
    with pytest.raises(FileError, match="already exists"):
        fitted.fit(frame, y)


def test_a_seeded_fit_repeats_and_is_not_for_release(tmp_path: Path) -> None:
    frame, y = people()
    one = PrivateClassifier(settings=FEW, random_state=7, run_dir=tmp_path / "run").fit(frame, y)
    two = PrivateClassifier(settings=FEW, random_state=7).fit(frame, y)
    assert np.array_equal(one.decision_function(frame), two.decision_function(frame))
    assert one.certificate_ is not None
    assert not one.certificate_.for_release
    three, four = (PrivateClassifier(settings=FEW).fit(frame, y) for _ in range(2))
    assert not np.array_equal(three.decision_function(frame), four.decision_function(frame))


def test_a_fitted_model_is_carried_elsewhere_without_the_rows() -> None:
    frame, y = people(3000)
    fitted = PrivateClassifier(settings=FEW, random_state=0).fit(frame, y)
    packed = pickle.dumps(fitted)
    assert len(packed) < 60_000  # three thousand rows would need more
    assert np.array_equal(pickle.loads(packed).predict_proba(frame), fitted.predict_proba(frame))


def test_clones_pipelines_and_cross_validation_work() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 4))
    y = (x[:, 0] > 0).astype(int)
    estimator = PrivateClassifier(8.0, settings=FEW, random_state=0)
    assert clone(estimator).get_params() == estimator.get_params()
    assert clone(estimator).set_params(epsilon=1.0).epsilon == 1.0
    chained = make_pipeline(StandardScaler(), estimator)
    assert cross_val_score(chained, x, y, cv=2).min() > 0.7


def test_public_facts_leave_nothing_to_be_read_off_the_rows() -> None:
    frame, y = people()
    columns = {"town": Category(("a", "b", "c")), "member": Category(("False", "True"))}
    schema = Schema(Target("says", "binary", ("no", "yes")), columns)
    fitted = PrivateClassifier(
        schema=schema, ranges={"age": (18, 90), "weight": (30, 150)}, settings=FEW, random_state=0
    ).fit(frame.drop(columns="since"), y)
    assert not any("read off" in sentence for sentence in fitted.not_covered_)
    assert fitted.schema_.columns["age"] == Number(18.0, 90.0)
    assert list(fitted.classes_) == ["no", "yes"]


def test_one_range_may_serve_all_columns_of_a_matrix() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    fitted = PrivateRegressor(ranges=(-3, 3), target_range=(-1, 1), settings=FEW, random_state=0).fit(
        x, np.tanh(x[:, 0])
    )
    assert not any("read off" in sentence for sentence in fitted.not_covered_)
    assert fitted.schema_.columns == {name: Number(-3.0, 3.0) for name in ("x0", "x1", "x2")}
    assert fitted.schema_.target.range == (-1.0, 1.0)


def test_a_target_that_nobody_declares_is_named_as_not_covered() -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    fitted = PrivateClassifier(ranges=(-3, 3), settings=FEW, random_state=0).fit(x, x[:, 0] > 0)
    assert [sentence for sentence in fitted.not_covered_ if "read off" in sentence] == [
        "The kind and the classes of the target 'target': read off the private rows."
    ]


def test_regression_answers_on_the_scale_of_the_rows() -> None:
    x = np.random.default_rng(0).uniform(size=(2000, 2))
    y = 1000 + 500 * x[:, 0]
    fitted = PrivateRegressor(3.0, random_state=0).fit(x, y)
    assert fitted.score(x, y) > 0.8


def test_several_classes_and_other_models_and_methods_are_possible() -> None:
    x = np.random.default_rng(0).normal(size=(600, 3))
    y = np.array(["low", "mid", "high"])[np.digitize(x[:, 0], [-0.5, 0.5])]
    settings = {"training": {"epochs": 20.0}, "method": {"name": "tp-topk", "active_ratio": "soft"}}
    fitted = PrivateClassifier(8.0, model="mlp", settings=settings, random_state=0).fit(x, y)
    assert fitted.predict_proba(x).shape == (600, 3)
    assert [phase.name for phase in fitted.plan_.phases] != ["dense"]
    assert set(fitted.predict(x)) <= {"low", "mid", "high"}


def test_a_known_share_of_positives_moves_the_threshold() -> None:
    frame, y = people()
    rare = {"training": {"epochs": 20.0}, "data": {"prevalence": 0.1}}
    fitted = PrivateClassifier(settings=rare, random_state=0).fit(frame, y)
    share = fitted.predict_proba(frame)[:, 1]
    assert ((fitted.predict(frame) == "yes") == (share > 0.1)).all()


def test_rows_of_one_group_are_protected_together(tmp_path: Path) -> None:
    frame, y = people(600)
    owner = np.repeat([f"person {place}" for place in range(300)], 2)
    estimator = PrivateClassifier(3.0, settings=FEW, run_dir=tmp_path / "run")
    fitted = estimator.fit(frame, y, groups=owner)
    assert fitted.plan_.examples == 300
    assert fitted.certificate_ is not None
    assert "one value of 'groups'" in fitted.certificate_.unit
    assert "groups" not in fitted.schema_.columns
    assert fitted.predict(frame).shape == (600,)
    with pytest.raises(ArgumentError, match="the same value everywhere"):
        PrivateClassifier().fit(frame, y, groups=np.zeros(600))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ranges": {"height": (0, 2)}}, "has no column 'height'"),
        ({"ranges": {"age": (0,)}}, "must be two numbers"),
        ({"ranges": {"age": (0, 99)}, "schema": {"age": Number(0, 99)}}, "declare it once"),
        ({"schema": Schema(Target("age", "binary", ("no", "yes")))}, "among the columns of X"),
        ({"schema": Schema(Target("says", "binary", ("no", "perhaps")))}, "none of the declared classes"),
        ({"schema": Schema(Target("says", "regression", low=0, high=1))}, "is not for it"),
        ({"settings": {"training": {"batchsize": 3}}}, "did you mean 'batch_size'"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_mistakes_get_a_sentence_before_anything_is_spent(
    options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    frame, y = people()
    with pytest.raises(ArgumentError, match=sentence):
        PrivateClassifier(run_dir=tmp_path / "run", **options).fit(frame, y)
    assert not (tmp_path / "run").exists()


def test_bad_rows_get_a_sentence() -> None:
    x, y = np.zeros((20, 2)), np.arange(20) % 2
    with pytest.raises(ValueError, match="No column"):
        PrivateClassifier().fit(x, y)
    x[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        PrivateClassifier().fit(x, y)
    with pytest.raises(ValueError, match="one class"):
        PrivateClassifier().fit(np.eye(20), np.ones(20))
    with pytest.raises(TypeError, match="string or a number"):
        PrivateClassifier().fit(np.array([[{}], [1]], dtype=object), [0, 1])


def test_a_run_in_memory_says_that_its_rows_cannot_be_loaded_again(tmp_path: Path) -> None:
    from tacit.jobs.run import reload

    frame, y = people()
    PrivateClassifier(settings=FEW, random_state=0, run_dir=tmp_path / "run").fit(frame, y)
    with pytest.raises(ArgumentError, match="rows in memory"):
        reload(tmp_path / "run")


def test_scikit_learn_is_loaded_only_when_it_is_used() -> None:
    code = "import sys, tacit\nassert 'PrivateClassifier' in dir(tacit)\nsys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def wide(rows: int = 600) -> tuple[Any, Any]:
    """Rows of a wide sparse matrix, in which two columns decide."""
    x = sparse.random(rows, 5_000, 0.002, format="csr", random_state=0).tolil()
    y = np.arange(rows) % 2
    x[np.flatnonzero(y == 1), 17] = 3.0
    x[np.flatnonzero(y == 0), 4_999] = 3.0
    return x.tocsr(), y


def test_a_sparse_matrix_gets_a_linear_model_of_its_columns(tmp_path: Path) -> None:
    x, y = wide()
    fitted = PrivateClassifier(8.0, random_state=0, run_dir=tmp_path / "run").fit(x, y)
    assert fitted.settings_.model.name == "sparse-linear"
    assert fitted.n_features_in_ == 5_000
    assert fitted.score(x, y) > 0.9
    assert fitted.epsilon_ <= 8.0
    assert fitted.certificate_ is not None
    assert any("a vocabulary" in sentence for sentence in fitted.not_covered_)
    # How a matrix is stored, and what stands beside a row, changes no answer.
    assert np.allclose(fitted.predict_proba(x[:5].tocoo()), fitted.predict_proba(x)[:5])
    assert fitted.predict_proba(sparse.csr_array((2, 5_000))).shape == (2, 2)
    with pytest.raises(ArgumentError, match="reads rows of a sparse matrix"):
        load(tmp_path / "run").predict(np.zeros((2, 512), np.int64))


def test_sparse_rows_of_one_group_are_protected_together_and_other_methods_work() -> None:
    x, y = wide(300)
    fitted = PrivateClassifier(
        8.0, settings={"method": {"name": "counted-rows", "rows": 50}}, random_state=0
    ).fit(x, y % 3, groups=np.arange(300) // 3)
    assert fitted.predict(x[:4]).shape == (4,)
    assert fitted.plan_.examples == 100


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (["P1", "p1 "], "may be one person but would be two units"),
        (["07", "7"], "may be one person but would be two units"),
        (["", "p1"], "is missing"),
        ([0.1 + 0.2, 0.3], "real numbers"),
        ([None, "p1"], "is missing"),
    ],
)
def test_ids_of_sparse_rows_are_judged_as_those_of_tables(first: list[Any], words: str) -> None:
    """One person who is spelled in two ways would be two units, and lose twice what is stated."""
    x, y = wide(60)
    more = (
        [float(place) for place in range(28)] if isinstance(first[0], float) else [f"q{n}" for n in range(28)]
    )
    groups = np.array([*first, *more] * 2, None if isinstance(first[0], float) else object)
    dense = np.random.default_rng(0).normal(size=(60, 3))
    for rows in (x, dense):
        with pytest.raises(ArgumentError, match=words):
            PrivateClassifier(8.0, ranges=None if rows is x else (-3, 3)).fit(rows, y, groups=groups)


def test_bad_sparse_rows_get_a_sentence() -> None:
    x, y = wide(50)
    for estimator, rows, answers, words in (
        (PrivateClassifier(ranges=(0, 1)), x, y, "for tables"),
        (PrivateClassifier(), x[:1], y[:1], "needs 2"),
        (PrivateClassifier(), x, y * 0, "one class"),
        (PrivateClassifier(), x, y[:3], "inconsistent"),
        (PrivateClassifier(), x * np.nan, y, "finite"),
        (PrivateClassifier(model="text-mean"), x, y, "use sparse-linear"),
        (PrivateClassifier(model="mlp"), x, y, "token ids"),
        (PrivateClassifier(settings={"data": {"unit": "person"}}), x, y, "give groups to fit"),
        (PrivateRegressor(), x, y, "X is sparse"),
    ):
        with pytest.raises(TacitError, match=words):
            estimator.fit(rows, answers)
    fitted = PrivateClassifier(settings=FEW, random_state=0).fit(x, y)
    with pytest.raises(ArgumentError, match="fitted on a sparse matrix"):
        fitted.predict(x.toarray())
    with pytest.raises(ValueError, match="5000 features"):
        fitted.predict(x[:, :7])
    dense = PrivateClassifier(200.0, settings=FEW, random_state=0, ranges=(0, 3)).fit(x[:, :20].toarray(), y)
    with pytest.raises(ArgumentError, match="fitted on a table"):
        dense.predict(x[:, :20])


def test_rows_without_an_answer_are_refused_in_a_sentence() -> None:
    answers = np.array(["yes", "no"] * 20, dtype=object)
    answers[3] = None
    with pytest.raises(ArgumentError, match="y holds None"):
        PrivateClassifier(epsilon=1).fit(np.arange(80.0).reshape(40, 2), answers)
