"""Whatever a run directory holds, there is a page or one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.fuzz.mutation import mutated

from fuzz.effort import tries
from report.test_page import AUDIT, COMPARISON, check_page
from tacit.errors import TacitError
from tacit.report import page, read_material

FILES = ("held_out.json", "result.json", "experiment.json", "metrics.jsonl", "audit.json", "comparison.json")


@pytest.fixture(scope="module")
def place(released_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Path(shutil.copytree(released_run, tmp_path_factory.mktemp("spoilt") / "run"))
    # The checkpoint has its own tests; without it there is less to read again and again.
    (made / "checkpoint.safetensors").unlink()
    (made / "audit.json").write_text(json.dumps(AUDIT))
    (made.parent / "comparison.json").write_text(json.dumps(COMPARISON))
    return made


@tries(25)
@given(
    random=st.randoms(use_true_random=False),
    name=st.sampled_from(FILES),
    changes=st.integers(1, 3),
    raw=st.booleans(),
)
def test_a_file_with_something_wrong(place: Path, random: Random, name: str, changes: int, raw: bool) -> None:
    path = place.parent / name if name == "comparison.json" else place / name
    plain = path.read_text()
    try:
        if raw:
            at = random.randrange(len(plain))
            path.write_text(
                plain[:at] + random.choice(['"', "{", "]", "9e999", "\\ud800", ""]) + plain[at + 1 :]
            )
        else:
            rows = (
                [json.loads(line) for line in plain.splitlines()]
                if name == "metrics.jsonl"
                else json.loads(plain)
            )
            for _ in range(changes):
                rows = mutated(rows, random)
            if name == "metrics.jsonl" and isinstance(rows, list):
                path.write_text("\n".join(json.dumps(row) for row in rows))
            else:
                path.write_text(json.dumps(rows))
        try:
            text = page(read_material([path.parent]))
        except TacitError:
            assert name == "comparison.json", "the extras of a run do not keep it from having a page"
            return
        check_page(text)
    finally:
        path.write_text(plain)
