"""Tacit: coordinate-sparse differentially private training for PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tacit.errors import ArgumentError, FileError, LedgerError, ModelError, TacitError
from tacit.plan import Plan
from tacit.plan import make_plan as plan
from tacit.version import __version__ as __version__

if TYPE_CHECKING:
    from tacit.release.noise import SecureNoise, SeededNoise
    from tacit.support import Support
    from tacit.training.fitting import Result
    from tacit.training.step import PrivateStep
    from tacit.training.trainer import Step, Trainer

__all__ = [
    "ArgumentError",
    "FileError",
    "LedgerError",
    "ModelError",
    "Plan",
    "PrivateStep",
    "Result",
    "SecureNoise",
    "SeededNoise",
    "Step",
    "Support",
    "TacitError",
    "Trainer",
    "plan",
]

# Loading PyTorch takes seconds; planning and verifying do not need it.
_NEED_TORCH = {
    "PrivateStep": "tacit.training.step",
    "Result": "tacit.training.fitting",
    "SecureNoise": "tacit.release.noise",
    "SeededNoise": "tacit.release.noise",
    "Step": "tacit.training.trainer",
    "Support": "tacit.support",
    "Trainer": "tacit.training.trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_NEED_TORCH[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
