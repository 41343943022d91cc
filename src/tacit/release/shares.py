"""A share of a secure sum: clipped, charged, noised in whole numbers, masked. Only the sum over all sites can be read.

Every site rounds its clipped sum to a public lattice, adds a share of the noise and a mask that the masks of the other
sites cancel, all modulo 2⁶⁴. The shares of the noise of any ``honest`` sites make up the noise of the plan. What leaves
is uniform to whoever does not know the masks. docs/guide/federated.md has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import ArgumentError, LedgerError, check_count, check_positive
from tacit.raw.clipping import ClippedSum
from tacit.release.ledger import Ledger
from tacit.release.ledger_file import Charge
from tacit.release.noise import Noise, lattice

Words = npt.NDArray[np.uint64]
Mask = Callable[[int], Words]
"""So many words, uniform modulo 2⁶⁴ to everybody else; those of all sites add up to zero."""

_LARGEST = 2.0**62
"""Whole numbers beyond are cut off, which moves no two sums apart; no sum of fewer than 2³⁸ units gets there."""


@dataclass(frozen=True)
class Masked:
    """A masked share, free to be sent: per parameter whole numbers modulo 2⁶⁴, held as 64-bit integers.

    The sum over all sites, times ``step``, is the noisy sum. ``noise_std`` is the deviation of this share's noise.
    """

    values: dict[str, Tensor]
    step: float
    noise_std: float


def share_noise(noise_multiplier: float, sensitivity: float, size: int, honest: int) -> tuple[float, float]:
    """The lattice step and the deviation of one share, from public numbers: the same at every site.

    Rounding ``size`` numbers to the lattice adds at most √size steps to the sensitivity. Any ``honest`` shares together
    have the deviation that the noise multiplier asks for after that. The step is the one on which `SecureNoise` draws
    noise of this deviation: on a coarser one low bits would stay without noise.
    """
    check_positive("noise_multiplier", noise_multiplier)
    step = lattice(noise_multiplier * sensitivity / math.sqrt(honest))
    while True:
        scale = noise_multiplier * (sensitivity + math.sqrt(size) * step) / math.sqrt(honest)
        if lattice(scale) == step:
            return step, scale
        step = lattice(scale)


def release_share(
    clipped: ClippedSum, charge: Charge, ledger: Ledger, noise: Noise, *, honest: int, mask: Mask
) -> Masked:
    """Charge the ledger, round the sum to the lattice, add a share of the noise and the mask, modulo 2⁶⁴.

    The charge states the noise of the whole sum, as ``honest`` sites make it. It is durable before the first noise is
    drawn. The raw sum is used up.
    """
    check_count("honest", honest)
    written = (charge.clip_norm, charge.active, charge.secure_noise)
    actual = (clipped.clip_norm, clipped.size, noise.secure)
    if written != actual or clipped.rows or clipped.counts:
        raise LedgerError(
            "The charge does not describe the share: it says (clip norm, released numbers, secure noise) = "
            f"{written}, but they are {actual}."
        )
    step, scale = share_noise(charge.noise_multiplier, clipped.sensitivity, clipped.size, honest)
    ledger.charge(charge)
    noise.begin(charge.index)
    hidden = mask(clipped.size)
    if hidden.shape != (clipped.size,) or hidden.dtype != np.uint64:
        raise ArgumentError("A mask has one 64-bit word for every number of the sum.")
    values: dict[str, Tensor] = {}
    start = 0
    for name in sorted(clipped.values):  # every site masks in the same order
        total = clipped.values.pop(name)
        words = hidden[start : start + total.numel()]
        start += total.numel()
        values[name] = _masked(total, noise, scale, step, words)
    return Masked(values, step, scale)


def _masked(total: Tensor, noise: Noise, scale: float, step: float, words: Words) -> Tensor:
    whole = (total.detach().double().reshape(-1) / step).round_().clamp_(-_LARGEST, _LARGEST).long()
    # Noise is drawn by itself and added in whole numbers, so its law does not depend on the sum.
    drawn = torch.zeros(whole.numel(), dtype=torch.float64)
    noise.add(drawn, scale, 1.0)
    drawn = (drawn / step).round_().long()  # whole already, except from noise with a seed
    masked = whole.numpy().view(np.uint64) + drawn.numpy().view(np.uint64) + words
    return torch.from_numpy(masked.view(np.int64)).reshape(total.shape)


def sum_of_shares(shares: Mapping[str, Mapping[str, Tensor]], step: float) -> dict[str, Tensor]:
    """The noisy sum, in double precision, of the masked shares of all sites; noise alone where one is missing."""
    names = next(iter(shares.values()))
    found: dict[str, Tensor] = {}
    for name in names:
        total = np.zeros(tuple(names[name].shape), np.uint64)
        for values in shares.values():
            total = total + values[name].numpy().view(np.uint64)
        found[name] = torch.from_numpy(total.view(np.int64).astype(np.float64) * step)
    return found
