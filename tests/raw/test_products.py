"""Products of matrices by another library are the same products, whoever asks and however many rows there are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from oracle import assert_close, clipped_sum, per_example_gradients
from raw.comparison import cross_entropy, supports
from tacit.raw import products
from tacit.raw.clipping import Clipper
from tacit.raw.exact import full_precision
from tacit.raw.gradients import Linear
from tacit.support import Block

available = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not products._agrees(), reason="this build has no oneDNN"
)
pytestmark = available


@pytest.fixture
def everything_by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Products of every size go to oneDNN; a list with as many entries as there were calls."""
    calls: list[int] = []
    plain = products._onednn

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(x.numel())
        return plain(x, weight, bias)

    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "_onednn", counted)
    for limit in ("LEAST", "LEAST_PRODUCT", "THIN"):
        monkeypatch.setattr(products, limit, 1)
    return calls


class Texts(nn.Module):
    """Attention over positions, so that gradients are formed, kept, sampled and found by ghost norms."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 24)
        self.block = nn.TransformerEncoderLayer(24, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.block(self.words(ids)).mean(1))


def batches() -> list[tuple[nn.Module, tuple[Tensor, Tensor]]]:
    torch.manual_seed(3)
    dense = nn.Sequential(nn.Linear(70, 60), nn.ReLU(), nn.Linear(60, 50), nn.Tanh(), nn.Linear(50, 3))
    labels = torch.randint(3, (9,))
    image = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 3))
    return [
        (dense, (torch.randn(9, 70), labels)),
        (Texts(), (torch.randint(40, (9, 7)), labels)),
        (image, (torch.randn(9, 2, 8, 8), labels)),
    ]


@pytest.mark.parametrize("which", range(3), ids=["vectors", "texts", "images"])
def test_clipped_sums_by_onednn_are_those_of_brute_force(which: int, everything_by_onednn: list[int]) -> None:
    model, (x, y) = batches()[which]
    exact = copy.deepcopy(model).double()
    inputs = x.double() if x.is_floating_point() else x
    gradients = per_example_gradients(exact, cross_entropy, (inputs, y))
    clipper = Clipper(model, cross_entropy)
    for support in supports(model):
        norms = clipped_sum(gradients, support, 1.0)[1]
        clip_norm = float(norms.median())
        expected, _ = clipped_sum(gradients, support, clip_norm)
        found = clipper.clipped_sum([(x, y)], support, clip_norm).values
        assert_close({name: value.double() for name, value in found.items()}, expected, 2e-5)
    assert everything_by_onednn


@pytest.mark.parametrize("shape", [(5, 70), (4, 3, 70), (2, 4, 3, 70)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_layer_and_its_gradient_are_those_of_the_library(
    shape: tuple[int, ...], turned: bool, with_bias: bool, everything_by_onednn: list[int]
) -> None:
    weight = torch.randn(70, 60).t() if turned else torch.randn(60, 70)
    bias = torch.randn(60) if with_bias else None
    x = torch.randn(*shape, requires_grad=True)
    found = products.linear(x, weight, bias)
    exact = x.detach().double().requires_grad_()
    expected = F.linear(exact, weight.double(), None if bias is None else bias.double())
    direction = torch.randn_like(found)
    found.backward(direction)
    expected.backward(direction.double())
    assert len(everything_by_onednn) == 2
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=1e-4)


def test_a_layer_can_be_differentiated_twice(everything_by_onednn: list[int]) -> None:
    weight = torch.randn(60, 70)

    def penalty(x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(products.linear(x, weight, None).pow(3).sum(), x, create_graph=True)
        return slope.square().sum()

    x = torch.randn(4, 70, requires_grad=True)
    found = torch.autograd.grad(penalty(x), x)[0]
    weight = weight.double()
    y = x.detach().double().requires_grad_()
    (slope,) = torch.autograd.grad(F.linear(y, weight).pow(3).sum(), y, create_graph=True)
    expected = torch.autograd.grad(slope.square().sum(), y)[0]
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch's own, in forward mode
def test_what_is_no_plain_product_stays_with_the_library(everything_by_onednn: list[int]) -> None:
    x, weight = torch.randn(4, 70), torch.randn(60, 70)
    asked = nn.Parameter(weight.clone())
    products.linear(x, asked, None).sum().backward()
    assert asked.grad is not None
    products.linear(x.double(), weight.double(), None)
    torch.func.vmap(lambda row: products.linear(row[None], weight, None))(x)
    with torch.autograd.forward_ad.dual_level():
        products.linear(torch.autograd.forward_ad.make_dual(x, x), weight, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.linear(x, weight, None).dtype is torch.bfloat16
    assert products.linear(x[:0], weight, None).shape == (0, 60)
    assert products.linear(x[0], weight, None).shape == (60,)
    assert not everything_by_onednn


def test_products_go_where_they_are_asked_to_go(everything_by_onednn: list[int]) -> None:
    left, right = torch.randn(3, 20, 30), torch.randn(3, 30, 25)
    out = torch.empty(3, 20, 25)
    assert products.products(left, right, out).data_ptr() == out.data_ptr()
    torch.testing.assert_close(out, left @ right, rtol=1e-5, atol=1e-4)
    place = torch.empty(25, 20)
    assert products.product(right[0].t(), left[0].t(), place).data_ptr() == place.data_ptr()
    torch.testing.assert_close(place.t(), left[0] @ right[0], rtol=1e-5, atol=1e-4)
    products.products(left[:0], right[:0], out[:0])
    assert len(everything_by_onednn) == 8


class Asked(TorchDispatchMode):
    """Notes what oneDNN is asked for: the shapes, and whether weights, or their transposes, have no gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.dense: list[bool] = []
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.mkldnn._linear_pointwise.default:
            self.dense.append(args[1].is_contiguous() or args[1].t().is_contiguous())
            self.shapes.add((*args[0].shape, len(args[1])))
        return func(*args, **(kwargs or {}))


def test_weights_with_gaps_are_copied_first(everything_by_onednn: list[int]) -> None:
    """oneDNN would take a thousand times as long."""
    left, wide = torch.randn(40, 60), torch.randn(60, 200)
    with Asked() as seen:
        for right in (wide[:, :70], wide[:, ::2], wide[:, :1].expand(60, 50), wide.t()[:60, :60]):
            out = torch.empty(40, right.shape[1])
            torch.testing.assert_close(products.product(left, right, out), left @ right, rtol=1e-5, atol=1e-4)
        products.linear(left, torch.randn(30, 90)[:, :60], None)
    assert len(seen.dense) >= 5
    assert all(seen.dense)


def test_many_numbers_of_rows_are_few_for_the_library(everything_by_onednn: list[int]) -> None:
    """It keeps the kernel of every one: with batches of random size, memory would grow at every step."""
    weight, bias, x = torch.randn(40, 30), torch.randn(40), torch.randn(300, 30)
    left, right = torch.randn(20, 300), torch.randn(300, 25)
    with Asked() as seen:
        for rows in range(1, 300):
            given = x[:rows].clone().requires_grad_()
            found = products.linear(given, weight, bias)
            torch.testing.assert_close(found, F.linear(given, weight, bias), rtol=1e-5, atol=1e-4)
            found.sum().backward()
            expected = weight.sum(0).expand(rows, -1)
            torch.testing.assert_close(given.grad, expected, rtol=1e-5, atol=1e-4)
            given, expected = right[:rows], left[:, :rows] @ right[:rows]
            found = products.product(left[:, :rows], given, torch.empty(20, 25))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert len(seen.shapes) < 90


def test_what_is_filled_up_can_be_changed_in_place(everything_by_onednn: list[int]) -> None:
    x = torch.randn(2, 5, 30, requires_grad=True)
    products.linear(x, torch.randn(40, 30), None).relu_().sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("stride", [0, 2, 3])
def test_a_bias_with_gaps_is_read_as_it_is(stride: int, everything_by_onednn: list[int]) -> None:
    """oneDNN would read whatever lies behind it."""
    x, weight, memory = torch.randn(5, 70), torch.randn(60, 70), torch.randn(180)
    bias = memory.as_strided((60,), (stride,))
    torch.testing.assert_close(
        products.linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4
    )
    assert everything_by_onednn


@pytest.mark.parametrize("shape", [(), (1,), (1, 60), (5, 60)])
def test_a_bias_that_is_spread_stays_with_the_library(
    shape: tuple[int, ...], everything_by_onednn: list[int]
) -> None:
    x, weight, bias = torch.randn(5, 70), torch.randn(60, 70), torch.randn(shape)
    assert torch.equal(products.linear(x, weight, bias), F.linear(x, weight, bias))
    assert not everything_by_onednn


def test_shapes_that_do_not_fit_are_refused_in_the_words_of_the_library(
    everything_by_onednn: list[int],
) -> None:
    weight = torch.randn(60, 70)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        products.linear(torch.randn(5, 69), weight, None)
    with pytest.raises(RuntimeError, match="2 dimensions"):
        products.linear(torch.randn(5, 70), weight.expand(2, 60, 70), None)
    assert products.linear(torch.randn(5, 70), weight[0], None).shape == (5,)
    assert not everything_by_onednn


@pytest.mark.parametrize("shape", [(784, 1024), (256, 256), (300, 117)])
def test_a_row_does_not_depend_on_how_many_there_are(shape: tuple[int, int]) -> None:
    """Tested, not proven: what the page on numerics assumes of libraries. A single row alone is another product."""
    width, outputs = shape
    x, weight, bias = torch.randn(300, width), torch.randn(outputs, width), torch.randn(outputs)
    whole = products._onednn(x, weight, bias)
    for rows in (2, 3, 7, 16, 31, 64, 129, 256):
        assert torch.equal(products._onednn(x[:rows], weight, bias), whole[:rows])


@pytest.mark.parametrize("positions", [1, 3])
def test_which_library_measures_an_example_does_not_depend_on_how_many_there_are(
    positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for scattered coordinates nor for gradients that are formed."""
    calls: list[int] = []
    plain = products._onednn
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "_onednn", lambda *given: (calls.append(1), plain(*given))[1])
    index = torch.randperm(100 * 90, generator=torch.Generator().manual_seed(0))[:4500].sort().values
    a, b = torch.randn(600, positions, 100), torch.randn(600, positions, 90)

    def found(examples: int) -> tuple[Tensor, bool]:
        calls.clear()
        use = Linear(a[:examples].clone(), b[:examples].clone())
        return use.norms(Block.coordinates((90, 100), index)).square, bool(calls)

    whole, by_onednn = found(600)
    for examples in (16, 32, 100):
        part, other = found(examples)
        assert other == by_onednn
        assert torch.equal(part, whole[:examples])


def test_products_are_in_single_precision_whatever_the_user_has_set() -> None:
    left, right = torch.randn(128, 256), torch.randn(256, 96)
    expected = left.double() @ right.double()
    mass = left.abs().double() @ right.abs().double()
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        with full_precision():
            found = products._onednn(left, right.t(), None)
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert bool(((found.double() - expected).abs() <= 257 * 2.0**-24 * mass).all())
