"""Any command line ends with exit code 0, or with one sentence and another code: never with a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.fuzz.mutation import mutated
from tools.fuzz.readers import SCHEMA, TABLE
from typer.main import get_command

from fuzz.effort import tries
from tacit.cli.main import app, main
from tacit.errors import TacitError


class ReachedError(TacitError):
    """The arguments were fine: the command has come to its work, which is not done here."""


def reach(*_: Any, **__: Any) -> Any:
    raise ReachedError("The command has come to its work.")


WORK = (
    "tacit.training.trainer.fit",
    "tacit.jobs.comparison.run_cells",
    "tacit.jobs.demo.demonstrate",
    "tacit_papers.fedsel.reproduce.reproduce",
    "tacit.federated.simulation.cross_validate",
)
if find_spec("flwr") is not None:
    WORK += (
        "tacit.federated.flower.loopback.run_on_loopback",
        "tacit.federated.flower.node.run_node",
        "tacit.federated.flower.loopback.run_in_simulation",
    )


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))
    else:
        yield path, command


ALL = dict(commands(get_command(app)))
FUZZED = [
    ("plan",),
    ("train",),
    ("resume",),
    ("compare",),
    ("diagnose",),
    ("verify",),
    ("report",),
    ("demo",),
    ("data", "list"),
    ("data", "show"),
    ("data", "schema"),
    ("fed", "check"),
    ("fed", "simulate"),
    ("fed", "run"),
    ("fed", "node"),
    ("reproduce", "fedsel"),
]
"""Commands whose work is in WORK, or takes no time."""


def run(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command line as ``tacit`` does; anything but an orderly exit is a failure of the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return code, out.getvalue(), err.getvalue()


def check(arguments: list[str]) -> int:
    code, _, err = run(arguments)
    assert code in (0, 1, 2), (arguments, code)
    assert "Traceback" not in err, (arguments, err)
    if code == 2 and arguments:
        *before, last = err.strip().splitlines()
        assert last.startswith("tacit: "), (arguments, err)
        # A command that has come to its work may have said what it is about to do.
        assert not before or last == "tacit: The command has come to its work.", (arguments, err)
    return code


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that a command has made, with its table beside it."""
    place = tmp_path_factory.mktemp("finished")
    (place / "good.csv").write_text(TABLE)
    options = "--target y --epochs 2 --batch-size 8 --delta 1e-3 --accountant rdp --quiet --active-ratio 0.5"
    with contextlib.chdir(place):
        code, _, err = run(["train", "good.csv", *options.split(), "--out", "run"])
    assert code == 0, err
    return place


@pytest.fixture
def corner(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with good and bad files of every kind; the work of the commands is not done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TACIT_DATA", raising=False)
    for name in WORK:
        monkeypatch.setattr(name, reach)
    shutil.copytree(finished / "run", "run")
    shutil.copytree(finished / "run", "broken")
    Path("broken/ledger.jsonl").write_bytes(b"\x00\xff")
    Path("good.csv").write_text(TABLE)
    Path("bad.csv").write_bytes(b'y,a\n"\xff')
    Path("empty.csv").touch()
    Path("good.toml").write_text('[data]\nsource = "good.csv"\ntarget = "y"\n')
    Path("bad.toml").write_text("[data")
    Path("schema.json").write_text(json.dumps(SCHEMA))
    Path("folder").mkdir()
    return tmp_path


NUMBERS = ["0", "-1", "1", "2", "3", "7", "0.5", "1e-6", "1e12", "inf", "nan", "-inf", "x", "", "1,2", "٣"]
TEXTS = [
    *("good.csv", "bad.csv", "empty.csv", "good.toml", "bad.toml", "schema.json", "folder", "run", "broken"),
    *("nowhere", "/", ".", "", " ", "os:path", "a:b:c", ":", "*", "--", "x" * 300, "é", "\t"),
    *("y", "age", "note", "auto", "0.5", "0.5,0.5", "1,2,3", ",", "pld", "rdp", "binary", "regression"),
    *("dp-sgd", "tp-topk", "on-rand", "rs", "dp-sgd,tp-topk:0.4", "tp-topk:", "logistic", "mlp", "adam"),
    *("squares", "row", "cosine", "*.bias", "ps", "pe", "exp", "pm", "hm", "duchi", "two-stage", "flat"),
    *("syn-L-0.1-0.6", "syn-X", "adult", "svm", "table3", "yes", "no", ";"),
]
COMMON = {
    "examples": ["60", "1000"],
    "batch_size": ["8"],
    "epochs": ["1", "2"],
    "accountant": ["rdp"],
    "source": ["good.csv"],
    "target": ["y"],
    "run": ["run", "broken"],
    "runs": ["run", "broken"],
    "file": ["good.csv"],
    "data": ["syn-L-0.1-0.6"],
    "samples": ["0", "10"],
    "delta": ["1e-3"],
}


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command line: mostly values that make sense, so that what follows the parser is reached too."""
    path = draw(st.sampled_from(FUZZED))
    line = list(path)
    for parameter in ALL[path].params:
        usual = COMMON.get(parameter.name, [])
        if not parameter.required and not usual and draw(st.integers(0, 5)):
            continue
        pool = usual if usual and draw(st.integers(0, 5)) else _pool(parameter)
        value = draw(st.sampled_from(pool))
        if isinstance(parameter, click.Argument):
            line.append(value)
        elif parameter.is_flag:
            line.append(draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts])))
        else:
            line += [parameter.opts[0], value]
    return line


def _pool(parameter: Any) -> list[str]:
    return NUMBERS if parameter.type.name in ("integer", "float") else TEXTS


@tries(120)
@given(line=lines())
def test_any_line_ends_in_order(corner: Path, line: list[str]) -> None:
    check(line)


def test_the_lines_reach_the_work(corner: Path) -> None:
    line = "train good.csv --target y --epochs 2 --active-ratio 0.5 --batch-size 8 --delta 1e-3 --out new"
    _, _, err = run(line.split())
    assert err == "tacit: The command has come to its work.\n"
    assert run(["verify", "run"])[0] == 0
    assert run(["verify", "broken"])[0] == 1


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_refuses_what_it_does_not_know(path: tuple[str, ...]) -> None:
    """For every command there is, those of tomorrow too: nothing of this gets past the parser."""
    assert check([*path, "--no-such-option"]) == 2
    for parameter in ALL[path].params:
        if isinstance(parameter, click.Option) and parameter.type.name in ("integer", "float"):
            assert check([*path, parameter.opts[0], "x"]) == 2
            assert check([*path, parameter.opts[0]]) == 2


FILES = (
    "plan.json",
    "run.json",
    "certificate.json",
    "experiment.json",
    "ledger.jsonl",
    "checkpoint.safetensors",
)


@tries(40)
@given(
    random=st.randoms(use_true_random=False),
    name=st.sampled_from(FILES),
    command=st.sampled_from(["verify", "diagnose", "resume"]),
    structured=st.booleans(),
)
def test_a_run_with_one_file_wrong(
    corner: Path, random: Random, name: str, command: str, structured: bool
) -> None:
    shutil.rmtree("spoilt", ignore_errors=True)
    shutil.copytree("run", "spoilt")
    path = Path("spoilt", name)
    content = path.read_bytes()
    if structured and name.endswith(".json"):
        content = json.dumps(mutated(json.loads(content), random)).encode()
    else:
        at = random.randrange(len(content))
        content = content[:at] + bytes(random.choices(b'"{}[]0,:\x00\xff', k=2)) + content[at + 2 :]
    path.write_bytes(content)
    code = check([command, "spoilt"])
    if (
        command == "verify"
        and name in ("ledger.jsonl", "plan.json")
        and content != Path("run", name).read_bytes()
    ):
        assert code == 1 or json.loads(content) == json.loads(Path("run", name).read_bytes())
