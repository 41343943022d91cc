"""Reference models: small, plain, and without anything that mixes examples."""

from __future__ import annotations

from tacit.models.mobilenet import MobileNetV2, mobilenet_v2_weights, read_weights
from tacit.models.registry import MODELS, build, suggest

__all__ = ["MODELS", "MobileNetV2", "build", "mobilenet_v2_weights", "read_weights", "suggest"]
