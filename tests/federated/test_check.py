from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from tacit.errors import ArgumentError
from tacit.federated import check
from tacit.federated.check import check_mechanism, clopper_pearson, exact_perturbation_epsilon
from tacit.federated.perturbation import perturbation


@pytest.mark.parametrize("name", ["exp", "pe", "ps", "random"])
@pytest.mark.parametrize("perturb", [None, "pm", "hm", "duchi", "laplace"])
def test_claims_hold_exactly_and_on_samples(name: str, perturb: str | None) -> None:
    second = None if perturb is None else 0.8
    report = check_mechanism(name, 12, 3, 1.0, perturb, second, samples=40_000, seed=2)
    assert report.holds
    assert report.sampled is not None
    assert report.sampled.lower <= report.exact_epsilon <= report.sampled.upper


def test_published_encoding_does_not_hold() -> None:
    report = check_mechanism("pe-paper", 10, 1, 1.0)
    assert not report.holds
    assert report.exact_epsilon == pytest.approx(1.173, abs=5e-4)


def test_samples_alone_convict_published_encoding() -> None:
    report = check_mechanism("pe-paper", 10, 1, 1.0, samples=600_000, confidence=0.999, seed=1)
    assert report.sampled is not None
    assert report.sampled.lower > 1.0


@pytest.mark.parametrize("perturb", ["pm", "hm", "duchi", "laplace"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_enumerated_epsilon_of_a_perturbation_is_its_epsilon(perturb: str, epsilon: float) -> None:
    exact = exact_perturbation_epsilon(perturbation(perturb, epsilon))
    assert epsilon - 1e-6 <= exact <= epsilon + 1e-12


def test_controls_are_reported_as_not_private() -> None:
    assert check_mechanism("topk", 10, 1, 1.0).exact_epsilon == math.inf
    assert not check_mechanism("topk", 10, 1, 1.0).holds
    assert not check_mechanism("ps", 10, 1, 1.0, "none", 1.0).holds


def test_a_sampler_with_too_little_noise_is_caught_by_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = check.sample_coordinates
    strong = check.selection_law("ps", 12, 3, 2.0)
    monkeypatch.setattr(check, "sample_coordinates", lambda law, m, rng: honest(strong, m, rng))
    report = check_mechanism("ps", 12, 3, 1.0, samples=40_000)
    assert report.sampled is not None
    assert report.sampled.lower > 1.0


@pytest.mark.parametrize("p", [0.01, 0.3, 0.97])
def test_clopper_pearson_covers(p: float) -> None:
    trials, error = 60, 0.05
    hits = np.arange(trials + 1)
    bounds = np.array([clopper_pearson(int(h), trials, error) for h in hits])
    weight = binom.pmf(hits, trials, p)
    assert weight[bounds[:, 0] > p].sum() <= error
    assert weight[bounds[:, 1] < p].sum() <= error


def test_perturbation_needs_its_epsilon() -> None:
    with pytest.raises(ArgumentError, match="go together"):
        check_mechanism("ps", 10, 1, 1.0, "pm")
