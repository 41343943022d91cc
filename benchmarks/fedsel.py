"""Cost of FedSel: selection per client against the published pseudocode, an epoch, a million clients.

Run with ``python -m benchmarks.fedsel [--data-dir DIR] [--json FILE] [--million]``.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.federated.data import FederatedData, load
from tacit.federated.models import linear_model
from tacit.federated.plan import LocalPlan
from tacit.federated.sampling import sample_coordinates
from tacit.federated.selection import RankLaw, calibrated_logit, selection_law
from tacit.federated.simulation import simulate
from tacit.files import write_json

EPSILON1 = 1.0
DIMENSIONS = (100, 1_000, 10_000, 100_000)

Vector = NDArray[np.float32]


def published_exp(r: Vector, k: int, epsilon: float, rng: np.random.Generator) -> int:
    """Algorithm 2, line by line."""
    d = len(r)
    total = np.exp(epsilon * np.arange(1, d + 1) / (d - 1)).sum()
    in_order = np.sort(np.abs(r))
    p = np.zeros(d)
    for j in range(d):
        z = 1 + np.flatnonzero(in_order == abs(r[j]))[0]
        p[j] = np.exp(epsilon * z / (d - 1)) / total
    return int(rng.choice(d, p=p / p.sum()))


def published_pe(r: Vector, k: int, epsilon: float, rng: np.random.Generator) -> int:
    """Algorithm 3, line by line, with the calibrated p."""
    d = len(r)
    p = 1 / (1 + np.exp(-float(calibrated_logit(d, k, epsilon))))
    z = np.zeros(d, np.int64)
    z[np.argsort(np.abs(r))[-k:]] = 1
    for j in range(d):
        if rng.random() >= p:
            z[j] = 1 - z[j]
    marked = np.flatnonzero(z)
    return int(rng.choice(marked)) if len(marked) else -1


def published_ps(r: Vector, k: int, epsilon: float, rng: np.random.Generator) -> int:
    """Algorithm 4, line by line; its only loop, the marking of the top k, is an array operation already."""
    d = len(r)
    z = np.zeros(d, np.int64)
    z[np.argsort(np.abs(r))[-k:]] = 1
    x = rng.random()
    if x < np.exp(epsilon) * k / (d - k + np.exp(epsilon) * k):
        return int(rng.choice(np.flatnonzero(z == 1)))
    return int(rng.choice(np.flatnonzero(z == 0)))


PUBLISHED: dict[str, Callable[[Vector, int, float, np.random.Generator], int]] = {
    "exp": published_exp,
    "pe": published_pe,
    "ps": published_ps,
}


def select(law: RankLaw, vectors: Vector, rng: np.random.Generator) -> NDArray[np.int64]:
    return sample_coordinates(law, np.abs(vectors), rng)


def seconds_per_call(run: Callable[[], object], least: float = 0.5) -> float:
    """Return the median time of a call over at least ``least`` seconds and three calls."""
    run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def selection_costs() -> list[dict[str, Any]]:
    """Microseconds per client: the published pseudocode, and Tacit for one client and for a batch."""
    rng = np.random.default_rng(0)
    rows = []
    for name, published in PUBLISHED.items():
        for d in DIMENSIONS:
            k = d // 10
            law = selection_law(name, d, k, EPSILON1)
            batch = rng.standard_normal((max(10, min(1_000, 2_000_000 // d)), d)).astype(np.float32)
            one = batch[:1]
            cost = {
                "one client": seconds_per_call(partial(select, law, one, rng)),
                "per client in a batch": seconds_per_call(partial(select, law, batch, rng)) / len(batch),
            }
            if d <= 10_000:
                cost["published"] = seconds_per_call(partial(published, batch[0], k, EPSILON1, rng))
            row: dict[str, Any] = {"selection": name, "d": d}
            row |= {f"{what} (µs)": 1e6 * seconds for what, seconds in cost.items()}
            if "published" in cost:
                row["times faster, one client"] = cost["published"] / cost["one client"]
                row["times faster, batch"] = cost["published"] / cost["per client in a batch"]
            rows.append(row)
            print(row, flush=True)
    return rows


def adult_epoch(data_dir: str | None) -> dict[str, Any]:
    """Seconds for one epoch in which each of the 48,842 Adult clients answers once."""
    data = load("adult", data_dir)
    model = linear_model("logistic", data.d)
    result: dict[str, Any] = {"clients": len(data), "d": data.d}
    for select in ("exp", "pe", "ps"):
        plan = LocalPlan(d=data.d, batch=488, select=select, learning_rate=10.0)
        result[select] = seconds_per_call(partial(simulate, plan, model, data, np.random.default_rng(0)))
    return result


def million_clients() -> dict[str, Any]:
    """Two epochs of a million clients with a thousand binary features, residuals kept."""
    n, d = 1_000_000, 1_000
    rng = np.random.default_rng(0)
    x = np.empty((n, d), np.int8)
    for start in range(0, n, 10_000):
        x[start : start + 10_000] = rng.integers(0, 10, (10_000, d), dtype=np.int8) == 0
    y = np.where(x[:, :50].sum(axis=1) > 5, np.float32(1), np.float32(-1))
    data = FederatedData("million", x, y)
    plan = LocalPlan(d=d, batch=10_000, epochs=2, learning_rate=10.0, momentum=0.1)
    start_time = time.perf_counter()
    simulate(plan, linear_model("logistic", d), data, rng)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "clients": n,
        "d": d,
        "epochs": 2,
        "seconds": time.perf_counter() - start_time,
        "peak memory (GB)": peak / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--million", action="store_true", help="also run a million clients (minutes, 7 GB)")
    options = parser.parse_args()
    result: dict[str, Any] = {"selection": selection_costs()}
    result["adult epoch (s)"] = adult_epoch(options.data_dir)
    print(result["adult epoch (s)"])
    if options.million:
        result["million clients"] = million_clients()
        print(result["million clients"])
    if options.json:
        write_json(options.json, result)


if __name__ == "__main__":
    main()
