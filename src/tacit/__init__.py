"""Tacit: differentially private training for PyTorch: exact, crash-safe, verifiable, and sparse where that helps.

What this module lists is the public interface; see docs/stability.md for what is promised about it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tacit.errors import ArgumentError, FileError, LedgerError, ModelError, TacitError
from tacit.version import __version__ as __version__

if TYPE_CHECKING:
    from tacit import losses
    from tacit.distributed import join
    from tacit.integrations.scikit_learn import PrivateClassifier, PrivateRegressor
    from tacit.jobs.prediction import load
    from tacit.plan import Plan, load_plan, make_plan
    from tacit.plan.methods import (
        DPSGD,
        RS,
        AdaFEST,
        Centred,
        CountedRows,
        MagnitudeRows,
        Only,
        OnRand,
        OnTopK,
        OwnLoop,
        RandomRows,
        Sparta,
        TPRand,
        TPTopK,
    )
    from tacit.release.noise import SecureNoise, SeededNoise
    from tacit.runs import verify
    from tacit.support import Support
    from tacit.training.course import Step
    from tacit.training.fitting import Result
    from tacit.training.loader import PoissonLoader
    from tacit.training.loop import PrivateLoop
    from tacit.training.step import PrivateStep
    from tacit.training.trainer import Trainer

__all__ = [
    "DPSGD",
    "RS",
    "AdaFEST",
    "ArgumentError",
    "Centred",
    "CountedRows",
    "FileError",
    "LedgerError",
    "MagnitudeRows",
    "ModelError",
    "OnRand",
    "OnTopK",
    "Only",
    "OwnLoop",
    "Plan",
    "PoissonLoader",
    "PrivateClassifier",
    "PrivateLoop",
    "PrivateRegressor",
    "PrivateStep",
    "RandomRows",
    "Result",
    "SecureNoise",
    "SeededNoise",
    "Sparta",
    "Step",
    "Support",
    "TPRand",
    "TPTopK",
    "TacitError",
    "Trainer",
    "join",
    "load",
    "load_plan",
    "losses",
    "make_plan",
    "verify",
]

# Loading PyTorch takes seconds, NumPy and what plans are made of a part of one, and scikit-learn is not always there.
_LOADED_LATER = {
    **dict.fromkeys(["Plan", "load_plan", "make_plan"], "tacit.plan"),
    **dict.fromkeys(
        [
            "DPSGD",
            "RS",
            "AdaFEST",
            "Centred",
            "CountedRows",
            "MagnitudeRows",
            "OnRand",
            "OnTopK",
            "Only",
            "OwnLoop",
            "RandomRows",
            "Sparta",
            "TPRand",
            "TPTopK",
        ],
        "tacit.plan.methods",
    ),
    "PoissonLoader": "tacit.training.loader",
    "PrivateClassifier": "tacit.integrations.scikit_learn",
    "PrivateLoop": "tacit.training.loop",
    "PrivateRegressor": "tacit.integrations.scikit_learn",
    "PrivateStep": "tacit.training.step",
    "Result": "tacit.training.fitting",
    "SecureNoise": "tacit.release.noise",
    "SeededNoise": "tacit.release.noise",
    "Step": "tacit.training.course",
    "Support": "tacit.support",
    "Trainer": "tacit.training.trainer",
    "join": "tacit.distributed",
    "load": "tacit.jobs.prediction",
    "verify": "tacit.runs",
}


def __getattr__(name: str) -> Any:
    if name in ("data", "losses", "models", "plan"):
        return importlib.import_module(f"tacit.{name}")
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LOADED_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
