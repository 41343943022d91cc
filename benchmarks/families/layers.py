"""Families written with plain PyTorch: layers and how they are put together."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from benchmarks.families.family import (
    Family,
    Instance,
    Squares,
    classified,
    cross_entropy,
    labelled,
    tokens,
)


class _Of(nn.Module):
    """A model whose forward pass is a function of it, so that a family fits in a few lines."""

    def __init__(self, forward: Any, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, *inputs: Any) -> Any:
        return self._forward(self, *inputs)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * torch.randn(*shape))


# Convolutions and vision --------------------------------------------------------------------------------------------


def _separable() -> Instance:
    return classified(
        nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=2, dilation=2, groups=3, padding_mode="replicate"),
            nn.ReLU(),
            nn.Conv2d(6, 4, 1, stride=2),
            nn.Flatten(),
            nn.Linear(4 * 16, 3),
        ),
        3,
        8,
        8,
    )


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.channels, self.norm = nn.Linear(5, 5), nn.Linear(4, 4), nn.LayerNorm(4)
        self.out = Squares(4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.out(x + self.channels(self.norm(x)))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = nn.Conv2d(2, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 1)
        self.up, self.out = nn.ConvTranspose2d(4, 2, 2, 2), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.inner(F.relu(self.down(x))))
        return self.out(torch.cat([x, self.up(y)], 1)).mean((2, 3))


class _PRelu(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 4, 3),
            nn.PReLU(4),
            nn.LocalResponseNorm(2),
            nn.PReLU(),
            nn.Flatten(),
            nn.Linear(4 * 16, 3),
        )


def _transposed_and_volume() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 2, 2),
        nn.Flatten(2),
        nn.ConvTranspose1d(2, 2, 3, 2, groups=2),
        nn.Flatten(),
        nn.Linear(34, 3),
    )


# Normalisation and scales -------------------------------------------------------------------------------------------


class _RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class _Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.own = nn.RMSNorm(4), _RootMeanSquare(4)
        self.inner, self.out = nn.Linear(4, 4), Squares(4)
        self.scale, self.layer_scale = nn.Parameter(torch.tensor(0.7)), _parameter(4)
        self.rezero = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.layer_scale * self.inner(self.norm(x))
        x = x + self.rezero * self.inner(self.own(x))
        return self.scale * self.out(x)


class _SharedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.inner, self.out = nn.LayerNorm(4), nn.RMSNorm(4), nn.Linear(4, 4), Squares(4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.b(self.inner(self.a(x))))


class _SharedTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.out = nn.Embedding(17, 4), nn.Linear(4, 17, bias=False), Squares(17)
        self.inner.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.inner(torch.tanh(self.table(ids))))


def _token_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="none")


def _of_tokens(model: nn.Module) -> Instance:
    return Instance(model.double().train(), _token_loss, tokens())


# Parametrizations ---------------------------------------------------------------------------------------------------


def _old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 3))


def _spectral(*, training: bool) -> Instance:
    built = classified(
        nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 3)), 5
    )
    built.model.train(training)
    return built


def _orthogonal() -> nn.Module:
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(5, 5)), nn.Tanh(), nn.Linear(5, 3))


def _convolution_weight_norm() -> nn.Module:
    return nn.Sequential(
        parametrizations.weight_norm(nn.Conv2d(2, 3, 3)), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)
    )


def _weight_norm_dropout() -> nn.Module:
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(5, 4)), nn.Dropout(0.3), nn.Tanh(), nn.Linear(4, 3)
    )


# Other layers -------------------------------------------------------------------------------------------------------


class _Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.both = nn.Linear(5, 4), nn.Bilinear(4, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(torch.tanh(self.inner(x)), x)


class _Bags(nn.Module):
    def __init__(self, *, offsets: bool) -> None:
        super().__init__()
        self.bag, self.out, self.offsets = nn.EmbeddingBag(17, 4, mode="mean"), nn.Linear(4, 3), offsets

    def forward(self, ids: Tensor) -> Tensor:
        if not self.offsets:
            return self.out(self.bag(ids))
        starts = torch.arange(0, ids.numel(), ids.shape[1])
        return self.out(self.bag(ids.flatten(), starts))


class _Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.kind, self.size = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return {"kind": self.kind(hidden), "size": self.size(hidden)[:, 0]}


def _tasks() -> Instance:
    def batch(rows: int, seed: int) -> dict[str, Tensor]:
        x, y = labelled(5)(rows, seed)
        return {"x": x, "kind": y, "size": x.sum(1)}

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        found = model(batch["x"])
        return F.cross_entropy(found["kind"], batch["kind"], reduction="none") + F.mse_loss(
            found["size"], batch["size"], reduction="none"
        )

    return Instance(_Tasks().double(), loss, batch)


# Attention and recurrence -------------------------------------------------------------------------------------------


class _Attention(nn.Module):
    def __init__(self, *, batch_first: bool = True, dropout: float = 0.0, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, dropout=dropout, **options)
        self.inner, self.out, self.first = nn.Embedding(17, 4), Squares(4), batch_first

    def forward(self, ids: Tensor) -> Tensor:
        x = self.inner(ids)
        x = x if self.first else x.transpose(0, 1)
        mask = (ids == 0) if not self.attention.add_zero_attn else None
        y, _ = self.attention(x, x, x, key_padding_mask=mask)
        return self.out(y if self.first else y.transpose(0, 1))


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Embedding(17, 4)
        self.recurrent = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.out = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids != 0).sum(1)
        packed = pack_padded_sequence(self.inner(ids), lengths, batch_first=True, enforce_sorted=False)
        padded, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        return self.out(padded.sum(1))


class _Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True, proj_size=2)
        self.out = Squares(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.recurrent(x)[0])


class _EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(4, 2, 1, 1, 6, dropout=0.0, batch_first=True)
        self.out = Squares(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x, x.flip(1)))


def _encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1, **options)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    if options.get("batch_first"):
        return nn.Sequential(encoder, Squares(4))
    return _Of(
        lambda self, x: self.out(self.body(x.transpose(0, 1)).transpose(0, 1)), body=encoder, out=Squares(4)
    )


class _Positions(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner, self.positions, self.token = nn.Linear(4, 4), _parameter(1, 6, 4), _parameter(1, 1, 4)
        self.body = nn.TransformerEncoderLayer(4, 2, 6, dropout=dropout, batch_first=True)
        self.out, self.drop = nn.Linear(4, 3), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.inner(x)], 1) + self.positions
        return self.out(self.body(self.drop(x))[:, 0])


class _RelativeBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.table, self.out = nn.Linear(4, 12), nn.Embedding(9, 2), Squares(4)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(x).reshape(rows, length, 3, 2, 2).permute(2, 0, 3, 1, 4)
        places = torch.arange(length)
        bias = self.table(places[:, None] - places[None, :] + 4).permute(2, 0, 1)[None]
        mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(2) + bias, -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


# Rows that are selected ---------------------------------------------------------------------------------------------


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(17, 4), nn.Linear(4, 17)

    def forward(self, ids: Tensor, masked: Tensor) -> Tensor:
        hidden = torch.tanh(self.table(torch.where(masked, 1, ids)))
        return self.head(hidden[masked])


def _masked(counts: str) -> Instance:
    def batch(rows: int, seed: int) -> dict[str, Tensor]:
        found = tokens()(rows, seed)
        number = torch.full((rows,), 2)
        if counts == "random":
            number = torch.randint(1, 5, (rows,), generator=torch.Generator().manual_seed(seed))
        elif seed:
            number = torch.tensor([1, 3] * rows)[:rows]
        masked = torch.arange(6)[None] < number[:, None]
        return {"ids": found["input_ids"], "masked": masked}

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        masked = batch["masked"]
        losses = F.cross_entropy(model(batch["ids"], masked), batch["ids"][masked], reduction="none")
        return torch.zeros(masked.shape, dtype=losses.dtype).masked_scatter(masked, losses).sum(1)

    return Instance(_Masked().double(), loss, batch)


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(4, 2), Squares(4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, 4)
        scores, chosen = torch.softmax(self.gate(flat), -1).max(-1)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().flatten()
            mixed = mixed.index_add(0, places, expert(flat.index_select(0, places)) * scores[places, None])
        return self.out(mixed.view_as(x))


def _penalty(strength: float) -> Instance:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(model, batch) + strength * sum(p.square().sum() for p in model.parameters())

    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    return Instance(model, loss, labelled(5))


# State --------------------------------------------------------------------------------------------------------------


class _Average(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.inner(x)


class _Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(5, 3), 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.last = float(x.detach().mean())
        return self.inner(x)


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x)


class _Depth(nn.Module):
    """Stochastic depth: a branch is left out for some examples."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.out = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.rand(len(x), 1, dtype=x.dtype) < 0.7
        return self.out(x + kept * torch.tanh(self.branch(x)))


class _LayerDrop(nn.Module):
    """A layer is left out for a whole batch now and then."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.layers, self.out, self.chance = (
            nn.ModuleList(nn.Linear(5, 5) for _ in range(3)),
            nn.Linear(5, 3),
            chance,
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if torch.rand([]) >= self.chance:
                x = x + torch.tanh(layer(x))
        return self.out(x)


# Checkpoints and compilers ------------------------------------------------------------------------------------------


class _Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.out, self.reentrant = nn.Linear(5, 4), nn.Linear(4, 3), reentrant
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant))


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def _compiled(how: str) -> Instance:
    built = classified(_plain(), 5)
    model = built.model
    if how == "in place":
        model.compile(backend="aot_eager")
    elif how == "submodule":
        model[0] = torch.compile(model[0], backend="aot_eager")  # type: ignore[index,call-overload]
    else:
        model = torch.compile(model, backend=how.split()[0])  # type: ignore[assignment]
    if "run" in how:
        built.loss(model, built.batch(4, 9)).sum().backward()
        model.zero_grad()
    return Instance(model, built.loss, built.batch)


def _scripted() -> Instance:
    built = classified(_plain(), 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Instance(torch.jit.script(built.model), built.loss, built.batch)


def _traced() -> Instance:
    built = classified(_plain(), 5)
    return Instance(torch.fx.symbolic_trace(built.model), built.loss, built.batch)


# How examples and parameters meet -----------------------------------------------------------------------------------


class _Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale, self.out = nn.Linear(5, 4), _parameter(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.tanh(self.inner(torch.cat([x, x.flip(1)]))) * self.scale
        one, other = both.chunk(2)
        return self.out((one - other).abs())


class _Hypernetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker, self.out = nn.Linear(5, 20), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made = self.maker(x).view(-1, 4, 5)
        return self.out(torch.tanh(made @ x[:, :, None])[:, :, 0])


class _Instances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        folded = torch.tanh(self.inner(x.flatten(0, 1)))
        return self.out(folded.view(len(x), -1, 4).mean(1))


class _Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.out(torch.tanh(self.inner(row[None]))) for row in x])


class _Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights, self.out = _parameter(3, 4, 5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.func.vmap(lambda weight: torch.tanh(x @ weight.t()))(self.weights)
        return self.out(each.mean(0))


class _Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.out = _parameter(4, 2, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(torch.einsum("btc,chd->bthd", x, self.kernel)).mean(1).flatten(1))


class _Time(nn.Module):
    """A layer without a rule that sees examples first, then time first."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = _parameter(4), _parameter(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.gain + self.shift)


class _BothOrders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = _Time(), Squares(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return self.out(self.layer(x.transpose(0, 1)).transpose(0, 1))


class _OnConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = _Time(), Squares(4)

    def forward(self, x: Tensor) -> Tensor:
        shared = self.layer(torch.linspace(-1, 1, 4, dtype=x.dtype)[None])
        return self.out(self.layer(x) * shared)


class _Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter, self.out = nn.Parameter(torch.randn(4, dtype=torch.complex128)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=6))


class _ComplexView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter, self.out = _parameter(4, 2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.filter), n=6))


class _Written(nn.Module):
    """A class token that is written into a buffer of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.inner, self.out = _parameter(4), nn.Linear(4, 4), Squares(4)

    def forward(self, x: Tensor) -> Tensor:
        room = x.new_zeros(len(x), x.shape[1] + 1, 4)
        room[:, 1:] = x
        room[:, 0] = self.token
        return self.out(torch.tanh(self.inner(room)))


class _TiedHead(nn.Module):
    """A head that uses the table of another module, and a bias of its own, by function calls."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.bias, self.out = nn.Embedding(17, 4), _parameter(17), Squares(17)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(F.linear(torch.tanh(self.table(ids)), self.table.weight, self.bias))


class _DropConnect(nn.Module):
    """Dropout of weights: one mask for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = _parameter(4, 5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(F.linear(x, F.dropout(self.weight, 0.3, self.training))))


class _Standardised(nn.Conv2d):
    """Weight standardisation."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(
            x, weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5), self.bias, self.stride, self.padding
        )


class _LogitScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(5, 4), _parameter(3, 4)
        self.temperature = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.temperature.exp() * F.normalize(self.image(x)) @ F.normalize(self.text).t()


FAMILIES = [
    Family("depthwise-separable CNN, dilation 2, stride, replicate padding", _separable),
    Family("MLP-Mixer", lambda: classified(_Mixer(), 5, 4)),
    Family("one parameter in LayerNorm and RMSNorm", lambda: classified(_SharedNorm(), 5, 4)),
    Family("one parameter in Embedding and inner Linear", lambda: _of_tokens(_SharedTable())),
    Family("RMSNorm + custom RMSNorm + bare scale, layer scale, ReZero", lambda: classified(_Scales(), 5, 4)),
    Family("logit scale of no dimensions", lambda: classified(_LogitScale(), 5)),
    Family("weight_norm (old hook API)", lambda: classified(_old_weight_norm(), 5)),
    Family("spectral_norm (training mode)", lambda: _spectral(training=True), refused="buffer"),
    Family("spectral_norm (eval mode)", lambda: _spectral(training=False)),
    Family("orthogonal parametrization", lambda: classified(_orthogonal(), 5)),
    Family("weight_norm on Conv2d", lambda: classified(_convolution_weight_norm(), 2, 6, 6)),
    Family("weight_norm and dropout", lambda: classified(_weight_norm_dropout(), 5)),
    Family(
        "weight standardisation",
        lambda: classified(nn.Sequential(_Standardised(2, 3, 3), nn.Flatten(), nn.Linear(48, 3)), 2, 6, 6),
    ),
    Family("dropout of weights", lambda: classified(_DropConnect(), 5)),
    Family("nn.Bilinear", lambda: classified(_Bilinear(), 5)),
    Family("nn.EmbeddingBag mean (2d)", lambda: _of_tokens(_Bags(offsets=False))),
    Family("nn.EmbeddingBag with offsets", lambda: _of_tokens(_Bags(offsets=True))),
    Family(
        "nn.ConvTranspose2d",
        lambda: classified(
            nn.Sequential(nn.ConvTranspose2d(2, 3, 3, 2, 1), nn.Tanh(), nn.Flatten(), nn.Linear(147, 3)),
            2,
            4,
            4,
        ),
    ),
    Family("nn.Conv3d + nn.ConvTranspose1d", lambda: classified(_transposed_and_volume(), 1, 3, 3, 3)),
    Family("PReLU + LocalResponseNorm + Conv", lambda: classified(_PRelu(), 2, 6, 6)),
    Family("U-Net with skips and ConvTranspose", lambda: classified(_UNet(), 2, 6, 6)),
    Family("dict output, multi-task loss, dict batch", _tasks),
    Family(
        "dropout on (train mode)",
        lambda: classified(nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 3)), 5),
    ),
    Family("nn.MultiheadAttention key_padding_mask", lambda: _of_tokens(_Attention())),
    Family(
        "nn.MultiheadAttention key_padding_mask, batch second, dropout",
        lambda: _of_tokens(_Attention(batch_first=False, dropout=0.2)),
    ),
    Family("MHA add_bias_kv", lambda: _of_tokens(_Attention(add_bias_kv=True))),
    Family("MHA add_zero_attn, kdim", lambda: _of_tokens(_Attention(add_zero_attn=True))),
    Family("LSTM packed sequence, bidirectional", lambda: _of_tokens(_Packed())),
    Family("LSTM proj_size", lambda: classified(_Projected(), 5, 4)),
    Family(
        "forward mutates a buffer (EMA of inputs)", lambda: classified(_Average(), 5), refused="buffer 'mean'"
    ),
    Family("forward mutates a plain attribute (state not a buffer)", lambda: classified(_Attribute(), 5)),
    Family("forward counts calls in a buffer", lambda: classified(_Counter(), 5), refused="buffer 'calls'"),
    Family(
        "BatchNorm train",
        lambda: classified(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), 5),
        refused="BatchNorm",
    ),
    Family(
        "nn.TransformerEncoder with dropout, norm_first",
        lambda: classified(_encoder(batch_first=True, norm_first=True), 5, 4),
    ),
    Family(
        "nn.TransformerEncoder with dropout, norm last", lambda: classified(_encoder(batch_first=True), 5, 4)
    ),
    Family("nn.TransformerEncoder with dropout, batch second", lambda: classified(_encoder(), 5, 4)),
    Family("nn.Transformer (enc-dec)", lambda: classified(_EncoderDecoder(), 5, 4)),
    Family("learned positions as nn.Parameter + cls token", lambda: classified(_Positions(), 5, 4)),
    Family("learned positions + cls token, dropout", lambda: classified(_Positions(0.1), 5, 4)),
    Family(
        "T5-style relative position bias (embedding, permute(2,0,1))",
        lambda: classified(_RelativeBias(), 5, 4),
    ),
    Family("MLM head on masked tokens, 2,2,2 then 1,3", lambda: _masked("equal"), refused="construction"),
    Family("MLM head on masked tokens, random counts", lambda: _masked("random"), refused="construction"),
    Family(
        "MoE top-1 token routing via index_select",
        lambda: classified(_Experts(), 5, 4),
        refused="construction",
    ),
    Family("L2 penalty in the loss 0.1", lambda: _penalty(0.1)),
    Family("L2 penalty in the loss 0.001", lambda: _penalty(0.001)),
    Family("L2 penalty in the loss 0.0001", lambda: _penalty(0.0001)),
    Family("stochastic depth per sample", lambda: classified(_Depth(), 5)),
    Family("layer drop 0.2", lambda: classified(_LayerDrop(0.2), 5)),
    Family("layer drop 0.5", lambda: classified(_LayerDrop(0.5), 5)),
    Family(
        "torch.utils.checkpoint use_reentrant=False", lambda: classified(_Checkpointed(reentrant=False), 5)
    ),
    Family("torch.utils.checkpoint use_reentrant=True", lambda: classified(_Checkpointed(reentrant=True), 5)),
    Family(
        "torch.utils.checkpoint use_reentrant=True, dropout",
        lambda: classified(_Checkpointed(reentrant=True, dropout=0.3), 5),
    ),
    Family("torch.compile whole model (eager)", lambda: _compiled("eager")),
    Family("torch.compile whole model (aot_eager)", lambda: _compiled("aot_eager")),
    Family("torch.compile one submodule", lambda: _compiled("submodule")),
    Family("model.compile() in place", lambda: _compiled("in place")),
    Family("torch.compile, already run once", lambda: _compiled("aot_eager run")),
    Family("torch.jit.script model", _scripted, refused="jit"),
    Family("fx traced model", _traced),
    Family("siamese: both inputs stacked along the batch (2B rows)", lambda: classified(_Siamese(), 5)),
    Family("hypernetwork", lambda: classified(_Hypernetwork(), 5)),
    Family("multiple instances folded into the batch", lambda: classified(_Instances(), 5, 4)),
    Family("number of calls depends on the batch size", lambda: classified(_Calls(), 5)),
    Family("ensemble by torch.func.vmap inside forward", lambda: classified(_Ensemble(), 5)),
    Family(
        "LazyLinear (uninitialised)",
        lambda: classified(nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.Linear(4, 3)), 5),
        refused="lazy",
    ),
    Family("complex parameter", lambda: classified(_Complex(), 6), refused="complex"),
    Family("complex view of a real parameter", lambda: classified(_ComplexView(), 6)),
    Family("custom layer called batch-first then time-first", lambda: classified(_BothOrders(), 5, 4)),
    Family("custom layer on data, then on a constant shared input", lambda: classified(_OnConstant(), 5, 4)),
    Family("bare einsum parameter", lambda: classified(_Einsum(), 5, 4)),
    Family("class token written into zeros", lambda: classified(_Written(), 5, 4)),
    Family("table of another module used by a function call", lambda: _of_tokens(_TiedHead())),
]
