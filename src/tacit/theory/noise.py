"""The noise one private step adds to each coordinate of the averaged gradient."""

from __future__ import annotations

from tacit.errors import check_non_negative, check_positive


def noise_std(sigma: float, clip_norm: float, batch_size: float) -> float:
    """ν = σC/B: the standard deviation of the noise in one coordinate of the released mean gradient.

    A step releases (Σᵢ ḡᵢ + z) / B with z ~ N(0, σ²C² I). All three numbers are public; ``batch_size`` is the
    planned batch size B, never the length of the drawn batch.
    """
    check_non_negative("The noise multiplier", sigma)
    check_positive("The clip norm", clip_norm)
    check_positive("The batch size", batch_size)
    return sigma * clip_norm / batch_size
