"""Per-example gradients by compiled code: the same as by tensors, formed twice bit by bit alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tacit.raw.gradients import convolution
from tacit.raw.gradients.compiled import Problem, available
from tacit.raw.gradients.convolution import Convolution, Geometry
from tacit.raw.gradients.kept import Kept
from tacit.support import Block

pytestmark = pytest.mark.skipif(
    not available(torch.float32, torch.device("cpu"), 2, 1), reason="there is no compiled code"
)


def problem(examples: int = 5, channels: int = 3, outputs: int = 20, views: int = 1) -> Problem:
    draw = torch.Generator().manual_seed(channels)
    images = torch.randn(examples * views, 9, 7, channels, generator=draw)
    gradients = torch.randn(examples * views, 5, 4, outputs, generator=draw)
    return Problem(images, gradients, examples, (3, 3), (2, 2), (1, 1), (1, 1))


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield int(request.param)
    torch.set_num_threads(before)


def formed(given: Problem) -> Tensor:
    kept = Kept(given.examples, given.size, 1, given.images)
    given.measured(None, kept)
    return kept.part(0, given.examples)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("outputs", [3, 20])
def test_what_is_summed_is_bit_by_bit_what_was_measured(outputs: int) -> None:
    """A sum of one example at a time, on any number of threads, has exactly its squared norm."""
    given = problem(outputs=outputs, views=2)
    squares, _ = given.measured(None, None)
    rows = formed(given)
    for i, weights in enumerate(torch.eye(given.examples, dtype=torch.float64)):
        summed = given.weighted_sum(weights, None)
        assert torch.equal(summed, rows[i].double())
        assert float(summed.square().sum()) == pytest.approx(float(squares[i]), rel=1e-14)


@pytest.mark.usefixtures("threads")
def test_every_example_has_its_own_weight() -> None:
    given = problem()
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0, 0.25], dtype=torch.float64)
    torch.testing.assert_close(given.weighted_sum(weights, None), weights @ formed(given).double())


def test_a_gradient_does_not_depend_on_company_nor_on_what_the_thread_does_to_small_numbers() -> None:
    given = problem()
    given.images.mul_(1e-30)
    given.gradients.mul_(1e-10)
    alone = Problem(given.images[2:3], given.gradients[2:3], 1, (3, 3), (2, 2), (1, 1), (1, 1))
    rows = formed(given)
    assert 0 < float(rows.abs().max()) < torch.finfo(torch.float32).tiny
    assert torch.equal(formed(alone)[0], rows[2])
    torch.set_flush_denormal(True)
    try:
        flushed = formed(given)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(flushed, rows)


KINDS = ("all", "coordinates", "rows", "few rows")


def block_of(kind: str, shape: tuple[int, ...]) -> Block:
    total = int(torch.tensor(shape).prod())
    if kind == "coordinates":
        return Block.coordinates(shape, torch.arange(1, total, 3))
    if kind == "rows":
        return Block.rows(shape, torch.arange(0, shape[0], 2))
    if kind == "few rows":
        return Block.rows(shape, torch.tensor([1]))
    return Block.all(shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "padding"),
    [(1, 16, 4, 2, 1), (16, 20, 3, 1, 1), (24, 6, 3, 1, 1), (40, 48, 1, 1, 0)],
)
@pytest.mark.parametrize("size", [3, 12])
def test_norms_and_sums_are_those_of_the_tensor_form(
    kind: str,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int,
    padding: int,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kept or formed twice, in every order that the numbers may have in memory."""
    draw = torch.Generator().manual_seed(1)
    space = (size + 2 * padding - kernel) // stride + 1
    a = torch.randn(6, channels, size, size, generator=draw)
    b = torch.randn(6, outputs, space, space, generator=draw)
    geometry = Geometry((stride,) * 2, (padding,) * 2, (1, 1), 1)
    shape = (outputs, channels, kernel, kernel)
    block, weights = block_of(kind, shape), torch.rand(3, dtype=torch.float64, generator=draw)
    found = []
    monkeypatch.setattr(convolution, "GHOST_BELOW", 0.0)
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(convolution, "available", lambda *given: False)
        use = Convolution(a, b, geometry, (kernel, kernel), 3)
        norms = use.norms(block)
        assert use.keeps or not compiled
        rows: tuple[Tensor, ...] = (norms.square, use.weighted_sum(weights, block))
        again = Convolution(a, b, geometry, (kernel, kernel), 3)
        again.norms(block)
        absolute = again.weighted_absolute_sum(weights, block)
        if kind == "all":
            lengths = Convolution(a, b, geometry, (kernel, kernel), 3)
            lengths.norms(block)
            rows = (*rows, lengths.weighted_row_norms(weights, block))
        found.append([x.double() for x in (*rows, absolute)])
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


def test_pieces_of_what_is_kept_are_filled_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.raw.gradients import kept

    whole = formed(problem())
    monkeypatch.setattr(kept, "PIECE", 2 * whole.shape[1])
    given = problem()
    parts = Kept(given.examples, given.size, 1, given.images)
    given.measured(None, parts)
    assert list(parts.ranges(1, 5)) == [(1, 2), (2, 4), (4, 5)]
    seen = [parts.part(*part) for part in itertools.pairwise((0, 2, 4, 5))]
    assert torch.equal(torch.cat(seen), whole)
