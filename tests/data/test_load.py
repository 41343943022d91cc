from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from tacit.data import LOADERS, load
from tacit.data.images import _cifar_mosaics
from tacit.data.task import Task
from tacit.errors import ArgumentError, FileError

ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, "
    "40, Cuba, "
)
BANK_HEADER = (
    '"age";"job";"marital";"education";"default";"balance";"housing";"loan";"contact";"day";"month";"duration";'
    '"campaign";"pdays";"previous";"poutcome";"y"\n'
)


def test_unknown_names_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no data set 'imagenet'; there are 'nhanes'.*'sst2'"):
        load("imagenet")
    with pytest.raises(FileError, match="does not exist"):
        load("mnist", tmp_path / "absent")


@pytest.mark.parametrize("name", sorted(set(LOADERS) - {"nhanes", "digits"}))
def test_absent_files_are_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"not in {tmp_path}"):
        load(name, tmp_path, download=False)


def test_adult_drops_the_remark_and_the_full_stops(tmp_path: Path) -> None:
    folder = tmp_path / "tabular"
    folder.mkdir()
    (folder / "adult.data").write_text(f"{ADULT}<=50K\n{ADULT}>50K\n\n")
    missing = ADULT.replace("State-gov", "?")
    (folder / "adult.test.gz").write_bytes(gzip.compress(f"|1x3 Cross\n{missing}>50K.\n".encode()))
    task = load("adult", tmp_path, download=False)
    assert task.train.tensors[1][:, 0].tolist() == [0, 1]  # type: ignore[attr-defined]
    x, y = task.held_out[0]
    assert y.tolist() == [1]
    assert x[task.features.index("workclass missing")] == 1
    assert x[task.features.index("native-country = Cuba")] == 1


def test_bank_keeps_equal_rows_together(tmp_path: Path) -> None:
    folder = tmp_path / "tabular"
    folder.mkdir()
    rows = "".join(
        f'{20 + i % 50};"student";"single";"primary";"no";{i % 50};"yes";"no";"cellular";5;"may";9;1;-1;0;'
        f'"other";"{"yes" if i % 2 else "no"}"\n'
        for i in range(200)
    )
    (folder / "bank-full.csv").write_text(BANK_HEADER + rows)
    task = load("bank", tmp_path, download=False)
    sides = [{tuple(r) for r in part.tensors[0].tolist()} for part in (task.train, task.held_out)]  # type: ignore[attr-defined]
    assert not sides[0] & sides[1]


SIZES = {
    "mnist": (60_000, 10_000),
    "fmnist": (60_000, 10_000),
    "pneumoniamnist": (4_708, 624),
    "adult": (32_561, 16_281),
    "sst2": (67_349, 872),
}


def sizes(task: Task) -> tuple[int, int]:
    return len(task.train), len(task.held_out)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes(name: str, real_data: Path) -> None:
    assert sizes(load(name, real_data, download=False)) == SIZES[name]


def test_aptos_has_3534_different_images(real_data: Path) -> None:
    task = load("aptos", real_data, download=False)
    images = [{x.numpy().tobytes() for x in part.tensors[0]} for part in (task.train, task.held_out)]  # type: ignore[attr-defined]
    assert sum(sizes(task)) == 3662
    assert not images[0] & images[1]
    assert len(images[0]) + len(images[1]) == 3534


def test_cifar_test_part_is_the_published_one(real_data: Path) -> None:
    part = _cifar_mosaics(real_data, "test")
    assert part is not None
    x, y = part
    records = np.concatenate(
        [y.astype(np.uint8)[:, None], x.transpose(0, 3, 1, 2).reshape(len(x), -1)], axis=1
    )
    digest = hashlib.sha1(records.tobytes(), usedforsecurity=False).hexdigest()
    assert digest == "67eb016db431130d61cd03c7ad570b013799c88c"


def test_kdd99_knows_every_value_of_the_first_rows(real_data: Path, tmp_path: Path) -> None:
    with gzip.open(real_data / "tabular" / "kddcup.data_10_percent.gz", "rt") as file:
        lines = [next(file) for _ in range(20_000)]
    (tmp_path / "tabular").mkdir()
    with gzip.open(tmp_path / "tabular" / "kddcup.data_10_percent.gz", "wt") as file:
        file.writelines(lines)
    task = load("kdd99", tmp_path, download=False)
    x = task.train.tensors[0]  # type: ignore[attr-defined]
    for column in ("protocol_type", "service", "flag"):
        places = [i for i, name in enumerate(task.features) if name.startswith(f"{column} = ")]
        assert (x[:, places].sum(1) == 1).all()
    assert x.abs().max() <= 1
