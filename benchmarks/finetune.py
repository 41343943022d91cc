"""The cost of fine-tuning a pretrained network: `python -m benchmarks.finetune`.

A row-sparse private step (ρ = 0.1, every bias and norm, the head) against an ordinary step of full fine-tuning and
against Opacus, and low-rank corrections or the last layer against ordinary steps on the same part; time and memory in
one run. With `--selection` the peak memory of selecting rows of MiniLM, batch 256.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.bars import OPACUS_MEMORY, SELECTION_BYTES
from benchmarks.contenders import contenders_for
from benchmarks.contenders.types import Family
from benchmarks.isolation import Failure, Isolated
from benchmarks.machine import ROOT, Machine, machine
from benchmarks.output import document, write_atomically
from benchmarks.results import Result, analyse
from benchmarks.rounds import Schedule
from benchmarks.step import measure
from benchmarks.table import failures, terminal_table, verdict
from benchmarks.workloads import FINETUNING, PARTLY_FROZEN

DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "finetune.json"
SELECTION_JSON = ROOT / "docs" / "benchmarks" / "finetune_selection.json"
PLAIN = ["sgd", "sgd-cl", "sgd-pieces"]
CONTENDERS = [*PLAIN, "tacit-sparta", "tacit-sparta-chunks"]
ALL = FINETUNING | PARTLY_FROZEN
OPACUS = {
    "mobilenet-32": ["opacus-hooks", "opacus-ew", "opacus-ghost"],
    "minilm-16": ["opacus-hooks", "opacus-ew", "opacus-ghost"],
    "minilm": ["opacus-ghost"],
}
"""Where Opacus takes part: with large batches a step of its other modes lasts the better part of a minute."""
SELECTION_BATCH, SELECTION_CHUNK = 256, 32


@dataclass(frozen=True)
class MemoryBar:
    """Peak memory of an Opacus mode over that of the row-sparse step, model and batch included."""

    workload: str
    contender: str
    times: float
    met: bool


def memory_bars(results: list[Result]) -> list[MemoryBar]:
    """How many times the memory of the leaner row-sparse step each Opacus mode needs."""
    found = []
    for result in results:
        own = [
            r.memory.total_bytes
            for r in results
            if r.workload == result.workload and r.family == Family.TACIT.value and r.memory
        ]
        if result.family == Family.OPACUS.value and result.memory is not None and own:
            times = result.memory.total_bytes / min(own)
            found.append(MemoryBar(result.workload, result.title, times, times >= OPACUS_MEMORY))
    return found


class SelectionWorker:
    """Scores the rows of MiniLM, embeddings included, on one logical batch, in chunks."""

    def peak_bytes(self) -> int:
        """The high-water mark of the whole process, libraries included."""
        from tacit.raw.clipping import Clipper
        from tacit.support import Support

        workload = FINETUNING["minilm"]
        model, (tokens, labels) = workload.model(), workload.batch(SELECTION_BATCH)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        chunks = zip(tokens.split(SELECTION_CHUNK), labels.split(SELECTION_CHUNK), strict=True)
        Clipper(model, workload.loss).clipped_sum(chunks, Support.all(model), 1.0, statistic="absolute")
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def selection_peak(threads: int) -> int | Failure:
    """Peak memory of a fresh process that selects rows of MiniLM."""
    process = Isolated(SelectionWorker, threads=threads)
    try:
        answer: int | Failure = process.call("peak_bytes")
        return answer
    finally:
        process.close()


def _selection(console: Console, facts: Machine, path: Path) -> int:
    """Measure, print and write the memory of selecting rows."""
    peak = selection_peak(facts.threads)
    if isinstance(peak, Failure):
        console.print(f"selection of rows of MiniLM failed: {peak.reason}", style="red", markup=False)
        return 1
    met = peak <= SELECTION_BYTES
    console.print(
        f"selection of rows of MiniLM, batch {SELECTION_BATCH} in chunks of {SELECTION_CHUNK}: {peak / 1e9:.2f} GB at "
        f"most (≤ {SELECTION_BYTES / 1e9:g} {'pass' if met else 'MISS'})",
        markup=False,
    )
    content = {
        "machine": asdict(facts),
        "batch": SELECTION_BATCH,
        "chunk": SELECTION_CHUNK,
        "peak_bytes": peak,
        "bar": SELECTION_BYTES,
        "met": met,
    }
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    console.print(f"wrote {path}")
    return 0


def main(arguments: list[str]) -> int:
    """Run, print and, for a complete run, write the JSON; 1 when Tacit does not do the work it should."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetune", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=list(ALL), default=list(ALL))
    parser.add_argument(
        "--selection", action="store_true", help="only the memory of selecting rows of MiniLM"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, without Opacus")
    parser.add_argument("--threads", type=int, choices=range(1, 257), default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 170)
    facts = machine(options.threads)
    if options.selection:
        return _selection(console, facts, options.json or SELECTION_JSON)
    schedule = Schedule(3, 0.0) if options.quick else Schedule(5, 20.0)
    workloads = {name: ALL[name] for name in options.workloads}
    results: list[Result] = []
    for workload in workloads.values():
        peers = [] if options.quick else OPACUS.get(workload.name, [])
        own = [*PLAIN, "tacit-part"] if workload.name in PARTLY_FROZEN else CONTENDERS
        chosen = contenders_for(workload, own + peers)
        results += analyse(
            workload.name, measure(workload, chosen, schedule, options.threads, lambda line: None)
        )
    console.print(terminal_table(results, workloads))
    for line in failures(results):
        console.print(f"no figures: {line}", style="yellow", markup=False)
    bars = memory_bars(results)
    for bar in bars:
        console.print(
            f"{bar.workload}: {bar.contender} needs {bar.times:.2f} × the memory of the row-sparse step "
            f"(≥ {OPACUS_MEMORY:g} {'pass' if bar.met else 'MISS'})",
            markup=False,
        )
    console.print(verdict(results))
    complete = not options.quick and list(workloads) == list(ALL)
    path = options.json or (DEFAULT_JSON if complete else None)
    if path is not None:
        settings = {"rounds": schedule.rounds}
        content = document(facts, settings, results) | {"opacus_memory": [asdict(bar) for bar in bars]}
        write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        console.print(f"wrote {path}")
    return int(any(result.failure is not None and result.family == Family.TACIT.value for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
