"""Tacit: coordinate-sparse differentially private training for PyTorch."""

from tacit.errors import ArgumentError, FileError, LedgerError, ModelError, TacitError
from tacit.release.noise import SecureNoise, SeededNoise
from tacit.support import Support
from tacit.training.step import PrivateStep

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "FileError",
    "LedgerError",
    "ModelError",
    "PrivateStep",
    "SecureNoise",
    "SeededNoise",
    "Support",
    "TacitError",
]
