"""A causal language model of a local directory, under a low-rank adapter in the form of ``peft``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tacit.errors import ArgumentError, FileError
from tacit.models.encoder import WEIGHTS_FILE, checkpoint_dir, hugging_face
from tacit.models.int8 import freeze_in_int8

EVERY_LINEAR = "all-linear"
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PRECISIONS = (*_TYPES, "int8")


def check_precision(precision: str) -> str:
    """Refuse a way to hold a base model that does not exist."""
    if precision not in PRECISIONS:
        raise ArgumentError(
            f"There is no base precision called {precision!r}; there are {', '.join(PRECISIONS)}."
        )
    return precision


def load_language_model(
    directory: str | Path,
    rank: int,
    layers: Sequence[str] | None = None,
    precision: str | None = None,
) -> nn.Module:
    """The causal model in a ``transformers`` directory, frozen, with a fresh adapter in single precision.

    ``precision`` is that of the base model: "float32", "bfloat16", or "int8" for its linear layers, of which each row
    of a weight is rounded to whole numbers with a scale of its own (``freeze_in_int8``); None: as it is stored.
    ``layers`` are names of modules to adapt, as ``peft`` takes them; None leaves the choice to it, or adapts every
    linear layer of an architecture that it does not know. Dropout is off. Nothing is downloaded, and no code of the
    directory is run.
    """
    if precision is not None:
        check_precision(precision)
    directory = checkpoint_dir(directory)
    transformers, peft = hugging_face(), _peft()
    if not any(directory.glob("*.safetensors")):
        raise FileError(f"{directory} holds no {WEIGHTS_FILE}; save the model with safe_serialization=True.")
    try:
        config = transformers.AutoConfig.from_pretrained(str(directory), local_files_only=True)
        for key, value in config.to_dict().items():
            if ("drop" in key or key.endswith("pdrop")) and isinstance(value, float):
                setattr(config, key, 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(directory), config=config, local_files_only=True, use_safetensors=True
            )
    except (OSError, ValueError, KeyError) as error:
        raise FileError(
            f"{directory} is not a causal language model of transformers: {' '.join(str(error).split())[:200]}."
        ) from error
    if precision in _TYPES:
        model = model.to(_TYPES[precision])
    chosen: Any = None if layers is None else list(layers)
    try:
        adapted = _adapted(peft, model, rank, chosen)
    except ValueError as error:
        if chosen is not None:
            raise ArgumentError(
                f"No adapter fits {', '.join(layers or ())} of {directory}: {' '.join(str(error).split())[:200]}."
            ) from error
        adapted = _adapted(peft, model, rank, EVERY_LINEAR)
    if precision == "int8":
        freeze_in_int8(adapted)
    return adapted.train()


def save_adapter(model: Any, directory: Path) -> None:
    """Write the adapter in the form of ``peft``: it loads there on the same base model."""
    model.save_pretrained(str(directory), safe_serialization=True)


def _adapted(peft: ModuleType, model: nn.Module, rank: int, layers: Any) -> nn.Module:
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules=layers)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # about the order of a weight's dimensions, which peft finds by itself
        adapted: nn.Module = peft.get_peft_model(model, config)
    return adapted


def _peft() -> ModuleType:
    try:
        import peft
    except ImportError as error:
        raise FileError("Adapters of language models need peft: run pip install 'tacit-dp[text]'.") from error
    found: ModuleType = peft
    return found
