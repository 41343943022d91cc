"""Any small PyTorch module as a federated model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call, grad, vmap

from tacit.errors import ArgumentError
from tacit.federated.models import Floats


class TorchModel:
    """Any PyTorch module with one output per record, through per-record gradients of ``loss(output, y)``.

    ``loss`` gets the outputs (n) and the labels (n, ±1) and returns their mean loss; a module that mixes
    records (batch normalisation in training mode) gives wrong gradients and is refused by torch.func.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        self._module = module
        self._loss = loss
        self._shapes = {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
        if not self._shapes:
            raise ArgumentError(
                "The module has no parameter that requires a gradient; there is nothing to train."
            )
        self._buffers = {
            name: t.detach()
            for name, t in (*module.named_buffers(), *module.named_parameters())
            if name not in self._shapes
        }

    @property
    def d(self) -> int:
        """The number of weights."""
        return sum(shape.numel() for shape in self._shapes.values())

    def initial(self) -> Floats:
        """Return the weights the module has."""
        named = dict(self._module.named_parameters())
        return torch.cat([named[name].detach().reshape(-1) for name in self._shapes]).float().numpy().copy()

    def gradients(self, weights: Floats, x: NDArray[np.generic], y: Floats) -> Floats:
        """Return the gradient of each record, by vectorised automatic differentiation."""

        def loss(
            parameters: dict[str, torch.Tensor], record: torch.Tensor, label: torch.Tensor
        ) -> torch.Tensor:
            return self._loss(self._outputs(parameters, record[None]), label[None])

        inputs = torch.from_numpy(np.asarray(x, np.float32))
        per_record = vmap(grad(loss), in_dims=(None, 0, 0))(
            self._unflatten(weights), inputs, torch.from_numpy(y)
        )
        return torch.cat([per_record[name].reshape(len(inputs), -1) for name in self._shapes], dim=1).numpy()

    def margins(self, weights: Floats, x: NDArray[np.generic]) -> Floats:
        """Return the module's outputs."""
        with torch.no_grad():
            outputs = self._outputs(self._unflatten(weights), torch.from_numpy(np.asarray(x, np.float32)))
        return outputs.numpy()

    def _outputs(self, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = functional_call(self._module, {**self._buffers, **parameters}, (x,))
        return outputs.reshape(-1)

    def _unflatten(self, weights: Floats) -> dict[str, torch.Tensor]:
        flat = torch.from_numpy(weights)
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        return {
            name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }
