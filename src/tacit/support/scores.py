"""What the released gradients say about each coordinate. Nothing here ever sees an unreleased value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tacit.errors import ArgumentError
from tacit.support.block import Kind
from tacit.support.support import trainable_parameters
from tacit.theory import WarmupFold

if TYPE_CHECKING:
    from tacit.release.mechanism import Released

FOLDS = 3
"""Released gradients are dealt to this many folds, so that k is chosen on steps the ranking has not seen."""


class Scores:
    """Running sums of released gradients, per coordinate.

    The debiased square of coordinate p is the mean of g̃ₚ² − ν² over the steps in which p was active, with
    the noise variance ν² of each step. ``folds`` names the parameters of which, besides, the plain sums over every
    third step are kept: those that are judged where the active ratio is chosen automatically, or columns are weighted.
    """

    def __init__(self, model: nn.Module, *, folds: Collection[str] = ()) -> None:
        parameters = trainable_parameters(model)
        self._squares = {
            name: torch.zeros_like(p, memory_format=torch.contiguous_format) for name, p in parameters.items()
        }
        self._seen = {name: torch.zeros(p.shape, dtype=torch.int32) for name, p in parameters.items()}
        self._folds = [
            {n: torch.zeros_like(s) for n, s in self._squares.items() if n in folds}
            for _ in range(FOLDS if folds else 0)
        ]
        self._fold_steps = [0] * len(self._folds)
        self._fold_noise = [0.0] * len(self._folds)
        self._steps = 0

    @torch.no_grad()
    def add(self, released: Released) -> None:
        """Take in one release. A coordinate that is silent in it is left as it was."""
        if any(block.weights is not None for block in released.support.values()):
            raise ArgumentError("A phase with a soft support cannot be scored: its gradients are weighted.")
        noise = released.noise_std**2
        fold = self._steps % FOLDS
        for name, values in released.values.items():
            block = released.support[name]
            if block.kind is Kind.ALL:
                self._squares[name].addcmul_(values, values).sub_(noise)
                self._seen[name] += 1
            else:
                flat = block.flat()
                values = values.flatten()
                self._squares[name].view(-1).index_add_(0, flat.to(values.device), values.square() - noise)
                self._seen[name].view(-1)[flat] += 1
            if self._folds and name in self._folds[fold]:
                place = self._folds[fold][name].view(-1)
                place.index_add_(0, block.flat().to(values.device), values.flatten())
        if self._folds:
            self._fold_steps[fold] += 1
            self._fold_noise[fold] += noise
        self._steps += 1

    def squares(self) -> dict[str, Tensor]:
        """The debiased mean squares; minus infinity where a coordinate was never active."""
        found = {}
        for name, total in self._squares.items():
            seen = self._seen[name].to(total.device)
            found[name] = (total / seen).masked_fill_(seen == 0, float("-inf"))
        return found

    def folds(self, names: list[str]) -> list[WarmupFold]:
        """The folds over the named parameters, flat, in that order; folds without a step are left out."""
        return [
            WarmupFold(torch.cat([fold[name].flatten() for name in names]), steps, noise / steps)
            for fold, steps, noise in zip(self._folds, self._fold_steps, self._fold_noise, strict=True)
            if steps
        ]

    def sums(self, names: list[str]) -> tuple[dict[str, Tensor], float]:
        """The plain sums over all steps of the named parameters, and the noise variance of each coordinate."""
        totals = {name: torch.stack([fold[name] for fold in self._folds]).sum(0) for name in names}
        return totals, sum(self._fold_noise)

    def growth(self, steps: int, noise_variance: float) -> float:
        """How much the ratio of signal to noise energy grows if ``steps`` more are taken, each with this noise.

        A signal that stays as it is adds up over all steps, its energy with their square; noise adds up as variance.
        """
        paid = sum(self._fold_noise)
        return ((self._steps + steps) / self._steps) ** 2 * paid / (paid + steps * noise_variance)

    def state(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """Everything needed to continue, as tensors and plain numbers."""
        tensors = {f"squares/{n}": t for n, t in self._squares.items()}
        tensors |= {f"seen/{n}": t for n, t in self._seen.items()}
        tensors |= {f"fold{i}/{n}": t for i, fold in enumerate(self._folds) for n, t in fold.items()}
        return tensors, {"steps": self._steps, "fold_steps": self._fold_steps, "fold_noise": self._fold_noise}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, object]) -> None:
        """Go on from a state."""
        for kind, target in [("squares", self._squares), ("seen", self._seen)]:
            for name, tensor in target.items():
                tensor.copy_(tensors[f"{kind}/{name}"])
        for place, fold in enumerate(self._folds):
            for name, tensor in fold.items():
                tensor.copy_(tensors[f"fold{place}/{name}"])
        self._steps = int(numbers["steps"])  # type: ignore[call-overload]
        self._fold_steps = list(numbers["fold_steps"])  # type: ignore[call-overload]
        self._fold_noise = list(numbers["fold_noise"])  # type: ignore[call-overload]


def movement(now: Mapping[str, Tensor], origin: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """|θ − θ⁽⁰⁾|: how far the released steps have carried each coordinate."""
    return {name: (value.detach() - origin[name]).abs_() for name, value in now.items()}


def pooled(score: Tensor, pooling: Literal["row", "column"] | None) -> Tensor:
    """The score averaged over rows (output features) or columns (input features), in the old shape.

    The mean of many noisy scores has far less noise than each. A parameter of one dimension has no columns
    and its rows are its coordinates, so it stays as it is.
    """
    if pooling is None or score.dim() < 2:
        return score
    dims = tuple(range(1, score.dim())) if pooling == "row" else (0, *range(2, score.dim()))
    return score.mean(dims, keepdim=True).expand_as(score)
