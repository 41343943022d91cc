"""Poisson sampling: every example with probability q, independent of all others and of all steps."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tacit.errors import ArgumentError, ExampleError, LoaderError
from tacit.raw.sampling import PoissonBatches, PoissonSampler, dead_workers_named

LEAST = 1e-4
"""A right sampler fails one seeded test with this probability; the wrong ones below fail by far more."""


def incidence(sampler: PoissonSampler, steps: int) -> np.ndarray:
    """(steps, examples), true where an example takes part."""
    chosen = np.zeros((steps, sampler.examples), bool)
    for step in range(steps):
        chosen[step, sampler.draw(step)] = True
    return chosen


def marginals(chosen: np.ndarray, rate: float) -> float:
    """Chi-square p-value of every example's frequency."""
    steps, examples = chosen.shape
    deviations = (chosen.sum(0) - steps * rate) / math.sqrt(steps * rate * (1 - rate))
    return float(stats.chi2.sf((deviations**2).sum(), examples))


def pairs(chosen: np.ndarray, rate: float) -> float:
    """Chi-square p-value of every pair's joint frequency around the product of the two chances."""
    steps, examples = chosen.shape
    centred = chosen - rate
    covariance = centred.T @ centred / (math.sqrt(steps) * rate * (1 - rate))
    upper = covariance[np.triu_indices(examples, 1)]
    return float(2 * min(f((upper**2).sum(), len(upper)) for f in (stats.chi2.sf, stats.chi2.cdf)))


def sizes(chosen: np.ndarray, rate: float) -> float:
    """Chi-square p-value of the batch sizes' variance around the binomial's: it sees all pairs at once."""
    steps, examples = chosen.shape
    variance = examples * rate * (1 - rate)
    total = ((chosen.sum(1) - examples * rate) ** 2).sum() / variance
    return float(2 * min(stats.chi2.sf(total, steps), stats.chi2.cdf(total, steps)))


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_marginals_pairs_and_sizes(rate: float, seed: int | None) -> None:
    least = LEAST if seed is not None else 1e-7  # the unseeded draws differ from run to run
    chosen = incidence(PoissonSampler(24, rate, seed=seed), 4000)
    assert marginals(chosen, rate) > least
    assert pairs(chosen, rate) > least
    assert sizes(chosen, rate) > least


KEY = bytes(range(32))


@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize("common", [{"seed": 7}, {"key": KEY}], ids=["seed", "key"])
def test_samplers_that_draw_together_share_one_draw_among_them(rate: float, common: dict[str, Any]) -> None:
    samplers = [PoissonSampler(24, rate, **common, rank=rank, size=3) for rank in range(3)]
    whole = PoissonSampler(24, rate, **common)
    for step in range(50):
        drawn = [sampler.draw(step) for sampler in samplers]
        assert sorted(np.concatenate(drawn).tolist()) == whole.draw(step).tolist()
        assert max(map(len, drawn)) - min(map(len, drawn)) <= 1
    if rate < 1:
        assert not np.array_equal(whole.draw(0), whole.draw(1))


def test_the_draws_under_a_key_are_a_poisson_sample() -> None:
    samplers = [PoissonSampler(24, 0.3, key=KEY, rank=rank, size=2) for rank in range(2)]
    chosen = np.logical_or.reduce([incidence(sampler, 4000) for sampler in samplers])
    assert marginals(chosen, 0.3) > LEAST
    assert pairs(chosen, 0.3) > LEAST
    assert sizes(chosen, 0.3) > LEAST
    other = incidence(PoissonSampler(24, 0.3, key=bytes(32)), 4000)
    assert abs(np.corrcoef(chosen.ravel(), other.ravel())[0, 1]) < 5 / math.sqrt(chosen.size)


def test_samplers_without_anything_in_common_cannot_draw_together() -> None:
    with pytest.raises(ArgumentError, match="seed or a key in common"):
        PoissonSampler(24, 0.3, size=2)


def without_replacement(generator: np.random.Generator, steps: int, examples: int, rate: float) -> np.ndarray:
    chosen = np.zeros((steps, examples), bool)
    for row in chosen:
        row[generator.choice(examples, round(rate * examples), replace=False)] = True
    return chosen


def blocks(generator: np.random.Generator, steps: int, examples: int, rate: float) -> np.ndarray:
    return np.repeat(generator.random((steps, examples // 2)) < rate, 2, axis=1)


def shuffled_epochs(generator: np.random.Generator, steps: int, examples: int, rate: float) -> np.ndarray:
    chosen = np.zeros((steps, examples), bool)
    size, order = round(rate * examples), np.zeros(0, int)
    for row in chosen:
        if len(order) < size:
            order = generator.permutation(examples)
        row[order[:size]], order = True, order[size:]
    return chosen


@pytest.mark.parametrize("dependent", [without_replacement, blocks, shuffled_epochs])
def test_dependent_samplers_are_recognised(dependent: Any) -> None:
    chosen = dependent(np.random.default_rng(0), 4000, 24, 0.25)
    assert min(pairs(chosen, 0.25), sizes(chosen, 0.25)) < 1e-9


def test_steps_are_independent() -> None:
    for seed in (None, 3):
        chosen = incidence(PoissonSampler(40, 0.3, seed=seed), 3000).astype(float) - 0.3
        products = (chosen[1:] * chosen[:-1]).sum(0) / (0.21 * math.sqrt(2999))
        assert stats.chi2.sf((products**2).sum(), 40) > 1e-7
        assert stats.chi2.cdf((products**2).sum(), 40) > 1e-7


def test_a_seeded_draw_depends_on_seed_and_step_alone() -> None:
    sampler = PoissonSampler(1000, 0.1, seed=5)
    later = [sampler.draw(step) for step in (9, 3)]
    again = PoissonSampler(1000, 0.1, seed=5)
    np.testing.assert_array_equal(again.draw(3), later[1])
    np.testing.assert_array_equal(again.draw(9), later[0])
    assert not np.array_equal(later[0], later[1])
    assert not np.array_equal(PoissonSampler(1000, 0.1, seed=6).draw(3), later[1])


def test_an_unseeded_draw_is_never_repeated() -> None:
    sampler = PoissonSampler(1000, 0.1)
    assert not np.array_equal(sampler.draw(0), sampler.draw(0))
    assert not np.array_equal(PoissonSampler(1000, 0.1).draw(0), PoissonSampler(1000, 0.1).draw(0))


def test_rate_one_takes_everybody() -> None:
    np.testing.assert_array_equal(PoissonSampler(7, 1.0).draw(0), np.arange(7))


def test_tiny_rates_give_mostly_empty_batches() -> None:
    sampler = PoissonSampler(100, 1e-4, seed=0)
    drawn = [len(sampler.draw(step)) for step in range(3000)]
    assert stats.binomtest(sum(drawn), 100 * 3000, 1e-4).pvalue > LEAST
    assert drawn.count(0) > 2900


def test_a_draw_costs_what_its_batch_costs() -> None:
    drawn = PoissonSampler(10**12, 1e-11, seed=0).draw(0)
    assert len(drawn) < 60
    assert (np.diff(drawn) > 0).all()
    assert drawn.max(initial=0) < 10**12


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_rates_outside_are_refused(rate: float) -> None:
    with pytest.raises(ArgumentError, match=r"sampling rate must lie in \(0, 1\]"):
        PoissonSampler(10, rate)


class Rows(Dataset[Any]):
    """Examples of any structure; counts how it is asked."""

    def __init__(self, size: int, form: str) -> None:
        self.size, self.form = size, form

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        value = torch.tensor([float(index), -float(index)])
        match self.form:
            case "dict":
                return {"x": value, "nested": {"y": index}}
            case "nested":
                return [(value, index), {"again": value}]
            case _:
                return value, index


class Together(Rows):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


def numbers(batch: Any) -> list[int]:
    """The positions of a batch's examples, from any of the structures above."""
    if isinstance(batch, dict):
        return batch["nested"]["y"].tolist()
    if isinstance(batch[0], list | tuple):
        return batch[0][1].tolist()
    return batch[1].tolist()


@pytest.mark.parametrize("form", ["tuple", "dict", "nested"])
@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_batches_hold_exactly_the_drawn_examples_in_bounded_chunks(form: str, chunk_size: int | None) -> None:
    sampler = PoissonSampler(30, 0.2, seed=1)
    batches = PoissonBatches(Rows(30, form), sampler, chunk_size=chunk_size)
    seen = []
    for step, chunks in batches.steps(3, 5):
        parts = [numbers(chunk) for chunk in chunks]
        assert all(0 < len(part) <= (chunk_size or 30) for part in parts)
        np.testing.assert_array_equal(np.concatenate([*parts, []]), sampler.draw(step))
        seen.append(step)
    assert seen == [3, 4, 5, 6, 7]


def test_empty_batches_are_steps_without_chunks() -> None:
    sampler = PoissonSampler(10, 1e-6, seed=0)
    for chunk_size in (None, 3):
        batches = PoissonBatches(Rows(10, "tuple"), sampler, chunk_size=chunk_size)
        assert [(step, list(chunks)) for step, chunks in batches.steps(0, 4)] == [(i, []) for i in range(4)]


def test_tensor_datasets_and_bulk_access_give_the_same_batches() -> None:
    sampler = PoissonSampler(30, 0.3, seed=2)
    x = torch.stack([torch.arange(30.0), -torch.arange(30.0)], 1)
    datasets = [Rows(30, "tuple"), Together(30, "tuple"), TensorDataset(x, torch.arange(30))]
    found = [[list(chunks) for _, chunks in PoissonBatches(d, sampler).steps(0, 3)] for d in datasets]
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            for a, b in zip(one, two, strict=True):
                assert torch.equal(a[0], b[0])
                assert torch.equal(a[1], b[1])


def test_a_collate_function_of_ones_own() -> None:
    batches = PoissonBatches(Rows(9, "tuple"), PoissonSampler(9, 1.0), collate=lambda items: len(items))
    assert [list(chunks) for _, chunks in batches.steps(0, 1)] == [[9]]


def test_workers_change_nothing() -> None:
    sampler = PoissonSampler(30, 0.2, seed=1)
    alone = PoissonBatches(Rows(30, "dict"), sampler, chunk_size=3)
    helped = PoissonBatches(Rows(30, "dict"), sampler, chunk_size=3, workers=2)
    read = [
        [(step, [numbers(chunk) for chunk in chunks]) for step, chunks in batches.steps(0, 4)]
        for batches in (alone, helped)
    ]
    assert read[0] == read[1]
    assert len(read[0]) == 4


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))

    def __len__(self) -> int:
        return 4


class Endless:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("dataset", [Stream(), Endless(), iter([1, 2]), 5])
def test_datasets_that_cannot_be_asked_by_position_are_refused(dataset: Any) -> None:
    with pytest.raises(ArgumentError, match=r"map-style dataset.*Load an iterable dataset into a list"):
        PoissonBatches(dataset, PoissonSampler(4, 0.5))


def test_a_dataset_of_another_size_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"has 8 examples but the plan [a-z ]* 9"):
        PoissonBatches(Rows(8, "tuple"), PoissonSampler(9, 0.5))


class _Mortal(Dataset[Any]):
    """Data whose loader dies at an example, or whose example cannot be read."""

    def __init__(self, harm: Any) -> None:
        self._harm = harm

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if index == 40:
            self._harm()
        return torch.tensor(float(index))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fail() -> None:
    raise RuntimeError("no such picture")


def loaded(harm: Any) -> None:
    batches = PoissonBatches(_Mortal(harm), PoissonSampler(64, 1.0), chunk_size=8, workers=1)
    with dead_workers_named():
        for _, chunks in batches.steps(0, 1):
            list(chunks)


# PyTorch may notice the death once more while it clears up behind a loader that is already given up.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_dies_is_told_from_data_that_cannot_be_read() -> None:
    with pytest.raises(LoaderError, match="has died"):
        loaded(_die)
    with pytest.raises(ExampleError, match="An example cannot be worked on") as found:
        loaded(_fail)
    assert "picture" not in str(found.value)
