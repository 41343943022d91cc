"""What becomes of an error of somebody else's code while it works on examples: one sentence that gives none away."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit import batches
from tacit.errors import ExampleError, ModelError, TacitError
from tacit.raw.memory import is_out_of_memory
from tacit.raw.refusals import mixing, suspects

PASSED_ON = (TacitError, OSError, EOFError, MemoryError)
"""What Tacit says itself, and errors of the machine."""
_HERE = Path(__file__).parents[1]
_OF_VALUES = (
    "out of bounds",
    "out of range in self",
    "class values",
    "at entry",
    "not in index",
    "invalid literal",
)
"""Words of errors that quote a value of an example."""

_OF_CODE = (RuntimeError, TypeError, AttributeError, NameError, ImportError)
"""Errors that speak of code, shapes and types rather than of values."""
_UNSTACKED = (
    "stack expects each tensor to be equal size",
    "each element in list of batch should be of equal size",
)


@contextmanager
def told_apart(model: nn.Module | None, *, charged: bool, workers: bool = False) -> Iterator[None]:
    """Turn errors of the data set, collate, model and loss into a sentence that does not quote an example.

    Nothing else is touched: errors that Tacit raises itself, and those of the machine as long as nothing is charged.
    Afterwards errors of files are told without their words too: they name the file of an example, or quote it. Without
    a model it is the data set and collate that are at work, with ``workers`` in processes of their own, which may die.
    """
    try:
        yield
    except PASSED_ON as error:
        if not charged or isinstance(error, TacitError | MemoryError) or (workers and _has_died(error)):
            raise
        raise stopping(error, charged=charged) from None
    except Exception as error:
        if is_out_of_memory(error) or str(error).startswith("DataLoader worker (pid"):
            raise
        if not charged and model is not None and isinstance(error, _OF_CODE):
            raise explained(error, model, None) from None
        raise stopping(error, charged=charged) from None


def stopping(error: Exception, *, charged: bool = False) -> ExampleError:
    """An example stops the run; what the error says of it is a secret of the example, and is not repeated."""
    after = (
        " What was charged stays charged; the run can be resumed from its checkpoint with data that is mended."
        if charged
        else ""
    )
    if any(words in str(error) for words in _UNSTACKED):
        return ExampleError(
            "Examples have different shapes, and the default collate puts only equal ones into a batch; give collate= "
            f"that pads them (and let the model mask the padding), or make their shapes equal.{after}"
        )
    what = type(error).__name__
    if isinstance(error, OSError) and error.errno:
        what += f" ({os.strerror(error.errno)})"
    return ExampleError(
        f"An example cannot be worked on ({what} {_place(error)}); which one, and what is wrong with it, stays "
        "private. All examples must have shapes, types, labels and ids that collate, model and "
        f"loss take: check them all.{after}"
    )


def _has_died(error: BaseException) -> bool:
    """Whether an error tells that a process which loads data has ended, and not what was raised in it."""
    return isinstance(error, ConnectionError | EOFError) and not str(error).startswith("Caught ")


def explained(error: Exception, model: nn.Module, batch: Any | None) -> ModelError:
    """A sentence for an error in the first pass, when nothing is spent: mostly it is about the form of all examples."""
    said = " ".join(str(error).split())[:200].rstrip(". ")
    if suspects(model):
        return mixing(model)
    if any(words in said for words in (*_OF_VALUES, *_UNSTACKED)):
        return stopping(error)
    found = {leaf.dtype for leaf in batches.tensors(batch)} if batch is not None else set()
    wanted = next(model.parameters()).dtype
    other = sorted(str(kind) for kind in found if kind.is_floating_point and kind != wanted)
    if not other and "dtype" in said and found and not any(kind.is_floating_point for kind in found):
        other = ["whole numbers only"]
    if other and ("dtype" in said or "type" in said):
        return ModelError(
            f"The examples hold {other[0]} and the model's parameters are {wanted} ({said}); convert the data once, "
            f"with tensor.to({wanted}), or in the data set."
        )
    return ModelError(
        f"Model and loss cannot be computed on a batch of examples ({type(error).__name__} {_place(error)}: {said}); "
        "try loss(model, batch) on a batch of the data set, and give collate= where the default batch is not what they "
        "take."
    )


def _place(error: BaseException) -> str:
    """Where it was raised: in the last line that is neither PyTorch's nor Tacit's, where there is one."""
    # Callers of what was tried are not in the traceback, which goes up to the place of this try only.
    frames = traceback.extract_tb(error.__traceback__)
    torch_home = Path(torch.__file__).parent
    outside = [frame for frame in frames if not Path(frame.filename).is_relative_to(torch_home)]
    own = [frame for frame in outside if not Path(frame.filename).is_relative_to(_HERE)]
    last = (own or outside or frames)[-1:]
    return f"in {last[0].name}, {Path(last[0].filename).name} line {last[0].lineno}" if last else "somewhere"
