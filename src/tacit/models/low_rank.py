"""Low-rank adapters (LoRA, Hu et al., 2022): a frozen layer with a trained correction of small rank."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from tacit.errors import ArgumentError, check_count


class LowRank(nn.Module):
    """y = base(x) + up(down(x)): ``base`` is frozen, ``down`` and ``up`` have rank r, and ``up`` starts at zero.

    The trained coordinates are r (inputs + outputs). ``base`` is a linear layer or a convolution of 1 x 1.
    """

    down: nn.Linear | nn.Conv2d
    up: nn.Linear | nn.Conv2d

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        check_count("lora_rank", rank)
        self.base = base
        for parameter in base.parameters():
            parameter.requires_grad_(False)
        if isinstance(base, nn.Linear):
            self.down = nn.Linear(base.in_features, rank, bias=False)
            self.up = nn.Linear(rank, base.out_features, bias=False)
        else:
            stride = (base.stride[0], base.stride[1])
            self.down = nn.Conv2d(base.in_channels, rank, 1, stride=stride, bias=False)
            self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output with its correction."""
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def add_low_rank(
    model: nn.Module, rank: int, layers: Sequence[str], *, spared: Sequence[str] = (), all_needed: bool = True
) -> list[str]:
    """Give every layer whose name matches a pattern, but those ``spared``, a correction of ``rank``; return the names.

    At first the model computes what it did before. With ``all_needed`` every pattern must find a layer, otherwise at
    least one.
    """
    chosen: list[str] = []
    for pattern in layers:
        found = [
            name
            for name, module in model.named_modules()
            if fnmatchcase(name, pattern) and name not in spared and _suits(module)
        ]
        if all_needed and not found:
            raise ArgumentError(
                f"No trainable layer that matches {pattern!r} is linear or a convolution of 1 x 1; name others with "
                "--lora-layers."
            )
        chosen += [name for name in found if name not in chosen]
    if not chosen:
        raise ArgumentError("There is no layer for a low-rank correction; name some with --lora-layers.")
    for name in chosen:
        above, _, last = name.rpartition(".")
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        setattr(model.get_submodule(above), last, LowRank(layer, rank))
    return chosen


def _suits(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size == (1, 1) and layer.groups == 1 and layer.padding in ((0, 0), 0)
    return type(layer) is nn.Linear
