from __future__ import annotations

import csv
import json
import random
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.cli.main import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The one line on stderr of a command that refuses its input."""
        assert self.code == 2, self
        assert self.out == ""
        (line,) = self.err.splitlines()
        assert line.startswith("tacit: ")
        assert line[-1] in ".?"
        return line.removeprefix("tacit: ")


Tacit = Callable[[str], Done]


@pytest.fixture
def tacit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tacit:
    monkeypatch.setenv("COLUMNS", "200")

    def run(line: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(line))
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return run


@pytest.fixture(autouse=True)
def quiet_corner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test in a directory of its own, on one core, with the generator where it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TACIT_DATA", raising=False)
    torch.manual_seed(0)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A table nobody has prepared: gaps, dates, names, free text, and a target written yes or No."""
    rng = random.Random(4)
    path = tmp_path / "orders.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["Order No", "Age", "income", "city", "signed up", "plan", "member", "renewed"])
        for number in range(400):
            age, plan = rng.randint(18, 90), rng.choice(["basic", "plus", "pro", ""])
            joined = date(2015, 1, 1) + timedelta(days=rng.randint(0, 3000))
            renews = (age - 50) / 15 + 2 * (plan == "pro") + rng.gauss(0, 1) > 0
            out.writerow(
                [
                    number + 1,
                    age if rng.random() > 0.1 else "",
                    f"{rng.lognormvariate(10, 1):.2f}" if rng.random() > 0.05 else "NA",
                    f"Town {rng.randrange(300)}",
                    joined.strftime("%d/%m/%Y"),
                    plan,
                    rng.choice(["TRUE", "FALSE"]),
                    "yes" if renews else "No",
                ]
            )
    return path
