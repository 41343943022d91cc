"""Tables 3 and 4 in the paper's own setting: its convolutional networks by active ratio and by the warm-up's share.

Every run takes the learning rate that its method chose in Table 2 with the same network (ρ = 0.4, warm-up (0.3, 0.3)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.jobs.settings import MethodConfig
from tacit_papers.engine.contest import Contestant
from tacit_papers.engine.setting import Setting
from tacit_papers.tp_topk import networks, table3, table4

Measured = Callable[[str, Setting, Sequence[Contestant]], dict[str, Any]]


@dataclass(frozen=True)
class Sweep:
    """A table made by the command ``NAME``: one network with each of ``methods``, at the ε of the paper's table."""

    NAME: str
    table: networks.Table
    methods: tuple[MethodConfig, ...]
    measured: Measured
    EPSILONS: tuple[float, ...]
    DATASETS: tuple[str, ...] = ("fmnist", "cifar10")

    def run(self, setting: Setting) -> dict[str, Any]:
        """Make the table."""
        return self.measured(self.NAME, setting, self.contestants(setting))

    def contestants(self, setting: Setting) -> list[Contestant]:
        """Every method on every data set."""
        return [
            Contestant(
                self._label(dataset, method),
                self.table.experiment(setting, dataset, epsilon, method),
                (self.table.chosen_rate(setting, dataset, epsilon, method.name),),
            )
            for dataset in setting.datasets
            for epsilon in setting.epsilons
            for method in self.methods
        ]

    def _label(self, dataset: str, method: MethodConfig) -> str:
        split = "" if method.warmup is None else " warm-up {:g} {:g}".format(*method.warmup)
        return f"{self.table.network} {dataset} {method.name} {method.active_ratio:g}{split}"


_RATIOS = tuple(MethodConfig(name, active_ratio=ratio) for ratio in table3.RATIOS for name in table3.METHODS)
_SPLITS = tuple(
    MethodConfig("tp-topk", active_ratio=table4.ACTIVE_RATIO, warmup=(steps, budget))
    for steps in table4.SHARES
    for budget in table4.SHARES
)
RATIO_SWEEPS = tuple(
    Sweep(f"tp-topk/table3-{kind}", table, _RATIOS, table3.measured, (8.0,))
    for kind, table in (("scatternet-cnn", networks.SCATTERNET_CNN), ("cnn", networks.CNN))
)
SPLIT_SWEEPS = tuple(
    Sweep(f"tp-topk/table4-{kind}", table, _SPLITS, table4.measured, (3.0,))
    for kind, table in (("scatternet-cnn", networks.SCATTERNET_CNN), ("cnn", networks.CNN))
)
SWEEPS: Sequence[Sweep] = (*RATIO_SWEEPS, *SPLIT_SWEEPS)
