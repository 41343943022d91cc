"""The model's own Python code, whatever was put around it: compilers and reentrant checkpoints step aside."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint


class _WithoutReentrance:
    """Stands in for the autograd function of reentrant checkpoints, which computes no gradients on demand.

    The other kind of checkpoint computes the same and saves as much.
    """

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve
        )


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within this context a forward pass runs layer by layer, as it was written."""
    # A model was compiled only if the compiler has been imported, which takes seconds.
    compiler = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    before = torch.utils.checkpoint.CheckpointFunction
    torch.utils.checkpoint.CheckpointFunction = _WithoutReentrance  # type: ignore[misc,assignment]
    try:
        with compiler:
            yield
    finally:
        torch.utils.checkpoint.CheckpointFunction = before  # type: ignore[misc]
