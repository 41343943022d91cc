"""How many files a newcomer has to cross, and how large the wheel is: python -m tools.measure

Every row is measured in a fresh process. "Entered" counts the files of Tacit in which a function ran, "loaded" those
that were imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tacit"

_COUNTED = """
import json, sys
from pathlib import Path
package = sys.argv[1]
entered = set()
OPTIMIZED = 1  # the flag of a function; bodies of modules and classes, which run when they are loaded, lack it
def note(frame, event, argument):
    code = frame.f_code
    name = code.co_filename
    if event == "call" and name.startswith(package) and code.co_flags & OPTIMIZED and code.co_name[0] != "<":
        entered.add(name)
def counted(work):
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        files = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
        loaded = {file for file in files if file.startswith(package)}
        heavy = [name for name in ("torch", "tacit.federated") if name in sys.modules]
        print("MEASURED" + json.dumps([sorted(entered), sorted(loaded), heavy]))
"""

_COMMAND = """
import contextlib, io
from tacit.cli.main import main
def work():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(sys.argv[2:])
counted(work)
"""

_STEP = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from tacit.losses import binary_cross_entropy
from tacit.plan import make_plan
from tacit.training.trainer import Trainer
data = TensorDataset(torch.randn(64, 5), torch.ones(64, 1))
model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
plan = make_plan("dp-sgd", epsilon=3.0, delta=1e-3, examples=64, batch_size=16, epochs=2, accountant="rdp")
sgd = lambda named: torch.optim.SGD(named, lr=0.1)
steps = Trainer(model, data, binary_cross_entropy, plan, optimizer=sgd).steps()
next(steps)  # the first one also opens the run and checks the model
for _ in range(4):  # others look at the model again, at random; the least is a step by itself
    entered.clear()
    counted(lambda: next(steps))
"""


@dataclass(frozen=True)
class Count:
    """What one process has crossed."""

    entered: list[str]
    loaded: list[str]
    heavy: list[str]


def count(code: str, arguments: list[str], folder: Path) -> Count:
    """Run ``code`` in a fresh process and count."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED + code, str(PACKAGE), *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("MEASURED")]
    if not found:
        raise SystemExit(done.stderr)
    measured = [Count(*json.loads(line.removeprefix("MEASURED"))) for line in found]
    return min(measured, key=lambda one: len(one.entered))


def counts() -> dict[str, Count]:
    """Every row of the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = "".join(f"{age},{5 * age % 7},{'yes' if age % 3 else 'no'}\n" for age in range(20, 80))
        (folder / "people.csv").write_text("age,visits,ill\n" + rows)
        train = "train people.csv --target ill --epochs 3 --batch-size 12 --quiet --out run"
        plan = "plan --examples 1000 --batch-size 100 --epochs 3"
        return {
            "tacit --help": count(_COMMAND, ["--help"], folder),
            "tacit plan": count(_COMMAND, plan.split(), folder),
            "tacit train people.csv": count(_COMMAND, train.split(), folder),
            "one step of a two-layer MLP": count(_STEP, [], folder),
        }


def wheel() -> tuple[int, int]:
    """Files and lines of Python in the wheel."""
    files = sorted(PACKAGE.rglob("*.py"))
    return len(files), sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


TARGETS = {"tacit train people.csv": 65, "one step of a two-layer MLP": 20}


def main() -> None:
    """Print the table; with --files also the files that were entered."""
    table = Table("", "files entered", "files loaded", "target", "also loaded")
    for name, found in counts().items():
        target = TARGETS.get(name)
        table.add_row(
            name,
            str(len(found.entered)),
            str(len(found.loaded)),
            "" if target is None else f"≤ {target}",
            ", ".join(found.heavy),
        )
        if "--files" in sys.argv:
            print(name, *(f"  {Path(file).relative_to(PACKAGE)}" for file in found.entered), sep="\n")
    files, lines = wheel()
    table.add_row("wheel: files", f"{files}", "", "≤ 200", "")
    table.add_row("wheel: lines", f"{lines:,}", "", "≤ 26,000", "")
    Console().print(table)


if __name__ == "__main__":
    main()
