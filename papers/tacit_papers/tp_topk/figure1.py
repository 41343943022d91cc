"""Figure 1: how concentrated gradient energy is, and how much of it the warm-up's scores find. NOT PRIVATE.

After the warm-up of TP-TopK the noiseless gradient of the whole training set is taken: an oracle for analysis,
which no training ever sees. Its energy is ranked by itself (the best possible support) and by the released score.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.jobs.defaults import plan_of
from tacit.jobs.problem import Problem, load_problem
from tacit.jobs.resolving import with_defaults
from tacit.jobs.setup import build_trainer
from tacit.losses import cross_entropy
from tacit.support.scores import Scores
from tacit.theory import oracle_capture
from tacit_papers.engine.setting import Setting, result_record
from tacit_papers.tp_topk.published import FIGURE1_TOP_TENTH

NAME = "tp-topk/figure1"
DATASETS = ("fmnist", "cifar10")
EPSILONS = (1.0, 3.0, 8.0)
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
WARMUP_RATIO = 0.4


@dataclass(frozen=True)
class Capture:
    """Shares of the gradient energy inside supports of the given ratios, chosen by score and in hindsight."""

    by_score: tuple[float, ...]
    best: tuple[float, ...]


def measure(setting: Setting, dataset: str, epsilon: float, seed: int) -> Capture:
    """Train the warm-up and look, from outside the guarantee, at what its score captures."""
    experiment = setting.experiment(dataset, epsilon, name="tp-topk", active_ratio=WARMUP_RATIO)
    problem = load_problem(experiment.data)
    experiment = with_defaults(replace(experiment, training=replace(experiment.training, seed=seed)), problem)
    trainer = build_trainer(experiment, problem, plan_of(experiment, problem.examples))
    warmup = trainer.plan.phases[0]
    scores = Scores(trainer.model)
    for step in trainer.steps():
        scores.add(step.released)
        if step.number == warmup.steps:
            break
    score = torch.cat([value.flatten() for value in scores.squares().values()])
    gradient = _gradient(trainer.model, problem)
    return Capture(
        tuple(_captured(gradient, score, ratio) for ratio in RATIOS),
        tuple(_captured(gradient, gradient.square(), ratio) for ratio in RATIOS),
    )


def run(setting: Setting) -> dict[str, Any]:
    """Make the figure's numbers."""
    started, clock = time.monotonic(), time.process_time()
    rows = []
    with setting.meter() as meter:
        meter.begin("figure 1", len(setting.datasets) * len(setting.epsilons) * setting.seeds)
        for dataset in setting.datasets:
            for epsilon in setting.epsilons:
                found = []
                for seed in range(setting.seeds):
                    found.append(measure(setting, dataset, epsilon, seed))
                    meter.done()
                rows.append(
                    {
                        "dataset": dataset,
                        "epsilon": epsilon,
                        "ratios": list(RATIOS),
                        "by_score": [
                            _mean(values) for values in zip(*(f.by_score for f in found), strict=True)
                        ],
                        "best": [_mean(values) for values in zip(*(f.best for f in found), strict=True)],
                    }
                )
    spent = time.process_time() - clock
    return result_record(
        NAME, setting, rows, spent, started, not_private=True, published_top_tenth=FIGURE1_TOP_TENTH
    )


def _mean(values: tuple[float, ...]) -> float:
    return round(math.fsum(values) / len(values), 4)


def _captured(gradient: Tensor, score: Tensor, ratio: float) -> float:
    active = torch.zeros(len(gradient), dtype=torch.bool)
    active[score.topk(max(1, int(ratio * len(gradient)))).indices] = True
    return oracle_capture(gradient, active).not_private_value


def _gradient(model: nn.Module, problem: Problem) -> Tensor:
    """The mean gradient over the training data, without clipping or noise."""
    assert isinstance(problem.train, TensorDataset)
    inputs, targets = problem.train.tensors
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters))
    for start in range(0, len(targets), 4096):
        part = slice(start, start + 4096)
        loss = cross_entropy(model, (inputs[part], targets[part])).sum()
        total += torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
    return total / len(targets)
