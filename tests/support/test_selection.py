"""From a description to a support."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tacit import ArgumentError, Support
from tacit.plan import All, Random, Soft, SupportSource, TopK
from tacit.release.mechanism import Released
from tacit.support.scores import Scores
from tacit.support.selection import Evidence, biases, check_source, select
from tacit.support.support import trainable_parameters

D = 2000


class Flat(nn.Module):
    """One parameter of ``D`` coordinates, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(D // 10, 10))
        self.bias = nn.Parameter(torch.zeros(5))


def warmed(signal: Tensor, *, noise: float, steps: int = 30, seed: int = 0, bias: float = 0.0) -> Scores:
    model = Flat()
    scores = Scores(model, folds=trainable_parameters(model))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        values = signal + noise * torch.randn(D, generator=generator)
        vector = bias + noise * torch.randn(5, generator=generator)
        both = {"weight": values.view(D // 10, 10), "bias": vector}
        scores.add(Released(both, Support.all(model), noise, 1))
    return scores


def evidence(scores: Scores | None = None, seed: int = 3, noise: float = 1.0, steps: int = 70) -> Evidence:
    return Evidence(scores, None, noise**2, steps, seed)


def test_all_is_all() -> None:
    assert select(All(), Flat(), evidence()).support == Support.all(Flat())


def test_a_random_support_has_its_size_and_follows_the_public_seed() -> None:
    first = select(Random(0.29), Flat(), evidence(seed=3)).support
    assert first.size == math.floor(0.29 * (D + 5))
    assert first == select(Random(0.29), Flat(), evidence(seed=3)).support
    assert first != select(Random(0.29), Flat(), evidence(seed=4)).support


def test_every_coordinate_is_drawn_equally_often() -> None:
    model, count = Flat(), torch.zeros(D + 5)
    draws = 200
    for seed in range(draws):
        support = select(Random(0.2), model, evidence(seed=seed)).support
        count += torch.cat([support[name].mask().flatten() for name in support])
    share = count / draws
    assert abs(float(share.mean()) - 0.2) < 1e-6
    assert float((share - 0.2).abs().max()) < 5 * math.sqrt(0.2 * 0.8 / draws)


def test_auto_finds_a_sparse_signal_and_says_why() -> None:
    signal = torch.zeros(D)
    signal[:40] = 3.0
    found = select(TopK("auto"), Flat(), evidence(warmed(signal, noise=1.0)))
    assert found.estimate is not None
    assert 30 <= found.support.size <= 200
    assert int(found.support["weight"].mask().flatten()[:40].sum()) >= 32
    assert "stay active" in found.reason
    assert "stand out" in found.reason
    assert found.reason.endswith(".")
    assert "\n" not in found.reason


@pytest.mark.parametrize("signal", [0.0, 1.0], ids=["nothing to see", "spread evenly"])
def test_auto_stays_dense_where_sparsity_would_hurt(signal: float) -> None:
    found = select(TopK("auto"), Flat(), evidence(warmed(torch.full((D,), signal), noise=1.0)))
    assert found.support == Support.all(Flat())
    assert found.reason.startswith(f"All {D} coordinates stay active: "), "the bias is not judged"


@pytest.mark.parametrize(
    "source", [TopK("auto"), TopK("auto", per_layer=True), Soft()], ids=["auto", "layers", "soft"]
)
def test_a_bias_that_holds_most_energy_takes_nothing_from_the_others(source: SupportSource) -> None:
    """Until an intercept has found the base rate, its gradient is far above all others."""
    signal = torch.full((D,), 0.3)
    plain = select(source, Flat(), evidence(warmed(signal, noise=1.0)))
    loud = select(source, Flat(), evidence(warmed(signal, noise=1.0, bias=1000.0)))
    assert loud.support == plain.support
    assert loud.support["bias"].size == 5
    assert loud.support["weight"].size == D


def test_an_intercept_on_a_constant_is_spared_too() -> None:
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(3, 2))
    assert biases(model) == ["0.weight", "1.bias"]


def test_auto_counts_only_what_it_may_choose() -> None:
    signal = torch.zeros(D)
    signal[:40] = 3.0
    found = select(TopK("auto", always_active=("bias",)), Flat(), evidence(warmed(signal, noise=1.0))).support
    assert found["bias"].size == 5
    assert found["weight"].size < 200


def test_auto_pooled_by_row_keeps_whole_rows() -> None:
    signal = torch.zeros(D)
    signal[:40] = 1.0
    found = select(TopK("auto", pooling="row"), Flat(), evidence(warmed(signal, noise=1.0))).support
    assert int(found["weight"].mask()[:4].sum()) >= 32
    assert found.size < D // 2


def test_auto_needs_two_scored_steps() -> None:
    with pytest.raises(ArgumentError, match="at least two scored steps"):
        select(TopK("auto"), Flat(), evidence(warmed(torch.ones(D), noise=1.0, steps=1)))


def test_top_k_per_layer_keeps_a_share_of_each_parameter_and_at_least_one() -> None:
    scores = warmed(torch.arange(D) / D, noise=0.0)
    found = select(TopK(0.05, per_layer=True), Flat(), evidence(scores)).support
    assert found.counts() == {"weight": (D // 20, D), "bias": (1, 5)}
    assert found["weight"].flat().tolist() == list(range(D - D // 20, D))


def test_exploring_draws_from_outside_the_best() -> None:
    scores = warmed(torch.arange(D) / D, noise=0.0)
    found = select(TopK(0.1, explore=0.25), Flat(), evidence(scores)).support
    k = math.floor(0.1 * (D + 5))
    best = k - math.ceil(0.25 * k)
    chosen = found["weight"].mask().flatten()
    assert found.size == k
    assert bool(chosen[-best:].all())
    rest = chosen[:-best].nonzero().flatten()
    assert len(rest) + found["bias"].size == k - best
    assert abs(float(rest.double().mean()) - D / 2) < 4 * D / math.sqrt(12 * len(rest))
    assert found != select(TopK(0.1, explore=0.25), Flat(), evidence(scores, seed=4)).support


def test_a_small_support_explores_at_least_one_coordinate() -> None:
    scores = warmed(torch.arange(D) / D, noise=0.0)
    found = select(TopK(0.002, explore=0.1), Flat(), evidence(scores)).support
    assert found.size == 4
    assert int(found["weight"].mask().flatten()[-3:].sum()) == 3


@pytest.mark.parametrize("explore", [0.4, 0.0])
def test_a_coordinate_that_matters_later_enters_the_support(explore: float) -> None:
    """ON-TopK: k coordinates carry a signal from the start; five others get a stronger one later."""
    model = nn.Linear(20, 10, bias=False)
    scores = Scores(model)
    generator = torch.Generator().manual_seed(1)
    signal = torch.zeros(200)
    signal[:40] = 3.0
    support, held = Support.all(model), []
    for epoch in range(60):
        if epoch:
            support = select(TopK(0.2, explore=explore), model, evidence(scores, seed=epoch)).support
            signal[100:105] = 6.0
        for _ in range(5):
            gradient = signal + torch.randn(200, generator=generator)
            active = support["weight"].gather(gradient.view(10, 20))
            scores.add(Released({"weight": active}, support, 1.0, 1))
        held.append(int(support["weight"].mask().flatten()[100:105].sum()))
    if explore:
        assert held[1] < 3
        assert min(held[-10:]) == 5
    else:
        assert max(held[1:]) == 0


# What is refused ------------------------------------------------------------------------------------------


def test_a_support_by_squares_needs_scores() -> None:
    with pytest.raises(ArgumentError, match="needs a phase before it that scores"):
        select(TopK(0.1), Flat(), evidence())


def test_a_support_by_movement_needs_the_start() -> None:
    with pytest.raises(ArgumentError, match="training started from"):
        select(TopK(0.1, "movement"), Flat(), evidence())


def test_a_pattern_without_a_parameter_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"No trainable parameter matches the pattern 'head\.\*'"):
        check_source(TopK(0.1, always_active=("head.*",)), Flat())


def test_a_source_with_nothing_to_choose_is_refused() -> None:
    with pytest.raises(ArgumentError, match="nothing is left to choose"):
        check_source(Random(0.1, always_active=("*",)), Flat())


@pytest.mark.parametrize("source", [Soft(), TopK("auto", "movement")])
def test_words_are_not_judged_by_the_signal_they_collect(source: Soft | TopK) -> None:
    """All signal is in a few words and a few columns; the columns are chosen or weighted, the words stay."""
    model = nn.ModuleDict({"words": nn.Embedding(200, 4), "linear": nn.Linear(400, 5, bias=False)})
    scores = Scores(model, folds=trainable_parameters(model))
    generator = torch.Generator().manual_seed(0)
    signal = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    signal["words.weight"][:5] = 30.0
    signal["linear.weight"][:, :8] = 30.0
    for _ in range(9):
        values = {n: s + torch.randn(s.shape, generator=generator) for n, s in signal.items()}
        scores.add(Released(values, Support.all(model), 1.0, 1))
    origin = {name: p.detach() - signal[name] for name, p in model.named_parameters()}
    support = select(source, model, Evidence(scores, origin, 1.0, 21, 3)).support
    words, linear = support["words.weight"], support["linear.weight"]
    assert words.size == 800
    assert words.weights is None
    assert linear.size < 2000 or linear.weights is not None
