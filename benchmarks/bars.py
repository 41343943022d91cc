"""The targets: how expensive a private step may be, as a ratio to the fastest plain SGD step of the same model."""

from __future__ import annotations

from dataclasses import dataclass

OPACUS_SPEEDUP = 1.7
MEMORY_100M = 2.0
OPACUS_MEMORY = 2.0
"""How many times the memory of a row-sparse fine-tuning step Opacus should need at the same batch."""
SELECTION_BYTES = 4_000_000_000
"""Peak of a process that selects rows of MiniLM with batches of 256."""


@dataclass(frozen=True)
class Bar:
    """Upper limits on the ratios of time (by workload) and of peak memory to plain SGD."""

    title: str
    time: dict[str, float]
    memory: float


BARS = {
    "dense": Bar("dense DP-SGD", {"W1": 1.12, "W2": 1.25, "W3": 1.05, "W4": 1.1, "W5": 1.1}, 1.1),
    "topk": Bar("TP-TopK phase 2, ρ = 0.1", {"W1": 1.1, "W2": 1.25, "W3": 1.0, "W4": 1.1, "W5": 1.05}, 1.1),
    "rows": Bar("SPARTA rows, ρ = 0.1", {"W1": 0.7, "W2": 1.1, "W3": 0.65, "W4": 0.75, "W5": 0.75}, 1.0),
    "sparta": Bar(
        "SPARTA rows of a pretrained network, ρ = 0.1",
        {"mobilenet": 1.0, "mobilenet-norms": 1.0, "mobilenet-32": 1.0, "minilm": 1.0, "minilm-16": 1.0},
        1.1,
    ),
    "part": Bar(
        "a part of a pretrained network, beside SGD on the same part",
        {"mobilenet-lora": 1.0, "mobilenet-last": 1.0, "minilm-lora": 1.0, "minilm-last": 1.0},
        1.1,
    ),
}
