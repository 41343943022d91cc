"""Table 2 in the paper's own setting: convolutional networks from scratch, on scattering maps and on pixels.

Every method, the dense one among them, chooses its learning rate from the same grid, on a part of the training data and
at every ε anew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig
from tacit_papers.engine.contest import Contestant
from tacit_papers.engine.setting import Setting, outcome_record, result_record
from tacit_papers.tp_topk.published import TABLE2

METHODS = ("dp-sgd", "tp-rand", "tp-topk", "rs")
ACTIVE_RATIO = 0.4
MEASURE = "accuracy"
TRAINING = TrainingConfig(batch_size=2048, epochs=8.0, clip_norm=0.1, momentum=0.9)
RATES = (8.0, 16.0, 32.0)


@dataclass(frozen=True)
class Table:
    """The comparison of methods with one kind of network, made by the command ``NAME``."""

    NAME: str
    network: str
    features: str | None
    DATASETS: tuple[str, ...] = ("fmnist", "cifar10")
    EPSILONS: tuple[float, ...] = (1.0, 3.0, 8.0)

    def contestants(self, setting: Setting) -> list[Contestant]:
        """All methods on all data sets at all ε, each with the same rates to choose from."""
        found = []
        for dataset in setting.datasets:
            for epsilon in setting.epsilons:
                for method in METHODS:
                    experiment = self._experiment(setting, dataset, epsilon, method)
                    rates = RATES[1:2] if setting.quick else RATES
                    found.append(Contestant(f"{dataset} {method}", experiment, rates))
        return found

    def _experiment(self, setting: Setting, dataset: str, epsilon: float, method: str) -> Experiment:
        options = {} if method == "dp-sgd" else {"active_ratio": ACTIVE_RATIO}
        small = 2_000 if setting.quick else None
        return Experiment(
            data=DataConfig(dataset, features=self.features, data_dir=setting.data_dir, examples=small),
            model=ModelConfig(f"tacit_papers.tp_topk.network_models:{dataset}_{self.network}"),
            method=MethodConfig(method, **options),
            privacy=PrivacyConfig(epsilon=epsilon, delta=1e-5),
            training=replace(TRAINING, batch_size=256) if setting.quick else TRAINING,
        )

    def run(self, setting: Setting) -> dict[str, Any]:
        """Make the table."""
        started = time.monotonic()
        outcomes = setting.outcomes(self.NAME, self.contestants(setting), MEASURE)
        rows = []
        for place in range(0, len(outcomes), len(METHODS)):
            own = outcomes[place : place + len(METHODS)]
            experiment = own[0].contestant.experiment
            dataset, epsilon = experiment.data.source, experiment.privacy.epsilon
            published = TABLE2.get((dataset, epsilon), {})
            rows.append(
                {
                    "dataset": dataset,
                    "epsilon": epsilon,
                    "methods": {
                        method: {
                            **outcome_record(outcome, [MEASURE]),
                            "published": published.get(method),
                        }
                        for method, outcome in zip(METHODS, own, strict=True)
                    },
                }
            )
        spent = sum(outcome.processor_seconds for outcome in outcomes)
        about = {
            "network": self.network,
            "active_ratio": ACTIVE_RATIO,
            "batch_size": TRAINING.batch_size,
            "epochs": TRAINING.epochs,
            "rates": list(RATES),
        }
        return result_record(self.NAME, setting, rows, spent, started, **about)


SCATTERNET_CNN = Table("tp-topk/scatternet-cnn", "scatternet_cnn", "scattering-maps")
CNN = Table("tp-topk/cnn", "cnn", None)
TABLES: Sequence[Table] = (SCATTERNET_CNN, CNN)
