"""Gradient ascent on cancellation: inputs whose gradient is far smaller than what it is summed from."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from tools.attack.rows import Real, Row, build, ordinary
from tools.attack.targets import Target, model_of

STEPS = 30


def ascend(target: Target, rng: random.Random) -> list[Row]:
    """Rows from a few ascents in double precision of log Σ‖aₗ‖²‖bₗ‖² − log ‖g‖² over the layers l.

    a are a layer's inputs, b its output gradients, g the gradient of the parameters. Where the first is large and the
    second small, a norm found by differences is lost in rounding.
    """
    if not any(isinstance(field, Real) for field in target.fields):
        return []
    model = model_of(target, torch.float64)
    start = build(target.fields, rng)[0] if rng.random() < 0.5 else _harmless(target, rng)
    if not all(bool(part.double().isfinite().all()) for part in start):
        start = _harmless(target, rng)
    try:
        return _climb(model, target, start)
    except RuntimeError:  # a layer without second derivatives
        return []


def _harmless(target: Target, rng: random.Random) -> Row:
    return ordinary(target.fields[0], rng), ordinary(target.fields[1], rng)


def _climb(model: nn.Module, target: Target, row: Row) -> list[Row]:
    parts = [
        part.clone().requires_grad_() if isinstance(field, Real) else part
        for part, field in zip(row, target.fields, strict=True)
    ]
    free = [part for part in parts if part.requires_grad]
    rate = [0.05 * float(part.detach().square().mean().sqrt().clamp(1e-6, 1e6)) for part in free]
    groups = [{"params": [part], "lr": r} for part, r in zip(free, rate, strict=True)]
    optimizer = torch.optim.Adam(groups)
    for _ in range(STEPS):
        optimizer.zero_grad()
        height = _cancellation(model, target, parts)
        if not bool(height.isfinite()) or not height.requires_grad:
            return []
        torch.autograd.backward(-height, inputs=free)
        if not all(part.grad is not None and bool(part.grad.isfinite().all()) for part in free):
            break
        optimizer.step()
    found = (parts[0].detach(), parts[1].detach())
    return [found] if all(bool(part.double().isfinite().all()) for part in found) else []


def _cancellation(model: nn.Module, target: Target, parts: list[Tensor]) -> Tensor:
    seen: list[tuple[Tensor, Tensor]] = []

    def see(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(output, Tensor) and output.requires_grad and inputs[0].is_floating_point():
            seen.append((inputs[0], output))

    leaves = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
    handles = [module.register_forward_hook(see) for module in leaves]
    try:
        rows = [field.stack([part], torch.float64) for part, field in zip(parts, target.fields, strict=True)]
        loss = target.loss(model, tuple(rows)).sum()
    finally:
        for handle in handles:
            handle.remove()
    parameters = [p for p in model.parameters() if p.requires_grad]
    outputs = [output for _, output in seen]
    found = torch.autograd.grad(loss, [*parameters, *outputs], create_graph=True, allow_unused=True)
    gradients, output_gradients = found[: len(parameters)], found[len(parameters) :]
    small = sum(g.square().sum() for g in gradients if g is not None)
    large = sum(
        a.square().sum() * b.square().sum()
        for (a, _), b in zip(seen, output_gradients, strict=True)
        if b is not None
    )
    return torch.log(torch.as_tensor(large) + 1e-300) - torch.log(torch.as_tensor(small) + 1e-300)
