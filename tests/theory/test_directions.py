"""Common directions: what random matrix theory promises, against drawn matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tacit.errors import ArgumentError
from tacit.theory import common_directions

SHAPES = [(900, 40), (300, 300), (150, 400)]


def drawn(n: int, m: int, strength: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise of variance 4, and in a tenth of the groups a signal of ``strength`` times √(nm) along one direction."""
    direction = torch.nn.functional.normalize(torch.randn(m, generator=generator), dim=0)
    share = torch.zeros(n)
    share[: n // 10] = torch.randn(n // 10, generator=generator)
    signal = strength * (n * m) ** 0.5
    matrix = (
        torch.randn(n, m, generator=generator) + signal**0.5 * (share / share.norm())[:, None] * direction
    )
    return 2 * matrix, direction


@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_noise_has_no_directions(n: int, m: int) -> None:
    generator = torch.Generator().manual_seed(1)
    found = [common_directions(drawn(n, m, 0.0, generator)[0], 4.0, torch.ones(n)) for _ in range(60)]
    assert sum(one is not None for one in found) <= 2


@pytest.mark.parametrize("strength", [4.0, 8.0])
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_groups_without_signal_have_the_noise_of_one_coordinate(n: int, m: int, strength: float) -> None:
    generator = torch.Generator().manual_seed(2)
    energies, cosines, seen = [], [], []
    for _ in range(20):
        matrix, direction = drawn(n, m, strength, generator)
        found = common_directions(matrix, 4.0, torch.ones(n))
        assert found is not None
        assert found.count == 1
        energies.append(found.energies[n // 10 :].mean())
        leading = torch.linalg.svd(matrix, full_matrices=False)[2][0]
        cosines.append((leading @ direction).square())
        seen.append(found.seen)
    assert float(torch.stack(energies).mean()) == pytest.approx(4.0, rel=0.06)
    assert sum(seen) / 20 == pytest.approx(float(torch.stack(cosines).mean()), abs=0.03)


def test_leaving_out_groups_without_signal_clears_the_direction() -> None:
    generator = torch.Generator().manual_seed(3)
    matrix, _ = drawn(900, 40, 3.0, generator)
    known = torch.full((900,), 1e-3)
    known[:90] = 1
    plain = common_directions(matrix, 4.0, torch.ones(900))
    clear = common_directions(matrix, 4.0, known)
    assert plain is not None
    assert clear is not None
    assert clear.seen > plain.seen
    assert float(clear.energies[90:].mean()) == pytest.approx(4.0, rel=0.15)


def test_as_many_directions_as_there_are_and_no_more_than_asked() -> None:
    generator = torch.Generator().manual_seed(4)
    axes = torch.linalg.qr(torch.randn(30, 3, generator=generator))[0]
    matrix = torch.randn(400, 30, generator=generator) + 4 * torch.randn(400, 3, generator=generator) @ axes.T
    found = common_directions(matrix, 1.0, torch.ones(400))
    fewer = common_directions(matrix, 1.0, torch.ones(400), most=2)
    assert (found.count if found else 0, fewer.count if fewer else 0) == (3, 2)


def test_a_single_member_has_no_directions() -> None:
    assert common_directions(torch.full((50, 1), 100.0), 1.0, torch.ones(50)) is None


@pytest.mark.parametrize(
    ("groups", "weights"),
    [(torch.ones(3), torch.ones(3)), (torch.ones(3, 2), torch.ones(2)), (torch.ones(0, 2), torch.ones(0))],
)
def test_what_is_no_matrix_is_refused(groups: Tensor, weights: Tensor) -> None:
    with pytest.raises(ArgumentError, match="one row and one weight per group"):
        common_directions(groups, 1.0, weights)
