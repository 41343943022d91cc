"""Sparse training without noise, written as plainly as it can be, to compare the trainer with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacit import Plan
from tacit.plan import All, Named, Phase, Random, SupportSource, TopK, TopRows
from tacit.raw.sampling import PoissonSampler


def naive_run(
    plan: Plan, model: nn.Module, x: Tensor, y: Tensor, seed: int, rule: NaiveSgd
) -> Iterator[tuple[Tensor, Tensor]]:
    """The parameters and the mask after every step; ``x`` is (examples, views, ...)."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    origin, squares, seen = theta.clone(), torch.zeros_like(theta), torch.zeros_like(theta)
    by_row: list[Tensor] = []
    sampler, step = PoissonSampler(plan.examples, plan.sampling_rate, seed=seed), 0
    for place, phase in enumerate(plan.phases):
        scores = {"squares": squares / seen, "movement": (theta - origin).abs(), "weights": theta.abs()}
        if by_row:
            scores["rows"] = torch.stack(by_row).mean(0)
        mask = choose(phase.support, shapes, scores, public_seed(seed, place))
        theta = torch.where(mask | torch.tensor(not phase.reset), theta, origin)
        rule.enter(mask, [shape.numel() for shape in shapes.values()])
        for _ in range(phase.steps):
            drawn = sampler.draw(step)
            gradients = per_example(model, shapes, theta, x[drawn], y[drawn])
            masked = gradients * mask
            norms = (gradients if phase.clip_order == "clip-then-mask" else masked).norm(dim=1, keepdim=True)
            clipped = masked * (phase.clip_norm / norms).clamp(max=1)
            mean = clipped.sum(0) / plan.batch_size
            squares, seen, step = squares + mean**2, seen + mask.double(), step + 1
            if phase.score not in (None, "squares", "movement"):
                if phase.score == "module-votes":
                    by_row.append(module_vote_values(phase, masked, mask, shapes) / plan.batch_size)
                elif phase.score == "votes":
                    by_row.append(vote_values(phase, masked, mask, shapes) / plan.batch_size)
                else:
                    by_row.append(row_values(phase.score, clipped / plan.batch_size, theta, shapes))
            if phase.updates:
                theta = torch.where(mask, rule.update(theta, mean), theta)
            yield theta, mask


def row_values(score: str, clipped: Tensor, theta: Tensor, shapes: dict[str, torch.Size]) -> Tensor:
    """What a lot says about each row, repeated for every coordinate of the row."""
    if score == "row-norms":
        per_row = [rows.norm(dim=2).sum(0) for rows in by_rows(clipped, shapes)]
    else:
        values = {
            "absolute": clipped.abs().sum(0),
            "magnitude": clipped.sum(0).abs(),
            "saliency": theta.abs() * clipped.abs().sum(0),
        }[score]
        per_row = [rows[0].sum(1) for rows in by_rows(values[None], shapes)]
    return repeated(per_row, shapes)


def vote_values(phase: Phase, masked: Tensor, mask: Tensor, shapes: dict[str, torch.Size]) -> Tensor:
    """The votes of a lot for each row, repeated for every coordinate of the row."""
    assert phase.votes is not None
    scored = [bool(part.any()) for part in by_rows(mask[None], shapes)]
    most = sum(min(phase.votes, shape[0]) for shape, own in zip(shapes.values(), scored, strict=True) if own)
    per_row = []
    for rows in by_rows(masked, shapes):
        norms = rows.norm(dim=2)
        best = norms.argsort(dim=1, descending=True)[:, : phase.votes]
        votes = torch.zeros_like(norms).scatter_(1, best, 1.0) * (norms > 0)
        per_row.append(votes.sum(0) * phase.clip_norm / most**0.5)
    return repeated(per_row, shapes)


def module_vote_values(phase: Phase, masked: Tensor, mask: Tensor, shapes: dict[str, torch.Size]) -> Tensor:
    """The votes of a lot for each module, at every coordinate of the first row of its first parameter."""
    assert phase.votes is not None
    scored = [bool(part.any()) for part in by_rows(mask[None], shapes)]
    modules: dict[str, list[int]] = {}
    for place, name in enumerate(shapes):
        if scored[place]:
            modules.setdefault(name.rpartition(".")[0], []).append(place)
    parts = by_rows(masked, shapes)
    norms = torch.stack(
        [sum(parts[place].square().sum((1, 2)) for place in places) for places in modules.values()], 1
    )
    best = norms.argsort(dim=1, descending=True)[:, : phase.votes]
    votes = torch.zeros_like(norms).scatter_(1, best, 1.0) * (norms > 0)
    vote = phase.clip_norm / min(phase.votes, len(modules)) ** 0.5
    per_row = [torch.zeros(shape[0], dtype=masked.dtype) for shape in shapes.values()]
    for places, summed in zip(modules.values(), votes.sum(0), strict=True):
        per_row[places[0]][0] = summed * vote
    return repeated(per_row, shapes)


def repeated(per_row: list[Tensor], shapes: dict[str, torch.Size]) -> Tensor:
    return torch.cat(
        [r.repeat_interleave(s.numel() // s[0]) for r, s in zip(per_row, shapes.values(), strict=True)]
    )


def by_rows(values: Tensor, shapes: dict[str, torch.Size]) -> list[Tensor]:
    parts = values.split([shape.numel() for shape in shapes.values()], dim=1)
    return [p.reshape(len(values), s[0], -1) for p, s in zip(parts, shapes.values(), strict=True)]


def per_example(
    model: nn.Module, shapes: dict[str, torch.Size], theta: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    def loss(flat: Tensor, views: Tensor, target: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        outputs = functional_call(model, named, (views,))
        return nn.functional.cross_entropy(outputs, target.expand(len(views)))

    return vmap(grad(loss), (None, 0, 0))(theta, x, y) if len(y) else theta.new_zeros(1, len(theta))


def public_seed(seed: int, place: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {place}".encode(), digest_size=8).digest(), "little") >> 1


def choose(
    source: SupportSource, shapes: dict[str, torch.Size], scores: dict[str, Tensor], seed: int
) -> Tensor:
    """The mask that a plan's description of a support means."""
    sizes = {name: shape.numel() for name, shape in shapes.items()}
    if isinstance(source, All):
        return torch.ones(sum(sizes.values()), dtype=torch.bool)
    if isinstance(source, Named):
        taken = [
            any(fnmatchcase(name, p) for p in source.active)
            and not any(fnmatchcase(name, p) for p in source.silent)
            for name in shapes
        ]
        return torch.cat([torch.full((s,), t) for s, t in zip(sizes.values(), taken, strict=True)])
    if isinstance(source, TopRows):
        return choose_rows(source, shapes, scores, seed)
    always = {name for name in shapes if any(fnmatchcase(name, p) for p in source.always_active)}
    pool = np.concatenate([np.full(size, name not in always) for name, size in sizes.items()])
    owner = np.concatenate([np.full(size, place) for place, size in enumerate(sizes.values())])
    generator = torch.Generator().manual_seed(seed)
    draws = np.full(len(pool), -1.0)
    draws[pool] = torch.cat([torch.rand(s, generator=generator, dtype=torch.float64).flatten()
                             for name, s in shapes.items() if name not in always]).numpy()  # fmt: skip
    score = draws if isinstance(source, Random) else pool_scores(source, shapes, scores[source.score])
    chosen = ~pool
    layers = [pool & (owner == place) for place in set(owner[pool])]
    for candidates in layers if isinstance(source, TopK) and source.per_layer else [pool]:
        k = max(1, math.floor(source.ratio * candidates.sum() + 1e-9))
        explored = min(k - 1, math.ceil(source.explore * k - 1e-9)) if isinstance(source, TopK) else 0
        chosen[best(score, candidates, k - explored)] = True
        chosen[best(draws, candidates & ~chosen, explored)] = True
    return torch.from_numpy(chosen)


def choose_rows(
    source: TopRows, shapes: dict[str, torch.Size], scores: dict[str, Tensor], seed: int
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    score = scores.get("weights" if source.score == "weights" else "rows")
    parts = (
        dict(zip(shapes, score.split([s.numel() for s in shapes.values()]), strict=True))
        if score is not None
        else {}
    )
    if source.choose == "modules":
        return choose_modules(source, shapes, parts, generator)
    rows, masks = [], {}
    for name, shape in shapes.items():
        masks[name] = torch.zeros(shape[0], dtype=torch.bool)
        if any(fnmatchcase(name, p) for p in source.always_active):
            masks[name][:] = True
        elif source.score == "random":
            drawn = torch.rand(shape[0], generator=generator, dtype=torch.float64)
            rows += [(-float(value), name, row) for row, value in enumerate(drawn)]
        else:
            values = parts[name].reshape(shape[0], -1)
            found = values.sum(1) if source.score == "weights" else values[:, 0]
            rows += [(-float(value), name, row) for row, value in enumerate(found)]
    for candidates in [[r for r in rows if r[1] == name] for name in shapes] if source.per_layer else [rows]:
        k = source.rows or max(1, math.floor((source.ratio or 0) * len(candidates) + 1e-9))
        for _, name, row in sorted(candidates, key=lambda r: r[0])[:k]:
            masks[name][row] = True
    return torch.cat(
        [masks[name].repeat_interleave(shape.numel() // shape[0]) for name, shape in shapes.items()]
    )


def choose_modules(
    source: TopRows, shapes: dict[str, torch.Size], parts: dict[str, Tensor], generator: torch.Generator
) -> Tensor:
    """Whole modules, by votes, by one draw each, or by the sum of the scores of their rows."""
    values: dict[str, float] = {}
    kept = {name: any(fnmatchcase(name, p) for p in source.always_active) for name in shapes}
    for name, shape in shapes.items():
        if kept[name]:
            continue
        module = name.rpartition(".")[0]
        if source.score == "random":
            drawn = float(torch.rand(shape[0], generator=generator, dtype=torch.float64)[0])
            values.setdefault(module, drawn)
        elif source.score == "module-votes":
            values.setdefault(module, float(parts[name][0]))
        else:
            own = parts[name].reshape(shape[0], -1)
            own = own if source.score == "weights" else own[:, :1]
            values[module] = values.get(module, 0.0) + float(own.sum())
    k = source.rows or max(1, math.floor((source.ratio or 0) * len(values) + 1e-9))
    chosen = sorted(values, key=lambda module: -values[module])[:k]
    return torch.cat(
        [
            torch.full((shape.numel(),), kept[name] or name.rpartition(".")[0] in chosen)
            for name, shape in shapes.items()
        ]
    )


def pool_scores(source: TopK, shapes: dict[str, torch.Size], score: Tensor) -> np.ndarray:
    found = []
    for part, shape in zip(score.split([s.numel() for s in shapes.values()]), shapes.values(), strict=True):
        values = part.numpy().reshape(shape)
        if source.pooling and len(shape) > 1:
            kept = 0 if source.pooling == "row" else 1
            others = tuple(dim for dim in range(len(shape)) if dim != kept)
            values = np.broadcast_to(values.mean(axis=others, keepdims=True), shape)
        found.append(values.reshape(-1))
    return np.concatenate(found)


def best(score: np.ndarray, candidates: np.ndarray, count: int) -> np.ndarray:
    """The first of the best: a stable sort of the candidates, highest score first."""
    places = np.flatnonzero(candidates)
    return places[np.argsort(-score[places], kind="stable")[:count]]


class NaiveSgd:
    """SGD with momentum and weight decay; what falls silent loses its momentum."""

    def __init__(self, lr: float, momentum: float = 0.0, decay: float = 0.0) -> None:
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.buffer: Tensor | float = 0.0
        self.mask = torch.zeros(0)

    def enter(self, mask: Tensor, sizes: list[int]) -> None:
        self.buffer, self.mask = self.buffer * mask.double(), mask.double()

    def update(self, theta: Tensor, mean: Tensor) -> Tensor:
        self.buffer = self.momentum * self.buffer + (mean + self.decay * theta) * self.mask
        return theta - self.lr * self.buffer


class NaiveAdam(NaiveSgd):
    """Adam with L2 weight decay; a parameter that was silent as a whole counts its steps anew."""

    def __init__(self, lr: float, decay: float) -> None:
        super().__init__(lr, decay=decay)
        self.first = self.second = self.steps = torch.zeros((), dtype=torch.float64)

    def enter(self, mask: Tensor, sizes: list[int]) -> None:
        before = self.mask if len(self.mask) else torch.zeros(len(mask), dtype=torch.float64)
        kept = torch.cat([part.any().expand(len(part)) for part in before.split(sizes)])
        self.mask, self.steps = mask.double(), self.steps * kept
        self.first, self.second = self.first * self.mask, self.second * self.mask

    def update(self, theta: Tensor, mean: Tensor) -> Tensor:
        gradient = (mean + self.decay * theta) * self.mask
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        self.steps = self.steps + 1
        scale = (self.second / (1 - 0.999**self.steps)).sqrt() + 1e-8
        return theta - self.lr * self.first / (1 - 0.9**self.steps) / scale
