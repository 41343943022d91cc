"""Trains every kind of model with every method on the pretend device; prints what came of it as JSON.

A process of its own: the device is registered for good. ``python -m device.scenarios [WORDS]`` from ``tests/``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from device import pretend
from tacit import PrivateStep, Support, Trainer, verify
from tacit.losses import cross_entropy
from tacit.plan import make_plan
from tacit.release import device_noise

EXAMPLES, BATCH = 32, 8

METHODS: dict[str, dict[str, Any]] = {
    "dp-sgd": {},
    "tp-topk": {"active_ratio": 0.3},
    "tp-topk few": {"active_ratio": 0.05},
    "tp-topk reset": {"active_ratio": 0.3, "reset": True},
    "tp-topk auto": {"active_ratio": "auto"},
    "tp-topk soft": {"active_ratio": "soft"},
    "tp-rand": {"active_ratio": 0.3},
    "on-rand": {"active_ratio": 0.3},
    "on-topk": {"active_ratio": 0.3},
    "rs": {"active_ratio": 0.3},
    "sparta": {"active_ratio": 0.5},
}


class Tokens(nn.Module):
    """An embedding, attention, positions that no rule serves.

    Attention is written out: PyTorch asks devices that it does not know for a kernel of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(11, 8), nn.Parameter(torch.randn(6, 8))
        self.mix = nn.Linear(8, 24)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        ids = (x[:, :6].abs() * 5).long().clamp(max=10)
        h = self.norm(self.table(ids) + self.positions)
        q, k, v = self.mix(h).chunk(3, -1)
        h = h + torch.softmax(q @ k.transpose(1, 2), -1) @ v
        logits: Tensor = self.head(h.mean(1))
        return logits


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 3))


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 3))
    model[0].requires_grad_(False)
    return model


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": _wide,
    "frozen": _frozen,
    "convolutions": _convolutions,
    "tokens": Tokens,
}


def data(seed: int = 0) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (EXAMPLES,), generator=draw)
    return TensorDataset(torch.randn(3, 16, generator=draw)[y] + torch.randn(EXAMPLES, 16, generator=draw), y)


def trainer(method: str, model: nn.Module, run_dir: Path, **options: Any) -> Trainer:
    name, settings = method.split(" ")[0], METHODS[method]
    plan = make_plan(
        name,
        epsilon=4.0,
        delta=1e-4,
        examples=EXAMPLES,
        batch_size=BATCH,
        epochs=3,
        accountant="rdp",
        **settings,
    )
    return Trainer(
        model,
        data(),
        cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.Adam(named, lr=0.01),
        run_dir=run_dir,
        held_out=data(1),
        seed=7,
        chunk_size=5,
        **options,
    )


def matrix(method: str, model: str, directory: Path, device: str) -> Tensor:
    """Train, stop in the middle, resume with a fresh trainer, finish, verify; the weights in the end."""

    def built() -> nn.Module:
        torch.manual_seed(3)
        return MODELS[model]().to(device)

    first = trainer(method, built(), directory)
    steps = first.steps()
    for _ in range(2):
        next(steps)
    first.save()
    first.close()
    second = trainer(method, built(), directory)
    result = second.resume(progress=False)
    assert result.finished
    second.predict(data(1).tensors[0])
    checked = verify(directory)
    assert checked.agrees, checked
    return torch.cat([p.detach().cpu().flatten() for p in second.model.parameters()])


LARGE: dict[str, Callable[[], nn.Module]] = {
    "wide": lambda: nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 20), nn.Linear(20, 3)),
    **{name: MODELS[name] for name in ("frozen", "convolutions", "tokens")},
}
SUPPORTS: dict[str, Callable[[nn.Module], Support]] = {
    "all": Support.all,
    "many coordinates": lambda model: Support.random(model, ratio=0.3, seed=1),
    "rows": lambda model: Support.random_rows(model, ratio=0.4, seed=1),
    "few coordinates": lambda model: Support.random(model, ratio=0.05, seed=1),
}


def steps_and_traffic(model: nn.Module, support: str, device: str) -> dict[str, Any]:
    """What a step of a custom loop moves between host and device, once it runs; and while it still looks."""
    device_noise.PIECE = 16 * device_noise.BLOCK  # a pretend device is slow
    model = model.to(device)
    step = PrivateStep(
        model,
        cross_entropy,
        support=SUPPORTS[support](model),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=BATCH,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
    )
    chunks = [[t.to(device) for t in data()[start : start + 4]] for start in (0, 4)]
    found: dict[str, Any] = {"dimension": sum(p.numel() for p in model.parameters()), "steps": []}
    for _ in range(6):
        pretend.traffic.__init__()  # type: ignore[misc]
        step.step_over(chunks)
        found["steps"].append(
            {
                "to host": sum(pretend.traffic.to_host),
                "to device": sum(pretend.traffic.to_device),
                "waits": len(pretend.traffic.waits),
            }
        )
    return found


def main() -> None:
    """Every method with every model, on the device and, for comparison, without it."""
    warnings.simplefilter("ignore")
    words = sys.argv[1:] or [""]
    for method in METHODS:
        for model in MODELS:
            if not any(word in f"{method} {model}" for word in words):
                continue
            with tempfile.TemporaryDirectory() as directory:
                try:
                    plain = matrix(method, model, Path(directory) / "host", "cpu")
                    with pretend.pretend_device():
                        there = matrix(method, model, Path(directory) / "device", str(pretend.DEVICE))
                    outcome = {"difference": float((plain - there).norm() / plain.norm())}
                except Exception as error:
                    outcome = {
                        "error": f"{type(error).__name__}: {error}",
                        "trace": traceback.format_exc()[-1500:],
                    }
            print(json.dumps({"method": method, "model": model, **outcome}), flush=True)
    for name, build in LARGE.items():
        for support in SUPPORTS:
            if any(word in f"traffic {name} {support}" for word in words):
                torch.manual_seed(3)
                with pretend.pretend_device():
                    found = steps_and_traffic(build(), support, str(pretend.DEVICE))
                print(json.dumps({"traffic": f"{name} {support}", **found}), flush=True)


if __name__ == "__main__":
    main()
