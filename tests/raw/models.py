"""A hypothesis strategy for small random models over every supported layer."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from raw.comparison import weighted
from tacit.support import Support

IMAGE = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
BATCH = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Network(nn.Module):
    """Layers one after the other, some of them twice, then a mean over positions and a linear head."""

    def __init__(self, layers: list[nn.Module], order: list[int], width: int, channels_at: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.order = order
        self.channels_at = channels_at
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for place in self.order:
            x = self.layers[place](x)
            x = torch.tanh(x) if x.is_floating_point() else x
        x = x.movedim(self.channels_at, -1)
        return self.head(x.flatten(1, -2).mean(1) if x.dim() > 2 else x)


class Attention(nn.Module):
    """Self- or cross-attention as a layer of one input."""

    def __init__(self, width: int, heads: int, cross: bool, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=batch_first)
        self.cross, self.batch_first = cross, batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        other = x.flip(1 if self.batch_first else 0) * 0.5 if self.cross else x
        output = self.attention(x, other, other, need_weights=self.cross)[0]
        return output if self.batch_first else output.transpose(0, 1)


class Recurrent(nn.Module):
    """A recurrent layer as a layer of one input and one output."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.layer.batch_first else x.transpose(0, 1)
        output = self.layer(x)[0]
        return output if self.layer.batch_first else output.transpose(0, 1)


class Token(nn.Module):
    """A class token and learned positions: bare parameters, without a rule."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(length + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions


class Positions(nn.Module):
    """Learned positions from a table that all examples look up alike."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(self.length)[None])


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...], int | None]:
    """A model, the shape of one input, and the vocabulary size where inputs are tokens."""
    torch.manual_seed(draw(st.integers(0, 2**20)))
    kind = draw(st.sampled_from(["vector", "sequence", "tokens", "image1", "image2", "image3"]))
    count = draw(st.integers(1, 3))
    layers: list[nn.Module] = []
    vocabulary = None
    if kind == "vector":
        width = draw(st.integers(1, 5))
        shape: tuple[int, ...] = (width,)
        for _ in range(count):
            width = _vector_layer(draw, layers, width)
        channels_at = 1
    elif kind in ("sequence", "tokens"):
        length, width = draw(st.integers(1, 4)), draw(st.sampled_from([2, 4]))
        shape = (length, width)
        if kind == "tokens":
            vocabulary = draw(st.integers(2, 6))
            layers.append(nn.Embedding(vocabulary, width, padding_idx=draw(st.sampled_from([None, 0]))))
            shape = (length,)
        for _ in range(count):
            width, length = _sequence_layer(draw, layers, width, length)
        channels_at = 2
    else:
        dims = int(kind[-1])
        channels, sizes = draw(st.sampled_from([1, 2, 4])), [draw(st.integers(3, 6)) for _ in range(dims)]
        shape = (channels, *sizes)
        width = channels
        for _ in range(count):
            width, sizes = _image_layer(draw, layers, width, sizes)
        channels_at = 1
    order = list(range(len(layers)))
    model = Network(layers, order, width, channels_at)
    _repeat_a_square_layer(draw, model)
    if draw(st.booleans()) and len(layers) > 1:
        for p in layers[0].parameters():
            p.requires_grad_(False)
    return model.double(), shape, vocabulary


def _repeat_a_square_layer(draw: st.DrawFn, model: Network) -> None:
    squares = [
        i
        for i, m in enumerate(model.layers)
        if isinstance(m, nn.Linear | nn.LayerNorm)
        and getattr(m, "in_features", 0) == getattr(m, "out_features", 0)
    ]
    if squares and draw(st.booleans()):
        place = draw(st.sampled_from(squares))
        model.order.insert(place, place)


def _vector_layer(draw: st.DrawFn, layers: list[nn.Module], width: int) -> int:
    match draw(st.sampled_from(["linear", "layer", "rms", "batch", "group", "cell"])):
        case "linear":
            out = draw(st.integers(1, 5))
            layers.append(nn.Linear(width, out, bias=draw(st.booleans())))
            return out
        case "layer":
            layers.append(nn.LayerNorm(width))
        case "rms":
            layers.append(nn.RMSNorm(width))
        case "batch":
            layers.append(_frozen(nn.BatchNorm1d(width)))
        case "group":
            layers.append(nn.GroupNorm(1, width) if width > 1 else nn.LayerNorm(width))
        case "cell":
            layers.append(nn.GRUCell(width, 3))
            return 3
    return width


def _sequence_layer(draw: st.DrawFn, layers: list[nn.Module], width: int, length: int) -> tuple[int, int]:
    match draw(
        st.sampled_from(["linear", "layer", "attention", "recurrent", "token", "positions", "encoder"])
    ):
        case "linear":
            out = draw(st.sampled_from([2, 4]))
            layers.append(nn.Linear(width, out, bias=draw(st.booleans())))
            return out, length
        case "layer":
            layers.append(draw(st.sampled_from([nn.LayerNorm, nn.RMSNorm]))(width))
        case "attention":
            layers.append(Attention(width, 2, draw(st.booleans()), draw(st.booleans())))
        case "encoder":
            layers.append(nn.TransformerEncoderLayer(width, 2, 3, dropout=0.0, batch_first=True))
        case "token":
            layers.append(Token(width, length))
            return width, length + 1
        case "positions":
            layers.append(Positions(width, length))
        case "recurrent":
            cls = draw(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]))
            both = draw(st.booleans())
            layer = cls(
                width,
                2,
                num_layers=draw(st.integers(1, 2)),
                bidirectional=both,
                batch_first=draw(st.booleans()),
                bias=draw(st.booleans()),
            )
            layers.append(Recurrent(layer))
            return (4 if both else 2), length
    return width, length


def _image_layer(
    draw: st.DrawFn, layers: list[nn.Module], channels: int, sizes: list[int]
) -> tuple[int, list[int]]:
    dims = len(sizes)
    match draw(st.sampled_from(["conv", "conv", "group", "instance", "batch"])):
        case "conv":
            groups = draw(st.sampled_from([g for g in (1, 2, 4) if channels % g == 0]))
            out = draw(st.sampled_from([2, 4])) if groups <= 2 else 4
            kernel = [draw(st.integers(1, min(3, s))) for s in sizes]
            dilation = [
                draw(st.sampled_from([1, 2])) if d * 2 + 1 <= s else 1
                for d, s in zip(kernel, sizes, strict=True)
            ]
            mode = draw(st.sampled_from(["zeros", "zeros", "same", "circular", "reflect", "replicate"]))
            stride = [1] * dims if mode == "same" else [draw(st.integers(1, 2)) for _ in sizes]
            padding: Any = "same" if mode == "same" else [draw(st.integers(0, k // 2)) for k in kernel]
            layers.append(
                IMAGE[dims](
                    channels,
                    out,
                    tuple(kernel),
                    tuple(stride),
                    padding if mode == "same" else tuple(padding),
                    tuple(dilation),
                    groups,
                    draw(st.booleans()),
                    "zeros" if mode in ("zeros", "same") else mode,
                )
            )
            if mode != "same":
                sizes = [
                    (s + 2 * p - d * (k - 1) - 1) // t + 1
                    for s, p, d, k, t in zip(sizes, padding, dilation, kernel, stride, strict=True)
                ]
            return out, sizes
        case "group":
            layers.append(
                nn.GroupNorm(draw(st.sampled_from([g for g in (1, 2) if channels % g == 0])), channels)
            )
        case "instance":
            if math.prod(sizes) > 1:
                layers.append(INSTANCE[dims](channels, affine=True))
        case "batch":
            layers.append(_frozen(BATCH[dims](channels)))
    if not layers:
        layers.append(IMAGE[dims](channels, channels, 1))
    return channels, sizes


def _frozen(norm: nn.Module) -> nn.Module:
    norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr,operator]
    norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr,operator]
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)  # type: ignore[union-attr,operator]
    return norm.eval()


@st.composite
def supports(draw: st.DrawFn, model: nn.Module) -> Support:
    """Any kind of support of a model."""
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    seed = draw(st.integers(0, 2**20))
    match draw(st.sampled_from(["all", "random", "sparse", "rows", "matching", "top", "layers", "soft"])):
        case "all":
            return Support.all(model)
        case "random":
            total = Support.all(model).dimension
            return Support.random(model, size=draw(st.integers(1, total)), seed=seed)
        case "sparse":
            total = Support.all(model).dimension
            return Support.random(model, size=max(1, total // 12), seed=seed)
        case "soft":
            return weighted(model, draw(st.integers(0, 1)), seed)
        case "rows":
            return Support.random_rows(model, ratio=draw(st.floats(0.05, 1)), seed=seed)
        case "matching":
            return Support.matching(model, [draw(st.sampled_from(names))])
        case "top":
            scores = {n: torch.rand_like(p) for n, p in model.named_parameters() if p.requires_grad}
            return Support.top_k(scores, size=draw(st.integers(1, Support.all(model).dimension)))
        case _:
            rows = Support.random_rows(model, ratio=0.3, seed=seed)
            return rows | Support.random(model, size=1, seed=seed)


@st.composite
def batches(
    draw: st.DrawFn, shape: tuple[int, ...], vocabulary: int | None, rows: int
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    if vocabulary is None:
        x = torch.randn(rows, *shape, generator=generator, dtype=torch.float64)
    else:
        x = torch.randint(vocabulary, (rows, *shape), generator=generator)
    return x, torch.randint(3, (rows,), generator=generator)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")
