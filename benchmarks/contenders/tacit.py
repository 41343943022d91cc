"""Tacit on all coordinates, on scattered coordinates and on whole rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.contenders.types import Contender, Family, Step, StepSettings
from benchmarks.workloads import Batch, Workload

RATIO = 0.1
CHUNK = 16


def build_on(
    make_support: Callable[[Any, nn.Module], Any], chunk: int | None = None
) -> Callable[[nn.Module, Batch, Workload, StepSettings], Step]:
    """A private step on the support that `make_support(tacit, model)` returns, in chunks of so many examples."""

    def build(model: nn.Module, batch: Batch, workload: Workload, settings: StepSettings) -> Step:
        import tacit

        private = tacit.PrivateStep(
            model,
            workload.loss,
            support=make_support(tacit, model),
            clip_norm=settings.clip_norm,
            noise_multiplier=settings.noise_multiplier,
            batch_size=len(batch[0]),
            optimizer=lambda named: torch.optim.SGD(named, lr=settings.learning_rate),
        )

        chunks = list(zip(*(part.split(chunk or len(part)) for part in batch), strict=True))

        def step() -> None:
            private.step_over(chunks)

        return step

    return build


def scattered(name: str, title: str, ratio: float, bar: str | None = None) -> Contender:
    """Tacit on random single coordinates, the shape of TP-TopK's second phase."""
    build = build_on(lambda tacit, model: tacit.Support.random(model, ratio=ratio, seed=0))
    return Contender(name, title, Family.TACIT, build, channels_last=True, active_ratio=ratio, bar=bar)


def rows_of_pretrained(tacit: Any, model: nn.Module) -> Any:
    """A share of the rows of each weight; biases, norms and the head whole: what SPARTA trains by default."""
    rows = tacit.Support.random_rows(model, ratio=RATIO, seed=0)
    whole = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and (p.dim() < 2 or name.startswith(("head.", "classifier.")))
    ]
    return rows | tacit.Support.matching(model, whole)


TACIT = (
    Contender(
        "tacit-dense",
        "Tacit, all coordinates",
        Family.TACIT,
        build_on(lambda tacit, model: tacit.Support.all(model)),
        channels_last=True,
        bar="dense",
    ),
    scattered("tacit-topk", "Tacit, TP-TopK phase 2, ρ = 0.1", RATIO, bar="topk"),
    Contender(
        "tacit-rows",
        "Tacit, rows, ρ = 0.1",
        Family.TACIT,
        build_on(lambda tacit, model: tacit.Support.random_rows(model, ratio=RATIO, seed=0)),
        channels_last=True,
        active_ratio=RATIO,
        bar="rows",
    ),
    Contender(
        "tacit-sparta",
        "Tacit, fine-tuning rows, ρ = 0.1",
        Family.TACIT,
        build_on(rows_of_pretrained),
        channels_last=True,
        only_pretrained=True,
        active_ratio=RATIO,
        bar="sparta",
    ),
    Contender(
        "tacit-sparta-chunks",
        f"Tacit, fine-tuning rows, ρ = 0.1, in chunks of {CHUNK}",
        Family.TACIT,
        build_on(rows_of_pretrained, CHUNK),
        channels_last=True,
        only_pretrained=True,
        active_ratio=RATIO,
    ),
    Contender(
        "tacit-part",
        "Tacit, what is trained",
        Family.TACIT,
        build_on(lambda tacit, model: tacit.Support.all(model)),
        channels_last=True,
        only_pretrained=True,
        bar="part",
    ),
)
