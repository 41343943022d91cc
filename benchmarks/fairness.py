"""Does every contender do the same work? Its update on a small batch is checked against brute force."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.types import Contender, Family, StepSettings, prepare
from benchmarks.workloads import Workload, workload_named

# Opacus's expanded weights take another path, not the one that is timed, below 32 examples.
BATCH = 33
UPDATE_TOLERANCE = 1e-3
# Standard errors of an estimated standard deviation: a right contender is as good as never refused.
NOISE_ERRORS = 6
# Large enough that rounding of the stored weights does not hide the update.
LEARNING_RATE = 1000.0
PROBE_NOISE = 100.0
# A contender may add a little more noise than its multiplier says, to cover rounding: Tacit adds 2⁻⁸.
MORE_NOISE = 0.005


@dataclass(frozen=True)
class Agreement:
    """What a contender does: relative error of its noiseless update, what it moves, its noise over σC."""

    update_error: float
    active: int
    active_ratio: float
    noise_scale: float | None

    def complaint(self, contender: Contender) -> str | None:
        """Why this contender does not do the work it should, or None."""
        if not self.update_error <= UPDATE_TOLERANCE:
            return f"its clipped sum is off by {100 * self.update_error:.2g} %"
        noise_tolerance = NOISE_ERRORS / math.sqrt(2 * max(self.active, 1))
        if self.noise_scale is not None and not (
            -noise_tolerance <= self.noise_scale - 1 <= noise_tolerance + MORE_NOISE
        ):
            return f"its noise is {self.noise_scale:.3f} of what it should be"
        wanted = contender.active_ratio
        lowest, highest = (0.99, 1.0) if wanted == 1 else (0.5 * wanted, 1.5 * wanted)
        if not lowest <= self.active_ratio <= highest:
            return f"it moves {self.active_ratio:.3f} of the coordinates instead of {wanted}"
        return None


def _flat_weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters() if p.requires_grad])


def _one_update(workload: Workload, contender: Contender, settings: StepSettings) -> Tensor:
    """Minus the change of the weights in one step, times batch / learning rate: the noisy clipped sum."""
    model, batch = prepare(workload, contender, BATCH)
    before = _flat_weights(model)
    contender.build(model, batch, workload, settings)()
    return (before - _flat_weights(model)) * BATCH / settings.learning_rate


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


class FairnessChecker:
    """Compares updates with brute-force per-example gradients of one workload, which it computes once."""

    def __init__(self, workload: Workload | str) -> None:
        self._workload = workload_named(workload) if isinstance(workload, str) else workload

    @cached_property
    def _gradients(self) -> list[Tensor]:
        """One backward per example."""
        model, batch = self._workload.model(), self._workload.batch(BATCH)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        rows = []
        for index in range(BATCH):
            example = (batch[0][index : index + 1], batch[1][index : index + 1])
            found = torch.autograd.grad(self._workload.loss(model, example).sum(), trained)
            rows.append(torch.cat([gradient.reshape(-1) for gradient in found]))
        return rows

    def check(self, contender: Contender | str) -> Agreement:
        """Compare an update with Σᵢ clip(m⊙gᵢ, C), where m is the set of coordinates that the noise moves.

        C is the median norm, so that some examples are clipped and others are not.
        """
        if isinstance(contender, str):
            contender = CONTENDERS[contender]
        if contender.family is Family.SGD:
            update = _one_update(self._workload, contender, StepSettings(learning_rate=LEARNING_RATE))
            expected = torch.zeros_like(update)
            for gradient in self._gradients:
                expected += gradient
            return Agreement(_relative_error(update, expected), len(update), 1.0, None)

        probe = StepSettings(clip_norm=1.0, noise_multiplier=PROBE_NOISE, learning_rate=LEARNING_RATE)
        noisy = _one_update(self._workload, contender, probe)
        active = noisy != 0
        noise_scale = noisy[active].square().mean().sqrt().item() / PROBE_NOISE if active.any() else math.nan
        expected, clip_norm = self._clipped_sum(active)
        settings = StepSettings(clip_norm=clip_norm, noise_multiplier=0.0, learning_rate=LEARNING_RATE)
        update = _one_update(self._workload, contender, settings)
        count = int(active.sum())
        return Agreement(_relative_error(update, expected), count, count / len(active), noise_scale)

    def _clipped_sum(self, active: Tensor) -> tuple[Tensor, float]:
        norms = [(gradient * active).double().norm().item() for gradient in self._gradients]
        clip_norm = sorted(norms)[len(norms) // 2]
        total = torch.zeros(len(active), dtype=torch.float64)
        for gradient, norm in zip(self._gradients, norms, strict=True):
            total += gradient * active * min(1.0, clip_norm / norm)
        return total, clip_norm
