"""The rounding bounds of norms and sums, against exact rational arithmetic and hostile numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from tacit.errors import ModelError
from tacit.raw import clipping, exact
from tacit.raw.clipping import Clipper
from tacit.raw.exact import CONFIDENCE, PROBES, Allowance
from tacit.raw.gradients import Direct, Embedding, Linear, Several, convolution, ghost
from tacit.raw.gradients.base import LARGEST_MASS, Norms, PerExampleGradient
from tacit.raw.gradients.convolution import Convolution, Geometry, Windows
from tacit.raw.gradients.ghost import ghost_norms
from tacit.support import Block, Support

SCALES = [1e-44, 1e-30, 1e-10, 1.0, 1e10, 1e18]


@pytest.fixture(params=["compiled", "tensors"])
def _form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of the same computations."""
    if request.param == "tensors":
        monkeypatch.setattr(exact, "_native", {})
        monkeypatch.setattr(ghost, "_native", lambda: None)
    elif not exact._native or ghost._native() is None:
        pytest.skip("the compiled form could not be built here")


def fractions(x: Tensor) -> list[list[Fraction]]:
    return [[Fraction(v) for v in row] for row in x.double().tolist()]


def product(a: Tensor, b: Tensor) -> list[Fraction]:
    """All entries of Σₜ bₜ aₜᵀ for one example, exactly."""
    inputs, outputs = fractions(a), fractions(b)
    return [
        sum((outputs[t][o] * inputs[t][i] for t in range(len(inputs))), Fraction(0))
        for o in range(len(outputs[0]))
        for i in range(len(inputs[0]))
    ]


def squared(entries: list[Fraction]) -> Fraction:
    return sum((entry * entry for entry in entries), Fraction(0))


def hostile(examples: int, positions: int, inputs: int, outputs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Factors whose products cancel over the positions, at mixed scales."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    small = 10.0 ** -(8 * torch.rand(examples, 1, 1, generator=generator))
    a = draw(examples, 1, inputs) + small * draw(examples, positions, inputs)
    b = draw(examples, positions, outputs)
    b = b - b.mean(1, keepdim=True)
    return a, b


@pytest.mark.usefixtures("_form")
@pytest.mark.parametrize("scale", SCALES)
def test_squared_norms_are_those_of_exact_arithmetic(scale: float) -> None:
    x = torch.randn(5, 37, generator=torch.Generator().manual_seed(0)) * scale
    for found, row in zip(exact.squared_norms(x).tolist(), fractions(x), strict=True):
        assert abs(Fraction(found) - squared(row)) <= squared(row) * Fraction(37, 2**53)
    assert all(
        Fraction(bound) ** 2 >= squared(row)
        for bound, row in zip(exact.norms_above(x).tolist(), fractions(x), strict=True)
    )


@pytest.mark.usefixtures("_form")
@pytest.mark.parametrize("absolute", [False, True])
def test_sums_of_rows_are_those_of_exact_arithmetic(absolute: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(9, 11, generator=generator) * 10.0 ** torch.randint(-30, 30, (9, 1), generator=generator)
    weights = torch.rand(9, generator=generator, dtype=torch.float64)
    found = exact.sum_of_rows(weights, x, absolute=absolute)
    for column in range(11):
        terms = [
            Fraction(w) * Fraction(v) for w, v in zip(weights.tolist(), x[:, column].tolist(), strict=True)
        ]
        terms = [abs(term) for term in terms] if absolute else terms
        allowed = sum(abs(term) for term in terms) * Fraction(11, 2**53)
        assert abs(Fraction(float(found[column])) - sum(terms)) <= allowed


@pytest.mark.usefixtures("_form")
def test_a_long_sum_is_added_up_from_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weights = torch.randn(100, 7), torch.rand(100, dtype=torch.float64)
    whole = exact.sum_of_rows(weights, x)
    monkeypatch.setattr(exact, "LONGEST", 8)
    torch.testing.assert_close(exact.sum_of_rows(weights, x), whole, rtol=1e-13, atol=1e-13)


@pytest.mark.usefixtures("_form")
def test_random_directions_see_the_true_product() -> None:
    a, b = torch.randn(50, 30), torch.randn(50, 20)
    weights, probes = torch.rand(50, dtype=torch.float64), torch.randn(30, PROBES, dtype=torch.float64)
    expected = (b.double() * weights[:, None]).t() @ a.double() @ probes
    torch.testing.assert_close(exact.through_probes(b, a, weights, probes), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(exact.projected(a, probes), a.double() @ probes, rtol=1e-12, atol=1e-12)


def lengths(a: Tensor, b: Tensor) -> Fraction:
    """Σₜ ‖aₜ‖‖bₜ‖, what the terms of a gradient add up to before they cancel."""
    return sum(
        (
            Fraction(float(p.double().norm())) * Fraction(float(q.double().norm()))
            for p, q in zip(a, b, strict=True)
        ),
        Fraction(0),
    )


@pytest.mark.usefixtures("_form")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bound_of_a_ghost_norm_holds_in_exact_arithmetic(seed: int, dtype: torch.dtype) -> None:
    a, b = hostile(4, 12, 5, 4, seed)
    for scale in SCALES:
        left, right = (a * scale).to(dtype), b.to(dtype)
        found = ghost_norms(left, right)
        for i in range(len(a)):
            true = squared(product(left[i], right[i]))
            assert Fraction(float(found.above[i])) >= true
            assert Fraction(float(found.mass[i])) >= lengths(left[i], right[i]) * Fraction(10**9 - 1, 10**9)
            # Not needlessly large either: the constant stays in proportion to the lengths.
            slack = Fraction(float(found.mass[i])) ** 2 * Fraction(64, 2**24)
            assert Fraction(float(found.above[i])) <= true + slack + Fraction(1, 10**30)


@pytest.mark.usefixtures("_form")
def test_adding_up_the_chunks_of_long_products_is_part_of_the_bound() -> None:
    """In double precision: 2,048 chunks of which those of a·a are always rounded down and those of a·b always up."""
    chunks, values = 2048, [float.fromhex(x) for x in ("0x1.fcf24b46b04e0p-1", "0x1.fcf234c96f4f9p-1")]
    a = torch.zeros(1, 2, 64 * chunks, dtype=torch.float64)
    a[0, :, ::64] = torch.tensor(values, dtype=torch.float64)[:, None]
    b = torch.tensor([1.0, -1.0], dtype=torch.float64)[None, :, None].expand(1, 2, 4)
    true = 4 * chunks * (Fraction(values[0]) - Fraction(values[1])) ** 2
    assert Fraction(float(ghost_norms(a, b).above)) >= true


@pytest.mark.usefixtures("_form")
@pytest.mark.parametrize("positions", [1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(1, 1), (15, 17), (31, 16), (63, 700), (1100, 47), (513, 1025)]
)
def test_ghost_norms_of_every_size(positions: int, inputs: int, outputs: int) -> None:
    """Against the gradients themselves in double precision; terms nearly cancel, so that rounding shows."""
    a, b = (x.float() for x in hostile(3, positions, inputs, outputs, 1))
    found = ghost_norms(a, b)
    true = torch.bmm(b.double().transpose(1, 2), a.double()).flatten(1).square().sum(1)
    error = (min(inputs, 64) + min(outputs, 64) + 4) * 2.0**-24 * found.mass.square()
    assert (found.above >= true * (1 - 1e-12)).all()
    assert ((found.square - true).abs() <= error + 1e-12 * true).all()


@pytest.mark.skipif(ghost._native() is None, reason="the compiled form could not be built here")
def test_compiled_ghost_norms_lose_no_small_number_on_a_thread_that_flushes_them() -> None:
    a, b = torch.full((1, 3, 40), 2.0**-70), torch.full((1, 3, 5), 2.0**-60)
    expected = ghost._squares(a, b)
    assert expected.item() > 0
    torch.set_flush_denormal(True)
    try:
        assert torch.equal(ghost._squares(a, b), expected)
    finally:
        torch.set_flush_denormal(False)


def _image_layer(a: Tensor, b: Tensor) -> Convolution:
    """Without compiled code, and too large to be kept."""
    return Convolution(a, b, Geometry((1, 1), (1, 1), (1, 1), 1), (3, 3), len(a))


_HALF = torch.randperm(1600, generator=torch.Generator().manual_seed(0))[:800].sort().values
SUBNORMAL_WAYS: dict[str, tuple[Callable[[Tensor, Tensor], PerExampleGradient], tuple[int, ...], Block]] = {
    "vectors": (Linear, (1, 1, 40), Block.all((40, 40))),
    "vectors, many coordinates": (Linear, (1, 1, 40), Block.coordinates((40, 40), _HALF)),
    "vectors, few coordinates": (Linear, (1, 1, 40), Block.coordinates((40, 40), _HALF[::8])),
    "vectors, so long that their squares are added in double precision": (
        Linear,
        (1, 1, 4000),
        Block.coordinates((4000, 4000), torch.arange(0, 16_000_000, 4001)),
    ),
    "ghost norms": (Linear, (1, 4, 40), Block.all((40, 40))),
    "formed and not kept": (Linear, (1, 3, 40), Block.coordinates((40, 40), _HALF)),
    "in several ways": (
        lambda a, b: Several(
            [Linear(a, b), Embedding(torch.zeros(1, 1, dtype=torch.int64), b[:, :1], 40, None)]
        ),
        (1, 4, 40),
        Block.coordinates((40, 40), _HALF),
    ),
    "images, ghost norms": (_image_layer, (1, 40, 2, 2), Block.all((40, 40, 3, 3))),
    "images, formed and not kept": (
        _image_layer,
        (1, 40, 3, 3),
        Block.coordinates((40, 40, 3, 3), torch.arange(0, 14_400, 2)),
    ),
}


@pytest.mark.usefixtures("_form")
@pytest.mark.parametrize("seen", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("way", SUBNORMAL_WAYS)
def test_numbers_that_one_thread_takes_for_zero_and_another_does_not_escape_no_clip(
    way: str, turned: bool, seen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms see some subnormal numbers and the sum sees others, as where not all threads flush them."""
    monkeypatch.setattr(convolution, "available", lambda *given: False)
    make, shape, block = SUBNORMAL_WAYS[way]
    draw = torch.Generator().manual_seed(0)
    small = torch.randn(shape, generator=draw) * 1e-39
    huge = torch.randn(shape, generator=draw) * 1e36
    measured = small * (torch.rand(shape, generator=draw) < seen)
    summed = small * (torch.rand(shape, generator=draw) < 1.5 - seen)
    pairs = [(huge, x) if turned else (x, huge) for x in (measured, summed)]
    use, other = (make(*pair) for pair in pairs)
    found, _ = use.norms(block), other.norms(block)
    slack, clip_norm = clipping.ROUNDING[torch.float32], 1e-4
    length = max(
        float(found.square.sqrt()),
        float(found.above.sqrt()) / (1 + 0.375 * slack),
        float(found.mass) / LARGEST_MASS,
    )
    weight = torch.tensor([min(1.0, clip_norm / length)], dtype=torch.float64)
    assert float(other.weighted_sum(weight, block).double().norm()) <= clip_norm * (1 + slack)


@pytest.mark.parametrize("seed", range(6))
def test_gradients_that_are_formed_and_not_kept_are_bounded_in_exact_arithmetic(seed: int) -> None:
    a, b = hostile(3, 12, 5, 4, seed)
    use = Linear(a, b)
    error, mass = use.forming_error()
    formed = use.per_example(0, 3)
    for i in range(3):
        true = product(a[i], b[i])
        off = [Fraction(float(v)) - t for v, t in zip(formed[i].flatten(), true, strict=True)]
        assert squared(off) <= Fraction(float(error[i])) ** 2
        assert Fraction(float(mass[i])) >= lengths(a[i], b[i]) * Fraction(10**9 - 1, 10**9)


@pytest.mark.parametrize("seed", range(4))
def test_the_norm_of_masked_gradients_that_are_not_kept_holds_in_exact_arithmetic(seed: int) -> None:
    a, b = hostile(3, 2, 40, 40, seed)
    index = torch.randperm(1600, generator=torch.Generator().manual_seed(seed))[:800].sort().values
    use = Linear(a, b)
    found = use.norms(Block.coordinates((40, 40), index))
    assert use._kept is None
    for i in range(3):
        entries = product(a[i], b[i])
        assert Fraction(float(found.above[i])) >= squared([entries[k] for k in index.tolist()])


@pytest.mark.parametrize("ratio", [0.05, 0.5])
@pytest.mark.parametrize(
    "scales", [*((scale, 1 / scale) for scale in SCALES), (1e-23, 1.0), (1e-12, 1e-12), (1.0, 1e-24)]
)
def test_the_bound_of_a_masked_outer_product_holds_in_exact_arithmetic(
    ratio: float, scales: tuple[float, float]
) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (
        torch.randn(3, 1, 20, generator=generator) * scales[0],
        torch.randn(3, 1, 10, generator=generator) * scales[1],
    )
    b = b.clamp(-3e38, 3e38)
    index = torch.randperm(200, generator=generator)[: int(200 * ratio)].sort().values
    found = Linear(a, b).norms(Block.coordinates((10, 20), index))
    for i in range(3):
        entries = product(a[i], b[i])
        true = squared([entries[k] for k in index.tolist()])
        assert Fraction(float(found.above[i])) >= true


def test_a_parameter_used_in_several_ways_is_bounded_in_exact_arithmetic() -> None:
    a, b = hostile(3, 6, 4, 5, 3)
    table = Embedding(torch.randint(5, (3, 6)), torch.randn(3, 6, 4) * 1e3, 5, None)
    use = Several([Linear(a, b), table, Direct(torch.randn(3, 5, 4))])
    found = use.norms(Block.all((5, 4)))
    summed = torch.stack([use.weighted_sum(torch.eye(3)[i].double(), Block.all((5, 4))) for i in range(3)])
    assert (found.above >= summed.flatten(1).square().sum(1) * (1 - 1e-12)).all()


def test_an_image_layer_that_forms_its_gradients_bounds_them() -> None:
    torch.manual_seed(0)
    geometry = Geometry((1, 1), (1, 1), (1, 1), 2)
    a = torch.randn(2, 4, 1, 1) + 1e-4 * torch.randn(2, 4, 5, 5)
    b = torch.randn(2, 6, 5, 5)
    b = b - b.mean((2, 3), keepdim=True)
    use = Convolution(a, b, geometry, (3, 3), 2)
    error, _ = use.forming_error()
    exactly = Convolution(a.double(), b.double(), geometry, (3, 3), 2)
    off = use.per_example(0, 2).double() - exactly.per_example(0, 2)
    assert (off.flatten(1).norm(dim=1) <= error).all()


def test_verified_sums_are_close_except_with_the_stated_probability() -> None:
    for goes, factor in CONFIDENCE.items():
        directions, x = goes * PROBES, factor**-2
        chernoff = (x * math.exp(1 - x)) ** (directions / 2)
        assert chi2.cdf(directions * x, directions) < chernoff < 5.6e-15


@pytest.mark.parametrize("rank", [1, 20])
def test_an_error_beyond_the_allowance_is_refused_and_a_small_one_deducted(rank: int) -> None:
    torch.manual_seed(0)
    error = torch.randn(30, rank) @ torch.randn(rank, 40)
    error = error / error.norm()
    true = torch.randn(30, 40, dtype=torch.float64)
    allowance = Allowance(1.0, seed=0)
    assert not allowance.of("w").accepts(true + 3.0 * error, lambda probes: true @ probes)
    taken = sum(
        allowance.of("w").accepts(true + 0.004 * error, lambda probes: true @ probes) for _ in range(100)
    )
    assert 1 <= taken <= 99, "errors of one parameter add up"
    assert allowance.of("other").accepts(true, lambda probes: true @ probes)


def test_what_is_formed_twice_is_summed_at_no_more_than_it_measured() -> None:
    class Growing(Direct):
        """A use that gives longer gradients the second time."""

        calls = 0

        def per_example(self, start: int, stop: int) -> Tensor:
            self.calls += 1
            return self.gradients[start:stop] * self.calls

        norms, weighted_sum = PerExampleGradient.norms, PerExampleGradient.weighted_sum  # type: ignore[assignment]

    use = Growing(torch.randn(1, 6))
    block = Block.all((6,))
    found: Norms = use.norms(block)
    summed = use.weighted_sum(torch.ones(1), block)
    assert float(summed.square().sum()) <= float(found.above[0]) * (1 + 1e-12)


@pytest.mark.parametrize("api", ["old", "new"])
def test_products_are_single_precision_whatever_was_chosen(api: str) -> None:
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    try:
        if api == "old":
            torch.set_float32_matmul_precision("medium")
        else:
            matmul.fp32_precision = "bf16"
        with exact.full_precision():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision("highest")
        matmul.fp32_precision = before


def test_the_directions_in_which_sums_are_checked_are_new_in_every_step() -> None:
    """Whoever knows them can make an error that none of them sees."""
    device = torch.device("cpu")
    drawn = [Allowance(1.0, None).probes(5, 0, device) for _ in range(3)]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    assert torch.equal(Allowance(1.0, 3).probes(5, 0, device), Allowance(1.0, 3).probes(5, 0, device))


def test_a_batch_whose_rounding_is_not_covered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory holds so many examples; with less slack fewer are too many."""
    model = torch.nn.Linear(3, 1)
    clipper = Clipper(model, lambda m, batch: m(batch[0])[:, 0])
    batch = (torch.randn(10, 3),)
    clipper.clipped_sum([batch], Support.all(model), 1.0)
    monkeypatch.setitem(clipping.ROUNDING, torch.float32, 1e-13)
    with pytest.raises(ModelError, match="too many examples"):
        clipper.clipped_sum([batch], Support.all(model), 1.0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> tuple[Convolution, Tensor, Tensor]:
    """A convolution that is not kept, after its norms, with weights and the true sum; without compiled code."""
    monkeypatch.setattr(convolution, "available", lambda *given: False)
    torch.manual_seed(4)
    a, b = torch.randn(10, 16, 4, 4), torch.randn(10, 48, 4, 4)
    use = Convolution(a, b, Geometry((1, 1), (1, 1), (1, 1), 1), (3, 3), 10)
    use.allowance = Allowance(1e-2, seed=0)
    use.norms(Block.all((48, 16, 3, 3)))
    assert not use.keeps
    weights = torch.rand(10, dtype=torch.float64)
    return use, weights, torch.einsum("n,n...->...", weights, use.per_example(0, 10).double())


def summed(use: Convolution, weights: Tensor) -> Tensor:
    assert use.allowance is not None
    return use.weighted_sum(weights, Block.all((48, 16, 3, 3)), use.allowance.of("w"))


def test_windows_are_unfolded_once_for_the_norm_and_the_look_at_the_sum(
    measured: tuple[Convolution, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    use, weights, expected = measured
    monkeypatch.setattr(Windows, "of", None)
    found = summed(use, weights)
    assert found.dtype is torch.float32  # verified, not computed again
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_wrong_sum_is_seen_through_windows_that_were_looked_at_before(
    measured: tuple[Convolution, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    use, weights, expected = measured
    right = Convolution._library_gradient
    monkeypatch.setattr(Convolution, "_library_gradient", lambda *given: right(*given) + 0.01)
    found = summed(use, weights)
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_ordinary_examples_are_not_measured_again_in_double_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """128 positions that have little to do with each other: the bound on what rounding hides is small enough."""
    again: list[Tensor] = []

    def counted(found: tuple[Tensor, Tensor], measure: Callable[[Tensor], Norms]) -> tuple[Tensor, Tensor]:
        def measured(rows: Tensor) -> Norms:
            again.append(rows)
            return measure(rows)

        return original(found, measured)

    original = ghost.measured_again
    monkeypatch.setattr(ghost, "measured_again", counted)
    draw = torch.Generator().manual_seed(0)
    ghost_norms(torch.randn(4, 128, 256, generator=draw), torch.randn(4, 128, 2048, generator=draw))
    assert not again
    cancelling = torch.randn(1, 1, 64, generator=draw).expand(1, 128, 64)
    ghost_norms(
        cancelling, torch.tensor([1.0, -1.0]).repeat(64)[None, :, None].expand(1, 128, 64) * cancelling
    )
    assert len(again) == 1
