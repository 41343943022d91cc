"""What is attacked: a model, its loss, and what one row of data may hold.

Two kinds of attacker. *At the layer* the loss is Σ output · target, so that one row sets the layer's inputs and its
output gradients freely: the general case. *Through the data* the row goes through an ordinary model and loss.
Sizes are chosen so that every way of forming norms and sums in ``tacit.raw.gradients`` is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.losses import Loss
from tools.attack.rows import Classes, Field, Real, Tokens


@dataclass(frozen=True)
class Target:
    """A model under attack. ``build`` makes it in single precision; its random state is seeded by the caller."""

    name: str
    build: Callable[[], nn.Module]
    fields: tuple[Field, Field]
    loss: Loss
    through_data: bool = False


def product(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Σ output · target: the target is the gradient of the output."""
    output = model(batch[0])
    return (output * batch[1].view_as(output)).flatten(1).sum(1)


def squared_error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Squared error, averaged over outputs."""
    output = model(batch[0])
    return (output - batch[1].view_as(output)).square().flatten(1).mean(1)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Softmax cross-entropy."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


# Models -----------------------------------------------------------------------------------------------------------


class MeanOverTime(nn.Module):
    """Linear, mean over positions, ReLU, linear: every position has the same output gradient."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(width, hidden), nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(torch.relu(self.embed(x).mean(1)))


class Attention(nn.Module):
    """Self-attention as a layer of one input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The mixed values."""
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    """A recurrent layer as a layer of one input and one output."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """All hidden states."""
        return self.layer(x)[0]


class Tied(nn.Module):
    """A table that embeds tokens and, transposed, reads them out."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.readout = nn.Linear(width, vocabulary, bias=False)
        self.readout.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of every token at every position."""
        return self.readout(self.table(ids))


class Twice(nn.Module):
    """One layer, used twice in a row."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """The layer of the layer."""
        return self.layer(self.layer(x))


class Bare(nn.Module):
    """A matrix and a scale that no rule knows."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(width, outputs) / width**0.5)
        self.scale = nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """x M, scaled."""
        return (x @ self.matrix) * self.scale


class Encoder(nn.Module):
    """A small transformer for classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores from the mean over positions."""
        return self.head(self.block(x).mean(1))


class LastState(nn.Module):
    """Embedding, LSTM and a head on the last state."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(vocabulary, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        """Class scores."""
        return self.head(self.lstm(self.table(ids))[0][:, -1])


class Normalised(nn.Module):
    """A weight that is made of two parameters, over positions: what they make is followed."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.direction, self.length = (
            nn.Parameter(torch.randn(outputs, width)),
            nn.Parameter(torch.ones(outputs, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x times the rows of the direction, each of the given length."""
        return F.linear(x, self.direction / self.direction.norm(dim=1, keepdim=True) * self.length)


class RelativeBias(nn.Module):
    """A table of relative positions that meets the examples in a sum."""

    def __init__(self, length: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * length - 1, heads))
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        """Scores (heads, to, from) and the entry of each distance."""
        places = torch.arange(self.length)
        return x + self.table[places[:, None] - places[None, :] + self.length - 1].permute(2, 0, 1)


def _frozen(norm: nn.Module) -> nn.Module:
    norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr,operator]
    norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr,operator]
    return norm.eval()


def _transposed_linear() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return Conv1D(64, 64)


# The list ---------------------------------------------------------------------------------------------------------


def _layer(name: str, build: Callable[[], nn.Module], inputs: Field, outputs: Field) -> Target:
    return Target(name, build, (inputs, outputs), product)


def _image(*shape: int) -> Real:
    return Real(shape, channels_first=True)


TARGETS = (
    _layer("Linear 24→16", lambda: nn.Linear(24, 16, bias=False), Real((24,)), Real((16,))),
    _layer("Linear 600→400", lambda: nn.Linear(600, 400), Real((600,)), Real((400,))),
    _layer("Linear 8→8, 6 positions", lambda: nn.Linear(8, 8), Real((6, 8)), Real((6, 8))),
    _layer("Linear 7→13, 38 positions", lambda: nn.Linear(7, 13), Real((38, 7)), Real((38, 13))),
    _layer("Linear 64→64, 8 positions", lambda: nn.Linear(64, 64, bias=False), Real((8, 64)), Real((8, 64))),
    _layer("Linear 256→256, 4 positions", lambda: nn.Linear(256, 256), Real((4, 256)), Real((4, 256))),
    _layer("Linear 16→16, 64 positions", lambda: nn.Linear(16, 16), Real((64, 16)), Real((64, 16))),
    _layer("Linear 512→512, 128 positions", lambda: nn.Linear(512, 512), Real((128, 512)), Real((128, 512))),
    _layer("Linear (in, out) 64→64, 8 positions", _transposed_linear, Real((8, 64)), Real((8, 64))),
    _layer("Conv1d 6→8", lambda: nn.Conv1d(6, 8, 3, padding=1, bias=False), _image(6, 16), _image(8, 16)),
    _layer("Conv1d 5→7", lambda: nn.Conv1d(5, 7, 3), _image(5, 23), _image(7, 21)),
    _layer("Conv2d 16→6", lambda: nn.Conv2d(16, 6, 3, padding=1), _image(16, 6, 6), _image(6, 6, 6)),
    _layer("Conv2d 48→48, 4×4", lambda: nn.Conv2d(48, 48, 3, padding=1), _image(48, 4, 4), _image(48, 4, 4)),
    _layer("Conv2d 1×1 64→64", lambda: nn.Conv2d(64, 64, 1, bias=False), _image(64, 2, 4), _image(64, 2, 4)),
    _layer(
        "Conv2d 128→128, 8×8",
        lambda: nn.Conv2d(128, 128, 3, padding=1),
        _image(128, 8, 8),
        _image(128, 8, 8),
    ),
    _layer(
        "Conv2d strided, dilated",
        lambda: nn.Conv2d(8, 12, 3, stride=2, dilation=2, padding=1),
        _image(8, 11, 11),
        _image(12, 5, 5),
    ),
    _layer(
        "Conv2d grouped", lambda: nn.Conv2d(8, 12, 3, groups=4, bias=False), _image(8, 6, 6), _image(12, 4, 4)
    ),
    _layer(
        "Conv2d depthwise",
        lambda: nn.Conv2d(12, 12, 3, padding=1, groups=12),
        _image(12, 6, 6),
        _image(12, 6, 6),
    ),
    _layer("Conv3d 4→6", lambda: nn.Conv3d(4, 6, 2), _image(4, 4, 4, 4), _image(6, 3, 3, 3)),
    _layer(
        "ConvTranspose2d (torch.func)",
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2),
        _image(4, 4, 4),
        _image(6, 9, 9),
    ),
    _layer("Embedding, repeated tokens", lambda: nn.Embedding(20, 8), Tokens(12, 20), Real((12, 8))),
    _layer("LayerNorm, 8 positions", lambda: nn.LayerNorm(16), Real((8, 16)), Real((8, 16))),
    _layer("RMSNorm, 8 positions", lambda: nn.RMSNorm(16), Real((8, 16)), Real((8, 16))),
    _layer("GroupNorm", lambda: nn.GroupNorm(2, 8), _image(8, 4, 4), _image(8, 4, 4)),
    _layer("InstanceNorm", lambda: nn.InstanceNorm2d(8, affine=True), _image(8, 4, 4), _image(8, 4, 4)),
    _layer("BatchNorm, frozen", lambda: _frozen(nn.BatchNorm2d(8)), _image(8, 4, 4), _image(8, 4, 4)),
    _layer("MultiheadAttention", lambda: Attention(16), Real((8, 16)), Real((8, 16))),
    _layer("RNN", lambda: Recurrent(nn.RNN(8, 12, batch_first=True)), Real((6, 8)), Real((6, 12))),
    _layer("LSTM", lambda: Recurrent(nn.LSTM(8, 12, batch_first=True)), Real((6, 8)), Real((6, 12))),
    _layer(
        "GRU, both directions",
        lambda: Recurrent(nn.GRU(8, 6, batch_first=True, bidirectional=True)),
        Real((6, 8)),
        Real((6, 12)),
    ),
    _layer("tied Embedding and Linear", lambda: Tied(20, 8), Tokens(6, 20), Real((6, 20))),
    _layer("Linear used twice", lambda: Twice(nn.Linear(32, 32)), Real((4, 32)), Real((4, 32))),
    _layer(
        "Conv2d used twice", lambda: Twice(nn.Conv2d(6, 6, 3, padding=1)), _image(6, 5, 5), _image(6, 5, 5)
    ),
    _layer("normalised weight, 6 positions", lambda: Normalised(16, 12), Real((6, 16)), Real((6, 12))),
    _layer("relative positions", lambda: RelativeBias(5, 2), Real((2, 5, 5)), Real((2, 5, 5))),
    _layer("bare parameters (torch.func)", lambda: Bare(12, 10), Real((5, 12)), Real((5, 10))),
    _layer("large bare parameters (torch.func)", lambda: Bare(2100, 2100), Real((1, 2100)), Real((1, 2100))),
    Target(
        "regression, Linear 512→512 over 128 positions",
        lambda: nn.Linear(512, 512),
        (Real((128, 512)), Real((128, 512))),
        squared_error,
        through_data=True,
    ),
    Target(
        "Linear, mean over time, ReLU, Linear",
        lambda: MeanOverTime(256, 256),
        (Real((64, 256)), Classes(4)),
        cross_entropy,
        through_data=True,
    ),
    Target(
        "convolutional autoencoder, 128 channels, 8×8",
        lambda: nn.Sequential(
            nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1)
        ),
        (_image(128, 8, 8), _image(128, 8, 8)),
        squared_error,
        through_data=True,
    ),
    Target(
        "MLP, cross-entropy",
        lambda: nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 4)),
        (Real((30,)), Classes(4)),
        cross_entropy,
        through_data=True,
    ),
    Target(
        "convolutional classifier with GroupNorm",
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 4),
        ),
        (_image(3, 8, 8), Classes(4)),
        cross_entropy,
        through_data=True,
    ),
    Target(
        "transformer classifier",
        lambda: Encoder(32),
        (Real((8, 32)), Classes(4)),
        cross_entropy,
        through_data=True,
    ),
    Target(
        "Embedding, LSTM, classifier",
        lambda: LastState(30, 16),
        (Tokens(10, 30), Classes(4)),
        cross_entropy,
        through_data=True,
    ),
)

BY_NAME = {target.name: target for target in TARGETS}


def model_of(target: Target, dtype: torch.dtype) -> nn.Module:
    """The target's model: the same numbers every time, in the given type."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(math.prod(map(ord, target.name[:4])))
        return target.build().to(dtype)
