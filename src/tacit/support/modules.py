"""Which parameters make up a module, for choices of whole modules."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

_CORRECTIONS = (("down", "up"), ("lora_A", "lora_B"))
"""The two factors of a low-rank correction: Tacit's names for them, and PEFT's."""


def modules_of(model: nn.Module, names: Collection[str]) -> dict[str, list[str]]:
    """The named parameters by the module that holds them, in the order of the model.

    The factors of a low-rank correction belong to the layer that they correct, so that it is chosen as a whole.
    """
    corrected = [
        f"{name}."
        for name, module in model.named_modules()
        if any(all(hasattr(module, part) for part in pair) for pair in _CORRECTIONS)
    ]
    found: dict[str, list[str]] = {}
    for parameter, _ in model.named_parameters():
        if parameter in names:
            above = next((layer for layer in corrected if parameter.startswith(layer)), None)
            module = parameter.rpartition(".")[0] if above is None else above[:-1]
            found.setdefault(module, []).append(parameter)
    return found
