"""Linear, convolution and embedding layers: record what each receives and what comes back."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.raw.gradients.convolution import Geometry
from tacit.raw.rules.registry import register
from tacit.raw.watched_layer import WatchedLayer


@register(nn.Linear)
def linear(module: nn.Linear, layer: WatchedLayer, x: Tensor) -> Tensor:
    """Any number of leading dimensions."""
    return layer.linear(x, module.weight, module.bias)


@register("transformers.pytorch_utils.Conv1D")
def transposed_linear(module: nn.Module, layer: WatchedLayer, x: Tensor) -> Tensor:
    """GPT-2's linear layer, which keeps its weight as (in, out)."""
    return layer.linear(x, module.weight, module.bias, transposed=True)  # type: ignore[arg-type]


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, layer: WatchedLayer, x: Tensor) -> Tensor:
    """Every stride, dilation, group count and padding mode; unusual padding is applied to the input first."""
    padding = module.padding
    if module.padding_mode != "zeros":
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = (0,) * len(module.kernel_size)
    elif isinstance(padding, str):
        around = module._reversed_padding_repeated_twice
        sides = [tuple(around[2 * i : 2 * i + 2]) for i in reversed(range(len(module.kernel_size)))]
        if all(left == right for left, right in sides):
            padding = tuple(left for left, _ in sides)
        else:
            x = F.pad(x, around)
            padding = (0,) * len(module.kernel_size)
    geometry = Geometry(tuple(module.stride), tuple(padding), tuple(module.dilation), module.groups)
    return layer.convolution(x, module.weight, module.bias, geometry)


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def transposed_convolution(
    module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d,
    layer: WatchedLayer,
    x: Tensor,
    output_size: list[int] | None = None,
) -> Tensor:
    """Every stride, dilation, group count, padding and output size."""
    stride, padding, dilation, kernel = (
        [int(size) for size in sizes]
        for sizes in (module.stride, module.padding, module.dilation, module.kernel_size)
    )
    more = module._output_padding(x, output_size, stride, padding, kernel, len(kernel), dilation)
    x, _ = layer.enter(x)
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), module.groups)
    return layer.recorder.transposed_convolution(x, module.weight, module.bias, geometry, more)


@register(nn.Embedding)
def embedding(module: nn.Embedding, layer: WatchedLayer, ids: Tensor) -> Tensor:
    """A table of rows, with an optional padding row that never learns."""
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise ModelError(
            f"{layer.name}: an embedding with max_norm or scale_grad_by_freq mixes examples; switch both options off."
        )
    return layer.embedding(*_of_stand_in(module, ids))


def _of_stand_in(module: nn.Embedding | nn.EmbeddingBag, ids: Tensor) -> tuple[Tensor, Tensor, int | None]:
    """The ids, the table and its padding row; in a look at the model, those of a small table in its place."""
    rows, padding = len(module.weight), module.padding_idx
    if rows == module.num_embeddings:
        return ids, module.weight, padding
    return ids % rows, module.weight, None if padding is None else padding % rows


@register(nn.EmbeddingBag)
def bag(
    module: nn.EmbeddingBag,
    layer: WatchedLayer,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """The sum or mean of rows of a table, for bags of one length each, with an optional row that never counts."""
    if module.max_norm is not None or module.scale_grad_by_freq or module.mode == "max":
        raise ModelError(
            f"{layer.name}: of embedding bags, sums and means are known, without max_norm and scale_grad_by_freq."
        )
    if input.dim() != 2 or offsets is not None:
        raise ModelError(
            f"{layer.name}: give bags as one row of ids each (pad with padding_idx), not as one list with offsets, "
            "where nobody can tell which ids belong to which example."
        )
    ids, table, padding = _of_stand_in(module, input)
    rows = layer.embedding(ids, table, padding, blank=True)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    total = rows.sum(1)
    if module.mode == "sum":
        return total
    if padding is None:
        return total / ids.shape[1]
    return total / (ids != padding).sum(1, keepdim=True).clamp(min=1)
