"""The experiments behind Table 3 and Figures 2 and 3 of the FedSel paper, as data.

The paper leaves the learning rate open, and its text does not say which data set each panel of a figure
shows; what is chosen here is part of the experiment's name. One learning rate serves all methods, as in the
paper; `RATES` is the grid on which each method is also tried at its own best rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit.federated.simulation import Experiment

TABLE_DATA = ("syn-L-0.01-0.9", "bank", "kdd99", "adult")
MODELS = ("logistic", "svm")
SELECTIONS = ("exp", "pe", "ps")
RATE = 10.0
QUIET_RATE = 1.0
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
TABLE_EPSILON = 2.0
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Setting:
    """How thoroughly to run: folds, repeats and where the data are."""

    folds: int = 5
    repeats: int = 10
    data_dir: str | None = None
    seed: int = 0

    def experiment(self, data: str, model: str, plan: dict[str, Any], **options: Any) -> Experiment:
        """Return the experiment on ``data`` with these folds and repeats."""
        return Experiment(
            data, plan, model, self.folds, self.repeats, seed=self.seed, data_dir=self.data_dir, **options
        )


@dataclass(frozen=True)
class Figure:
    """A panel: experiments by line and by x; ``curve`` panels show accuracy by round of a single x."""

    name: str
    title: str
    x_label: str
    lines: dict[str, list[tuple[float, Experiment]]]
    misclassification: bool = False
    log: str = ""

    @property
    def curve(self) -> bool:
        """Whether the panel shows the course of training."""
        return all(points[0][1].curve for points in self.lines.values())


def flat(epsilon: float, perturb: str = "pm", rate: float = RATE, **options: Any) -> dict[str, Any]:
    """Return the plan of the flat solution."""
    return {"solution": "flat", "perturb": perturb, "epsilon": epsilon, "learning_rate": rate, **options}


def two_stage(
    epsilon: float, select: str, perturb: str = "pm", rate: float = RATE, **options: Any
) -> dict[str, Any]:
    """Return the plan of the two-stage solution, with the paper's μ = 0.1 unless said otherwise."""
    return {
        "select": select,
        "perturb": perturb,
        "epsilon": epsilon,
        "learning_rate": rate,
        "mu": 0.1,
        **options,
    }


def selection_only(epsilon1: float, select: str, rate: float = QUIET_RATE) -> dict[str, Any]:
    """Return the plan that selects at ``epsilon1`` and sends the value without noise: a control."""
    return two_stage(2 * epsilon1, select, "none", rate, mu=0.5)


def full(rate: float) -> dict[str, Any]:
    """Return the plan without privacy (NP)."""
    return {"solution": "full", "perturb": "none", "learning_rate": rate}


def largest(rate: float = QUIET_RATE) -> dict[str, Any]:
    """Return the plan that sends the largest coordinate without noise (NP-K, k = 1)."""
    return two_stage(1.0, "topk", "none", rate, top_share=1e-9)


def table_experiments(setting: Setting, data: str, model: str) -> dict[str, Experiment]:
    """Return the experiments of one row of Table 3."""
    # RANDOM-PM tells what the choice adds from what the shorter step adds: a random coordinate, not enlarged.
    plans = {"PM": flat(TABLE_EPSILON), "RANDOM-PM": two_stage(TABLE_EPSILON, "random", mu=0.0)}
    for select in SELECTIONS:
        plans[f"{select.upper()}-PM"] = two_stage(TABLE_EPSILON, select)
        plans[f"{select.upper()}-PM-C"] = two_stage(TABLE_EPSILON, select, extra_value_budget=True)
    return {name: setting.experiment(data, model, plan) for name, plan in plans.items()}


def rate_experiments(setting: Setting, data: str, model: str) -> dict[str, dict[float, Experiment]]:
    """Return the same methods at every learning rate of the grid."""
    plans = {
        "PM": [flat(TABLE_EPSILON, rate=rate) for rate in RATES],
        "EXP-PM": [two_stage(TABLE_EPSILON, "exp", rate=rate) for rate in RATES],
        "PS-PM": [two_stage(TABLE_EPSILON, "ps", rate=rate) for rate in RATES],
    }
    return {
        name: {rate: setting.experiment(data, model, plan) for rate, plan in zip(RATES, listed, strict=True)}
        for name, listed in plans.items()
    }


def figures(setting: Setting) -> list[Figure]:
    """Return every panel that is drawn from experiments (2(e), the cost per client, is measured apart)."""
    return [
        _convergence(setting, "2a", "syn-L-0.01-0.9"),
        _convergence(setting, "2b", "syn-H-0.01-0.9"),
        _selection_budget(setting, "2c", "syn-L-0.01-0.9"),
        _selection_budget(setting, "2d", "syn-H-0.01-0.9"),
        _total_budget(setting, "2f", "bank", "logistic", 1),
        _total_budget(setting, "2g", "adult", "svm", 2),
        _perturbations(setting),
        _compressed(setting),
        _accumulation(setting),
        _share(setting),
        _batches(setting),
    ]


def _convergence(setting: Setting, name: str, data: str) -> Figure:
    plans = {"NP": full(QUIET_RATE), "NP-RS": flat(1.0, "none", QUIET_RATE), "NP-K": largest()}
    plans |= {select.upper(): selection_only(4.0, select) for select in SELECTIONS}
    lines = {
        line: [(0.0, setting.experiment(data, "logistic", plan, curve=True))] for line, plan in plans.items()
    }
    return Figure(name, f"{data}, logistic, selection only, ε₁ = 4", "round", lines, misclassification=True)


def _selection_budget(setting: Setting, name: str, data: str) -> Figure:
    controls = {"NP": full(QUIET_RATE), "NP-RS": flat(1.0, "none", QUIET_RATE), "NP-K": largest()}
    lines = {
        line: [(e, setting.experiment(data, "logistic", plan)) for e in EPSILONS]
        for line, plan in controls.items()
    }
    lines |= {
        select.upper(): [
            (e, setting.experiment(data, "logistic", selection_only(e, select))) for e in EPSILONS
        ]
        for select in SELECTIONS
    }
    return Figure(name, f"{data}, logistic, selection only", "ε₁", lines, log="x")


def _total_budget(setting: Setting, name: str, data: str, model: str, epochs: int) -> Figure:
    options: dict[str, Any] = {"epochs": epochs, "momentum": 0.1 if epochs > 1 else 0.0}
    lines = {
        "NP": [
            (e, setting.experiment(data, model, {**full(QUIET_RATE), "epochs": epochs})) for e in EPSILONS
        ],
        "PM": [(e, setting.experiment(data, model, flat(e, epochs=epochs))) for e in EPSILONS],
    }
    for select in SELECTIONS:
        for control in (False, True):
            line = f"{select.upper()}-PM{'-C' if control else ''}"
            lines[line] = [
                (
                    e,
                    setting.experiment(
                        data, model, two_stage(e, select, extra_value_budget=control, **options)
                    ),
                )
                for e in EPSILONS
            ]
    suffix = f", {epochs} epochs" if epochs > 1 else ""
    return Figure(name, f"{data}, {model}{suffix}", "ε", lines, log="x")


def _perturbations(setting: Setting) -> Figure:
    lines = {}
    for perturb in ("pm", "hm", "duchi"):
        lines[perturb.upper()] = [
            (e, setting.experiment("adult", "logistic", flat(e, perturb))) for e in EPSILONS
        ]
        lines[f"PS-{perturb.upper()}"] = [
            (e, setting.experiment("adult", "logistic", two_stage(e, "ps", perturb))) for e in EPSILONS
        ]
    return Figure("2h", "adult, logistic, three perturbations", "ε", lines, misclassification=True, log="x")


def _compressed(setting: Setting) -> Figure:
    compressed = {"solution": "compressed", "perturb": "pm", "learning_rate": RATE, "compression": 0.1}
    lines = {
        "PM-RP": [
            (e, setting.experiment("adult", "logistic", {**compressed, "epsilon": e})) for e in EPSILONS
        ]
    }
    for select in SELECTIONS:
        lines[f"{select.upper()}-PM"] = [
            (e, setting.experiment("adult", "logistic", two_stage(e, select))) for e in EPSILONS
        ]
    return Figure("2i", "adult, logistic, against random projection", "ε", lines, log="x")


def _accumulation(setting: Setting) -> Figure:
    # −O differs from the rest only where α < 1; two epochs, so that something is accumulated.
    rate = 0.1
    lines = {}
    for select in SELECTIONS:
        for original in (False, True):
            options: dict[str, Any] = {"epochs": 2, "momentum": 0.1, "scaled_accumulation": original}
            lines[f"{select.upper()}-PM{'-O' if original else ''}"] = [
                (
                    e,
                    setting.experiment(
                        "syn-L-0.01-0.9", "logistic", two_stage(e, select, rate=rate, **options)
                    ),
                )
                for e in EPSILONS
            ]
    title = f"syn-L-0.01-0.9, logistic, 2 epochs, α = {rate}"
    return Figure("3a", title, "ε", lines, misclassification=True, log="x")


def _share(setting: Setting) -> Figure:
    lines = {"PM": [(e, setting.experiment("adult", "logistic", flat(e))) for e in EPSILONS]}
    for mu in (0.1, 0.2, 0.4, 0.8):
        lines[f"PS-PM, μ = {mu}"] = [
            (e, setting.experiment("adult", "logistic", two_stage(e, "ps", mu=mu))) for e in EPSILONS
        ]
    return Figure("3b", "adult, logistic", "ε", lines, misclassification=True, log="x")


def _batches(setting: Setting) -> Figure:
    shares = (0.001, 0.002, 0.005, 0.01)
    plans = {"PM": flat(TABLE_EPSILON)}
    plans |= {f"{select.upper()}-PM": two_stage(TABLE_EPSILON, select, mu=None) for select in SELECTIONS}
    lines = {
        line: [
            (
                share,
                setting.experiment("adult", "logistic", plan, batch_share=share, rounds=100),
            )
            for share in shares
        ]
        for line, plan in plans.items()
    }
    title = f"adult, logistic, ε = {TABLE_EPSILON:g}, 100 rounds, μ by the rule with θ = 0.2"
    return Figure("3c", title, "clients per round, as a share of all", lines, log="x")
