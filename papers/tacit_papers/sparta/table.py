"""SPARTA and the other ways to fine-tune, by ε, on one task of images and one of texts.

The beginning of each network is frozen for every method and computed once, so that a run takes seconds. Learning rates
are chosen at two ε on a part of the training data, from the same few for every method; the others take those of the
next ε below.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tacit.jobs.finetuning import with_trained_part
from tacit.jobs.problem import load_problem
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig
from tacit_papers.engine.contest import Contestant, Outcome, contest
from tacit_papers.engine.setting import Setting, outcome_record, result_record

NAME = "sparta/table"
DATASETS = ("pneumoniamnist", "sst2")
EPSILONS = (1.0, 2.0, 4.0, 8.0)
TUNED_AT = (1.0, 4.0)
RATES = (0.25, 1.0, 4.0, 16.0)
MEASURE = "auc"
MEASURES = (MEASURE, "balanced_accuracy")


@dataclass(frozen=True)
class Way:
    """A row of the table: a way to fine-tune with its options.

    A ``variant`` of a way is measured on images alone, at the least and the greatest ε, with the rate of that way.
    """

    label: str
    method: MethodConfig
    variant: bool = False

    def measured(self, dataset: str, epsilon: float) -> bool:
        """Whether the table has it for a task at an ε."""
        outermost = epsilon in (min(EPSILONS), max(EPSILONS))
        return not self.variant or (dataset == DATASETS[0] and outermost)


def _sparta(score: str) -> MethodConfig:
    return MethodConfig("sparta", active_ratio=0.1, score=score, head_epochs=0.5, selection_epochs=0.5)


WAYS = (
    Way("sparta", _sparta("absolute")),
    Way("sparta, row-norms", _sparta("row-norms"), variant=True),
    Way("sparta, magnitude", _sparta("magnitude"), variant=True),
    Way("random-rows", MethodConfig("random-rows", active_ratio=0.1)),
    Way("magnitude-rows", MethodConfig("magnitude-rows", active_ratio=0.1)),
    Way("full", MethodConfig("full")),
    Way("tp-topk", MethodConfig("tp-topk", active_ratio=0.1)),
    Way("lora", MethodConfig("lora")),
    Way("bitfit", MethodConfig("bitfit")),
    Way("last-layer", MethodConfig("last-layer")),
)

TASKS = {
    "pneumoniamnist": Experiment(
        data=DataConfig("pneumoniamnist", image_size=32),
        model=ModelConfig("mobilenet-v2", weights="public", image_size=64, frozen_blocks=17),
        privacy=PrivacyConfig(delta=1e-5),
        training=TrainingConfig(batch_size=256, epochs=3.0),
    ),
    "sst2": Experiment(
        data=DataConfig("sst2", tokenizer="minilm", length=32, examples=4000),
        model=ModelConfig("minilm", weights="public", frozen_blocks=5),
        privacy=PrivacyConfig(delta=1e-5),
        training=TrainingConfig(batch_size=256, epochs=2.0, chunk_size=32),
    ),
}


def contestants(setting: Setting, dataset: str, epsilons: Sequence[float]) -> list[Contestant]:
    """Every way on a task at the given ε."""
    base = TASKS[dataset]
    base = replace(base, data=replace(base.data, data_dir=setting.data_dir))
    if setting.quick:
        base = replace(
            base, data=replace(base.data, examples=600), training=replace(base.training, epochs=1.5)
        )
    problem = load_problem(base.data)
    task = problem.task
    assert task is not None
    found = []
    for way in WAYS:
        described = with_trained_part(replace(base, method=way.method), task.outputs, problem.examples)
        experiment = replace(described, training=base.training)  # the same for every way, but for its rate
        for epsilon in epsilons:
            if way.measured(dataset, epsilon):
                at = replace(experiment, privacy=replace(base.privacy, epsilon=epsilon))
                found.append(Contestant(f"{dataset} {way.label}", at, RATES))
    return found


def rows_of(outcomes: Sequence[Outcome], measures: Sequence[str]) -> list[dict[str, Any]]:
    """What each contestant, labelled by data set and way, has reached, as plain values."""
    return [
        {
            "dataset": outcome.contestant.label.partition(" ")[0],
            "method": outcome.contestant.label.partition(" ")[2],
            "epsilon": outcome.contestant.epsilon,
            "processor_seconds": round(
                sum(run.processor_seconds for run in outcome.runs) / len(outcome.runs), 1
            ),
            **outcome_record(outcome, measures),
        }
        for outcome in outcomes
    ]


def run(setting: Setting) -> dict[str, Any]:
    """Make the table, one task after the other; all ways at the ε of tuning first."""
    started = time.monotonic()
    outcomes: list[Outcome] = []
    with setting.meter() as meter:
        for dataset in setting.datasets:
            tuned = [] if setting.quick else contestants(setting, dataset, TUNED_AT)
            tuned = [c for c in tuned if not _way(c.label).variant]
            first = _contest(setting, f"{dataset}, tuning", tuned, meter)
            rates = {
                (outcome.contestant.label, outcome.contestant.epsilon): outcome.rate for outcome in first
            }
            rest = [
                replace(c, rates=(_rate(rates, c),))
                for c in contestants(setting, dataset, setting.epsilons)
                if (c.label, c.epsilon) not in rates
            ]
            chosen = [outcome for outcome in first if outcome.contestant.epsilon in setting.epsilons]
            found = chosen + _contest(setting, dataset, rest, meter)
            outcomes += sorted(found, key=_place)
    rows = rows_of(outcomes, MEASURES)
    spent = sum(outcome.processor_seconds for outcome in outcomes)
    return result_record(NAME, setting, rows, spent, started, tuned_at=list(TUNED_AT), rates=list(RATES))


def _contest(setting: Setting, name: str, group: list[Contestant], meter: Any) -> list[Outcome]:
    return contest(
        name,
        group,
        MEASURE,
        seeds=setting.seeds,
        out=setting.out / "runs",
        workers=setting.workers,
        meter=meter,
    )


def _rate(rates: dict[tuple[str, float], float], contestant: Contestant) -> float:
    """The rate chosen at the same or the next lower ε; a variant takes its way's, and a quick run the middle one."""
    label = contestant.label.partition(",")[0]
    known = [at for name, at in rates if name == label and at <= contestant.epsilon]
    return rates[label, max(known)] if known else 1.0


def _way(label: str) -> Way:
    return next(way for way in WAYS if way.label == label.partition(" ")[2])


def _place(outcome: Outcome) -> tuple[int, float]:
    labels = [way.label for way in WAYS]
    return labels.index(outcome.contestant.label.partition(" ")[2]), outcome.contestant.epsilon
