"""Linear layers."""

from __future__ import annotations

from torch import Tensor, nn

from tacit.raw.rules.registry import register
from tacit.raw.site import Site


@register(nn.Linear)
def linear(module: nn.Linear, site: Site, x: Tensor) -> Tensor:
    """Any number of leading dimensions."""
    return site.linear(x, module.weight, module.bias)


@register("transformers.pytorch_utils.Conv1D")
def transposed_linear(module: nn.Module, site: Site, x: Tensor) -> Tensor:
    """GPT-2's linear layer, which keeps its weight as (in, out)."""
    return site.linear(x, module.weight, module.bias, transposed=True)  # type: ignore[arg-type]
