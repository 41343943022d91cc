"""Audit one release against an attacker who knows everything but the secret randomness, and adds one odd row.

Before each release the attacker takes the step itself, without noise, with the row and without: on the same
weights, from the same states of the public random generators. From the two sums it knows what the row would change.
After the release it looks at the released values, at the model's buffers and at the public generators. Anything by
which a row moves the sum further than the clip norm, or shows elsewhere, makes its guesses better than the claim
allows.
"""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from tacit.audit.bounds import LEAST_TRIALS, Claim, Trials
from tacit.audit.record import Finding, find
from tacit.audit.scenes import Row, Scene
from tacit.errors import check_count
from tacit.plan import Spend
from tacit.release.mechanism import Released
from tacit.release.noise import Noise, SecureNoise, SeededNoise
from tacit.training.step import PrivateStep

_CERTAIN = 1e9
"""The score of a row that shows in a buffer or in the state of a generator."""
_REPLAYS = 32
"""So many replays are averaged where they differ from each other."""


def audit_scene(
    scene: Scene,
    *,
    noise_multiplier: float,
    delta: float,
    trials: int,
    confidence: float = 0.999,
    seed: int | None = None,
) -> Finding:
    """So many releases of a scene, each with the worst of its odd rows or without it, by a coin.

    Every release has new noise and a new coin, and the attacker uses nothing secret of the others: the bound is the
    one for sequential trials.
    """
    check_count("trials", trials, least=LEAST_TRIALS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* has no rule; the per-example gradients")
        found = _attack(scene, noise_multiplier, trials, seed)
    claim = Claim((Spend(1.0, noise_multiplier, 1),), delta)
    return find("hostile", scene.name, found, claim, confidence=confidence, sequential=True)


def _attack(scene: Scene, noise_multiplier: float, trials: int, seed: int | None) -> Trials:
    coins = np.random.default_rng(seed)
    target = _step(scene, scene.model, noise_multiplier, SecureNoise() if seed is None else SeededNoise(seed))
    attacker = _Attacker(scene)
    odd = max(scene.odd, key=lambda row: attacker.foresee(scene.model, _with(row, scene.rows)).distance)
    joined = _with(odd, scene.rows)
    scores, present = [], coins.random(trials) < 0.5
    target.step(scene.rows)  # whatever is found out about the model at first is found out on ordinary rows
    expected, seen = attacker.foresee(scene.model, joined), _traces(scene.model)
    if not expected.same_sums(attacker.foresee(scene.model, joined)):
        # Something secret is random besides the noise: what a row changes on average is all that can be known.
        expected = _mean([attacker.foresee(scene.model, joined) for _ in range(_REPLAYS)])
    for there in present:
        if _traces(scene.model) != seen:
            expected, seen = attacker.foresee(scene.model, joined), _traces(scene.model)
        released = target.step(joined if there else scene.rows)
        scores.append(expected.score(released, _traces(scene.model)))
    return Trials(np.array(scores), present)


@dataclass(frozen=True, eq=False)
class _Expected:
    """The sums with and without the row, and what each would leave behind, as far as the attacker can tell."""

    with_row: Tensor
    without: Tensor
    traces_with: bytes
    traces_without: bytes

    @property
    def distance(self) -> float:
        """How far the row moves the sum."""
        return float((self.with_row - self.without).norm())

    def same_sums(self, other: _Expected) -> bool:
        """Whether another look ahead has found the same sums."""
        return torch.equal(self.with_row, other.with_row) and torch.equal(self.without, other.without)

    def score(self, released: Released, traces: bytes) -> float:
        """ln of how much likelier this release is with the row; certain where a trace tells."""
        if self.traces_with != self.traces_without and traces in (self.traces_with, self.traces_without):
            return _CERTAIN if traces == self.traces_with else -_CERTAIN
        moved = self.with_row - self.without
        seen = _flat(released) - self.without
        deviation = released.noise_std * released.batch_size
        return float((seen @ moved - moved @ moved / 2) / deviation**2)


def _mean(found: Sequence[_Expected]) -> _Expected:
    return replace(
        found[0],
        with_row=torch.stack([f.with_row for f in found]).mean(0),
        without=torch.stack([f.without for f in found]).mean(0),
    )


class _Attacker:
    """Takes steps without noise on a copy of the model, and leaves the public generators as they were."""

    def __init__(self, scene: Scene) -> None:
        self._model = copy.deepcopy(scene.model)
        self._step = _step(scene, self._model, 0.0, SecureNoise())
        self._rows = scene.rows

    def foresee(self, model: nn.Module, joined: Row) -> _Expected:
        """What the coming step of ``model`` gives with the row and without it."""
        (without, left), (with_row, left_with) = (
            self._replay(model, batch) for batch in (self._rows, joined)
        )
        return _Expected(with_row, without, left_with, left)

    def _replay(self, model: nn.Module, batch: Row) -> tuple[Tensor, bytes]:
        self._model.load_state_dict(model.state_dict())
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            released = self._step.step(batch)
            return _flat(released), _traces(self._model)
        finally:
            torch.set_rng_state(states[0])
            random.setstate(states[1])
            np.random.set_state(states[2])  # noqa: NPY002


def _step(scene: Scene, model: nn.Module, noise_multiplier: float, noise: Noise) -> PrivateStep:
    """Steps that leave the weights where they are, so that every release is the same experiment."""
    return PrivateStep(
        model,
        scene.loss,
        support=scene.support,
        clip_norm=scene.clip_norm,
        noise_multiplier=noise_multiplier,
        batch_size=len(scene.rows[0]),
        optimizer=lambda named: torch.optim.SGD(named, lr=0.0),
        noise=noise,
    )


def _with(odd: Row, rows: Row) -> Row:
    """The odd row first, where whatever it draws comes before what the others draw."""
    return tuple(torch.cat(pair) for pair in zip(odd, rows, strict=True))


def _flat(released: Released) -> Tensor:
    """The released sum as one vector."""
    return torch.cat([v.double().flatten() for v in released.values.values()]) * released.batch_size


def _traces(model: nn.Module) -> bytes:
    """Everything besides the weights that a step may have changed and somebody may see."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return b"|".join(
        [
            *(buffer.detach().cpu().numpy().tobytes() for buffer in model.buffers()),
            torch.get_rng_state().numpy().tobytes(),
            pickle.dumps((random.getstate(), numpy_state)),
        ]
    )
