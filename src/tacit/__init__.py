"""Tacit: coordinate-sparse differentially private training for PyTorch."""

from tacit.errors import ArgumentError, FileError, LedgerError, ModelError, TacitError
from tacit.plan import Plan
from tacit.plan import make_plan as plan
from tacit.release.noise import SecureNoise, SeededNoise
from tacit.support import Support
from tacit.training.fitting import Result
from tacit.training.step import PrivateStep
from tacit.training.trainer import Step, Trainer

__version__ = "0.1.0"

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
