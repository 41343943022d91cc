"""Tacit: coordinate-sparse differentially private training for PyTorch."""

__version__ = "0.1.0"
