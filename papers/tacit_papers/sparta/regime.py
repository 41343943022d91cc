"""Does a private choice of rows beat a random one where a trained subset should pay? Few classes, a far domain, enough
steps.

Every way to fine-tune chooses its learning rate from the same grid, on a part of the training data and at every ε anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from tacit.jobs.finetuning import with_trained_part
from tacit.jobs.problem import load_problem
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig
from tacit.models.patterns import vectors
from tacit_papers.engine.contest import Contestant
from tacit_papers.engine.setting import Setting, result_record
from tacit_papers.sparta import efficientnet
from tacit_papers.sparta.table import rows_of

NAME = "sparta/regime"
EPSILONS = (2.0, 8.0)
RATES = (0.25, 1.0, 4.0)
MEASURE = "auc"
RATIO = 0.1
HEAD_EPOCHS, SELECTION_EPOCHS = 0.5, 0.25
TRAINING = TrainingConfig(batch_size=256, epochs=4.0)


@dataclass(frozen=True)
class Regime:
    """Where the examples come from, how many are used, and how many of the network's blocks are frozen.

    ``ways`` are the ways to fine-tune: all, or fewer where a run takes long. With ``network`` the examples are what the
    frozen blocks of another network gave, and its other blocks are trained.
    """

    source: str
    examples: int | None
    frozen_blocks: int
    ways: tuple[str, ...] | None = None
    network: str | None = None
    rates: tuple[float, ...] = RATES


REGIMES = {
    "shirts": Regime("tacit_papers.sparta.tasks:shirts", 6_000, 18),
    "pneumoniamnist": Regime("pneumoniamnist", None, 14, ("sparta", "random-rows")),
    "shirts-efficientnet": Regime(
        "tacit_papers.sparta.tasks:shirts_in_blocks",
        6_000,
        efficientnet.FROZEN_BLOCKS,
        network="tacit_papers.sparta.efficientnet:last_blocks",
        rates=(*RATES, 16.0),  # last-layer chose 4 where that was the greatest
    ),
}
DATASETS = tuple(REGIMES)


_PHASES = {"active_ratio": RATIO, "head_epochs": HEAD_EPOCHS, "selection_epochs": SELECTION_EPOCHS}
WAYS = {
    "sparta": MethodConfig("sparta", **_PHASES),
    "sparta, votes": MethodConfig("sparta", score="votes", **_PHASES),
    "random-rows": MethodConfig("random-rows", active_ratio=RATIO),
    "magnitude-rows": MethodConfig("magnitude-rows", active_ratio=RATIO),
    "last-layer": MethodConfig("last-layer"),
}


def contestants(setting: Setting) -> list[Contestant]:
    """Every way on every task at every ε, with the same rates to choose from."""
    found = []
    for dataset in setting.datasets:
        regime = REGIMES[dataset]
        examples = 600 if setting.quick else regime.examples
        base = Experiment(
            data=DataConfig(regime.source, data_dir=setting.data_dir, examples=examples),
            model=ModelConfig(
                "mobilenet-v2",
                weights="public",
                image_size=efficientnet.IMAGE_SIZE,
                frozen_blocks=regime.frozen_blocks,
            )
            if regime.network is None
            else ModelConfig(regime.network),
            privacy=PrivacyConfig(delta=1e-5),
            training=replace(TRAINING, epochs=1.5) if setting.quick else TRAINING,
        )
        for epsilon in setting.epsilons:
            for label, method in ((way, WAYS[way]) for way in regime.ways or WAYS):
                experiment = replace(
                    _described(replace(base, method=method)),
                    training=base.training,
                    privacy=replace(base.privacy, epsilon=epsilon),
                )
                rates = RATES[1:2] if setting.quick else regime.rates
                found.append(Contestant(f"{dataset} {label}", experiment, rates))
    return found


def _described(experiment: Experiment) -> Experiment:
    """``experiment`` with a training method in place of a way to fine-tune.

    Head, biases and norms are always active.
    """
    if experiment.model.weights is not None:
        problem = load_problem(experiment.data)
        assert problem.task is not None
        return with_trained_part(experiment, problem.task.outputs, problem.examples)
    # The network loads its public weights itself.
    head, method = efficientnet.HEAD, experiment.method
    if method.name == "last-layer":
        return replace(experiment, method=method.changed("only", active=head))
    always = (*head, *vectors(efficientnet.last_blocks()))
    method = method.changed(always_active=tuple(dict.fromkeys(always)))
    return replace(experiment, method=method.changed(head=head) if method.name == "sparta" else method)


def run(setting: Setting) -> dict[str, Any]:
    """Make the table."""
    started = time.monotonic()
    outcomes = setting.outcomes("regime", contestants(setting), MEASURE)
    rows = rows_of(outcomes, [MEASURE, "balanced_accuracy"])
    spent = sum(outcome.processor_seconds for outcome in outcomes)
    return result_record(
        NAME,
        setting,
        rows,
        spent,
        started,
        rates={name: list(REGIMES[name].rates) for name in setting.datasets},
    )
