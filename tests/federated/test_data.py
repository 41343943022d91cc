from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tacit.errors import ArgumentError, FileError
from tacit.federated.check import check_mechanism
from tacit.federated.columns import ADULT, BANK, KDD99, Bins, Category, Number
from tacit.federated.data import FederatedData, encode, load, synthetic
from tacit.federated.simulation import Experiment, split_off_test

needs_data = pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="TACIT_DATA is not set")


def width(columns: tuple[Number | Bins | Category, ...]) -> int:
    return encode([["0"] * len(columns)], columns).shape[1]


def test_dimensions_of_the_paper_s_tables() -> None:
    assert (width(ADULT), width(BANK), width(KDD99)) == (123, 51, 118)


def test_columns_are_encoded_as_declared() -> None:
    columns = (Number("n", 0, 10), Number("l", 0, 9, log=True), Bins("b", (5, 7)), Category("c", ("x", "y")))
    rows = [["5", "0", "5", "y"], ["99", "9", "6", "?"], ["-3", "1", "8", "x"]]
    expected = [
        [0.5, 0, 1, 0, 0, 0, 1],
        [1, 1, 0, 1, 0, 0, 0],
        [0, np.log(2) / np.log(10), 0, 0, 1, 1, 0],
    ]
    np.testing.assert_allclose(encode(rows, columns), expected, rtol=1e-6)


def write(folder: Path, name: str, text: str) -> None:
    (folder / "tabular").mkdir(exist_ok=True)
    (folder / "tabular" / name).write_bytes(gzip.compress(text.encode()))


ADULT_LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, "
    "White, Male, 2174, 0, 40,"
)


def test_adult_files_are_read(tmp_path: Path) -> None:
    write(tmp_path, "adult.data.gz", f"{ADULT_LINE} United-States, <=50K\n\n")
    write(tmp_path, "adult.test.gz", f"|1x3 Cross validator\n{ADULT_LINE} ?, >50K.\n")
    data = load("adult", tmp_path)
    assert data.x.shape == (2, 123)
    np.testing.assert_array_equal(data.x.sum(axis=1), [14, 13])
    np.testing.assert_array_equal(data.y, [-1, 1])


def test_a_line_of_the_wrong_width_is_named(tmp_path: Path) -> None:
    write(tmp_path, "adult.data.gz", f"{ADULT_LINE} United-States, <=50K\n1,2,3\n")
    with pytest.raises(FileError, match="line 2, has 3 fields where 15"):
        load("adult", tmp_path)


def test_a_word_for_a_number_is_named(tmp_path: Path) -> None:
    broken = ADULT_LINE.replace("39", "old", 1)
    write(tmp_path, "adult.data.gz", f"{broken} United-States, <=50K\n")
    write(tmp_path, "adult.test.gz", "")
    with pytest.raises(FileError, match="'age'"):
        load("adult", tmp_path)


def test_missing_files_and_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    with pytest.raises(ArgumentError, match="TACIT_DATA"):
        load("bank")
    with pytest.raises(FileError, match=r"bank-full\.csv\.gz"):
        load("bank", tmp_path)
    write(tmp_path, "bank-full.csv.gz", "")
    (tmp_path / "tabular" / "bank-full.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(FileError, match="cannot be read"):
        load("bank", tmp_path)


@pytest.mark.parametrize("name", ["iris", "syn-L", "syn-X-0.1-0.5", "syn-L-a-b"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError):
        load(name)


def test_synthetic_magnitudes_are_shrunk_as_asked() -> None:
    data = synthetic(4_000, 200, 0.01, 0.9, seed=1)
    scale = data.x.std(axis=0)
    assert 0.8 < np.mean(scale < 0.0105) < 0.98
    assert np.all((scale < 0.0105) | (scale > 0.85))
    assert 0.4 < np.mean(data.y > 0) < 0.6


def test_synthetic_labels_come_from_one_hyperplane() -> None:
    data = synthetic(5_000, 5, 0.5, 0.6, seed=2)
    design = np.asarray(data.x, np.float64) / data.x.std(axis=0)
    weights = np.linalg.lstsq(design, data.y, rcond=None)[0]
    assert np.mean(np.sign(design @ weights) == data.y) > 0.97


def test_synthetic_is_reproducible() -> None:
    a, b, c = (synthetic(50, 10, 0.1, 0.6, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(a.x, b.x)
    assert not np.array_equal(a.x, c.x)


def test_labels_other_than_plus_minus_one_are_refused() -> None:
    with pytest.raises(ArgumentError, match="labels"):
        FederatedData("toy", np.zeros((2, 2), np.float32), np.array([0, 1], np.float32))


@needs_data
@pytest.mark.parametrize(
    ("name", "n", "d", "share"), [("adult", 48_842, 123, 0.2393), ("bank", 45_211, 51, 0.117)]
)
def test_real_tables_have_their_known_sizes(name: str, n: int, d: int, share: float) -> None:
    data = load(name)
    assert data.x.shape == (n, d)
    assert np.mean(data.y > 0) == pytest.approx(share, abs=5e-4)
    assert 0 <= data.x.min() <= data.x.max() <= 1


@pytest.mark.parametrize(
    "use",
    [
        lambda: load("syn-L-0.1-0.6", seed=-1),
        lambda: check_mechanism("exp", 8, 2, 1.0, seed=-1),
        lambda: Experiment("adult", {}, seed=-1),
        lambda: split_off_test(load("syn-L-0.1-0.6"), seed=-1),
    ],
)
def test_a_negative_seed_is_refused(use: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError, match="seed must be a whole number of at least 0, got -1"):
        use()
