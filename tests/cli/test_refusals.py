"""What a newcomer gets wrong: one sentence each, and nothing left behind."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup

from cli.conftest import Tacit
from tacit.cli import main as cli
from tacit.errors import ArgumentError, FileError

FILES = {
    "empty.csv": "",
    "header.csv": "a,y\n",
    "constant.csv": "a,y\n" + "".join(f"{i},yes\n" for i in range(50)),
    "words.csv": "a,y\n" + "".join(f"{i},word {i}\n" for i in range(50)),
    "ragged.csv": "a,y\n1,yes\n2\n",
    "few.csv": "a,y\n1,yes\n2,no\n",
    "binary.csv": "a,y\n\x00\x01,yes\n",
}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train", "Name the data"),
        ("train nowhere.csv --target y", "There is no file, folder or data set 'nowhere.csv'"),
        ("train empty.csv --target y", "empty.csv is empty"),
        ("train header.csv --target y", "has no rows"),
        ("train constant.csv --target y", "'yes' in every row"),
        ("train words.csv --target y", "different values that are no numbers"),
        ("train words.csv --target y --kind regression", "which is no number"),
        ("train words.csv --target y --kind odd", "kind in [data] must be"),
        ("train ragged.csv --target y", "line 3, has 1 fields where 2 were expected"),
        ("train few.csv --target y", "few.csv"),
        ("train orders.csv", "Say --target with one of 'Order No'"),
        ("train orders.csv --target renewd", "no column 'renewd'; its columns are"),
        ("train orders.csv --target renewed --drop cty", "no column 'cty'"),
        ("train orders.csv --target renewed --schema no.toml", "There is no schema file no.toml"),
        ("train orders.csv --target renewed --config no.toml", "no.toml cannot be read"),
        ("train orders.csv --target renewed --model nosuch", "There is no model 'nosuch'"),
        ("train orders.csv --target renewed --model tanh-cnn", "which are no images"),
        ("train orders.csv --target renewed --model mlp --heads 2", "does not take these options: 'heads'"),
        ("train orders.csv --target renewed --width 3", "does not take these options: 'width'"),
        ("train orders.csv --target renewed --epsilon 0", "epsilon must be above 0"),
        ("train orders.csv --target renewed --delta 0.1", "choose a smaller delta"),
        ("train orders.csv --target renewed --batch-size 9999", "larger than the data set"),
        ("train orders.csv --target renewed --epochs 0.001", "make no step"),
        ("train orders.csv --target renewed --learning-rate nan", "learning_rate must be a finite number"),
        ("train orders.csv --target renewed --average 2", "must lie in (0, 1)"),
        ("train orders.csv --target renewed --seed -1", "seed must be a whole number"),
        ("train orders.csv --target renewed --optimizer adam --momentum 0.9", "momentum is for sgd"),
        ("train orders.csv --target renewed --prevalence 2", "prevalence must lie in (0, 1)"),
        ("train orders.csv --target renewed --out orders.csv", "already exists"),
        ("train orders.csv --target renewed --out /proc/no/such", "cannot be made"),
        ("train nhanes --target x", "target is for CSV and Parquet files"),
        ("train mnist --data-dir nowhere", "The data directory"),
        ("train nosuch:thing --kind binary", "cannot be imported"),
        ("verify nowhere", "There is no run directory nowhere"),
        ("diagnose nowhere", "There is no file, folder or data set 'nowhere'"),
        ("compare orders.csv --target renewed --methods magic", "There is no method 'magic'"),
        ("compare orders.csv --target renewed --methods tp-topk:x", "as in tp-topk:0.4"),
        ("compare orders.csv --target renewed --methods dp-sgd,dp-sgd", "each once"),
        ("compare orders.csv --target renewed --epsilons 1;2", "--epsilons takes numbers"),
        ("compare orders.csv --target renewed --seeds 0", "--seeds must be at least 1"),
        ("compare orders.csv --target renewed --methods rs --workers 1", "rs needs active_ratio"),
        ("data schema orders.csv --target renewed --kind odd", "--kind must be one of"),
        ("data schema orders.csv --target renewed --out orders.csv", "orders.csv already exists"),
        ("data show nowhere", "There is no file"),
        ("demo --pairs 1", "--pairs must be at least 2"),
    ],
)
def test_one_sentence_and_nothing_left_behind(tacit: Tacit, orders: Path, line: str, words: str) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text)
    before = {path: path.read_bytes() for path in Path().rglob("*")}
    assert words in tacit(line).sentence
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_that_cannot_be_written(tacit: Tacit, orders: Path) -> None:
    Path("locked").mkdir(mode=0o500)
    assert "cannot be made" in tacit(f"train {orders} --target renewed --out locked/run").sentence


@pytest.mark.parametrize("file", ["experiment.json", "schema.toml", "run.json", "checkpoint.safetensors"])
def test_a_full_disk_before_the_first_release_leaves_nothing(
    tacit: Tacit, orders: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(plain: Callable[[Any, Any], None], source: Any, target: Any) -> None:
        if Path(target).name == file:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        plain(source, target)

    for way in ("replace", "link"):
        monkeypatch.setattr(os, way, functools.partial(full, getattr(os, way)))
    line = "--target renewed --epochs 3 --batch-size 64 --accountant rdp --quiet --out run"
    assert "No space left on device" in tacit(f"train {orders} {line}").sentence
    assert not Path("run").exists()
    Path("run").mkdir()
    assert "No space left on device" in tacit(f"train {orders} {line}").sentence
    assert list(Path("run").iterdir()) == []


def test_a_full_disk_later_on_leaves_a_run_that_resumes(
    tacit: Tacit, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == "model.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        plain(source, target)

    monkeypatch.setattr(os, "replace", full)
    line = "--target renewed --epochs 3 --batch-size 64 --accountant rdp --quiet --out run"
    assert "No space left on device" in tacit(f"train {orders} {line}").sentence
    monkeypatch.undo()
    done = tacit(f"resume {orders.parent / 'run'} --json")
    assert done.json["finished"] is True
    assert tacit(f"verify {orders.parent / 'run'}").code == 0


def test_system_errors_and_interrupts_are_sentences_too(
    tacit: Tacit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(error: BaseException) -> Any:
        def app(*_: Any, **__: Any) -> None:
            raise error

        return app

    monkeypatch.setattr(cli, "app", broken(OSError(errno.EACCES, "Permission denied", "x.csv")))
    assert tacit("plan").sentence == "x.csv: Permission denied."
    monkeypatch.setattr(cli, "app", broken(FileError("One\n  sentence.")))
    assert tacit("plan").sentence == "One sentence."
    monkeypatch.setattr(cli, "app", broken(KeyboardInterrupt()))
    done = tacit("plan")
    assert (done.code, done.err) == (130, "tacit: Interrupted.\n")


def test_an_interrupt_within_a_command_is_told(tacit: Tacit, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TyperGroup, "invoke", interrupted)
    done = tacit("plan")
    assert (done.code, done.err.strip()) == (130, "tacit: Interrupted.")


def test_no_arguments_show_the_help(tacit: Tacit) -> None:
    done = tacit("")
    assert done.code == 2
    assert "Usage: tacit" in done.out + done.err


def test_every_command_has_help_with_an_example(tacit: Tacit) -> None:
    for name in ("plan", "train", "resume", "compare", "diagnose", "verify", "demo"):
        help_text = tacit(f"{name} --help").out
        assert f"tacit {name} " in help_text.split("\n Example")[1] + " "
    for name in ("list", "show", "schema"):
        assert f"tacit data {name}" in tacit(f"data {name} --help").out.split("\n Example")[1]


def test_a_reader_that_has_gone_is_no_error() -> None:
    import subprocess

    code = "import sys; from tacit.cli.main import main; main(['data', 'list', '--json'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    "line",
    [
        "diagnose orders.csv --target renewed",
        "finetune orders.csv --text city --target renewed",
        "compare orders.csv --target renewed --methods dp-sgd --epsilons 3",
        "demo",
    ],
)
def test_commands_that_train_in_one_process_are_refused_under_torchrun(
    tacit: Tacit, orders: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Each process would train a model of its own on the same data, and certify it as if it were the only one."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = set(orders.parent.iterdir())
    command = line.split()[0]
    assert tacit(line).sentence == (
        f"tacit {command} trains in one process, and this is one of 2 that were started together; start it without "
        "torchrun, or use tacit train."
    )
    assert set(orders.parent.iterdir()) == before


def test_a_run_started_from_python_is_refused_under_torchrun(
    orders: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tacit.jobs.run import resolve, run_job
    from tacit.jobs.settings import Experiment

    experiment = Experiment()
    job = resolve(replace(experiment, data=replace(experiment.data, source=str(orders), target="renewed")))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for begin in (job, job.experiment, tmp_path / "run"):
        for in_memory in (False, True):
            with pytest.raises(ArgumentError, match="one of 2 that were started together"):
                run_job(begin, tmp_path / "run", in_memory=in_memory)
    assert not (tmp_path / "run").exists()


def test_signs_that_would_steer_a_terminal_are_spelled_out(tacit: Tacit) -> None:
    done = tacit("train '\x1b[31mred.csv' --target y")
    assert done.code == 2
    assert "\x1b" not in done.err
    assert "\\x1b[31mred.csv" in done.err
