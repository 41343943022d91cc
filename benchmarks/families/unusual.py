"""Families that researchers write themselves: routing, conditioning, loops, spectra, splines, graphs, gathers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.family import Family, Instance, Squares, classified


class _Capsules(nn.Module):
    """Dynamic routing: votes of eight capsules for three, agreed on in three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.primary, self.votes = nn.Linear(6, 8 * 4), nn.Parameter(0.4 * torch.randn(8, 3, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("bip,iopd->biod", self._squash(self.primary(x).view(-1, 8, 4)), self.votes)
        logits = votes.new_zeros(votes.shape[:3])
        for _ in range(3):
            agreed = self._squash((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * agreed[:, None]).sum(-1)
        return agreed.norm(dim=-1)

    @staticmethod
    def _squash(x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True)
        return square / (1 + square) * x / (square + 1e-8).sqrt()


class _GatedMlp(nn.Module):
    """gMLP: a gate from a linear map over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, 8), nn.LayerNorm(4), nn.Linear(4, 4)
        self.over = nn.Parameter(0.3 * torch.randn(5, 5))
        self.bias, self.head = nn.Parameter(torch.ones(5)), Squares(4)

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.up(x)).chunk(2, -1)
        v = torch.einsum("nm,bmc->bnc", self.over, self.norm(v)) + self.bias[:, None]
        return self.head(x + self.down(u * v))  # type: ignore[no-any-return]


class _Film(nn.Module):
    """Feature-wise scale and shift of a convolution by a part of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.condition, self.net = nn.Linear(6, 8), nn.Conv2d(1, 4, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 4, affine=False), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.condition(x[:, 0]).chunk(2, -1)
        h = self.norm(self.net(x[:, None]))
        h = F.relu(h * (1 + scale[..., None, None]) + shift[..., None, None])
        return self.head(h.mean((2, 3)))  # type: ignore[no-any-return]


class _SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.up = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.first(x))
        gate = torch.sigmoid(self.up(F.silu(self.down(h.mean((2, 3), keepdim=True)))))
        return self.head((h * gate).amax((2, 3)))  # type: ignore[no-any-return]


class _Cells(nn.Module):
    """A GRU cell and an LSTM cell in a loop, the second on the states of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm, self.head = nn.GRUCell(4, 5), nn.LSTMCell(5, 6), nn.Linear(6, 3)
        self.start = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        h, state = self.start.expand(len(x), -1), None
        for step in x.unbind(1):
            h = self.gru(step, h)
            state = self.lstm(h, state)
        assert state is not None
        return self.head(state[0])  # type: ignore[no-any-return]


class _Ode(nn.Module):
    """One field integrated by ten steps of Runge and Kutta: the same layers, forty times."""

    def __init__(self) -> None:
        super().__init__()
        self.field, self.head = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        def f(t: float, y: Tensor) -> Tensor:
            return self.field(torch.cat([y, torch.full_like(y[:, :1], t)], 1))  # type: ignore[no-any-return]

        for step in range(5):
            t = step / 5
            a = f(t, x)
            b = f(t + 0.1, x + 0.1 * a)
            c = f(t + 0.1, x + 0.1 * b)
            x = x + (a + 2 * b + 2 * c + f(t + 0.2, x + 0.2 * c)) / 30
        return self.head(x)  # type: ignore[no-any-return]


class _StateSpace(nn.Module):
    """A diagonal state space layer (S4D): a kernel from parameters alone, convolved by the FFT."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.mixed = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 3, 2))
        self.step, self.skip = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.out, self.head = nn.Linear(4, 8), Squares(4)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        poles = -torch.exp(self.rate) + 1j * torch.arange(3, dtype=x.dtype)
        scaled = poles * torch.exp(self.step)[:, None]
        powers = torch.exp(scaled[..., None] * torch.arange(length, dtype=x.dtype))
        kernel = 2 * torch.einsum("hn,hnl->hl", torch.view_as_complex(self.mixed), powers).real
        u = x.transpose(1, 2)
        spectrum = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length] + u * self.skip[:, None]
        return self.head(F.glu(self.out(F.gelu(y.transpose(1, 2))), -1))  # type: ignore[no-any-return]


class _GraphAttention(nn.Module):
    """Graph attention on dense graphs with padded nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.source = nn.Linear(4, 6, bias=False), nn.Parameter(torch.randn(6, 1))
        self.target, self.head = nn.Parameter(torch.randn(6, 1)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        edges = (x @ x.transpose(1, 2) > 0) | torch.eye(x.shape[1], dtype=torch.bool)
        real = x[..., 0] > -1.5
        h = self.values(x)
        scores = F.leaky_relu(h @ self.source + (h @ self.target).transpose(1, 2), 0.2)
        scores = scores.masked_fill(~(edges & real[:, None, :]), -1e9)
        h = F.elu(scores.softmax(-1) @ h)
        h = (h * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        return self.head(h)  # type: ignore[no-any-return]


class _Perceiver(nn.Module):
    """Learned latents that attend to the input twice, with shared weights."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.positions = nn.Parameter(torch.randn(3, 8)), nn.Parameter(torch.randn(5, 4))
        self.cross = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, batch_first=True)
        self.norm, self.mlp, self.head = nn.LayerNorm(8), nn.Linear(8, 8), Squares(8)

    def forward(self, x: Tensor) -> Tensor:
        h, x = self.latents.expand(len(x), -1, -1), x + self.positions
        for _ in range(2):
            h = h + self.cross(self.norm(h), x, x, need_weights=False)[0]
            h = h + self.mlp(F.gelu(self.norm(h)))
        return self.head(h)  # type: ignore[no-any-return]


class _Deformable(nn.Module):
    """Values gathered at places that the input decides, by bilinear sampling."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.values = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        moved = 0.3 * torch.tanh(self.offsets(x)).permute(0, 2, 3, 1)
        axis = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
        h = F.grid_sample(self.values(x), grid + moved, align_corners=True)
        return self.head(h.relu().mean((2, 3)))  # type: ignore[no-any-return]


class _MixtureOfSoftmaxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prior, self.latent, self.out = nn.Linear(5, 4), nn.Linear(5, 4 * 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        heads = torch.tanh(self.latent(x)).view(-1, 4, 6)
        mixed = (self.prior(x).softmax(-1)[..., None] * self.out(heads).softmax(-1)).sum(1)
        return mixed.log()


class _FactorisedTable(nn.Module):
    """A narrow embedding, widened, and both tied to the output, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.widen = nn.Embedding(11, 3), nn.Linear(3, 6, bias=False)
        self.head = nn.Linear(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        ids = (x.abs() * 4).long().clamp(max=10)
        h = torch.tanh(self.widen(self.table(ids))).mean(1)
        return self.head(h @ self.widen.weight @ self.table.weight.t())  # type: ignore[no-any-return]


class _TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.back = nn.Linear(6, 4), nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encode(x)), self.encode.weight.t(), self.back)


def _autoencoder() -> Instance:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[0]).square().mean(1)

    built = classified(_TiedAutoencoder(), 6)
    return Instance(built.model, loss, built.batch)


class _Splines(nn.Module):
    """A layer of learned splines on every edge (KAN), with hat functions as their basis."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(6, 5, 7)), nn.Parameter(torch.randn(3, 6, 7))
        self.base = nn.Parameter(torch.randn(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("oik,bik->bo", self.first, self._basis(x)) + F.silu(x) @ self.base.t()
        return torch.einsum("oik,bik->bo", self.second, self._basis(torch.tanh(h)))

    @staticmethod
    def _basis(x: Tensor) -> Tensor:
        return F.relu(1 - (x[..., None] - torch.linspace(-2, 2, 7, dtype=x.dtype)).abs() * 1.5)


class _SpectralLayer(nn.Module):
    """A Fourier neural operator: the lowest modes multiplied by complex weights, kept as pairs of real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.modes = nn.Parameter(torch.randn(4, 4, 3, 2))
        self.lift, self.skip, self.head = nn.Linear(1, 4), nn.Conv1d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x[..., None]).transpose(1, 2)
        spectrum = torch.fft.rfft(h)
        low = torch.einsum("bim,iom->bom", spectrum[..., :3], torch.view_as_complex(self.modes))
        full = F.pad(low, (0, spectrum.shape[-1] - 3))
        return self.head(F.gelu(torch.fft.irfft(full, n=h.shape[-1]) + self.skip(h)).mean(2))  # type: ignore[no-any-return]


class _LowRankHyper(nn.Module):
    """A network that makes the weights of another from each example, in low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.left, self.right = nn.Linear(5, 3), nn.Linear(3, 2 * 5), nn.Linear(3, 2 * 3)
        self.base = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        code = torch.tanh(self.code(x))
        left, right = self.left(code).view(-1, 2, 5), self.right(code).view(-1, 2, 3)
        return self.base(x) + torch.einsum("bi,bri,bro->bo", x, left, right)  # type: ignore[no-any-return]


class _Vq(nn.Module):
    """A codebook with a straight-through estimator and a commitment term."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.codes, self.head = nn.Linear(5, 4), nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.encode(x)
        near = (h[:, None] - self.codes.weight).square().sum(-1).argmin(1)
        code = self.codes(near)
        extra = (code - h.detach()).square().mean(1) + 0.25 * (h - code.detach()).square().mean(1)
        return self.head(h + (code - h).detach()), extra


def _quantised() -> Instance:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits, extra = model(batch[0])
        return F.cross_entropy(logits, batch[1], reduction="none") + extra

    built = classified(_Vq(), 5)
    return Instance(built.model, loss, built.batch)


class _DenseExperts(nn.Module):
    """Experts that all see every example, mixed by a softmax gate: stacked weights in one batched product."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(5, 4), nn.Parameter(0.5 * torch.randn(4, 5, 6))
        self.down = nn.Parameter(0.5 * torch.randn(4, 6, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(torch.einsum("bi,eih->ebh", x, self.up))
        return (torch.bmm(h, self.down) * self.gate(x).softmax(-1).t()[..., None]).sum(0)


class _Deq(nn.Module):
    """A fixed point found without gradients, then one step with them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.head = nn.Linear(6, 6), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        u = self.outer(x)
        z = torch.zeros_like(u)
        with torch.no_grad():
            for _ in range(8):
                z = torch.tanh(0.3 * self.inner(z) + u)
        return self.head(torch.tanh(0.3 * self.inner(z) + u))  # type: ignore[no-any-return]


class _Polynomial(nn.Module):
    """Factorisation machine: pairwise products of embedded features, and a cumulative product."""

    def __init__(self) -> None:
        super().__init__()
        self.factors, self.linear = nn.Parameter(torch.randn(5, 4)), nn.Linear(5, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        summed = x @ self.factors
        pairs = 0.5 * (summed.square() - x.square() @ self.factors.square())
        return self.linear(x) + self.head(pairs)  # type: ignore[no-any-return]


class _InPlace(nn.Module):
    """Activations and sums in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.a(x))
        g = self.b(h)
        g += h
        g.mul_(0.5)
        return self.c(F.dropout(g, 0.2, self.training, inplace=True))  # type: ignore[no-any-return]


class _Pixels(nn.Module):
    """Upsampling by pixel shuffle, unfolding by hand, and a parameter list of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = nn.ParameterList([nn.Parameter(0.3 * torch.randn(8, 2, 3, 3)) for _ in range(2)])
        self.shuffle, self.patches, self.head = nn.PixelShuffle(2), nn.Linear(8, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.shuffle(sum(F.conv2d(x, kernel, padding=1) for kernel in self.kernels))
        columns = F.unfold(torch.tanh(h), 2, stride=2).transpose(1, 2)
        return self.head(self.patches(columns).amax(1))  # type: ignore[no-any-return]


class _Descent(nn.Module):
    """A step down an energy of the input, whose gradient autograd gives within the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        energy = torch.tanh(self.a(x)).square().sum()
        [slope] = torch.autograd.grad(energy, x, create_graph=True)
        return self.b(torch.tanh(self.a(x - 0.1 * slope)))  # type: ignore[no-any-return]


FAMILIES = [
    Family("capsules with dynamic routing", lambda: classified(_Capsules(), 6)),
    Family("gMLP (gate over positions)", lambda: classified(_GatedMlp(), 5, 4)),
    Family("FiLM conditioning", lambda: classified(_Film(), 6, 6)),
    Family("squeeze and excite", lambda: classified(_SqueezeExcite(), 2, 6, 6)),
    Family("GRU and LSTM cells in a loop", lambda: classified(_Cells(), 5, 4)),
    Family("neural ODE by Runge and Kutta", lambda: classified(_Ode(), 5)),
    Family("S4D (diagonal state space by FFT)", lambda: classified(_StateSpace(), 5, 4)),
    Family("graph attention on padded graphs", lambda: classified(_GraphAttention(), 5, 4)),
    Family("Perceiver (latents attend twice)", lambda: classified(_Perceiver(), 5, 4)),
    Family("deformable sampling by grid_sample", lambda: classified(_Deformable(), 2, 6, 6)),
    Family("mixture of softmaxes", lambda: classified(_MixtureOfSoftmaxes(), 5)),
    Family("factorised embedding, tied twice", lambda: classified(_FactorisedTable(), 6)),
    Family("autoencoder with tied weights", _autoencoder),
    Family("splines on edges (KAN)", lambda: classified(_Splines(), 5)),
    Family("Fourier neural operator", lambda: classified(_SpectralLayer(), 8)),
    Family("low-rank hypernetwork per example", lambda: classified(_LowRankHyper(), 5)),
    Family("codebook with straight-through estimator", _quantised),
    Family("dense experts in a batched product", lambda: classified(_DenseExperts(), 5)),
    Family("fixed point without gradients (DEQ)", lambda: classified(_Deq(), 5)),
    Family("factorisation machine", lambda: classified(_Polynomial(), 5)),
    Family("in-place activations, sums and dropout", lambda: classified(_InPlace(), 5)),
    Family("pixel shuffle, unfold, list of kernels", lambda: classified(_Pixels(), 2, 6, 6)),
    Family(
        "autograd.grad within the forward pass", lambda: classified(_Descent(), 5), refused="construction"
    ),
]
