"""Embedding tables."""

from __future__ import annotations

from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.raw.rules.registry import register
from tacit.raw.site import Site


@register(nn.Embedding)
def embedding(module: nn.Embedding, site: Site, ids: Tensor) -> Tensor:
    """A table of rows, with an optional padding row that never learns."""
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise ModelError(
            f"{site.name}: an embedding with max_norm or scale_grad_by_freq mixes examples; switch both options off."
        )
    return site.embedding(ids, module.weight, module.padding_idx)
