"""Reference models: small, plain, and without anything that mixes examples."""

from __future__ import annotations

from tacit.models.mobilenet import MobileNetV2, read_weights
from tacit.models.registry import MODELS, build, suggest

__all__ = ["MODELS", "MobileNetV2", "build", "read_weights", "suggest"]
