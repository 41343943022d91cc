"""Whatever a file holds, its reader gives a value or raises an error of Tacit's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.fuzz.mutation import ODD, mutated
from tools.fuzz.packing import as_ledger, as_tensors
from tools.fuzz.readers import Reader, attempt, make_readers

from fuzz.effort import tries
from tacit.files import decode_json, decode_toml

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return make_readers(tmp_path_factory.mktemp("seeds"))


def test_every_seed_is_accepted(readers: dict[str, Reader], tmp_path: Path) -> None:
    for name, reader in readers.items():
        assert attempt(reader, reader.seed, tmp_path), name


def test_an_error_that_is_not_ours_is_seen(tmp_path: Path) -> None:
    def careless(path: Path) -> object:
        return path.read_bytes()[3]

    with pytest.raises(IndexError):
        attempt(Reader("x", careless, b"four"), b"", tmp_path)


@tries(300)
@given(st.randoms(use_true_random=False), st.data())
def test_records_with_one_thing_wrong(
    readers: dict[str, Reader], tmp_path: Path, random: Random, data: st.DataObject
) -> None:
    reader = readers[data.draw(st.sampled_from([n for n, r in readers.items() if r.record is not None]))]
    record = mutated(reader.record, random)
    attempt(reader, reader.pack(record), tmp_path)


@tries(300)
@given(st.data(), st.integers(0, 10**6), st.binary(max_size=8), st.integers(0, 8))
def test_files_with_bytes_wrong(
    readers: dict[str, Reader], tmp_path: Path, data: st.DataObject, at: int, put: bytes, dropped: int
) -> None:
    reader = readers[data.draw(st.sampled_from(list(readers)))]
    at %= len(reader.seed) + 1
    attempt(reader, reader.seed[:at] + put + reader.seed[at + dropped :], tmp_path)


# What fuzzing has found ---------------------------------------------------------------------------------


DEEP = b"[" * 100_000
FOUND = {
    "plan": [DEEP, b'{"format":"tacit-plan","version":1,"epsilon":' + b"9" * 400 + b"}"],
    "certificate": [DEEP],
    "experiment": [DEEP, b'{"training":{"learning_rate":1' + b"0" * 400 + b"}}"],
    "configuration": [
        b"a = " + DEEP,
        b"[training]\nlearning_rate = 1" + b"0" * 400,
        b"[data]\nsource = [" * 3,
    ],
    "schema in TOML": [b"a = " + DEEP, b'[target]\nname = "y"\nlow = 1' + b"0" * 400],
    "metrics": [b'\xff\xfe{"step": 1}', DEEP],
    "question": [DEEP],
}


@pytest.mark.parametrize("name", FOUND)
def test_what_once_went_wrong(readers: dict[str, Reader], tmp_path: Path, name: str) -> None:
    for content in FOUND[name]:
        accepted = attempt(readers[name], content, tmp_path)
        assert accepted == (name == "metrics")


@pytest.mark.parametrize(
    ("field", "value"),
    [("epsilon", -1e5), ("epsilon_spent", -1), ("delta", 2), ("delta", True), ("run", 7), ("phases", [{}])],
)
def test_a_certificate_with_an_impossible_figure(
    readers: dict[str, Reader], tmp_path: Path, field: str, value: object
) -> None:
    reader = readers["certificate"]
    assert not attempt(reader, reader.pack({**reader.record, field: value}), tmp_path)


def test_a_certificate_that_spent_no_number_does_not_verify(
    readers: dict[str, Reader], tmp_path: Path
) -> None:
    reader = readers["certificate"]
    content = reader.seed.replace(
        b'"epsilon_spent": ' + str(reader.record["epsilon_spent"]).encode(), b'"epsilon_spent": NaN'
    )
    assert content != reader.seed
    assert not attempt(reader, content, tmp_path)


def test_a_ledger_line_with_two_digests(readers: dict[str, Reader], tmp_path: Path) -> None:
    lines = [{**readers["ledger"].record[0], "digest": ["x"]}, *readers["ledger"].record[1:]]
    assert not attempt(readers["ledger"], as_ledger(lines), tmp_path)


@pytest.mark.parametrize("value", [10**400, True, "1", None, [1.0]])
def test_a_charge_with_a_noise_multiplier_that_is_none(
    readers: dict[str, Reader], tmp_path: Path, value: object
) -> None:
    header, first, *_ = readers["ledger"].record
    charge = {**first["charge"], "noise_multiplier": value}
    assert not attempt(readers["ledger"], as_ledger([header, {"charge": charge}]), tmp_path)


def test_records_of_a_client_without_a_dimension(readers: dict[str, Reader], tmp_path: Path) -> None:
    record = {"tensors": {name: {"dtype": "F32", "shape": []} for name in "xy"}, "metadata": {}}
    assert not attempt(readers["records"], as_tensors(record), tmp_path)


# Strict decoding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "-Infinity",
        "1e999",
        "1" + "0" * 30,
        '"\\ud800"',
        '{"a":1,"a":2}',
        '[{"\\udfff":1}]',
        "[" * 9999,
    ],
)
def test_json_that_no_reader_should_see(text: str) -> None:
    with pytest.raises(ValueError):
        decode_json(text)


def test_json_that_is_fine() -> None:
    assert decode_json('{"a": [1, -2.5e3, "\\ud83d\\ude00", null, true, 18446744073709551615]}') == {
        "a": [1, -2500.0, "😀", None, True, 2**64 - 1]
    }
    with pytest.raises(ValueError):
        decode_json(b"\xff")


def test_toml_that_no_reader_should_see() -> None:
    for text in ("a = 1" + "0" * 30, "a = " + "[" * 9999, "[a]\nb = {c = [-" + "9" * 30 + "]}", "a ="):
        with pytest.raises(ValueError):
            decode_toml(text)
    assert decode_toml("a = inf\nb = 3") == {"a": float("inf"), "b": 3}


def test_mutation_changes_something_and_leaves_the_original() -> None:
    record = {"a": [1, 2, {"b": "c"}], "d": None}
    kept = {"a": [1, 2, {"b": "c"}], "d": None}
    found = [mutated(record, Random(seed)) for seed in range(200)]
    assert record == kept
    assert sum(one != kept for one in found) > 150
    assert len({repr(one) for one in found}) > 50
    assert mutated(3, Random(0)) in ODD


# Guided by coverage -------------------------------------------------------------------------------------


def test_a_few_seconds_of_guided_fuzzing(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has no wheel here")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tools.fuzz",
            "--seconds",
            "3",
            "--seed",
            "1",
            "--keep",
            str(tmp_path / "keep"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, ["src", os.environ.get("PYTHONPATH")])),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "keep").iterdir()) == []
    units = [line for line in done.stderr.splitlines() if line.startswith("stat::number_of_executed_units")]
    assert int(units[0].split()[-1]) > 20


def test_the_harness_fails_when_a_reader_does(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has no wheel here")
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import runpy, sys\n"
        "import tacit.data.table_file as readers\n"
        "def careless(path):\n"
        "    raise IndexError\n"
        "readers.read_idx = careless\n"
        "sys.argv = ['fuzz', *sys.argv[1:]]\n"
        "runpy.run_module('tools.fuzz', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, str(broken), "--seconds", "60", "--seed", "1", "--keep", str(tmp_path / "keep")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert "IndexError" in done.stdout + done.stderr
    assert len(list((tmp_path / "keep").iterdir())) == 1
