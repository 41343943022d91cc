"""Steps on large embedding tables: `python -m benchmarks.embeddings` writes docs/results/embeddings.md.

Every contender lives in a process of its own, with a limit on its memory, and takes its steps in turn with the others.
Times are processor seconds of one thread, so that other work on the machine counts little. Memory is that of other
processes, in which the C library gives freed blocks back at once.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contenders.opacus import build_ghost, build_per_example
from benchmarks.contenders.types import StepSettings
from benchmarks.isolation import Failure, Isolated
from benchmarks.machine import ROOT, Machine, machine
from benchmarks.output import caption, write_atomically
from benchmarks.peak import peak_anonymous, return_freed_blocks
from tacit.release.noise import SecureNoise
from tacit.support import Support
from tacit.training.step import PrivateStep

WIDTH, BATCH, TOKENS = 64, 1024, 100
ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
WORDS = ("uniform", "text")
LIMIT = 8 << 30
"""Bytes of address space that a contender may take beyond the table, its gradient and a copy."""
TIME_BAR, MEMORY_BAR = 2.0, 1.3
AT = 1_000_000
PAGE = ROOT / "docs" / "results" / "embeddings.md"
FIGURES = ROOT / "docs" / "benchmarks" / "embeddings.json"

Batch = tuple[Tensor, Tensor]
Step = Callable[[Batch], None]


class MeanOfWords(nn.Module):
    """The mean of the rows of a text, then a linear layer."""

    def __init__(self, rows: int, *, sparse: bool) -> None:
        super().__init__()
        weight = torch.empty(rows, WIDTH).uniform_(-0.05, 0.05)
        self.words = nn.Embedding(rows, WIDTH, _weight=weight, sparse=sparse)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """One loss per example."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def draw(rows: int, words: str, seed: int) -> Batch:
    """A batch of random words: all alike, or as frequent as words in a text (the r-th has a share of about 1/r)."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(BATCH, TOKENS, generator=generator, dtype=torch.float64)
    ids = uniform * rows if words == "uniform" else (rows + 1) ** uniform - 1
    return ids.long().clamp(max=rows - 1), torch.randint(2, (BATCH,), generator=generator)


class CountedNoise(SecureNoise):
    """Secure noise that counts what it draws."""

    drawn = 0

    def add(self, values: Tensor, scale: float, factor: float) -> None:
        """As it is, counted."""
        self.drawn += values.numel()
        super().add(values, scale, factor)

    def move(
        self,
        codes: Tensor,
        rows: Tensor,
        deviations: Tensor,
        means: Tensor | None = None,
        factor: float = 1.0,
    ) -> None:
        """As it is, counted."""
        self.drawn += len(rows) * codes.shape[1]
        super().move(codes, rows, deviations, means, factor)


SETTINGS = StepSettings(clip_norm=1.0, noise_multiplier=1.0, learning_rate=0.5)


def plain(rows: int) -> tuple[Step, Callable[[], int]]:
    """SGD with sparse gradients."""
    model = MeanOfWords(rows, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=SETTINGS.learning_rate)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss(model, batch).mean())
        optimizer.step()

    return step, lambda: 0


def tacit(rows: int, *, lazy: bool) -> tuple[Step, Callable[[], int]]:
    """DP-SGD with secure noise, drawn when rows are read or for all of them in every step."""
    model, noise = MeanOfWords(rows, sparse=False), CountedNoise()
    private = PrivateStep(
        model,
        loss,
        support=Support.all(model),
        clip_norm=SETTINGS.clip_norm,
        noise_multiplier=SETTINGS.noise_multiplier,
        batch_size=BATCH,
        optimizer=lambda named: torch.optim.SGD(named, lr=SETTINGS.learning_rate),
        noise=noise,
        lazy_noise=lazy,
    )
    return lambda batch: private.step(batch) and None, lambda: noise.drawn


class _Task:
    """What the contenders of the other benchmarks ask of a workload."""

    @staticmethod
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return loss(model, batch)


def opacus(rows: int, *, mode: str) -> tuple[Step, Callable[[], int]]:
    """Opacus in one of its modes, with its default noise, which is not cryptographic."""
    model = MeanOfWords(rows, sparse=False)
    current: list[Any] = list(draw(rows, "uniform", 0))
    build = build_ghost if mode == "ghost" else build_per_example(mode)
    step = build(model, current, _Task(), SETTINGS)  # type: ignore[arg-type]
    total = sum(p.numel() for p in model.parameters())
    count = [0]

    def with_batch(batch: Batch) -> None:
        current[:] = batch
        count[0] += total
        step()

    return with_batch, lambda: count[0]


CONTENDERS: dict[str, tuple[str, Callable[[int], tuple[Step, Callable[[], int]]]]] = {
    "plain": ("plain sparse SGD", plain),
    "lazy": ("Tacit, lazy noise", lambda rows: tacit(rows, lazy=True)),
    "dense": ("Tacit, noise for every row", lambda rows: tacit(rows, lazy=False)),
    "ghost": ("Opacus, ghost", lambda rows: opacus(rows, mode="ghost")),
    "hooks": ("Opacus, hooks", lambda rows: opacus(rows, mode="hooks")),
}


class Worker:
    """One contender, with steps on batches of its own; the same ones as the others' have."""

    def __init__(self, name: str, rows: int, words: str, *, memory: bool = False) -> None:
        room = LIMIT + 3 * rows * WIDTH * 4
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        if memory:
            return_freed_blocks()
        self._rows, self._words, self._seed = rows, words, 0
        self._step, self._drawn = CONTENDERS[name][1](rows)

    def steps(self, count: int) -> list[float]:
        """Processor seconds of so many steps."""
        found = []
        for _ in range(count):
            self._seed += 1
            batch = draw(self._rows, self._words, self._seed)
            started = time.process_time()
            self._step(batch)
            found.append(time.process_time() - started)
        return found

    def drawn(self) -> int:
        """How much noise one more step draws."""
        before = self._drawn()
        self.steps(1)
        return self._drawn() - before

    def peak(self) -> int:
        """The largest resident memory within two steps."""
        self.steps(2)
        return peak_anonymous(lambda: self.steps(2) and None)


class MemoryWorker(Worker):
    """The same for memory."""

    def __init__(self, name: str, rows: int, words: str) -> None:
        super().__init__(name, rows, words, memory=True)


@dataclass(frozen=True)
class Figure:
    """What one contender takes for a step; None where it failed, and why."""

    contender: str
    rows: int
    words: str
    seconds: float | None
    drawn: int | None
    peak_bytes: int | None
    failure: str | None
    commit: str = ""
    """The code that it is a figure of, where that is not the code that wrote the page."""


def measure(rows: int, words: str, names: list[str], rounds: int, threads: int = 1) -> list[Figure]:
    """All contenders in turn, round by round; then their memory, one after the other."""
    workers = {name: Isolated(Worker, name, rows, words, threads=threads) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    for turn in range(rounds + 1):
        for name, worker in workers.items():
            found = None if name in failures else worker.call("steps", 2)
            if isinstance(found, Failure):
                failures[name] = found.reason
            elif found is not None and turn:  # the first turn warms up
                times[name] += found
    drawn = {name: workers[name].call("drawn") for name in names if name not in failures}
    for worker in workers.values():
        worker.close()
    peaks = {}
    for name in drawn:
        worker = Isolated(MemoryWorker, name, rows, words, threads=threads)
        peaks[name] = worker.call("peak")
        worker.close()
    return [
        Figure(
            name,
            rows,
            words,
            statistics.median(times[name]) if times[name] else None,
            drawn.get(name),
            peaks.get(name),
            failures.get(name),
        )
        for name in names
    ]


def ratios(figures: list[Figure], rows: int, words: str) -> tuple[float, float] | None:
    """Time and memory of lazy noise over those of plain sparse SGD."""
    found = {f.contender: f for f in figures if (f.rows, f.words) == (rows, words)}
    lazy, base = found.get("lazy"), found.get("plain")
    if (
        lazy is None
        or base is None
        or not (lazy.seconds and base.seconds and lazy.peak_bytes and base.peak_bytes)
    ):
        return None
    return lazy.seconds / base.seconds, lazy.peak_bytes / base.peak_bytes


def page(figures: list[Figure], source: str) -> str:
    """The page in Markdown."""
    lines = [
        "# Large embedding tables",
        "",
        f"One step on {BATCH:,} texts of {TOKENS} words: rows of {WIDTH} numbers, their mean, a linear layer.",
        "Written by `python -m benchmarks.embeddings`. Figures for one size are from one run, in which contenders",
        "take their steps in turn. Time is processor time of one thread. *Uniform*: all words are equally frequent, so",
        "almost every word of a batch is another row. *Text*: the r-th most frequent word has a share of about 1/r, as",
        "in texts. Ratios are to plain sparse SGD. Opacus draws its default noise, which is not cryptographic.",
        "",
    ]
    for words in dict.fromkeys(f.words for f in figures):
        lines += [
            f"## {words.capitalize()} words",
            "",
            "| rows | | step | ratio | noise drawn | memory | ratio |",
            "|---:|---|---:|---:|---:|---:|---:|",
        ]
        for f in (f for f in figures if f.words == words):
            base = next(b for b in figures if (b.contender, b.rows, b.words) == ("plain", f.rows, words))
            title = CONTENDERS[f.contender][0]
            if f.seconds is None or f.peak_bytes is None or base.seconds is None or base.peak_bytes is None:
                lines.append(f"| {f.rows:,} | {title} | fails | | | | |")
                continue
            lines.append(
                f"| {f.rows:,} | {title} | {f.seconds * 1e3:,.0f} ms | {f.seconds / base.seconds:.2f} | "
                f"{f.drawn or 0:,} | {f.peak_bytes / 2**20:,.0f} MB | {f.peak_bytes / base.peak_bytes:.2f} |"
            )
        lines.append("")
        found = ratios(figures, AT, words)
        if found is not None:
            met = [found[0] <= TIME_BAR, found[1] <= MEMORY_BAR]
            lines += [
                f"At {AT:,} rows lazy noise takes {found[0]:.2f} times the time of plain sparse SGD (bar {TIME_BAR:g}: "
                f"{'met' if met[0] else 'not met'}) and {found[1]:.2f} times its memory (bar {MEMORY_BAR:g}: "
                f"{'met' if met[1] else 'not met'}).",
                "",
            ]
    failed = [f for f in figures if f.failure]
    if failed:
        lines += ["Failures, with memory limited to a few copies of the table and 8 GB:", ""]
        lines += [
            f"- {CONTENDERS[f.contender][0]}, {f.rows:,} rows: {f.failure}"
            for f in failed
            if f.words == failed[0].words
        ]
        lines.append("")
    other = {(f.rows, f.words): f.commit for f in figures if f.commit}
    if other:
        sizes = ", ".join(
            f"{rows:,} {words} ({commit[:12]})" for (rows, words), commit in sorted(other.items())
        )
        lines += [
            f"Figures of other runs, with their commits (compare those of one commit only): {sizes}.",
            "",
        ]
    return "\n".join([*lines, f"*{source}*", ""])


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS), help="sizes of the table")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of two steps for every contender")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--words", nargs="+", choices=WORDS, default=list(WORDS))
    parser.add_argument(
        "--dense-up-to", type=int, default=1_000_000, help="rows for which noise for every row is tried"
    )
    parser.add_argument(
        "--add",
        type=Path,
        nargs="+",
        default=[],
        help="figures of other runs to put on the page, where neither this run nor one named before has any of that "
        "size and those words",
    )
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    facts = machine(1)
    figures = added(given.add, {(rows, words) for rows in given.rows for words in given.words})
    write(given, facts, figures)
    for words in given.words:
        for rows in given.rows:
            names = [n for n in given.only if n in ("plain", "lazy") or rows <= given.dense_up_to]
            figures += measure(rows, words, names, given.rounds)
            for f in figures[-len(names) :]:
                print(f, flush=True)
            write(given, facts, figures)


def added(paths: Sequence[Path], own: set[tuple[int, str]]) -> list[Figure]:
    """What other runs have on record: of every size and kind of words, the figures of the first run that has any."""
    found: list[Figure] = []
    for path in paths:
        known = own | {(figure.rows, figure.words) for figure in found}
        found += [figure for figure in recorded(path) if (figure.rows, figure.words) not in known]
    return found


def recorded(path: Path) -> list[Figure]:
    """The figures of another run, with its commit."""
    content = json.loads(path.read_text(encoding="utf-8"))
    commit = content["machine"]["commit"]
    return [Figure(**{**figure, "commit": figure.get("commit") or commit}) for figure in content["figures"]]


def write(given: argparse.Namespace, facts: Machine, figures: list[Figure]) -> None:
    """The figures and the page, as far as they go."""
    figures.sort(key=lambda f: (WORDS.index(f.words), f.rows))
    content = {"machine": asdict(facts), "figures": [asdict(f) for f in figures]}
    write_atomically(given.figures, json.dumps(content, indent=1) + "\n")
    write_atomically(given.page, page(figures, caption(facts)))


if __name__ == "__main__":
    main()
