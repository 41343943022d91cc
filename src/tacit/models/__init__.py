"""Reference models: small, plain, and without anything that mixes examples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.models.batch_norm import without_batch_norm
    from tacit.models.int8 import freeze_in_int8
    from tacit.models.mobilenet import MobileNetV2, mobilenet_v2_weights, read_weights
    from tacit.models.registry import MODELS, build, suggest
    from tacit.models.sparse_linear import SparseLinear

__all__ = [
    "MODELS",
    "MobileNetV2",
    "SparseLinear",
    "build",
    "freeze_in_int8",
    "mobilenet_v2_weights",
    "read_weights",
    "suggest",
    "without_batch_norm",
]

# Describing a model does not need PyTorch, which takes seconds to load.
_PLACES = {name: "registry" if name in ("MODELS", "build", "suggest") else "mobilenet" for name in __all__}
_PLACES |= {"without_batch_norm": "batch_norm", "freeze_in_int8": "int8", "SparseLinear": "sparse_linear"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"tacit.models.{_PLACES[name]}"), name)
