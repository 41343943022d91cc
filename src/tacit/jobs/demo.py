"""The demonstration: who in a US health survey has diabetes, learnt at ε = 3.

One run with cryptographic noise gets a certificate. Beside it, pairs of seeded runs show how TP-TopK does
against DP-SGD, and what a model without any privacy reaches. NHANES is public, so the many runs cost nobody
anything; on private data each of them would be charged.

Every setting below was chosen on splits of the training rows; the held-out rows were not looked at for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.jobs.comparison import Cell, CellResult, run_cells
from tacit.jobs.run import outcome_record, run_job
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.jobs.summary import Spread, paired
from tacit.models.config import ModelConfig

PREVALENCE = 0.082
"""Diagnosed diabetes in the US population of all ages: National Diabetes Statistics Report 2020, CDC."""

TP_TOPK = Experiment(
    data=DataConfig(source="nhanes", prevalence=PREVALENCE),
    model=ModelConfig(name="logistic"),
    method=MethodConfig("tp-topk", active_ratio="auto", warmup=(0.5, 0.7), reset=True),
    privacy=PrivacyConfig(epsilon=3.0, delta=1e-5),
    training=TrainingConfig(batch_size=1024, epochs=40.0, clip_norm=4.0, learning_rate=0.5),
)
DP_SGD = replace(TP_TOPK, method=MethodConfig("dp-sgd"))
NOT_PRIVATE = replace(
    DP_SGD,
    privacy=replace(TP_TOPK.privacy, epsilon=math.inf),
    training=replace(TP_TOPK.training, clip_norm=1000.0),
)
VISIBLE = 5e-4
"""The least difference in AUC that three decimals show: pairs that share their noise may differ by less, all alike."""
MEASURES = ("auc", "balanced_accuracy", "sensitivity", "specificity")


@dataclass(frozen=True)
class Demonstration:
    """What the demonstration found.

    ``certified`` is the record of the run with a certificate. ``difference`` is the AUC of TP-TopK minus that
    of DP-SGD over pairs of seeded runs, with the standard error of its mean.
    """

    certified: dict[str, object]
    runs: tuple[CellResult, ...]
    difference: Spread

    @property
    def verdict(self) -> str:
        """One sentence on TP-TopK against DP-SGD."""
        found = f"{self.difference.mean:+.4f} ± {self.difference.deviation:.4f}"
        pairs = sum(run.method == "DP-SGD" for run in self.runs)
        text = f"AUC of TP-TopK minus DP-SGD over {pairs} pairs of runs: {found} (standard error)"
        if abs(self.difference.mean) < VISIBLE:
            return f"{text}: a tie."
        if self.difference.mean < -2 * self.difference.deviation:
            return f"{text}. TP-TopK is BELOW DP-SGD here, beyond the noise of the runs."
        if self.difference.mean > 2 * self.difference.deviation:
            return f"{text}. TP-TopK is above DP-SGD here, beyond the noise of the runs."
        return f"{text}: no difference beyond the noise of the runs."


def cells(pairs: int) -> tuple[Cell, ...]:
    """The seeded runs beside the certified one."""
    contenders = [("TP-TopK", TP_TOPK, pairs), ("DP-SGD", DP_SGD, pairs), ("not private", NOT_PRIVATE, 1)]
    return tuple(
        Cell(
            name,
            experiment.privacy.epsilon,
            seed,
            replace(experiment, training=replace(experiment.training, seed=seed)),
        )
        for name, experiment, count in contenders
        for seed in range(count)
    )


def demonstrate(
    out: Path,
    *,
    pairs: int = 5,
    workers: int = 2,
    progress: bool = True,
    done: Callable[[], None] = lambda: None,
) -> Demonstration:
    """Train the certified run in ``out``/run and the seeded runs beside it."""
    outcome = run_job(TP_TOPK, out / "run", command="demo", progress=progress)
    if not outcome.result.finished:
        return Demonstration(outcome_record(outcome), (), Spread(math.nan, math.nan))
    runs = run_cells(cells(pairs), out / "comparison", workers=workers, done=done)
    by_seed = {(run.method, run.seed): run.held_out["auc"] for run in runs}
    differences = [by_seed["TP-TopK", seed] - by_seed["DP-SGD", seed] for seed in range(pairs)]
    return Demonstration(outcome_record(outcome), tuple(runs), paired(differences))
