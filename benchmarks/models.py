"""The network architectures of the benchmark workloads."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Mlp(nn.Sequential):
    """Fully connected network 784-h-h-10 with ReLU."""

    def __init__(self, hidden: int = 1024) -> None:
        super().__init__(
            nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )


class GreyscaleCnn(nn.Module):
    """Small tanh network for 28×28 images, 26 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, stride=2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2)
        self.hidden = nn.Linear(512, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.tanh(self.conv1(x)), 2, 1)
        x = F.max_pool2d(torch.tanh(self.conv2(x)), 2, 1)
        logits: Tensor = self.head(torch.tanh(self.hidden(x.flatten(1))))
        return logits


class ColourCnn(nn.Module):
    """Six tanh convolutions for 32×32 colour images, 550 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 32, 32, 64, 64, 128, 128]
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in pairwise(widths)
        )
        self.hidden = nn.Linear(128 * 4 * 4, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        for index, conv in enumerate(self.convs):
            x = torch.tanh(conv(x))
            if index % 2 == 1:
                x = F.max_pool2d(x, 2)
        logits: Tensor = self.head(torch.tanh(self.hidden(x.flatten(1))))
        return logits


class WideBlock(nn.Module):
    """Pre-activation residual block with GroupNorm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(16, before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm2 = nn.GroupNorm(16, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        reshapes = before != after or stride != 1
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if reshapes else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.shortcut(y)
        out: Tensor = self.conv2(F.relu(self.norm2(self.conv1(y)))) + skip
        return out


class WideResNet(nn.Module):
    """WRN-16-4 with GroupNorm, 2.75 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        stages = [(16, 64, 1), (64, 128, 2), (128, 256, 2)]
        self.blocks = nn.Sequential(
            *(
                block
                for before, after, stride in stages
                for block in (WideBlock(before, after, stride), WideBlock(after, after, 1))
            )
        )
        self.norm = nn.GroupNorm(16, 256)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class SinePositions(nn.Module):
    """Adds fixed sinusoidal positions; a module apart, because Opacus refuses buffers beside parameters."""

    positions: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        frequencies = torch.exp(-torch.arange(0, width, 2) / width * math.log(1e4))
        angles = torch.arange(length)[:, None] * frequencies
        self.register_buffer("positions", 0.1 * torch.cat([angles.sin(), angles.cos()], 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.positions


class TransformerLayer(nn.Module):
    """Pre-norm transformer layer whose attention is written with plain linear layers."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        query, key, value = self._split(self.query(y)), self._split(self.key(y)), self._split(self.value(y))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if self.causal:
            length = x.shape[1]
            scores = scores + torch.full((length, length), -math.inf, dtype=x.dtype).triu(1)
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class TextClassifier(nn.Module):
    """Transformer encoder (width 256, 4 layers, 4 heads, 128 tokens) with a mean-pooled head; 11 million."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30522, 256)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.positions = SinePositions(128, 256)
        self.layers = nn.Sequential(*(TransformerLayer(256, 4) for _ in range(4)))
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layers(self.positions(self.embedding(tokens)))
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


class SmallGpt(nn.Module):
    """Causal language model with tied input and output embeddings, 100 million parameters."""

    def __init__(self, vocabulary: int = 19500, width: int = 768, depth: int = 12, length: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = SinePositions(length, width)
        self.layers = nn.Sequential(*(TransformerLayer(width, 12, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.layers(self.positions(self.embedding(tokens)))))
        return logits
