"""Networks trained from scratch: linear, MLP, convolutional, wide ResNet, transformer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import ModelError, check_count
from tacit.models.sparse_linear import check_table


def logistic(inputs: int, outputs: int) -> nn.Sequential:
    """One linear layer, starting at zero (softmax regression where there are several outputs)."""
    layer = nn.Linear(check_count("inputs", inputs), check_count("outputs", outputs))
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


class UnitLinear(nn.Module):
    """One linear layer for vectors of unit length, starting at zero, whose bias counts for little.

    A bias of full weight would make every gradient longer by a factor of √2, and the noise has to follow. Here the
    bias enters with ``BIAS_WEIGHT``. With ``centred`` the vectors first lose a common centre, a parameter of its own,
    and get unit length again: what all examples share says nothing about their classes and takes room under the clip
    norm. The centre is learned before the layer (:class:`tacit.plan.methods.Centred`), by the loss that
    :func:`tacit.losses.with_centre` makes.
    """

    BIAS_WEIGHT = 0.1

    def __init__(self, inputs: int, outputs: int, *, centred: bool = False) -> None:
        super().__init__()
        check_count("inputs", inputs)
        # A layer with one input, always 1, holds the centre: such a layer is clipped by the rule of linear layers.
        self.centre = nn.Linear(1, inputs, bias=False) if centred else None
        self.layer = nn.Linear(inputs, check_count("outputs", outputs), bias=False)
        self.bias = nn.Linear(1, outputs, bias=False)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        """One row of outputs per example."""
        vectors = inputs.flatten(1)
        if self.centre is not None:
            vectors = functional.normalize(self.from_centre(inputs), dim=1)
        outputs: Tensor = self.layer(vectors) + self.bias(
            vectors.new_full((len(vectors), 1), self.BIAS_WEIGHT)
        )
        return outputs

    def from_centre(self, inputs: Tensor) -> Tensor:
        """The vectors as seen from the centre, one row per example."""
        assert self.centre is not None
        vectors = inputs.flatten(1)
        seen: Tensor = vectors - self.centre(vectors.new_ones(len(vectors), 1))
        return seen

    def start_at(self, *answers: float) -> None:
        """Answer ``answers`` before any training."""
        with torch.no_grad():
            self.bias.weight.copy_(torch.tensor(answers)[:, None] / self.BIAS_WEIGHT)


def mlp(inputs: int, outputs: int, *, width: int = 64, depth: int = 1) -> nn.Sequential:
    """``depth`` hidden tanh layers of ``width`` units; bounded activations keep per-example gradients
    small.
    """
    check_count("inputs", inputs)
    check_count("outputs", outputs)
    check_count("width", width)
    check_count("depth", depth)
    layers: list[nn.Module] = [nn.Flatten()]
    for layer in range(depth):
        layers += [nn.Linear(inputs if layer == 0 else width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def numel(shape: tuple[int, ...]) -> int:
    """Count the entries of an array of ``shape``."""
    return math.prod(shape)


def tanh_cnn(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Two convolutions (16 of 8 x 8, 32 of 4 x 4, stride 2) and 32 hidden units, for 28 x 28 images.

    With one channel and ten classes it has 26,010 coordinates.
    """
    features = nn.Sequential(
        nn.Conv2d(_channels(shape), 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    )
    return _with_head(features, shape, 32, outputs)


def tanh_cnn_deep(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Six 3 x 3 convolutions (32, 32, 64, 64, 128, 128), pooled in pairs, and 128 hidden units, for CIFAR-10.

    With three channels of 32 x 32 and ten classes it has 550,570 coordinates.
    """
    layers: list[nn.Module] = []
    channels = _channels(shape)
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        channels = width
    return _with_head(nn.Sequential(*layers, nn.Flatten()), shape, 128, outputs)


def _channels(shape: tuple[int, ...]) -> int:
    if len(shape) != 3:
        raise ModelError(
            f"A convolutional network takes images (channels, height, width), not the shape {shape}."
        )
    return shape[0]


def _with_head(features: nn.Sequential, shape: tuple[int, ...], hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *features, nn.Linear(_flat_size(features, shape), hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


def _flat_size(features: nn.Sequential, shape: tuple[int, ...]) -> int:
    try:
        with torch.no_grad():
            out: Tensor = features(torch.zeros(1, *shape))
    except RuntimeError as error:
        raise ModelError(f"Images of shape {shape} are too small for this network.") from error
    return out.shape[1]


_GROUPS = 16


class PreActivationBlock(nn.Module):
    """Norm, ReLU, 3 x 3 convolution, twice, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(_GROUPS, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the shortcut and the two convolutions."""
        start = functional.relu(self.norm1(x))
        side = x if self.shortcut is None else self.shortcut(start)
        out: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(start)))) + side
        return out


class WideResNet(nn.Module):
    """WRN-``depth``-``factor`` (Zagoruyko and Komodakis, 2016) with GroupNorm of 16 groups; depth is 6 n
    + 4.
    """

    def __init__(self, channels: int, outputs: int, *, depth: int = 16, factor: int = 4) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ModelError(f"The depth of a wide residual network is 10, 16, 22, ...; got {depth}.")
        if factor < 1:
            raise ModelError(f"The widening factor must be at least 1, got {factor}.")
        blocks: list[nn.Module] = []
        width = 16
        for stage, base in enumerate((16, 32, 64)):
            for block in range((depth - 4) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(PreActivationBlock(width, base * factor, stride))
                width = base * factor
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(_GROUPS, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits for images (batch, channels, height, width)."""
        out = functional.relu(self.norm(self.blocks(self.stem(x))))
        logits: Tensor = self.head(torch.mean(out, dim=(2, 3)))
        return logits


class LinearWords(nn.Module):
    """A weight for every word and output, and an intercept, starting at zero: a linear model of bags of words.

    A text is the mean direction of its different words: each counts 1/√n, where n is how many there are. Together with
    the constant that the intercept multiplies, every text that has words has Euclidean norm 1, so that with a loss
    whose slope is at most 1 no example's gradient is longer than 1. Rows of a sparse matrix, ids with values, count by
    their direction in the same way.
    """

    CONSTANT = 0.1

    def __init__(self, vocabulary: int, outputs: int) -> None:
        super().__init__()
        check_table(check_count("vocabulary", vocabulary, least=2), check_count("outputs", outputs))
        # Zeros from the start: memory is touched where words are.
        table = torch.zeros(vocabulary, outputs)
        self.words = nn.EmbeddingBag.from_pretrained(table, freeze=False, mode="sum", padding_idx=0)
        self.intercept = nn.Linear(1, outputs, bias=False)
        nn.init.zeros_(self.intercept.weight)

    def forward(self, rows: Tensor | Sequence[Tensor]) -> Tensor:
        """Return logits for different ids (batch, length), or for such ids and their values; 0 fills up."""
        ids, values = (rows, None) if isinstance(rows, Tensor) else rows
        ids = ids.long()
        real = (ids != 0).to(self.words.weight.dtype)
        rest = 1 - self.CONSTANT**2
        if values is None:
            answer: Tensor = self.words(ids) * (rest / real.sum(1, keepdim=True).clamp(min=1)).sqrt()
        else:
            # By the largest first, so that squares neither overflow nor vanish.
            values = values.to(real.dtype) * real
            values = values / values.abs().amax(1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
            weights = values * (rest / values.square().sum(1, keepdim=True).clamp(min=1)).sqrt()
            answer = self.words(ids, per_sample_weights=weights)
        always: Tensor = self.intercept(torch.full_like(real[:, :1], self.CONSTANT))
        return answer + always

    @torch.no_grad()
    def start_at(self, *answers: float) -> None:
        """Let every text begin with these answers: one per output, or the same for all."""
        self.intercept.weight.copy_(torch.tensor(answers)[:, None] / self.CONSTANT)


class EmbeddedWords(nn.Module):
    """A learned embedding of every word, their sum by direction as in ``LinearWords``, and a linear layer behind it.

    Embeddings start at zero and the layer's rows are orthonormal. So at the start every gradient is as long as that of
    ``LinearWords``, noise reaches an answer along one direction of the embeddings only, and the same rates fit.
    """

    def __init__(self, vocabulary: int, outputs: int, *, width: int = 16) -> None:
        super().__init__()
        self.embedding = LinearWords(vocabulary, check_count("width", width))
        self.head = nn.Linear(width, outputs, bias=False)
        nn.init.orthogonal_(self.head.weight)

    def forward(self, rows: Tensor | Sequence[Tensor]) -> Tensor:
        """Return logits for different ids (batch, length), or for such ids and their values; 0 fills up."""
        logits: Tensor = self.head(self.embedding(rows))
        return logits

    @torch.no_grad()
    def start_at(self, *answers: float) -> None:
        """Let every text begin with these answers: one per output, or the same for all."""
        wanted = torch.tensor(answers).expand(len(self.head.weight))
        self.embedding.start_at(*(torch.linalg.pinv(self.head.weight) @ wanted).tolist())


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
