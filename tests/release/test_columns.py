"""Counts of a table's columns: what one row can do to them, what is charged for them, and which names come out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from tacit.errors import ArgumentError, LedgerError
from tacit.raw.histograms import ColumnCounts, count_columns
from tacit.release.columns import ReleasedColumns, names_threshold, release_columns
from tacit.release.ledger import MemoryLedger
from tacit.release.ledger_file import Charge
from tacit.release.noise import Noise, SecureNoise, SeededNoise

RNG = np.random.default_rng(0)


def charge(counts: ColumnCounts, sigma: float = 2.0, index: int = 0, secure: bool = True) -> Charge:
    return Charge(index, index, "columns", 1.0, sigma, 1.0, 10, counts.size, secure)


def table(rows: int) -> tuple[dict[str, tuple[np.ndarray, int]], dict[str, list[str]], dict[str, float]]:
    binned = {"a": (RNG.integers(0, 5, rows), 5), "b": (np.zeros(rows, np.int64), 3)}
    named = {"c": [f"v{k}" for k in RNG.integers(0, 4, rows)]}
    return binned, named, {"a": 0.6, "b": 0.64, "c": 0.48}


def flat(counts: ColumnCounts, names: list[str]) -> np.ndarray:
    parts = [counts.weights[name] * values.numpy() for name, values in counts.binned.items()]
    parts += [counts.weights["c"] * np.array([counts.named["c"].get(name, 0) for name in names])]
    return np.concatenate(parts)


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_a_row_changes_the_counts_by_one_and_never_by_more_than_the_sensitivity(rows: int) -> None:
    for trial in range(20):
        binned, named, weights = table(rows)
        if trial % 2:
            named["c"][-1] = "a name that nobody else has"
        names = sorted(set(named["c"]))
        every = count_columns(binned, named, weights)
        without = count_columns(
            {name: (places[:-1], bins) for name, (places, bins) in binned.items()},
            {"c": named["c"][:-1]},
            weights,
        )
        change = float(np.linalg.norm(flat(every, names) - flat(without, names)))
        assert change <= every.sensitivity
        assert change == pytest.approx(
            1, abs=1e-9
        )  # the weights' squares add up to 1, and no more is paid for


def test_weights_that_let_a_row_count_for_more_are_refused() -> None:
    binned, named, weights = table(5)
    with pytest.raises(ArgumentError, match="above 1"):
        count_columns(binned, named, {**weights, "b": 0.65})
    with pytest.raises(ArgumentError, match="counted once"):
        count_columns(binned, {**named, "a": named["c"]}, {**weights})
    with pytest.raises(ArgumentError, match="same rows"):
        count_columns(binned, {"c": named["c"][1:]}, weights)
    with pytest.raises(ArgumentError, match="bins do not have"):
        count_columns({**binned, "a": (np.array([0, 1, 2, 3, 5]), 5)}, named, weights)


def test_counts_carry_the_noise_that_was_charged() -> None:
    counts = count_columns(
        {"a": (np.zeros(0, np.int64), 20_000), "b": (np.zeros(0, np.int64), 20_000)}, {}, {"a": 0.6, "b": 0.8}
    )
    found = release_columns(counts, charge(counts, 3.0), MemoryLedger(), SecureNoise(), log_delta=-10.0)
    assert np.std(found.binned["a"]) == pytest.approx(3 / 0.6, rel=0.03)
    assert np.std(found.binned["b"]) == pytest.approx(3 / 0.8, rel=0.03)
    assert found.deviations["a"] == pytest.approx(3 / 0.6, rel=1e-5)


def test_names_carry_the_noise_that_was_charged() -> None:
    names = [f"n{k}" for k in range(4000) for _ in range(100)]
    counts = count_columns({}, {"c": names}, {"c": 0.5})
    found = release_columns(counts, charge(counts, 3.0), MemoryLedger(), SecureNoise(), log_delta=-10.0)
    assert len(found.named["c"]) == 4000
    assert np.std(list(found.named["c"].values())) == pytest.approx(3 / 0.5, rel=0.05)


class _Refusing(MemoryLedger):
    def charge(self, charge: Charge) -> None:
        raise LedgerError("The disk is full.")


class _Watched(SeededNoise):
    drawn = 0

    def begin(self, index: int) -> None:
        self.drawn += 1
        super().begin(index)


def test_nothing_is_drawn_before_it_is_charged() -> None:
    counts = count_columns(*table(10))
    noise = _Watched(0)
    with pytest.raises(LedgerError, match="disk is full"):
        release_columns(counts, charge(counts, secure=False), _Refusing(), noise, log_delta=-10.0)
    assert noise.drawn == 0
    ledger = MemoryLedger()
    release_columns(counts, charge(counts, secure=False), ledger, noise, log_delta=-10.0)
    assert [entry.phase for entry in ledger.charges] == ["columns"]
    assert noise.drawn == 1


def test_a_charge_that_says_something_else_is_refused() -> None:
    counts = count_columns(*table(10))
    for wrong in (
        Charge(0, 0, "columns", 0.5, 2.0, 1.0, 10, counts.size, True),
        Charge(0, 0, "columns", 1.0, 2.0, 2.0, 10, counts.size, True),
        Charge(0, 0, "columns", 1.0, 2.0, 1.0, 10, counts.size + 4, True),  # the number of names is private
        Charge(0, 0, "columns", 1.0, 2.0, 1.0, 10, counts.size, False),
    ):
        with pytest.raises(LedgerError, match="does not describe the counts"):
            release_columns(counts, wrong, MemoryLedger(), SecureNoise(), log_delta=-10.0)


@pytest.mark.parametrize("sigma", [0.5, 20.0])
def test_a_name_that_one_row_has_appears_as_rarely_as_was_set_aside(sigma: float) -> None:
    weights = {"c": 0.6, "d": 0.8}
    noise: Noise = SecureNoise()
    seen = 0
    trials = 4000
    for _ in range(trials):
        counts = count_columns({}, {"c": ["lone"], "d": ["lone too"]}, weights)
        found: ReleasedColumns = release_columns(
            counts, charge(counts, sigma), MemoryLedger(), noise, log_delta=math.log(0.1)
        )
        seen += bool(found.named["c"] or found.named["d"])
    # Two independent columns at 0.05 each.
    expected = 1 - 0.95**2
    assert seen / trials < 0.1 + 3 * math.sqrt(0.1 * 0.9 / trials)
    assert seen / trials == pytest.approx(expected, abs=4 * math.sqrt(expected / trials))


def test_the_threshold_holds_for_the_smallest_probabilities() -> None:
    for log_delta in (-1.0, -20.0, -100.0, -600.0):
        cut = names_threshold(log_delta, 3)
        assert math.isfinite(cut)
        if log_delta > -100:
            assert 3 * ndtr(-cut) <= math.exp(log_delta)
            assert 3 * ndtr(-cut) == pytest.approx(math.exp(log_delta), rel=1e-4)
