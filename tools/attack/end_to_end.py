"""The public Trainer, secure noise and all: does the final model tell whether the odd row was in the data?"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from scipy.stats import beta
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import tacit
from tacit.errors import TacitError
from tools.attack.measuring import Tacit, batch, measure
from tools.attack.rows import Row, drill, ordinary
from tools.attack.search import UNCLIPPED
from tools.attack.settings import Setting
from tools.attack.targets import BY_NAME, Target, model_of

EPSILON, DELTA = 1.0, 1e-5
EXAMPLES = 8
CONFIDENCE = 0.999
DRILLS = 6
"""How often the known hard rows are tried before the worst of them is taken."""
TARGET = "Linear, mean over time, ReLU, Linear"


@dataclass(frozen=True)
class Detection:
    """How often the row was seen where it was and where it was not, and the ε that this proves."""

    target: str
    runs: int
    seen: int
    false_alarms: int
    epsilon: float
    claimed: float
    ratio: float
    refused: str = ""


def detect(seed: int, runs: int = 100) -> Detection:
    """Train ``runs`` models with the worst row and as many without, one step each, and guess from their weights.

    Where it is absent, a row of NaN stands in its place, which counts as zero. Half of the runs choose the threshold,
    the other half are counted.
    """
    target = BY_NAME[TARGET]
    row, clip_norm, ratio = _worst_row(target, seed)
    rng = random.Random(seed)
    others: list[Row] = [
        (ordinary(target.fields[0], rng), ordinary(target.fields[1], rng)) for _ in range(EXAMPLES - 1)
    ]
    absent: Row = (torch.full_like(row[0], math.nan), row[1])
    direction = _gradient(target, row)
    plan = tacit.make_plan(
        "dp-sgd",
        epsilon=EPSILON,
        delta=DELTA,
        examples=EXAMPLES,
        batch_size=EXAMPLES,
        epochs=1,
        clip_norm=clip_norm,
    )
    scores: dict[bool, list[float]] = {True: [], False: []}
    try:
        for present in (True, False):
            data = TensorDataset(*batch([*others, row if present else absent], target, "float32"))
            scores[present] = [_train(target, data, plan, direction) for _ in range(runs)]
    except TacitError as error:
        return Detection(target.name, runs, 0, 0, 0.0, EPSILON, ratio, str(error))
    half = runs // 2
    threshold = _threshold(scores[True][:half], scores[False][:half])
    seen = sum(score > threshold for score in scores[True][half:])
    false_alarms = sum(score > threshold for score in scores[False][half:])
    counted = runs - half
    return Detection(
        target.name, counted, seen, false_alarms, lower_bound(seen, false_alarms, counted), EPSILON, ratio
    )


def lower_bound(seen: int, false_alarms: int, runs: int) -> float:
    """ε that these counts prove at the stated confidence, by Clopper and Pearson."""
    risk = (1 - CONFIDENCE) / 2
    least = float(beta.ppf(risk, seen, runs - seen + 1)) if seen else 0.0
    most = float(beta.ppf(1 - risk, false_alarms + 1, runs - false_alarms)) if false_alarms < runs else 1.0
    return max(0.0, math.log((least - DELTA) / most)) if least > DELTA else 0.0


def _worst_row(target: Target, seed: int) -> tuple[Row, float, float]:
    """The hardest known row in the Trainer's own setting, with a clip norm far below its norm."""
    subject, rng, worst = Tacit(target), random.Random(seed), None
    for row, dtype, flush, _ in (known for _ in range(DRILLS) for known in drill(target.fields, rng)):
        if dtype != "float32" or flush:
            continue
        setting = Setting("all", clip_norm=UNCLIPPED)
        moved = measure(subject, target, row, setting, 0).moved
        if not 1e-6 < moved < 1e6:
            continue
        setting = replace(setting, clip_norm=moved / 1000)
        ratio = measure(subject, target, row, setting, 0).ratio
        if worst is None or ratio > worst[2]:
            worst = (row, setting.clip_norm, ratio)
    assert worst is not None
    return worst


def _gradient(target: Target, row: Row) -> list[Tensor]:
    """The direction in which the row moves the weights, from the model in double precision."""
    model = model_of(target, torch.float64)
    loss = target.loss(model, batch([row], target, "float64")).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    return [g / norm for g in gradients]


def _train(target: Target, data: TensorDataset, plan: tacit.Plan, direction: list[Tensor]) -> float:
    model = model_of(target, torch.float32)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer: Callable[..., torch.optim.Optimizer] = lambda parameters: torch.optim.SGD(parameters, lr=1.0)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = tacit.Trainer(model, data, _loss(target), plan, optimizer=optimizer)
        for _ in trainer.steps():
            pass
    moved = zip(before, model.parameters(), direction, strict=True)
    return sum(float(((b - p.detach()).double() * d).sum()) for b, p, d in moved)


def _loss(target: Target) -> Callable[[nn.Module, list[Tensor]], Tensor]:
    return lambda model, rows: target.loss(model, (rows[0], rows[1]))


def _threshold(present: list[float], absent: list[float]) -> float:
    """The threshold between the two that tells them apart best."""
    places = sorted([*present, *absent])
    middles = [(a + b) / 2 for a, b in itertools.pairwise(places)]
    return max(middles, key=lambda t: sum(s > t for s in present) - sum(s > t for s in absent))
