"""Batch statistics out of a model that was written with them."""

from __future__ import annotations

import copy
import math

from torch import nn

from tacit.errors import ArgumentError, check_count

LEAST_CHANNELS = 4
_GROUPED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def without_batch_norm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """A copy of a model with GroupNorm in place of every batch norm, which mixes examples and cannot be private.

    Scale and shift go over; running statistics have no counterpart, so a pretrained model must be trained further.
    ``groups`` is the largest number of groups; a layer has as many as divide its channels. In place of a BatchNorm1d,
    whose channels may hold one number each, a group has at least four channels where there are so many. To keep
    a pretrained model as it is, freeze its statistics instead: ``.eval()`` on its batch norms.
    """
    check_count("groups", groups)
    model = copy.deepcopy(model)
    if isinstance(model, _GROUPED):
        return _group_norm(model, groups)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _GROUPED):
                setattr(module, name, _group_norm(child, groups))
            elif isinstance(child, nn.modules.batchnorm._BatchNorm):
                raise ArgumentError(
                    f"{name} ({type(child).__name__}) is a batch norm without a counterpart here; replace it yourself."
                )
    return model


def _group_norm(norm: nn.modules.batchnorm._BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    count = math.gcd(channels, groups)
    if isinstance(norm, nn.BatchNorm1d):
        # A group of one number would be normalised to nothing.
        most = max(1, min(groups, channels // LEAST_CHANNELS))
        count = next(n for n in range(most, 0, -1) if channels % n == 0)
    made = nn.GroupNorm(count, channels, norm.eps, affine=norm.affine)
    if norm.affine:
        made.weight, made.bias = norm.weight, norm.bias
    return made.train(norm.training)
