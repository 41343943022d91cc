"""The largest of very many scores, in little memory.

Sorting, or a k-th value by PyTorch, takes several times the memory of the scores. Here the k-th largest is found digit
by digit: scores become whole numbers of the same order, and each pass counts how many have which next sixteen bits.
Passes go piece by piece, so beyond the scores and the answer only a few pieces are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tacit.errors import ArgumentError

_PIECE = 1 << 22
_DIGIT = 16


def largest(scores: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
    """Sorted flat positions of the ``size`` largest scores, by name; the first win among equals."""
    if size <= 0:
        _refuse_missing(scores)
        return {name: torch.empty(0, dtype=torch.int64) for name in scores}
    threshold, ties = _threshold(scores, size)
    found: dict[str, list[Tensor]] = {name: [] for name in scores}
    for name, start, keys in _pieces(scores, _kind(scores)):
        chosen = keys > threshold
        if ties:
            equal = (keys == threshold).nonzero().flatten()[:ties]
            chosen[equal] = True
            ties -= len(equal)
        found[name].append(chosen.nonzero().flatten() + start)
    return {
        name: torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
        for name, parts in found.items()
    }


def _threshold(scores: Mapping[str, Tensor], size: int) -> tuple[int, int]:
    """The key of the ``size``-th largest score, and how many scores that are equal to it belong to the largest."""
    kind = _kind(scores)
    bits = torch.iinfo(kind).bits
    prefix, left = 0, size
    for shift in range(bits - _DIGIT, -1, -_DIGIT):
        counts = torch.zeros(1 << _DIGIT, dtype=torch.int64)
        first = shift == bits - _DIGIT
        for _, _, keys in _pieces(scores, kind):
            if not first:
                keys = keys[keys >> (shift + _DIGIT) == prefix]
            digits = (keys >> shift) & ((1 << _DIGIT) - 1)
            # The topmost digit has the sign: minus comes before plus.
            counts += torch.bincount(digits ^ (1 << (_DIGIT - 1)) if first else digits, minlength=1 << _DIGIT)
        from_above = counts.flip(0).cumsum(0)
        place = int(torch.searchsorted(from_above, left))
        left -= int(from_above[place - 1]) if place else 0
        digit = (1 << _DIGIT) - 1 - place
        prefix = digit - (1 << (_DIGIT - 1)) if first else (prefix << _DIGIT) | digit
    return prefix, left


def _kind(scores: Mapping[str, Tensor]) -> torch.dtype:
    """The whole numbers that hold every score's key: 32 bits if all scores have as many, else 64."""
    narrow = all(score.dtype == torch.float32 for score in scores.values())
    return torch.int32 if narrow else torch.int64


def _pieces(scores: Mapping[str, Tensor], kind: torch.dtype) -> Iterator[tuple[str, int, Tensor]]:
    """Name, first position and keys of each piece of the scores: whole numbers in the order of the scores."""
    for name, score in scores.items():
        flat = score.detach().flatten()
        for start in range(0, flat.numel(), _PIECE):
            piece = flat[start : start + _PIECE].cpu()
            if bool(piece.isnan().any()):
                raise _missing(name)
            # Adding zero makes -0 plain, which is equal to it and has other bits.
            floats = piece.to(torch.float32 if kind == torch.int32 else torch.float64) + 0.0
            raw = floats.view(kind)
            # Of negative numbers the bits fall as the number rises.
            yield name, start, raw ^ ((raw >> (torch.iinfo(kind).bits - 1)) & torch.iinfo(kind).max)


def _refuse_missing(scores: Mapping[str, Tensor]) -> None:
    for name, score in scores.items():
        if bool(score.isnan().any()):
            raise _missing(name)


def _missing(name: str) -> ArgumentError:
    return ArgumentError(f"The scores of {name!r} hold NaN; a coordinate without a score cannot be ranked.")
