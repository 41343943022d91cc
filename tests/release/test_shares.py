"""Shares of a secure sum: the law of their noise, of their sum, and what a masked share tells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tacit.errors import ArgumentError, LedgerError
from tacit.raw.clipping import ClippedSum
from tacit.release.ledger import MemoryLedger
from tacit.release.ledger_file import Charge
from tacit.release.noise import LATTICE_BITS, SecureNoise, lattice
from tacit.release.shares import Words, release_share, share_noise, sum_of_shares
from tacit.support import Block, Support

CLIP, SLACK, SIGMA, SIZE = 1.0, 1 + 2.0**-8, 1.3, 4096
NO_MASK = lambda count: np.zeros(count, np.uint64)  # noqa: E731


class NoNoise:
    """Noise that is none, to see what a share holds besides."""

    secure = True

    def begin(self, index: int) -> None: ...

    def add(self, values: Tensor, scale: float, factor: float) -> None: ...


def clipped(fill: Any = 0.0, size: int = SIZE) -> ClippedSum:
    value = torch.full((size,), fill) if isinstance(fill, float) else fill.clone()
    support = Support({"w": Block.all((len(value),))})
    return ClippedSum({"w": value}, support, CLIP, CLIP * SLACK, {"w": torch.float32})


def charge(size: int = SIZE, **changed: Any) -> Charge:
    settings: dict[str, Any] = {
        "index": 0,
        "step": 0,
        "phase": "train",
        "sampling_rate": 0.1,
        "noise_multiplier": SIGMA,
        "clip_norm": CLIP,
        "batch_size": 10,
        "active": size,
        "secure_noise": True,
    }
    return Charge(**{**settings, **changed})


def share(total: Any = 0.0, honest: int = 3, noise: Any = None, mask: Any = NO_MASK) -> Tensor:
    made = clipped(total)
    size = made.size
    found = release_share(
        made, charge(size), MemoryLedger(), noise or SecureNoise(), honest=honest, mask=mask
    )
    return found.values["w"]


def spread_masks(count: int, size: int, seed: int = 0) -> list[Any]:
    """Masks that are uniform, each pair of them, and add up to zero."""
    rng = np.random.default_rng(seed)
    words = [rng.integers(0, 2**64, size, np.uint64) for _ in range(count - 1)]
    last = np.zeros(size, np.uint64)
    for word in words:
        last = last - word
    return [lambda _, word=word: word for word in (*words, last)]


@pytest.mark.parametrize("sigma", [0.3, 0.5, 0.9999, 1.0, 1.9, 1.9999, 2.0, 7.77, 300.0])
@pytest.mark.parametrize("size", [1, 69, 10**6, 10**9])
@pytest.mark.parametrize("honest", [1, 2, 3, 4, 1000])
def test_honest_shares_cover_the_sensitivity_after_rounding(sigma: float, size: int, honest: int) -> None:
    for sensitivity in (SLACK, 0.5, 1.0, 1.9999, 1e-6, 1e6):
        step, scale = share_noise(sigma, sensitivity, size, honest)
        assert math.sqrt(honest) * scale >= sigma * (sensitivity + math.sqrt(size) * step) * (1 - 1e-12)
        # Noise lies on the lattice of the sums, no coarser one: else their low bits would have none.
        assert lattice(scale) == step
        assert scale / step >= 2**LATTICE_BITS


def test_rounding_a_sum_adds_no_more_than_a_step_per_number() -> None:
    draw = torch.Generator().manual_seed(0)
    step, _ = share_noise(SIGMA, CLIP * SLACK, SIZE, 3)
    one = torch.randn(SIZE, generator=draw, dtype=torch.float64)
    other = one + torch.nn.functional.normalize(torch.randn(SIZE, generator=draw, dtype=torch.float64), dim=0)
    found = share(one, noise=NoNoise()) - share(other, noise=NoNoise())
    assert float(found.double().norm()) * step <= 1 + math.sqrt(SIZE) * step
    assert torch.equal(share(one, noise=NoNoise()), (one / step).round().long())


def test_the_noise_of_a_share_has_its_law_down_to_the_lowest_bit() -> None:
    step, scale = share_noise(SIGMA, CLIP * SLACK, SIZE, 3)
    drawn = torch.cat([share() for _ in range(32)]).numpy()
    assert stats.kstest(drawn * step / scale, "norm").pvalue > 1e-6
    for bits in (1, 4, 8):
        counts = np.bincount(drawn & (2**bits - 1), minlength=2**bits)
        assert stats.chisquare(counts).pvalue > 1e-6
    assert np.any(share().numpy() != share().numpy())


def test_only_the_sum_over_all_sites_is_the_sum_of_what_they_hold() -> None:
    sites = 4
    draw = torch.Generator().manual_seed(1)
    totals = [100 * torch.randn(SIZE, generator=draw, dtype=torch.float64) for _ in range(sites)]
    step, scale = share_noise(SIGMA, CLIP * SLACK, SIZE, 3)
    masks = spread_masks(sites, SIZE)
    shares = {
        str(n): {"w": share(t, noise=NoNoise(), mask=m)}
        for n, (t, m) in enumerate(zip(totals, masks, strict=True))
    }
    expected = sum((t / step).round() for t in totals) * step
    assert torch.equal(sum_of_shares(shares, step)["w"], expected)
    noisy = {str(n): {"w": share(t, mask=m)} for n, (t, m) in enumerate(zip(totals, masks, strict=True))}
    noise = (sum_of_shares(noisy, step)["w"] - expected).numpy() / scale / math.sqrt(sites)
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    for missing in noisy:
        rest = {name: value for name, value in noisy.items() if name != missing}
        found = sum_of_shares(rest, 1.0)["w"].numpy() / 2.0**63
        assert stats.kstest(found, "uniform", (-1, 2)).pvalue > 1e-6


@pytest.mark.parametrize("total", [0.0, 1e6, -1e30, math.inf, 2.0**70])
def test_a_masked_share_is_uniform_whatever_it_hides(total: float) -> None:
    mask = spread_masks(2, SIZE)[0]
    found = share(total, mask=mask).numpy() / 2.0**63
    assert stats.kstest(found, "uniform", (-1, 2)).pvalue > 1e-6


# The theorem: a sum of rounded Gaussians is a post-processed Gaussian ------------------------------------------------


def rounded_gaussian(deviation: float, reach: int) -> np.ndarray:
    at = np.arange(-reach, reach + 1)
    return np.asarray(stats.norm.cdf((at + 0.5) / deviation) - stats.norm.cdf((at - 0.5) / deviation))


def summed(deviation: float, sites: int, reach: int) -> np.ndarray:
    one = rounded_gaussian(deviation, reach)
    total = one
    for _ in range(sites - 1):
        total = np.convolve(total, one)
    middle = len(total) // 2
    return total[middle - reach : middle + reach + 1]


def spline_of_gaussian(deviation: float, sites: int, reach: int) -> np.ndarray:
    """One Gaussian of the whole variance, moved to a whole number by the B-spline of this order, by its spectrum."""
    u = np.linspace(-4, 4, 40_001)
    spectrum = (np.exp(-2 * (np.pi * deviation * u) ** 2) * np.sinc(u)) ** sites
    at = np.arange(-reach, reach + 1)
    return np.asarray((spectrum * np.cos(2 * np.pi * np.outer(at, u))).sum(1) * (u[1] - u[0]))


@pytest.mark.parametrize("sites", [2, 3, 4])
@pytest.mark.parametrize("deviation", [0.7, 1.0, 1.5, 2.5])
def test_a_sum_of_rounded_gaussians_is_a_rounded_gaussian_of_the_whole_variance(
    deviation: float, sites: int
) -> None:
    """Within exp(−π²a²) in total variation; at a = 2²⁴, where shares lie, that is nothing."""
    reach = 40
    found, theirs = summed(deviation, sites, reach), spline_of_gaussian(deviation, sites, reach)
    assert abs(found - theirs).sum() / 2 <= math.exp(-((math.pi * deviation) ** 2)) + 1e-10


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("sites", [1, 2, 4])
def test_a_sampled_sum_of_shares_is_no_worse_than_the_sampled_gaussian_that_is_charged(
    rate: float, sites: int
) -> None:
    """The exact privacy curves in both directions, on a lattice so coarse that a difference would show."""
    deviation, shift, reach = 2.5, 4, 90
    silent = summed(deviation, sites, reach)
    moved = (1 - rate) * silent + rate * np.roll(silent, shift)
    sigma = deviation * math.sqrt(sites) / shift
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 400_001)
    quiet, loud = stats.norm.pdf(x, 0, sigma), stats.norm.pdf(x, 1, sigma)
    mixed = (1 - rate) * quiet + rate * loud
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        for ours, theirs in (((moved, silent), (mixed, quiet)), ((silent, moved), (quiet, mixed))):
            exact = np.maximum(ours[0] - math.exp(epsilon) * ours[1], 0).sum()
            charged = np.maximum(theirs[0] - math.exp(epsilon) * theirs[1], 0).sum() * (x[1] - x[0])
            assert exact <= charged + 1e-6
            if epsilon <= 0.5:
                assert exact >= 0.9 * charged  # the bound is not idle


# Charges -------------------------------------------------------------------------------------------------------------


def test_a_share_is_charged_before_noise_is_drawn() -> None:
    ledger = MemoryLedger()

    class Watching(NoNoise):
        def add(self, values: Tensor, scale: float, factor: float) -> None:
            assert len(ledger) == 1

    release_share(clipped(), charge(), ledger, Watching(), honest=2, mask=NO_MASK)
    assert ledger.charges[0].noise_multiplier == SIGMA


@pytest.mark.parametrize("changed", [{"clip_norm": 0.5}, {"active": 3}, {"secure_noise": False}])
def test_a_charge_that_does_not_describe_the_share_is_refused(changed: dict[str, Any]) -> None:
    ledger = MemoryLedger()
    with pytest.raises(LedgerError, match="does not describe"):
        release_share(clipped(), charge(**changed), ledger, SecureNoise(), honest=2, mask=NO_MASK)
    assert not len(ledger)


def short(count: int) -> Words:
    return np.zeros(count - 1, np.uint64)


def test_a_mask_covers_every_number() -> None:
    with pytest.raises(ArgumentError, match="one 64-bit word"):
        release_share(clipped(), charge(), MemoryLedger(), SecureNoise(), honest=2, mask=short)
