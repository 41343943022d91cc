from __future__ import annotations

import math

import pytest
import torch

from tacit.jobs.held_out import auc, explained, measures, threshold_of


def test_auc_counts_pairs_and_ties_half() -> None:
    outputs = torch.tensor([0.1, 0.4, 0.4, 0.8, 0.3])
    targets = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    pairs = [(p, n) for p in (0.4, 0.8) for n in (0.1, 0.4, 0.3)]
    expected = sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)
    assert auc(outputs, targets) == pytest.approx(expected)
    assert auc(-outputs, targets) == pytest.approx(1 - expected)


def test_auc_is_sklearns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(3)
    outputs = (torch.randn(500, 1, generator=generator) * 4).round()
    targets = (torch.rand(500, 1, generator=generator) < 0.1).float()
    assert auc(outputs, targets) == pytest.approx(metrics.roc_auc_score(targets.numpy(), outputs.numpy()))


def test_auc_of_one_class_or_of_nonsense_is_not_a_number() -> None:
    assert math.isnan(auc(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0])))
    assert math.isnan(auc(torch.tensor([1.0, math.nan]), torch.tensor([1.0, 0.0])))


def test_the_threshold_is_the_prevalence() -> None:
    found = measures("binary", 0.2)
    logits = torch.logit(torch.tensor([0.1, 0.19, 0.21, 0.9]))
    targets = torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert found["sensitivity"](logits, targets) == 0.5
    assert found["specificity"](logits, targets) == 0.5
    assert found["balanced_accuracy"](logits, targets) == 0.5
    plain = measures("binary")
    assert plain["specificity"](logits, targets) == 1.0
    assert threshold_of(None) == 0
    assert threshold_of(0.082) == pytest.approx(math.log(0.082 / 0.918))


def test_explained_variance() -> None:
    targets = torch.tensor([1.0, 2.0, 3.0])
    assert explained(targets, targets) == 1
    assert explained(torch.full((3,), 2.0), targets) == 0
    assert math.isnan(explained(targets, torch.ones(3)))
    assert next(iter(measures("regression"))) == "r2"
    assert next(iter(measures("multiclass"))) == "accuracy"
