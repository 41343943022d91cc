"""Table 2 in the paper's own setting: convolutional networks from scratch, on scattering maps and on pixels.

Every method, the dense one among them, chooses its learning rate from the same grid, on a part of the training data.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tacit.errors import ArgumentError
from tacit.files import read_json
from tacit.jobs.settings import DataConfig, Experiment, MethodConfig, PrivacyConfig, TrainingConfig
from tacit.models.config import ModelConfig
from tacit_papers.engine.contest import Contestant, Outcome
from tacit_papers.engine.setting import Setting, commit, outcome_record, result_record
from tacit_papers.tp_topk.published import TABLE2

METHODS = ("dp-sgd", "tp-rand", "tp-topk", "rs")
ACTIVE_RATIO = 0.4
MEASURE = "accuracy"
RATES = (8.0, 16.0, 32.0)
ON_PIXELS = (16.0, 32.0, 64.0)
"""With the other grid all methods had chosen 32."""


@dataclass(frozen=True)
class Conditions:
    """What all methods have in common on one data set.

    Rates are tuned at every ε, or at ``tuned_at`` for all of them. RS is left out where a run costs most.
    """

    epochs: float
    methods: tuple[str, ...] = METHODS[:3]
    rates: tuple[float, ...] = RATES
    tuned_at: float | None = None

    @property
    def training(self) -> TrainingConfig:
        """How every method is trained."""
        return TrainingConfig(batch_size=2048, epochs=self.epochs, clip_norm=0.1, momentum=0.9)

    def record(self) -> dict[str, Any]:
        """In plain values, for a result."""
        training = self.training
        return {
            "epochs": training.epochs,
            "batch_size": training.batch_size,
            "rates": list(self.rates),
            "tuned_at": self.tuned_at,
        }


CONDITIONS = {
    ("scatternet_cnn", "fmnist"): Conditions(8.0, METHODS),
    ("scatternet_cnn", "cifar10"): Conditions(3.0, rates=(4.0, 8.0, 16.0), tuned_at=3.0),
    ("cnn", "fmnist"): Conditions(4.0, rates=ON_PIXELS),
    ("cnn", "cifar10"): Conditions(4.0, rates=ON_PIXELS, tuned_at=3.0),
}


@dataclass(frozen=True)
class Table:
    """The comparison of methods with one kind of network, made by the command ``NAME``."""

    NAME: str
    network: str
    features: str | None
    DATASETS: tuple[str, ...] = ("fmnist", "cifar10")
    EPSILONS: tuple[float, ...] = (1.0, 3.0, 8.0)

    def conditions(self, dataset: str) -> Conditions:
        """What all methods have in common on ``dataset``."""
        return CONDITIONS[self.network, dataset]

    def contestants(self, setting: Setting, dataset: str, epsilon: float) -> list[Contestant]:
        """All methods on one data set at one ε, each with the same rates to choose from."""
        given = self.conditions(dataset)
        rates = given.rates[1:2] if setting.quick else given.rates
        return [
            Contestant(
                f"{self.network} {dataset} {method}",
                self.experiment(setting, dataset, epsilon, _method(method)),
                rates,
            )
            for method in given.methods
        ]

    def experiment(self, setting: Setting, dataset: str, epsilon: float, method: MethodConfig) -> Experiment:
        """A run of this network with any method."""
        small = 2_000 if setting.quick else None
        training = self.conditions(dataset).training
        return Experiment(
            data=DataConfig(dataset, features=self.features, data_dir=setting.data_dir, examples=small),
            model=ModelConfig(f"tacit_papers.tp_topk.network_models:{dataset}_{self.network}"),
            method=method,
            privacy=PrivacyConfig(epsilon=epsilon, delta=1e-5),
            training=replace(training, batch_size=256) if setting.quick else training,
        )

    def run(self, setting: Setting) -> dict[str, Any]:
        """Make the table; rows that the folder holds of other data or other ε stay in it."""
        started = time.monotonic()
        found = {}
        for dataset in setting.datasets:
            for epsilon, own in self._outcomes(setting, dataset).items():
                found[dataset, epsilon] = self._row(setting, dataset, epsilon, own)
        rows = {**self._earlier(setting), **found}
        spent = sum(60 * row["processor_minutes"] for row in rows.values())
        whole = replace(
            setting,
            datasets=tuple(name for name in self.DATASETS if any(name == place[0] for place in rows)),
            epsilons=tuple(value for value in self.EPSILONS if any(value == place[1] for place in rows)),
        )
        about = {"network": self.network, "active_ratio": ACTIVE_RATIO}
        ordered = [rows[d, e] for d in self.DATASETS for e in self.EPSILONS if (d, e) in rows]
        return result_record(self.NAME, whole, ordered, spent, started, **about)

    def _outcomes(self, setting: Setting, dataset: str) -> dict[float, list[Outcome]]:
        """What all methods reach at all ε, each with the rate that it chose there, or at the ε of tuning."""
        given = self.conditions(dataset)
        groups = {epsilon: self.contestants(setting, dataset, epsilon) for epsilon in setting.epsilons}
        if given.tuned_at is None or setting.quick:
            return {e: setting.outcomes(self.NAME, group, MEASURE) for e, group in groups.items()}
        tuned = setting.outcomes(self.NAME, self.contestants(setting, dataset, given.tuned_at), MEASURE)
        found = {}
        for epsilon, group in groups.items():
            fixed = [replace(c, rates=(o.rate,)) for c, o in zip(group, tuned, strict=True)]
            own = setting.outcomes(self.NAME, fixed, MEASURE)
            found[epsilon] = [replace(o, tuning=t.tuning) for o, t in zip(own, tuned, strict=True)]
        return found

    def _row(self, setting: Setting, dataset: str, epsilon: float, own: Sequence[Outcome]) -> dict[str, Any]:
        given = self.conditions(dataset)
        seconds = sum(outcome.processor_seconds for outcome in own)
        published = TABLE2.get((dataset, epsilon), {})
        return {
            "dataset": dataset,
            "epsilon": epsilon,
            "commit": commit(),
            "seeds": setting.seeds,
            "processor_minutes": round(seconds / 60, 1),
            **given.record(),
            "methods": {
                method: {**outcome_record(outcome, [MEASURE]), "published": published.get(method)}
                for method, outcome in zip(given.methods, own, strict=True)
            },
        }

    def chosen_rate(self, setting: Setting, dataset: str, epsilon: float, method: str) -> float:
        """The rate that ``method`` chose in this table, which the folder must hold."""
        if setting.quick:
            return self.conditions(dataset).rates[1]
        row = self._earlier(setting).get((dataset, epsilon))
        if row is None:
            raise ArgumentError(
                f"Learning rates are those of {self.NAME}, and {setting.out} does not hold them for {dataset} at "
                f"ε = {epsilon:g}; run tacit reproduce {self.NAME} --dataset {dataset} --epsilon {epsilon:g} with the "
                "same --out and --seeds first."
            )
        return float(row["methods"][method]["learning_rate"])

    def _earlier(self, setting: Setting) -> dict[tuple[str, float], dict[str, Any]]:
        path = setting.out / f"{self.NAME.rpartition('/')[2]}.json"
        if setting.quick or not path.exists():
            return {}
        known = read_json(path)["rows"]
        return {
            (row["dataset"], row["epsilon"]): row
            for row in known
            if row.get("seeds") == setting.seeds
            and all(row.get(key) == value for key, value in self.conditions(row["dataset"]).record().items())
        }


def _method(name: str) -> MethodConfig:
    return MethodConfig(name) if name == "dp-sgd" else MethodConfig(name, active_ratio=ACTIVE_RATIO)


SCATTERNET_CNN = Table("tp-topk/scatternet-cnn", "scatternet_cnn", "scattering-maps")
CNN = Table("tp-topk/cnn", "cnn", None)
TABLES: Sequence[Table] = (SCATTERNET_CNN, CNN)
