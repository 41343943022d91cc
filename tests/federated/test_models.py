from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tacit.errors import ArgumentError
from tacit.federated.models import LinearSVM, Logistic, Model, linear_model, predict
from tacit.federated.torch_model import TorchModel

RNG = np.random.default_rng(4)
X = RNG.normal(size=(7, 5)).astype(np.float32)
Y = np.where(RNG.random(7) < 0.5, 1, -1).astype(np.float32)
W = RNG.normal(size=5).astype(np.float32)


def autograd_rows(loss: object, weights: np.ndarray) -> np.ndarray:
    rows = []
    for x, y in zip(X, Y, strict=True):
        w = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
        loss(w, torch.tensor(x, dtype=torch.float64), float(y)).backward()  # type: ignore[operator]
        rows.append(w.grad.numpy())  # type: ignore[union-attr]
    return np.array(rows)


def test_logistic_gradients_are_those_of_its_loss() -> None:
    rows = autograd_rows(lambda w, x, y: functional.softplus(-y * (w @ x)) + 0.05 * (w @ w), W)
    np.testing.assert_allclose(Logistic(5, 0.1).gradients(W, X, Y), rows, rtol=1e-4, atol=1e-6)


def test_svm_gradients_are_those_of_its_loss() -> None:
    rows = autograd_rows(lambda w, x, y: functional.relu(1 - y * (w @ x)) + 0.05 * (w @ w), W)
    np.testing.assert_allclose(LinearSVM(5, 0.1).gradients(W, X, Y), rows, rtol=1e-4, atol=1e-6)


def test_logistic_survives_extreme_margins() -> None:
    gradients = Logistic(5).gradients(1e6 * W, X, Y)
    assert np.isfinite(gradients).all()


def test_torch_model_gives_one_gradient_per_record() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    model = TorchModel(module, lambda out, y: functional.softplus(-y * out).mean())
    weights = model.initial()
    assert model.d == weights.size == 29
    rows = model.gradients(weights, X, Y)
    for i in range(len(X)):
        module.zero_grad()
        out = module(torch.from_numpy(X[i : i + 1])).reshape(-1)
        functional.softplus(-float(Y[i]) * out).mean().backward()
        flat = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        np.testing.assert_allclose(rows[i], flat.numpy(), rtol=1e-4, atol=1e-6)


def test_torch_linear_equals_logistic() -> None:
    module = nn.Linear(5, 1, bias=False)
    model = TorchModel(module, lambda out, y: functional.softplus(-y * out).mean())
    np.testing.assert_allclose(
        model.gradients(W, X, Y), Logistic(5, 0.0).gradients(W, X, Y), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(predict(model, W, X), predict(Logistic(5), W, X))


def test_integer_features_are_accepted() -> None:
    x = (X > 0).astype(np.int8)
    models: list[Model] = [Logistic(5), LinearSVM(5)]
    for model in models:
        np.testing.assert_array_equal(model.gradients(W, x, Y), model.gradients(W, x.astype(np.float32), Y))


def test_frozen_modules_and_unknown_names_are_refused() -> None:
    with pytest.raises(ArgumentError, match="nothing to train"):
        TorchModel(nn.Linear(2, 1).requires_grad_(False), lambda out, y: out.mean())
    with pytest.raises(ArgumentError, match="logistic"):
        linear_model("forest", 3)
