"""``make gpu-test``: the matrix of methods and models on a real GPU, with a report. For someone who has one.

Every method trains, stops, resumes and verifies on the GPU and on the CPU; the weights are compared. Then the time of a
private step is taken beside plain SGD. Ten minutes; writes ``build/gpu-report.json`` and prints a summary.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Run everything and write the report."""
    if not torch.cuda.is_available():
        raise SystemExit(
            "There is no GPU that PyTorch can use; make test runs the same matrix on a pretend device."
        )
    sys.path.insert(0, str(ROOT / "tests"))
    warnings.simplefilter("ignore")
    from device.scenarios import METHODS, MODELS, matrix
    from tacit.release.device_noise import works_on

    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "rows": [],
    }
    for method in METHODS:
        for model in MODELS:
            row: dict[str, Any] = {"method": method, "model": model}
            with tempfile.TemporaryDirectory() as directory:
                try:
                    there = matrix(method, model, Path(directory) / "gpu", "cuda")
                    here = matrix(method, model, Path(directory) / "cpu", "cpu")
                    row["difference"] = float((there - here).norm() / here.norm())
                except Exception as error:
                    row |= {
                        "error": f"{type(error).__name__}: {error}",
                        "trace": traceback.format_exc()[-2000:],
                    }
            report["rows"].append(row)
            print(json.dumps({key: value for key, value in row.items() if key != "trace"}), flush=True)
    report["noise is made there"] = works_on(torch.device("cuda"))
    report["seconds per step"] = _timed()
    place = ROOT / "build" / "gpu-report.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    failed = [row for row in report["rows"] if "error" in row]
    print(f"{len(report['rows']) - len(failed)} of {len(report['rows'])} ran; report in {place}")
    if failed:
        raise SystemExit(1)


def _timed() -> dict[str, float]:
    """Seconds of a plain and of a private step of a wide network, and of noise, after a few to warm up."""
    from tacit import PrivateStep, Support
    from tacit.losses import cross_entropy
    from tacit.release.device_noise import PIECE, MadeThere

    model = nn.Sequential(
        nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    ).cuda()
    batch = (torch.randn(1024, 784, device="cuda"), torch.randint(10, (1024,), device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def plain() -> None:
        optimizer.zero_grad()
        cross_entropy(model, batch).mean().backward()
        optimizer.step()

    private = PrivateStep(
        model,
        cross_entropy,
        support=Support.all(model),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=1024,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.01),
    )
    made = MadeThere(torch.device("cuda", torch.cuda.current_device()))
    found = {}
    for name, step in (
        ("plain", plain),
        ("private", lambda: private.step(batch)),
        ("a million numbers of noise", lambda: made.take(PIECE)),
    ):
        for _ in range(12):
            step()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            step()
        torch.cuda.synchronize()
        found[name] = (time.perf_counter() - started) / 20
    return found


if __name__ == "__main__":
    main()
