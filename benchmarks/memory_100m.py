"""Peak memory of a sparse private step at 100 million parameters: `python -m benchmarks.memory_100m`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bars import MEMORY_100M
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.tacit import scattered
from benchmarks.isolation import Failure, Isolated
from benchmarks.machine import ROOT, machine
from benchmarks.output import write_atomically
from benchmarks.worker import MemoryWorker, PeakMemory
from benchmarks.workloads import HUNDRED_MILLION, Workload

RATIO = 0.01
DEFAULT_JSON = ROOT / "docs" / "benchmarks" / "memory_100m.json"


@dataclass(frozen=True)
class Excess:
    """Peak memory of plain SGD and of the private step, model and batch included."""

    model: str
    parameters: int
    sgd_peak_bytes: int | None
    private_peak_bytes: int | None
    failure: str | None

    @property
    def parameter_multiple(self) -> float | None:
        """Memory beyond plain SGD, in units of the parameters' size (4 bytes each)."""
        if self.sgd_peak_bytes is None or self.private_peak_bytes is None:
            return None
        return (self.private_peak_bytes - self.sgd_peak_bytes) / (4 * self.parameters)

    @property
    def met(self) -> bool:
        """Whether the bar is met; False without figures."""
        multiple = self.parameter_multiple
        return multiple is not None and multiple < MEMORY_100M


class SparseWorker(MemoryWorker):
    """Tacit at ρ = 0.01."""

    def __init__(self, workload: str) -> None:
        super().__init__(workload, scattered("tacit-topk-0.01", "Tacit, TP-TopK phase 2, ρ = 0.01", RATIO))


class PlainWorker(MemoryWorker):
    """Plain SGD."""

    def __init__(self, workload: str) -> None:
        super().__init__(workload, CONTENDERS["sgd"])


def _peak(
    worker: type[PlainWorker] | type[SparseWorker], workload: Workload, threads: int
) -> PeakMemory | Failure:
    process = Isolated(worker, workload.name, threads=threads)
    try:
        answer: PeakMemory | Failure = process.call("peak")
        return answer
    finally:
        process.close()


def measure(workload: Workload, threads: int) -> Excess:
    """Both peaks, each in a fresh process."""
    plain = _peak(PlainWorker, workload, threads)
    private = _peak(SparseWorker, workload, threads)
    reasons = [answer.reason for answer in (plain, private) if isinstance(answer, Failure)]
    return Excess(
        workload.title,
        sum(p.numel() for p in workload.model().parameters()),
        None if isinstance(plain, Failure) else plain.total_bytes,
        None if isinstance(private, Failure) else private.total_bytes,
        "; ".join(reasons) or None,
    )


def _megabytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 1e6:.0f}"


def table(found: list[Excess]) -> Table:
    """The figures beside the bar."""
    shown = Table(title=f"One step at ρ = {RATIO}, peak memory with model and batch", header_style="bold")
    for heading in ("model", "parameters", "SGD MB", "Tacit MB", "beyond SGD ÷ parameters", "bar"):
        shown.add_column(heading, justify="left" if heading == "model" else "right")
    for excess in found:
        multiple = excess.parameter_multiple
        shown.add_row(
            excess.model,
            f"{excess.parameters / 1e6:.1f} M",
            _megabytes(excess.sgd_peak_bytes),
            _megabytes(excess.private_peak_bytes),
            excess.failure if multiple is None else f"{multiple:.2f}",
            f"< {MEMORY_100M:.0f}" + ("" if multiple is None else " pass" if excess.met else " MISS"),
        )
    return shown


def main(arguments: list[str]) -> int:
    """Measure, print and, for a complete run, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_100m", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(HUNDRED_MILLION), default=list(HUNDRED_MILLION))
    parser.add_argument("--threads", type=int, choices=range(1, 257), default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args(arguments)
    facts = machine(options.threads)
    found = [measure(HUNDRED_MILLION[name], options.threads) for name in options.models]
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table(found))
    path = options.json or (DEFAULT_JSON if len(found) == len(HUNDRED_MILLION) else None)
    if path is not None:
        results = [asdict(e) | {"parameter_multiple": e.parameter_multiple, "met": e.met} for e in found]
        content = {"machine": asdict(facts), "active_ratio": RATIO, "bar": MEMORY_100M, "results": results}
        write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        console.print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
