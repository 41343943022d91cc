from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from typer.main import get_command

from cli.conftest import Tacit
from tacit.cli.main import COMMANDS, app
from tacit.plan import load_plan, make_plan


def test_plan_prints_what_make_plan_makes(tacit: Tacit) -> None:
    line = (
        "plan --method tp-topk --epsilon 3 --delta 1e-5 --examples 50000 --batch-size 1000 --epochs 40 "
        "--active-ratio 0.4 --json"
    )
    found = tacit(line).json
    made = make_plan(
        "tp-topk", epsilon=3, delta=1e-5, examples=50_000, batch_size=1000, epochs=40, active_ratio=0.4
    )
    assert (found["epsilon"], found["delta"], found["steps"]) == (3, 1e-5, 2000)
    assert [phase["name"] for phase in found["phases"]] == ["warm-up", "sparse"]
    for phase, expected in zip(found["phases"], made.phases, strict=True):
        assert phase["steps"] == expected.steps
        assert phase["sampling_rate"] == 0.02
        assert phase["clip_norm"] == 1
        assert phase["noise_multiplier"] == expected.noise_multiplier
    assert found["phases"][0]["epsilon_after"] == pytest.approx(0.9, abs=0.01)
    assert found["phases"][1]["epsilon_after"] == found["epsilon_spent"] <= 3


@pytest.mark.parametrize(
    ("options", "supports"),
    [
        ("--method dp-sgd", ["all coordinates"]),
        (
            "--method tp-topk",
            ["all coordinates", "chosen automatically by how far the warm-up moved each coordinate"],
        ),
        (
            "--method rs --active-ratio 0.5",
            ["all coordinates", "75 % of the coord", "50 % of the coord"],
        ),
        (
            "--method on-topk --active-ratio 0.5 --explore 0.2",
            ["by mean squared gradient so far, 20 % of them"],
        ),
    ],
)
def test_plan_as_a_table_names_every_support(tacit: Tacit, options: str, supports: list[str]) -> None:
    done = tacit(f"plan --examples 1000 --batch-size 100 --epochs 3 --accountant rdp {options}")
    assert done.code == 0
    for support in supports:
        assert support in done.out


def test_noise_energy_falls_with_the_active_ratio(tacit: Tacit) -> None:
    line = "plan --examples 1000 --batch-size 100 --epochs 3 --accountant rdp --coordinates 500 --json"
    dense, sparse = tacit(f"{line} --active-ratio 0.1").json["phases"]
    assert dense["noise_energy"] == dense["noise_energy_dense"]
    assert sparse["noise_energy"] == pytest.approx(0.1 * sparse["noise_energy_dense"])
    assert tacit(line).json["phases"][1]["noise_energy"] is None


def test_plan_can_be_saved(tacit: Tacit, tmp_path: Path) -> None:
    done = tacit(
        "plan --examples 1000 --batch-size 100 --epochs 3 --accountant rdp --clip-norm 2,0.5 --out p.json"
    )
    assert done.code == 0
    assert [phase.clip_norm for phase in load_plan(tmp_path / "p.json").phases] == [2, 0.5]


def test_an_infinite_epsilon_is_a_word(tacit: Tacit) -> None:
    found = tacit("plan --examples 1000 --batch-size 100 --epochs 3 --epsilon inf --json").json
    assert found["epsilon"] == found["epsilon_spent"] == "inf"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--epsilon -1", "epsilon must be above 0"),
        ("--epsilon x", "'x' is not a valid float; see tacit plan --help"),
        ("--delta 0.5", "choose a smaller delta"),
        ("--method tp-topp", "did you mean 'tp-topk'"),
        ("--active-ratio much", "--active-ratio takes numbers"),
        ("--warmup 0.3,0.3,0.3", "warmup must be (share of steps, share of epsilon)"),
        ("--warmup 0.3;0.3", "--warmup takes numbers separated by commas"),
        ("--method dp-sgd --reset", "dp-sgd has no option 'reset'"),
        ("--method rs", "rs needs active_ratio"),
        ("--out /dev/null/place.json", "cannot be written"),
        ("--frobnicate", "No such option"),
    ],
)
def test_bad_arguments_are_one_sentence(tacit: Tacit, options: str, words: str) -> None:
    assert words in tacit(f"plan --examples 1000 --batch-size 100 --epochs 3 {options}").sentence


def test_missing_options_are_one_sentence(tacit: Tacit) -> None:
    assert "Say --examples, or --units" in tacit("plan --batch-size 10 --epochs 2").sentence
    assert "Say --examples" in tacit("plan --batch-size 10 --epochs 2 --examples 9 --units 9").sentence
    assert "40 units, batch 10" in tacit("plan --method dp-sgd --batch-size 10 --epochs 2 --units 40").out
    assert "No such command" in tacit("plam").sentence


HEAVY = ("torch", "pandas", "pyarrow", "sklearn", "matplotlib", "cryptography")


@pytest.mark.parametrize(
    ("work", "absent"),
    [
        ("main(['--help'])", (*HEAVY, "numpy", "scipy", "dp_accounting", "tacit.plan", "tacit.jobs")),
        (
            "main('plan --examples 100 --batch-size 10 --epochs 1'.split())",
            (
                *(*HEAVY, "scipy.stats", "scipy.optimize", "dp_accounting"),
                *("tacit.runs", "tacit.data", "tacit.training", "tacit.federated"),
            ),
        ),
        ("import tacit.cli.verify", ("torch", "matplotlib", "tacit.federated")),
        (
            "import tacit.cli.train, tacit.jobs.run, tacit.jobs.setup",
            ("matplotlib", "tacit.federated", "tacit.data.images"),
        ),
    ],
    ids=["help", "plan", "verify", "train"],
)
def test_commands_load_what_they_need_and_no_more(work: str, absent: tuple[str, ...]) -> None:
    """The list of commands loads none of them; planning and verifying load no PyTorch, training nothing federated.

    Planning loads no dp-accounting either, nor what it would load of SciPy.
    """
    code = (
        "import contextlib, sys\nfrom tacit.cli.main import main\nwith contextlib.suppress(SystemExit):\n"
        f"    {work}\nprint([name for name in {absent!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr or done.stdout


def test_the_list_of_commands_says_of_each_how_its_own_help_begins() -> None:
    group = get_command(app)
    assert isinstance(group, click.Group)
    assert list(group.commands)[: len(COMMANDS)] == list(COMMANDS)
    for name, (_, sentence) in COMMANDS.items():
        assert " ".join((group.commands[name].help or "").split("\n\n")[0].split()) == sentence


def test_public_names_are_there() -> None:
    code = "import tacit; [getattr(tacit, name) for name in tacit.__all__]; assert callable(tacit.plan)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
