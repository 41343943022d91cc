"""The step of an earlier commit beside the step of the code as it is: `python -m benchmarks.against 40b8b4f`.

Both run in processes that live as long as the comparison and take turns, so a busy moment hits both. What is
compared is processor time: the median of the ratios new / old over the rounds, with its quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.workloads import WORKLOADS

CONTENDERS = ("tacit-dense", "tacit-topk", "tacit-rows")
# Enough steps per turn that a turn takes about half a second.
TURN_SECONDS = 0.5

_SERVE = """
import sys, time
root = sys.argv[1]
sys.path[:0] = [root + "/src", root]
import torch, tacit
torch.set_num_threads(1)
assert tacit.__file__.startswith(root), tacit.__file__
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.types import StepSettings, prepare
from benchmarks.workloads import workload_named
current, step = None, None
for line in sys.stdin:
    workload, contender, steps = line.split()
    if (workload, contender) != current:
        step = None
        current, chosen = (workload, contender), CONTENDERS[contender]
        model, batch = prepare(workload_named(workload), chosen)
        step = chosen.build(model, batch, workload_named(workload), StepSettings())
        step(), step()
    start = time.process_time()
    for _ in range(int(steps)):
        step()
    print((time.process_time() - start) / int(steps), flush=True)
"""


def checkout(commit: str) -> Path:
    """The tree of a commit under build/, with its compiled parts."""
    tree = ROOT / "build" / "against" / commit
    if not tree.exists():
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=ROOT, check=True)
        subprocess.run(
            [sys.executable, "-c", "from setuptools import setup; setup()", "build_ext", "--inplace"],
            cwd=tree,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return tree


class Server:
    """A process with the code of one tree, which takes steps when asked."""

    def __init__(self, tree: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SERVE, str(tree)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def seconds(self, workload: str, contender: str, steps: int) -> float:
        """Processor seconds of a step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{workload} {contender} {steps}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(old: Server, new: Server, workload: str, contender: str, rounds: int) -> dict[str, object]:
    """Time a contender on a workload in both trees, in turns that change their order."""
    slowest = max(server.seconds(workload, contender, 1) for server in (old, new))
    steps = max(1, round(TURN_SECONDS / slowest))
    pairs = []
    for number in range(rounds):
        order = (old, new) if number % 2 else (new, old)
        times = {server: server.seconds(workload, contender, steps) for server in order}
        pairs.append((times[old], times[new]))
    ratios = [after / before for before, after in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "workload": workload,
        "contender": contender,
        "old_ms": round(1e3 * statistics.median(before for before, _ in pairs), 2),
        "new_ms": round(1e3 * statistics.median(after for _, after in pairs), 2),
        "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
    }


def main(arguments: list[str]) -> None:
    """Compare, print a row per workload and contender, and write them all if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    old, new = Server(checkout(options.commit)), Server(ROOT)
    rows = []
    for workload in options.workloads.split(","):
        for contender in options.contenders.split(","):
            rows.append(compare(old, new, workload, contender, options.rounds))
            print(
                "{workload} {contender}: {old_ms} -> {new_ms} ms, ratio {ratio} {quartiles}".format(
                    **rows[-1]
                ),
                flush=True,
            )
    old.close()
    new.close()
    if options.json:
        options.json.write_text(json.dumps({"against": options.commit, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
