from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks.finetune import OPACUS, memory_bars
from benchmarks.results import Result
from benchmarks.worker import PeakMemory
from benchmarks.workloads import FINETUNING, PARTLY_FROZEN

DOCS = Path(__file__).parents[2] / "docs"


def test_memory_is_compared_with_every_mode_of_opacus() -> None:
    def result(contender: str, family: str, peak: int | None) -> Result:
        memory = None if peak is None else PeakMemory(10, peak - 10)
        return Result("minilm", contender, contender, family, None, memory=memory)

    own = result("tacit-sparta", "tacit", 100)
    others = [result("hooks", "opacus", 400), result("ghost", "opacus", 110), result("ew", "opacus", None)]
    found = memory_bars([own, *others, result("sgd", "sgd", 90)])
    assert [(bar.contender, bar.times, bar.met) for bar in found] == [
        ("hooks", 4.0, True),
        ("ghost", 1.1, False),
    ]


def test_the_guide_gives_the_figures_of_the_last_run() -> None:
    page = (DOCS / "guide" / "finetuning.md").read_text(encoding="utf-8")
    record = json.loads((DOCS / "benchmarks" / "finetune.json").read_text(encoding="utf-8"))
    memory = {(bar["workload"], bar["contender"]): bar["times"] for bar in record["opacus_memory"]}
    lines = re.findall(r"^\| (?:MobileNetV2|MiniLM).*$", page, re.MULTILINE)
    for line, workload in zip(lines, FINETUNING, strict=True):
        found = next(
            r for r in record["results"] if (r["workload"], r["contender"]) == (workload, "tacit-sparta")
        )
        figures = [found["time_ratio"]["median"], found["cpu_ratio"]["median"], found["memory_ratio"]]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[0].startswith(FINETUNING[workload].title)
        assert cells[1:4] == [f"{figure:.2f}" for figure in figures]
        modes = [f"Opacus {name.removeprefix('opacus-')}" for name in OPACUS.get(workload, [])]
        assert cells[4] == (", ".join(f"{memory[workload, mode]:.2f}" for mode in modes) or "–")


def test_the_guide_gives_what_training_a_part_costs() -> None:
    page = (DOCS / "guide" / "finetuning.md").read_text(encoding="utf-8")
    record = json.loads((DOCS / "benchmarks" / "finetune_part.json").read_text(encoding="utf-8"))
    lines = re.findall(r"^\| (?:low-rank corrections|the last layer) of .*$", page, re.MULTILINE)
    for line, (name, workload) in zip(lines, PARTLY_FROZEN.items(), strict=True):
        found = {r["contender"]: r for r in record["results"] if r["workload"] == name}
        assert found["sgd-pieces"]["time_ratio"]["median"] == 1
        own = found["tacit-part"]
        figures = [own["time_ratio"]["median"], own["cpu_ratio"]["median"], own["memory_ratio"]]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert workload.title.split(",")[0] in cells[0]
        assert workload.title.split(",")[-1].strip() in cells[0]
        assert ("corrections" in cells[0]) == ("LoRA" in workload.title)
        assert cells[1:] == [f"{figure:.2f}" for figure in figures]


def test_the_guide_gives_the_memory_of_selection() -> None:
    record = json.loads((DOCS / "benchmarks" / "finetune_selection.json").read_text(encoding="utf-8"))
    assert record["batch"] == 256
    assert record["peak_bytes"] / 1e9 == pytest.approx(0.84, abs=0.005)
    assert "0.84 GB at most" in (DOCS / "guide" / "finetuning.md").read_text(encoding="utf-8")


def test_the_guide_gives_the_memory_of_chunks() -> None:
    page = (DOCS / "guide" / "finetuning.md").read_text(encoding="utf-8")
    record = json.loads((DOCS / "benchmarks" / "finetune.json").read_text(encoding="utf-8"))
    found = next(
        r for r in record["results"] if (r["workload"], r["contender"]) == ("minilm", "tacit-sparta-chunks")
    )
    megabytes = sum(found["memory"].values()) / 1e6
    assert f"takes {megabytes:.0f} MB and {found['cpu_ratio']['median']:.2f} of SGD's processor time" in page
