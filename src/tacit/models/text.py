"""Small classifiers of token ids, in which id 0 is padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import ModelError


class MeanOfWords(nn.Module):
    """The mean of the words' embeddings, and one hidden tanh layer."""

    def __init__(self, vocabulary: int, outputs: int, *, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits for ids (batch, length)."""
        logits: Tensor = self.head(torch.tanh(self.hidden(masked_mean(self.embedding(ids), ids != 0))))
        return logits


class TransformerBlock(nn.Module):
    """Self-attention and a hidden layer, each after a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Return (batch, length, width); attention looks only at positions that are ``seen`` (batch,
        length).
        """
        normed = self.norm1(x)
        query, key, value = (
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen[..., None, None, :])
        x = x + self.out(mixed.transpose(-3, -2).flatten(-2))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class SmallTransformer(nn.Module):
    """A transformer encoder with learned positions and a mean over the words."""

    def __init__(
        self, vocabulary: int, length: int, outputs: int, *, width: int = 32, heads: int = 4, depth: int = 2
    ) -> None:
        super().__init__()
        if width % heads:
            raise ModelError(f"The width {width} must be a multiple of the number of heads {heads}.")
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits for ids (batch, length)."""
        order = torch.arange(ids.shape[-1], device=ids.device).expand_as(ids)
        # The first place is always seen, so that a text without words has something to attend to.
        seen = (ids != 0) | (order == 0)
        x = self.words(ids) + self.places(order)
        for block in self.blocks:
            x = block(x, seen)
        logits: Tensor = self.head(masked_mean(self.norm(x), seen))
        return logits


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Average x (batch, length, width) over the places where ``mask`` holds; zero where it holds nowhere."""
    weights = mask.to(x.dtype)
    return (x * weights[..., None]).sum(-2) / weights.sum(-1, keepdim=True).clamp(min=1)
