"""Frozen layers in eight bits: close to what they were, a quarter of the memory, and nothing rounded by the batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit.errors import ArgumentError
from tacit.models import freeze_in_int8
from tacit.models.int8 import Int8Linear


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))


def test_a_frozen_layer_is_rounded_row_by_row_and_a_trained_one_stays() -> None:
    model = network()
    before = model[0].weight.detach().clone()
    before[3] *= 100  # a row of its own scale
    model[0].weight.data[3] *= 100
    model[0].requires_grad_(False)
    assert freeze_in_int8(model) is model
    layer = model[0]
    assert isinstance(layer, Int8Linear)
    assert isinstance(model[2], nn.Linear)
    assert [name for name, _ in model.named_parameters()] == ["2.weight", "2.bias"]
    assert layer.codes.dtype is torch.int8
    held = sum(buffer.nbytes for buffer in layer.buffers() if buffer.dim() == 2)
    assert held < 0.3 * before.nbytes
    weight = layer.codes * layer.scales
    assert bool(((weight - before).abs() <= layer.scales / 2 * 1.0001).all())
    x = torch.randn(5, 40, requires_grad=True)
    assert torch.allclose(layer(x), x @ weight.t() + layer.bias, atol=1e-5)
    [found] = torch.autograd.grad(layer(x).sum(), x)
    assert torch.allclose(found, weight.sum(0).expand_as(found), atol=1e-5)


def test_one_example_does_not_change_what_another_gives() -> None:
    model = freeze_in_int8(network().requires_grad_(False).double())
    x = torch.randn(3, 40, dtype=torch.float64)
    outlier = torch.cat([x[:1], 1e6 * x[1:]])
    assert torch.equal(model(x)[0], model(outlier)[0])


def test_an_empty_row_stays_empty_and_a_tied_weight_as_it_is() -> None:
    zero = nn.Sequential(nn.Linear(4, 2)).requires_grad_(False)
    zero[0].weight.zero_()
    assert not bool(freeze_in_int8(zero)(torch.ones(1, 4)).sub(zero[0].bias).any())
    tied = nn.ModuleDict(
        {"table": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False), "x": nn.Linear(4, 4)}
    )
    tied["head"].weight = tied["table"].weight
    freeze_in_int8(tied.requires_grad_(False))
    assert isinstance(tied["head"], nn.Linear)
    assert isinstance(tied["x"], Int8Linear)


def test_a_model_without_frozen_layers_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no frozen linear layer"):
        freeze_in_int8(network())


def test_dora_is_refused_in_a_sentence() -> None:
    model = network().requires_grad_(False)
    model.lora_magnitude_vector = nn.Linear(1, 1)
    with pytest.raises(ArgumentError, match="DoRA measures the weights"):
        freeze_in_int8(model)
