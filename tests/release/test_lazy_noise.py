"""Lazy noise: what can be read of a table is what noise for every row in every step would have given."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.multiprocessing.reductions import reduce_storage, shared_cache

from release.statistics import LEAST, looks_like, uncorrelated
from tacit.errors import ArgumentError, ModelError
from tacit.raw.row_tables import RowSum, Terms
from tacit.release import noise as noise_module
from tacit.release.lazy_noise import COARSE, FINE, LazyTable
from tacit.release.noise import Noise, SecureNoise, SeededNoise

WIDTH, BATCH, SCALE = 8000, 4, 2.0
RATES = (0.5, 0.25, 0.25, 0.5, 1.0, 0.125)
TOUCHED = ([0, 1, 2], [0, 1], [0, 3], [0], [0, 1], [0])
"""Row 0 is touched in every step, row 4 in none."""


def table(
    rate: Callable[[], float] = lambda: 0.5, noise: Noise | None = None, rows: int = 5, width: int = WIDTH
) -> tuple[LazyTable, nn.Parameter]:
    weight = nn.Parameter(torch.full((rows, width), 0.25))
    return LazyTable("words.weight", weight, noise or SecureNoise(), rate), weight


def total(rows: list[int], value: float = 0.0, *, shape: tuple[int, int] = (5, WIDTH)) -> RowSum:
    index = torch.tensor(rows, dtype=torch.int64)
    vectors = torch.full((1, shape[1]), value, dtype=torch.float64)
    ones = torch.ones(len(rows), dtype=torch.float64)
    return RowSum(shape, [Terms(index.sort().values, vectors, torch.zeros_like(index), ones)])


def step(lazy: LazyTable, rows: list[int], value: float = 0.0) -> Tensor:
    """One step as training makes it: the rows are read, then moved. What was read."""
    found = lazy.read(torch.tensor(rows, dtype=torch.int64))
    lazy.move(total(rows, value), SCALE, BATCH)
    return found


class Recorded(SeededNoise):
    """Notes with which deviations rows are moved."""

    def __init__(self) -> None:
        super().__init__(3)
        self.moves: list[tuple[list[int], list[float]]] = []

    def move(
        self,
        codes: Tensor,
        rows: Tensor,
        deviations: Tensor,
        means: Tensor | None = None,
        factor: float = 1.0,
    ) -> None:
        self.moves.append((rows.tolist(), deviations.tolist()))
        super().move(codes, rows, deviations, means, factor)


@pytest.fixture(params=["compiled", "tensors"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tensors":
        monkeypatch.setattr(noise_module, "_native_move", None)
        monkeypatch.setattr(noise_module, "_native_read", None)
    elif noise_module._native_move is None:
        pytest.skip("the compiled noise was not built")


def test_compiled_reads_that_disagree_are_not_used() -> None:
    right = noise_module._native_read
    if right is None:
        pytest.skip("the compiled noise was not built")
    assert noise_module._reads(right)

    def first_row(codes: int, rows: int, count: int, width: int, step: float, found: int) -> None:
        right(codes, rows, 1, width, step, found)

    def other_step(codes: int, rows: int, count: int, width: int, step: float, found: int) -> None:
        right(codes, rows, count, width, step * (1 + 2.0**-20), found)

    assert not noise_module._reads(first_row)  # type: ignore[arg-type]
    assert not noise_module._reads(other_step)  # type: ignore[arg-type]


def test_ids_of_32_bits_read_the_same_rows(path: None) -> None:
    lazy, _ = table(lambda: 0.5)
    lazy.move(total([1], 0.25), SCALE, BATCH)
    ids = torch.tensor([[1, 3], [0, 1]])
    assert torch.equal(lazy.read(ids.int()), lazy.read(ids))


def test_every_row_ends_with_the_mean_and_the_noise_of_the_dense_mechanism(path: None) -> None:
    rates = iter(RATES)
    now = [0.0]
    lazy, weight = table(lambda: now[0])
    moved = dict.fromkeys(range(5), 0.25)
    for rows in TOUCHED:
        now[0] = next(rates)
        for row in rows:
            moved[row] -= now[0] * 3.0 / BATCH
        step(lazy, rows, 3.0)
    lazy.settle()
    deviation = SCALE / BATCH * math.sqrt(sum(rate**2 for rate in RATES))
    for row in range(5):
        drawn = weight[row].detach().double() - moved[row]
        assert looks_like(drawn, deviation), row
        assert not looks_like(drawn, deviation * math.sqrt(5 / 6)), row
    assert uncorrelated(weight[0].detach(), weight[4].detach())


def test_what_a_step_reads_has_the_noise_of_all_steps_before_it_and_of_no_other(path: None) -> None:
    lazy, _ = table()
    for done in range(4):
        found = lazy.read(torch.tensor([done]))[0].double() - 0.25
        if done:
            assert looks_like(found, 0.5 * SCALE / BATCH * math.sqrt(done))
        else:
            assert bool((found == 0).all())
        lazy.move(total([4]), SCALE, BATCH)


def test_a_row_that_is_read_twice_is_the_same_and_pays_once() -> None:
    noise = Recorded()
    lazy, _ = table(noise=noise)
    step(lazy, [0])
    first = lazy.read(torch.tensor([[2, 2], [3, 2]]))
    assert first.shape == (2, 2, WIDTH)
    assert torch.equal(first[0, 0], first[0, 1])
    assert torch.equal(first[0, 0], lazy.read(torch.tensor(2)))
    assert [rows for rows, _ in noise.moves] == [[0], [2, 3]]


def test_moves_that_are_drawn_at_once_have_the_variance_of_all_and_of_the_roundings_saved() -> None:
    noise = Recorded()
    lazy, _ = table(noise=noise, width=8)
    for _ in range(5):
        lazy.move(total([], shape=(5, 8)), SCALE, BATCH)
    variance = math.ceil((0.5 * SCALE / BATCH / lazy._step) ** 2 * 16) / 16
    lazy.read(torch.tensor([1]))
    assert noise.moves[-1] == ([1], [math.sqrt(5 * variance + 4 / 12)])
    lazy.move(total([1], shape=(5, 8)), SCALE, BATCH)
    assert noise.moves[-1] == ([1], [math.sqrt(variance)])
    lazy.move(total([], shape=(5, 8)), SCALE, BATCH)
    lazy.read(torch.tensor([0, 1]))
    assert noise.moves[-1] == ([0, 1], [math.sqrt(7 * variance + 6 / 12), math.sqrt(variance)])


def rounded(deviation: float, reach: int) -> np.ndarray:
    """Probabilities of a Gaussian that is rounded to whole numbers."""
    places = np.arange(-reach, reach + 1)
    return np.diff(stats.norm.cdf(np.append(places, reach + 1) - 0.5, scale=deviation))


@pytest.mark.parametrize("count", [2, 3, 8])
def test_one_rounding_with_their_variance_stands_for_many_up_to_the_fourth_power(count: int) -> None:
    def divergence(deviation: float, *, corrected: bool) -> float:
        reach = math.ceil(12 * deviation * math.sqrt(count))
        single = rounded(deviation, reach)
        many = single
        for _ in range(count - 1):
            many = np.convolve(many, single, "same")
        extra = (count - 1) / 12 if corrected else 0.0
        one = rounded(math.sqrt(count * deviation**2 + extra), reach)
        kept = (one > 1e-300) & (many > 1e-300)
        return float(np.sum(many[kept] * np.log(many[kept] / one[kept]) - many[kept] + one[kept]))

    for deviation in (1.25, 1.75):
        # docs/concepts/numerics.md: R⁻⁸ / (48 · 480²) nats for each draw, R the deviation of one move.
        assert divergence(deviation, corrected=True) < 2 * deviation**-8 / (48 * 480**2)
        assert divergence(deviation, corrected=False) > 1e3 * deviation**-8 / (48 * 480**2)
    assert COARSE >= 2**8
    assert FINE >= 2**10


def test_low_bits_do_not_tell_which_rows_were_touched(path: None) -> None:
    lazy, _ = table()
    for rows in TOUCHED:
        step(lazy, rows, 3.0)
    codes = lazy._codes
    assert codes is not None
    lazy._pay(codes, torch.arange(5))
    for row in codes:
        counts = torch.bincount(row.long() & 15, minlength=16).numpy()
        assert stats.chisquare(counts).pvalue > LEAST


def test_a_table_that_is_settled_in_every_step_equals_the_dense_mechanism_bit_for_bit() -> None:
    """Under a shared stream: reference codes that move by all their noise in every step."""
    lazy, weight = table(noise=SeededNoise(7), width=16)
    reference = torch.full((5, 16), 0.25, dtype=torch.float64)
    stream = torch.Generator().manual_seed(0)
    lazy._noise._generator.manual_seed(0)  # type: ignore[attr-defined]
    for rows in TOUCHED:
        lazy.read(torch.tensor(rows))
        lazy.move(total(rows, 3.0, shape=(5, 16)), SCALE, BATCH)
        lattice = lazy._step
        deviation = math.sqrt(math.ceil((0.5 * SCALE / BATCH / lattice) ** 2 * 16) / 16)
        lazy.settle()
        codes = (reference / lattice).round()
        others = [row for row in range(5) if row not in rows]
        for part, mean in ((rows, -0.5 * 3.0 / BATCH / lattice), (others, 0.0)):
            drawn = torch.empty(len(part), 16, dtype=torch.float64).normal_(generator=stream)
            codes[part] += (mean + deviation * drawn).round()
        reference = (codes * lattice).float().double()
        assert torch.equal(weight.detach().double(), reference)


def test_nobody_reads_a_table_that_is_owed_noise() -> None:
    lazy, weight = table()
    before = weight.detach().clone()
    step(lazy, [0])
    assert lazy.owes
    assert bool(weight.isnan().all())
    assert weight.shape == before.shape
    lazy.settle()
    assert not lazy.owes
    assert bool(weight.isfinite().all())
    assert float((weight != before).float().mean()) > 0.99
    held = weight.detach().clone()
    lazy.settle()
    assert torch.equal(weight, held)


def test_noise_that_is_small_beside_the_weights_is_drawn_for_every_row_at_once() -> None:
    now = [1.0]
    lazy, weight = table(lambda: now[0])
    step(lazy, [0])
    now[0] = 1e-9
    with pytest.warns(UserWarning, match="drawn for every row"):
        step(lazy, [1])
    assert not lazy.owes
    now[0] = 1.0
    step(lazy, [1])
    lazy.settle()
    assert looks_like(weight[4].detach() - 0.25, SCALE / BATCH * math.sqrt(2))


def test_a_learning_rate_of_zero_owes_nothing_and_moves_nothing() -> None:
    lazy, weight = table(lambda: 0.0)
    step(lazy, [0], 1.0)
    lazy.settle()
    assert torch.equal(weight.detach(), torch.full((5, WIDTH), 0.25))


def test_without_noise_rows_move_by_their_sums_alone() -> None:
    lazy, weight = table()
    for _ in range(3):
        lazy.read(torch.tensor([1]))
        lazy.move(total([1], 2.0), 0.0, BATCH)
    lazy.settle()
    assert torch.allclose(weight[1], torch.tensor(0.25 - 3 * 0.5 * 2 / BATCH), atol=1e-7)
    assert torch.equal(weight[0], torch.full((WIDTH,), 0.25))


def test_a_step_draws_noise_for_the_rows_that_it_touches() -> None:
    noise = Recorded()
    lazy, _ = table(noise=noise, rows=10_000, width=2)
    for first in (0, 7, 5000):
        rows = list(range(first, first + 20))
        lazy.read(torch.tensor(rows))
        lazy.move(total(rows, shape=(10_000, 2)), SCALE, BATCH)
    assert sum(len(rows) for rows, _ in noise.moves) <= 2 * 3 * 20
    lazy.settle()
    assert sum(len(rows) for rows, _ in noise.moves[-1:]) > 9_000


def test_many_moves_are_settled_before_their_variance_is_not_exact_any_more() -> None:
    lazy, _ = table(width=2)
    lazy.move(total([], shape=(5, 2)), SCALE, BATCH)
    lazy._variances[1] = 2.0**49
    lazy.move(total([], shape=(5, 2)), SCALE, BATCH)
    assert not lazy.owes


@pytest.mark.parametrize("ids", [[-1], [5], [0, 10**12]])
def test_ids_that_the_table_does_not_have_are_refused_whether_it_is_owed_noise_or_not(ids: list[int]) -> None:
    lazy, _ = table(width=2)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"its rows are 0 to 4"):
            lazy.read(torch.tensor(ids))
        lazy.move(total([0], shape=(5, 2)), SCALE, BATCH)
    assert lazy.read(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 2)


def test_tables_of_another_type_and_weights_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ArgumentError, match="float32"):
        LazyTable("words", nn.Parameter(torch.zeros(3, 2).double()), SecureNoise(), lambda: 1.0)
    lazy, weight = table(width=2)
    weight.data[1, 1] = math.inf
    with pytest.raises(ModelError, match="not finite"):
        lazy.move(total([0], shape=(5, 2)), SCALE, BATCH)


@pytest.mark.parametrize("rate", [1e-9, -1e-9])
def test_noise_that_is_small_is_not_grouped_whatever_the_sign_of_the_rate(rate: float) -> None:
    lazy, _ = table(lambda: rate, width=2)
    with pytest.warns(UserWarning, match="drawn for every row"):
        lazy.move(total([0], shape=(5, 2)), SCALE, BATCH)
    assert not lazy.owes


def test_whoever_holds_the_weights_by_another_name_never_sees_a_row_that_is_owed_noise() -> None:
    """A kept ``state_dict`` shares memory with the model: which rows changed there would be those of the examples."""
    lazy, weight = table(width=8)
    held = weight.detach()
    shown = weight.detach().clone()
    for _ in range(2):
        for rows in TOUCHED:
            lazy.move(total(rows, 3.0, shape=(5, 8)), SCALE, BATCH)
            assert torch.equal(held, shown)
        lazy.settle()
        assert torch.equal(held, weight)
        shown = weight.detach().clone()


def _of_numpy(array: np.ndarray) -> tuple[Tensor, Callable[[], bytes]]:
    return torch.from_numpy(array), array.tobytes


def _of_bytes(array: np.ndarray) -> tuple[Tensor, Callable[[], bytes]]:
    held = bytearray(array.tobytes())
    return torch.frombuffer(held, dtype=torch.float32).view(array.shape), lambda: bytes(held)


def _of_processes(array: np.ndarray) -> tuple[Tensor, Callable[[], bytes]]:
    """Memory as another process gives it, and as that process sees it."""
    theirs = torch.from_numpy(array).clone().share_memory_()
    rebuild, given = reduce_storage(theirs.untyped_storage())
    shared_cache.clear()
    ours = torch.empty(0).set_(rebuild(*given), 0, array.shape)
    return ours, lambda: theirs.numpy().tobytes()


@pytest.mark.parametrize("given", [_of_numpy, _of_bytes, _of_processes])
def test_whoever_gave_the_memory_of_a_table_never_sees_a_row_that_is_owed_noise(
    given: Callable[[np.ndarray], tuple[Tensor, Callable[[], bytes]]],
) -> None:
    """Pretrained rows come as arrays, which PyTorch does not count among the holders of their memory."""
    weights, seen = given(np.full((5, 8), 0.25, np.float32))
    table = nn.Embedding.from_pretrained(weights, freeze=False)
    del weights
    lazy = LazyTable("words.weight", table.weight, SecureNoise(), lambda: 0.5)
    shown = seen()
    for rows in TOUCHED:
        lazy.move(total(rows, 3.0, shape=(5, 8)), SCALE, BATCH)
        assert seen() == shown
    lazy.settle()
    assert bool(table.weight.isfinite().all())


def test_codes_take_no_memory_of_their_own_where_nobody_else_holds_the_weights() -> None:
    lazy, weight = table(width=8)
    place = weight.data_ptr()
    for _ in range(2):
        lazy.move(total([0], 3.0, shape=(5, 8)), SCALE, BATCH)
        assert lazy._codes is not None
        assert lazy._codes.data_ptr() == place
        lazy.settle()
        assert weight.data_ptr() == place


class Interrupted(SeededNoise):
    """Memory that runs out, or Ctrl-C, once some rows have got their noise."""

    def __init__(self, place: int, *, by_signal: bool = False) -> None:
        super().__init__(3)
        self.left, self._by_signal = place, by_signal

    def move(
        self,
        codes: Tensor,
        rows: Tensor,
        deviations: Tensor,
        means: Tensor | None = None,
        factor: float = 1.0,
    ) -> None:
        super().move(codes, rows, deviations, means, factor)
        self.left -= 1
        if not self.left and self._by_signal:
            signal.raise_signal(signal.SIGINT)
        elif not self.left:
            raise MemoryError


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_table_that_is_left_halfway_shows_nothing_of_it(place: int) -> None:
    """Interrupted in the first move, in a read, in a move of a row that is owed noise, and as all is settled."""
    lazy, weight = table(noise=Interrupted(place), width=8)

    def use() -> None:
        lazy.move(total([0], 3.0, shape=(5, 8)), SCALE, BATCH)
        lazy.read(torch.tensor([2]))
        lazy.move(total([2], 3.0, shape=(5, 8)), SCALE, BATCH)
        lazy.settle()

    with pytest.raises(MemoryError):
        use()
    for _ in range(2):
        with pytest.raises(ModelError, match=r"interrupted while the rows of 'words.weight'"):
            lazy.settle()
        with pytest.raises(ModelError, match="interrupted"):
            lazy.read(torch.tensor([1]))
        with pytest.raises(ModelError, match="interrupted"):
            lazy.move(total([0], 3.0, shape=(5, 8)), SCALE, BATCH)
        assert bool(weight.isnan().all())
    with torch.no_grad():  # as a checkpoint is restored
        weight.copy_(torch.full((5, 8), 0.25))
    lazy.settle()
    assert float(lazy.read(torch.tensor(3)).mean()) == 0.25
    lazy.move(total([0], 3.0, shape=(5, 8)), SCALE, BATCH)
    lazy.settle()
    assert bool(weight.isfinite().all())


def test_an_interrupt_waits_until_the_rows_have_their_noise() -> None:
    handler = signal.getsignal(signal.SIGINT)
    lazy, weight = table(noise=Interrupted(1, by_signal=True))
    with pytest.raises(KeyboardInterrupt):
        lazy.move(total([0], 3.0), SCALE, BATCH)
    assert signal.getsignal(signal.SIGINT) is handler
    lazy.settle()
    moved = weight.detach() - 0.25
    moved[0] += 0.5 * 3.0 / BATCH
    for row in moved:
        assert looks_like(row, 0.5 * SCALE / BATCH)


def test_an_interrupt_waits_until_noise_that_is_not_grouped_is_drawn() -> None:
    lazy, weight = table(rate=lambda: 1e-9, noise=Interrupted(1, by_signal=True), width=8)
    with (
        pytest.raises(KeyboardInterrupt),
        pytest.warns(UserWarning, match="drawn for every row"),
    ):
        lazy.move(total([0], shape=(5, 8)), SCALE, BATCH)
    assert not lazy.owes
    assert bool(weight.isfinite().all())
