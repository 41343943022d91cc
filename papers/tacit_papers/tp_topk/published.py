"""The values printed in the TP-TopK paper, to stand beside ours."""

from __future__ import annotations

TABLE2: dict[tuple[str, float], dict[str, tuple[float, float]]] = {
    ("mnist", 1.0): {
        "dp-sgd": (96.44, 0.02),
        "tp-rand": (97.64, 0.04),
        "tp-topk": (97.79, 0.06),
        "on-rand": (97.72, 0.09),
        "on-topk": (97.76, 0.10),
    },
    ("mnist", 3.0): {
        "dp-sgd": (97.99, 0.06),
        "tp-rand": (98.13, 0.04),
        "tp-topk": (98.33, 0.05),
        "on-rand": (98.23, 0.07),
        "on-topk": (98.25, 0.08),
    },
    ("mnist", 8.0): {
        "dp-sgd": (98.60, 0.05),
        "tp-rand": (98.91, 0.03),
        "tp-topk": (98.93, 0.04),
        "on-rand": (98.98, 0.03),
        "on-topk": (98.80, 0.06),
    },
    ("fmnist", 1.0): {
        "dp-sgd": (84.06, 0.58),
        "tp-rand": (85.01, 0.19),
        "tp-topk": (85.28, 0.32),
        "on-rand": (85.03, 0.22),
        "on-topk": (84.87, 0.47),
    },
    ("fmnist", 3.0): {
        "dp-sgd": (88.51, 0.16),
        "tp-rand": (88.80, 0.12),
        "tp-topk": (88.88, 0.13),
        "on-rand": (88.76, 0.10),
        "on-topk": (88.80, 0.09),
    },
    ("fmnist", 8.0): {
        "dp-sgd": (89.77, 0.06),
        "tp-rand": (89.80, 0.16),
        "tp-topk": (89.88, 0.07),
        "on-rand": (89.86, 0.15),
        "on-topk": (89.84, 0.13),
    },
    ("cifar10", 1.0): {
        "dp-sgd": (55.20, 0.45),
        "tp-rand": (63.18, 0.52),
        "tp-topk": (64.41, 0.48),
        "on-rand": (62.87, 0.55),
        "on-topk": (63.54, 0.51),
    },
    ("cifar10", 3.0): {
        "dp-sgd": (60.80, 0.38),
        "tp-rand": (69.67, 0.41),
        "tp-topk": (71.05, 0.37),
        "on-rand": (68.54, 0.44),
        "on-topk": (69.31, 0.40),
    },
    ("cifar10", 8.0): {
        "dp-sgd": (68.45, 0.31),
        "tp-rand": (72.33, 0.35),
        "tp-topk": (72.82, 0.34),
        "on-rand": (71.89, 0.38),
        "on-topk": (72.67, 0.34),
    },
}
"""Test accuracy in percent, mean and standard deviation over three seeds, by (data, ε) and method."""

TABLE3: dict[tuple[str, float], dict[float, tuple[float, float]]] = {
    ("cifar10", 8.0): {0.2: (71.87, 72.72), 0.4: (72.31, 72.86), 0.6: (72.43, 72.73), 0.8: (72.44, 72.56)},
    ("fmnist", 8.0): {0.2: (89.73, 90.08), 0.4: (89.79, 90.04), 0.6: (89.86, 89.98), 0.8: (89.86, 89.91)},
}
"""Test accuracy in percent of (TP-Rand, TP-TopK), one seed, by (data, ε) and active ratio."""

TABLE4: dict[tuple[str, float], dict[tuple[float, float], tuple[float, float]]] = {
    ("cifar10", 3.0): {
        (0.2, 0.2): (69.12, 0.43),
        (0.2, 0.3): (69.88, 0.40),
        (0.2, 0.4): (69.54, 0.42),
        (0.3, 0.2): (70.23, 0.39),
        (0.3, 0.3): (71.05, 0.37),
        (0.3, 0.4): (70.67, 0.38),
        (0.4, 0.2): (70.41, 0.40),
        (0.4, 0.3): (70.58, 0.39),
        (0.4, 0.4): (69.93, 0.41),
    }
}
"""Test accuracy in percent of TP-TopK by (share of steps, share of ε) of the warm-up, active ratio 0.4."""

TABLE5: dict[str, tuple[float, float, float, float]] = {
    "no-noise": (0.713, 0.634, 0.61, 0.658),
    "dp-sgd": (0.614, 0.513, 0.04, 0.986),
    "tp-rand": (0.668, 0.608, 0.46, 0.756),
    "tp-topk": (0.682, 0.631, 0.52, 0.742),
}
"""AUC, balanced accuracy, sensitivity, specificity on EyePACS (any retinopathy) at ε = 8."""

FIGURE1_TOP_TENTH = 0.864
"""Share of the gradient energy inside the best tenth of the coordinates (Figure 1 a)."""


def best(dataset: str, epsilon: float) -> float | None:
    """The highest accuracy of any private method in the paper's Table 2 at this place, if it is there."""
    found = TABLE2.get((dataset, epsilon))
    return None if found is None else max(mean for mean, _ in found.values())
