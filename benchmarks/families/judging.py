"""What Tacit and Opacus make of one family, against autograd of every single loss."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.families.family import Family, Instance
from tacit.errors import TacitError
from tacit.raw.clipping import Clipper
from tacit.support import Block, Support

SIZES = (6, 1, 5)
"""Examples of each batch; the first is rehearsed on."""
SEED = 20


@dataclass(frozen=True)
class Verdict:
    """What was found: "exact", "refused", "WRONG", "late" (refused after the rehearsal) or "CRASH"."""

    word: str
    error: float | None = None
    sentence: str = ""
    fallback: bool = False


def single_gradients(instance: Instance, batch: Any) -> dict[str, Tensor]:
    """The gradient of every loss of a batch by plain autograd, one backward pass each, all under the same draws."""
    model = instance.model
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found: dict[str, list[Tensor]] = {name: [] for name in wanted}
    for place in range(_rows(batch)):
        for p in wanted.values():
            p.grad = None
        torch.manual_seed(SEED)
        instance.loss(model, batch)[place].backward()
        for name, p in wanted.items():
            found[name].append(torch.zeros_like(p) if p.grad is None else p.grad.detach().to_dense().clone())
            p.grad = None
    return {name: torch.stack(rows) for name, rows in found.items()}


def judge_tacit(family: Family) -> Verdict:
    """Clipped sums on five kinds of support and three batches, after a rehearsal on the first."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            verdict = _tacit(family)
        except TacitError as error:
            verdict = Verdict("refused", sentence=str(error))
        except Exception as error:
            verdict = Verdict("CRASH", sentence=_reason(error))
    announced = [str(w.message) for w in caught if "has no rule" in str(w.message)]
    if verdict.word == "refused" and not family.refused:
        return verdict
    if verdict.word == "exact" and announced:
        return Verdict("exact", verdict.error, announced[0], fallback=True)
    return verdict


def _tacit(family: Family) -> Verdict:
    torch.manual_seed(SEED)
    instance = family.build()
    given = [instance.batch(rows, seed) for seed, rows in enumerate(SIZES)]
    clipper = Clipper(instance.model, instance.loss, autocast=family.autocast, seed=1)
    clipper.rehearse(given[0])
    worst = 0.0
    try:
        for batch in given:
            with torch.autocast("cpu", family.autocast or torch.bfloat16, family.autocast is not None):
                gradients = single_gradients(instance, batch)
            for support in _supports(instance.model):
                worst = max(worst, _error(clipper, gradients, batch, support))
    except TacitError as error:
        return Verdict("late", sentence=str(error))
    return Verdict("exact" if worst <= family.tolerance else "WRONG", worst)


def _error(clipper: Clipper, gradients: dict[str, Tensor], batch: Any, support: Support) -> float:
    masked = {
        name: g.double() * support[name].scaled(support[name].mask().double())
        for name, g in gradients.items()
    }
    norms = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in masked.values()]).sum(0).sqrt()
    clip_norm = max(0.9 * statistics.median(norms.tolist()), 1e-9)
    torch.manual_seed(SEED)
    found = clipper.clipped_sum([batch], support, clip_norm)
    weights = (clip_norm / norms).clamp(max=1)
    difference, size = 0.0, 0.0
    for name, value in found.values.items():
        expected = support[name].gather(torch.einsum("b,b...->...", weights, masked[name]))
        difference += float((value.double() - expected).square().sum())
        size += float(expected.square().sum())
    return (difference / max(size, 1e-300)) ** 0.5


def _supports(model: nn.Module) -> list[Support]:
    soft = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            weights = torch.linspace(0.2, 1.0, p.shape[-1]) if p.dim() else None
            soft[name] = (
                Block.all(p.shape) if weights is None else Block.weighted(p.shape, weights, p.dim() - 1)
            )
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return [
        Support.all(model),
        Support.random(model, ratio=0.3, seed=1),
        Support.random(model, size=max(1, round(0.03 * size)), seed=2),
        Support.random_rows(model, ratio=0.4, seed=3),
        Support(soft),
    ]


def judge_opacus(family: Family, mode: str) -> Verdict:
    """All per-example gradients with hooks; with ghost clipping the norms, which is a weaker test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _opacus(family, mode)
        except Exception as error:
            return Verdict("refused", sentence=_reason(error))


def _opacus(family: Family, mode: str) -> Verdict:
    from opacus.grad_sample.utils import prepare_module

    torch.manual_seed(SEED)
    instance = family.build()
    worst = 0.0
    batches = [instance.batch(rows, seed) for seed, rows in enumerate(SIZES)]
    expected = [single_gradients(instance, batch) for batch in batches]
    options = {"max_grad_norm": 1.0} if mode == "ghost" else {}
    wrapped: Any = prepare_module(instance.model, mode, loss_reduction="sum", **options)
    for batch, gradients in zip(batches, expected, strict=True):
        for p in instance.model.parameters():
            p.grad = p.grad_sample = p._norm_sample = None  # type: ignore[attr-defined,assignment]
        torch.manual_seed(SEED)
        instance.loss(wrapped, batch).sum().backward()
        norms = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
        if mode == "ghost":
            worst = max(worst, float((wrapped.get_norm_sample() - norms).norm() / norms.norm()))
            continue
        difference = 0.0
        for name, p in instance.model.named_parameters():
            if p.requires_grad:
                sample = p.grad_sample
                sample = sum(sample) if isinstance(sample, list) else sample
                given = torch.zeros_like(gradients[name]) if sample is None else sample
                difference += float((given - gradients[name]).square().sum())
        worst = max(worst, (difference / float(norms.square().sum())) ** 0.5)
    return Verdict("exact" if worst <= family.tolerance else "WRONG", worst)


def _rows(batch: Any) -> int:
    return next(len(leaf) for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim())


def _reason(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:200]


JUDGES: dict[str, Callable[[Family], Verdict]] = {
    "tacit": judge_tacit,
    "hooks": lambda family: judge_opacus(family, "hooks"),
    "ghost": lambda family: judge_opacus(family, "ghost"),
}
