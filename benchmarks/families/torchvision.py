"""Makes torchvision importable where only its compiled operators are missing, as beside a PyTorch without CUDA."""

from __future__ import annotations

from importlib.util import find_spec

import torch

_OPERATORS = [
    "nms",
    "qnms",
    "roi_align",
    "qroi_align",
    "_roi_align_backward",
    "ps_roi_align",
    "_ps_roi_align_backward",
    "roi_pool",
    "_roi_pool_backward",
    "ps_roi_pool",
    "_ps_roi_pool_backward",
    "deform_conv2d",
    "_deform_conv2d_backward",
]

_library: torch.library.Library | None = None


def declare_operators() -> None:
    """Declare torchvision's operators without giving them a body: timm imports torchvision, no model here uses them."""
    global _library
    if _library is not None or find_spec("torchvision") is None:
        return
    try:
        import torchvision  # type: ignore[import-not-found] # noqa: F401
    except RuntimeError:
        _library = torch.library.Library("torchvision", "DEF")
        for operator in _OPERATORS:
            _library.define(f"{operator}(Tensor x) -> Tensor")
