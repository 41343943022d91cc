"""From a plan's description of a support to the support itself, using released scores only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn

from tacit.errors import ArgumentError
from tacit.plan.sources import (
    AdaptiveRows,
    All,
    Named,
    Own,
    Pooling,
    Random,
    Soft,
    SupportSource,
    TopK,
    TopRows,
    active_count,
)
from tacit.support.block import Block
from tacit.support.modules import modules_of
from tacit.support.rows import RowScores, best_rows, check_rows, row_scores
from tacit.support.scores import Scores, movement, pooled
from tacit.support.soft import effective_share, soft_blocks
from tacit.support.support import Support, trainable_parameters
from tacit.theory import (
    CaptureEstimate,
    RatioChoice,
    average_estimates,
    choose_standing,
    detect,
    held_out_capture,
)


@dataclass(frozen=True)
class Selection:
    """A chosen support, one sentence that says why, and where its energy was estimated to lie, if it was."""

    support: Support
    reason: str
    estimate: CaptureEstimate | None = None


@dataclass(frozen=True)
class Evidence:
    """All that a choice may depend on: released scores, the start, the coming noise, and a public seed."""

    scores: Scores | None
    origin: Mapping[str, Tensor] | None
    noise_variance: float
    """of one coordinate in one of the coming steps"""
    steps: int
    """of the coming phase"""
    seed: int
    row_scores: RowScores | None = None


def select(source: SupportSource, model: nn.Module, evidence: Evidence) -> Selection:
    """The support that ``source`` describes, for this model, given what has been released so far."""
    if source.needs_folds:
        return _judged(source, model, evidence)
    names = check_source(source, model)
    return _joined(_CHOICES[source.kind](source, model, names, evidence), model, source.always)


def _all(source: SupportSource, model: nn.Module, names: list[str], evidence: Evidence) -> Selection:
    return Selection(Support.all(model), "All coordinates are active by plan.")


def _adaptive(source: SupportSource, model: nn.Module, names: list[str], evidence: Evidence) -> Selection:
    return Selection(
        Support.all(model), "Every step chooses rows of embedding tables by its counts, by plan."
    )


def _named(source: SupportSource, model: nn.Module, names: list[str], evidence: Evidence) -> Selection:
    support = Support.matching(model, names)
    return Selection(support, f"{support.size} coordinates of {len(names)} named parameters, by plan.")


def judged(source: SupportSource, model: nn.Module) -> list[str]:
    """The parameters that ``source`` judges by the signal in released gradients: embeddings and biases are none.

    How much gradient a word collects says how frequent it is, not how useful: on texts, words without much signal carry
    a large part of the accuracy together. A bias sees every example: until it has found the base rate it holds most of
    the energy, and measured against it nothing else would seem worth keeping.
    """
    spared = {*embeddings(model), *biases(model)}
    return [name for name in check_source(source, model) if name not in spared]


def _judged(source: SupportSource, model: nn.Module, evidence: Evidence) -> Selection:
    """A choice among what is judged; the rest stays active."""
    names = judged(source, model)
    if not names:
        return Selection(
            Support.all(model), "All coordinates stay active: embeddings and biases are not judged by signal."
        )
    spared = [name for name in check_source(source, model) if name not in names]
    chosen = _CHOICES[source.kind](source, model, names, evidence)
    return _joined(chosen, model, (*source.always, *spared))


def embeddings(model: nn.Module) -> list[str]:
    """The names of the weights of embeddings."""
    tables = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    return [name for name, parameter in model.named_parameters() if id(parameter) in tables]


def biases(model: nn.Module) -> list[str]:
    """The names of vectors, such as biases and the scales of norms, and of weights on a single input."""
    single = {
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.in_features == 1
    }
    return [name for name, value in trainable_parameters(model).items() if value.dim() < 2 or name in single]


def _joined(chosen: Selection, model: nn.Module, always: tuple[str, ...]) -> Selection:
    """The selection with what is always active."""
    if not always:
        return chosen
    return Selection(chosen.support | Support.matching(model, always), chosen.reason, chosen.estimate)


def check_source(source: SupportSource, model: nn.Module) -> list[str]:
    """The parameters that ``source`` takes or chooses among; refuse one that does not fit the model."""
    if source.kind in (All.kind, AdaptiveRows.kind):
        return list(trainable_parameters(model))
    if source.kind == Own.kind:
        raise ArgumentError("A plan for a custom loop is for PrivateLoop; plan with another method here.")
    wanted, unwanted = source.candidates
    for patterns in filter(None, (wanted, unwanted)):
        Support.matching(model, patterns)  # refuses a pattern without a parameter
    names = [
        name
        for name in trainable_parameters(model)
        if any(fnmatchcase(name, pattern) for pattern in wanted)
        and not any(fnmatchcase(name, pattern) for pattern in unwanted)
    ]
    if not names:
        raise ArgumentError(
            "Every parameter is always active; nothing is left to choose. Use dp-sgd instead."
        )
    if source.kind == TopRows.kind:
        rows = cast(TopRows, source)
        if rows.score == "counts":
            names = [name for name in names if name in embeddings(model)]
            if not names:
                raise ArgumentError(
                    "Rows by counts are rows of embedding tables (nn.Embedding, nn.EmbeddingBag), and there is none to "
                    "choose from; use another method."
                )
        check_rows(rows, model, names)
    return names


def _random(source: Random, model: nn.Module, names: list[str], evidence: Evidence) -> Selection:
    scores = _uniform(model, names, evidence.seed)
    size = active_count(source.ratio, sum(s.numel() for s in scores.values()))
    return Selection(
        _complete(model, Support.top_k(scores, size=size)), f"{size} coordinates drawn at random, by plan."
    )


def _top(source: TopK, model: nn.Module, names: list[str], evidence: Evidence) -> Selection:
    scores = {
        name: pooled(score, source.pooling) for name, score in _scores(source, model, names, evidence).items()
    }
    layers = [[name] for name in names] if source.per_layer else [names]
    estimates, choices = [], []
    if source.ratio == "auto":
        estimates = [_estimate(source, model, layer, evidence) for layer in layers]
        choices = [_choice(source, layer, evidence) for layer in layers]
        if all(choice.dense for choice in choices):
            return Selection(Support.all(model), choices[0].reason, estimates[0])
    ratios = [choice.ratio for choice in choices] or [float(source.ratio)] * len(layers)
    draws = _uniform(model, names, evidence.seed) if source.explore else {}
    blocks: dict[str, Block] = {}
    for layer, ratio in zip(layers, ratios, strict=True):
        blocks |= _best({name: scores[name] for name in layer}, draws, ratio, source.explore)
    size = sum(block.size for block in blocks.values())
    if len(choices) == 1:
        return Selection(_complete(model, blocks), choices[0].reason, estimates[0])
    reason = f"The {size} coordinates with the highest scores, by plan."
    if choices:
        sparse = sum(not choice.dense for choice in choices)
        reason = f"{size} coordinates stay active: {sparse} of {len(choices)} parameters are sparse."
    return Selection(_complete(model, blocks), reason)


def _soft(source: Soft, model: nn.Module, names: list[str], evidence: Evidence) -> Selection:
    if evidence.scores is None:
        raise ArgumentError("A soft support needs a phase before it that scores released gradients.")
    sums, noise = evidence.scores.sums(names)
    blocks = soft_blocks(
        sums, noise, evidence.scores.growth(evidence.steps, evidence.noise_variance) if noise else 1.0
    )
    total = sum(block.total for block in blocks.values())
    weights = [block.weights.values for block in blocks.values() if block.weights is not None]
    share = sum(effective_share(block) * block.total for block in blocks.values()) / total
    if not weights:
        reason = f"All {total} coordinates stay active with weight 1: together, columns may all matter."
        return Selection(Support.all(model), reason)
    values = torch.cat(weights)
    reason = (
        f"All {total} coordinates stay active, weighted by column, from {float(values.min()):.2f} to "
        f"{float(values.max()):.2f}: in effect {share:.1%} of them."
    )
    return Selection(_complete(model, blocks), reason)


def _rows(source: TopRows, model: nn.Module, names: list[str], evidence: Evidence) -> Selection:
    scores = row_scores(source, model, names, evidence.row_scores, evidence.seed)
    support = _complete(model, best_rows(source, model, scores))
    others = [name for name in trainable_parameters(model) if name not in names]
    if source.score == "counts" and others:
        support = support | Support.matching(model, others)
    rows = sum(source.count(len(score)) for score in scores.values())
    if source.choose == "modules":
        rows = source.count(len(modules_of(model, scores)))
    elif not source.per_layer:
        rows = source.count(sum(len(score) for score in scores.values()))
    how = "drawn at random" if source.score == "random" else f"with the highest {source.score}"
    return Selection(support, f"{rows} {source.choose} {how} ({support.size} coordinates), by plan.")


def _best(
    scores: Mapping[str, Tensor], draws: Mapping[str, Tensor], ratio: float, explore: float
) -> dict[str, Block]:
    """⌊ratio · d⌋ of the scored coordinates: the highest, and the share ``explore`` drawn from the rest.

    At least one is explored where there is more than one, so that every coordinate keeps a chance.
    """
    size = active_count(ratio, sum(score.numel() for score in scores.values()))
    explored = min(size - 1, math.ceil(explore * size - 1e-9))
    support = Support.top_k(scores, size=size - explored)
    if explored:
        rest = {name: draws[name] for name in scores}
        for name, draw in rest.items():
            draw.view(-1)[support[name].flat()] = -1
        support = support | Support.top_k(rest, size=explored)
    return dict(support)


def _scores(source: TopK, model: nn.Module, names: list[str], evidence: Evidence) -> dict[str, Tensor]:
    if source.score == "squares":
        if evidence.scores is None:
            raise ArgumentError(
                "A support by squares needs a phase before it that scores released gradients."
            )
        squares = evidence.scores.squares()
        return {name: squares[name] for name in names}
    if evidence.origin is None:
        raise ArgumentError("A support by movement needs the parameters that training started from.")
    parameters = trainable_parameters(model)
    return movement({name: parameters[name] for name in names}, evidence.origin)


def _choice(source: TopK, names: list[str], evidence: Evidence) -> RatioChoice:
    """How many of the coordinates of these parameters to keep: those that stand out, or all."""
    assert evidence.scores is not None  # the estimate has refused to go without
    sums, noise = evidence.scores.sums(names)
    if not noise:
        total = sum(value.numel() for value in sums.values())
        return RatioChoice(total, total, f"All {total} coordinates stay active: there is no noise to save.")
    found = []
    for value in sums.values():
        groups = _grouped(value, source.pooling)
        found.append(detect(groups.double().square().sum(1), groups.shape[1], noise))
    return choose_standing(found, evidence.scores.growth(evidence.steps, evidence.noise_variance))


def _grouped(value: Tensor, pooling: Pooling | None) -> Tensor:
    """The coordinates that are ranked together, one row per group."""
    if pooling is None or value.dim() < 2:
        return value.reshape(-1, 1)
    return (value if pooling == "row" else value.movedim(1, 0)).flatten(1)


def _estimate(source: TopK, model: nn.Module, names: list[str], evidence: Evidence) -> CaptureEstimate:
    """Energy inside and outside the best k, ranked on two thirds of the warm-up and measured on the rest."""
    folds = evidence.scores.folds(names) if evidence.scores is not None else []
    if len(folds) < 2:
        raise ArgumentError("Choosing the active ratio needs a warm-up of at least two scored steps.")
    shapes = [trainable_parameters(model)[name].shape for name in names]
    everything = torch.stack([fold.gradient_sum for fold in folds]).sum(0)
    estimates = []
    for fold in folds:
        ranking = (everything - fold.gradient_sum).abs_()
        if source.pooling is not None:
            parts = torch.split(ranking, [shape.numel() for shape in shapes])
            ranking = torch.cat(
                [
                    pooled(part.view(shape), source.pooling).flatten()
                    for part, shape in zip(parts, shapes, strict=True)
                ]
            )
        estimates.append(held_out_capture(ranking, fold))
    return average_estimates(estimates)


def _uniform(model: nn.Module, names: list[str], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    parameters = trainable_parameters(model)
    return {
        name: torch.rand(parameters[name].shape, generator=generator, dtype=torch.float64) for name in names
    }


def _complete(model: nn.Module, blocks: Mapping[str, Block]) -> Support:
    """The support of these blocks, with the parameters they do not speak of added, silent."""
    return Support(
        {
            name: blocks[name] if name in blocks else Block.silent(p.shape)
            for name, p in trainable_parameters(model).items()
        }
    )


_CHOICES: dict[str, Callable[[Any, nn.Module, list[str], Evidence], Selection]] = {
    All.kind: _all,
    AdaptiveRows.kind: _adaptive,
    Named.kind: _named,
    Random.kind: _random,
    TopK.kind: _top,
    Soft.kind: _soft,
    TopRows.kind: _rows,
}
"""What chooses the support, by the kind of its source."""
