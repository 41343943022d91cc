"""Columns, calibration and cautions on the page."""

from __future__ import annotations

import pytest
import torch

from tacit.jobs.explanation import ColumnShape, Explanation
from tacit.jobs.held_out import count_predictions
from tacit.report.sections.calibration import calibration, no_better_than_guessing


def counts(logits: torch.Tensor, positive: torch.Tensor) -> object:
    return count_predictions(logits, positive.long(), ("no", "yes"))


def test_calibration_groups_hold_all_rows_and_what_was_found_in_them() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(20_000, generator=generator)
    positive = torch.rand(20_000, generator=generator) < torch.sigmoid(logits)
    found = counts(logits, positive)
    groups = calibration(found, found.thresholds)  # type: ignore[attr-defined,arg-type]
    assert 8 <= len(groups) <= 11
    assert sum(rows for _, _, rows in groups) == 20_000
    assert sum(hits for _, hits, _ in groups) == int(positive.sum())
    for predicted, hits, rows in groups:
        assert hits / rows == pytest.approx(predicted, abs=0.04)
    sharper = counts(3 * logits, positive)
    overconfident = calibration(sharper, sharper.thresholds)  # type: ignore[attr-defined,arg-type]
    assert max(abs(hits / rows - p) for p, hits, rows in overconfident) > 0.1


def test_logits_beyond_the_grid_are_counted_too() -> None:
    found = counts(torch.tensor([-50.0, 50.0, 50.0, -50.0]), torch.tensor([0, 1, 1, 1]))
    groups = calibration(found, found.thresholds)  # type: ignore[attr-defined,arg-type]
    assert [(hits, rows) for _, hits, rows in groups] == [(1, 2), (2, 2)]


def test_a_model_that_guesses_is_named_and_a_good_one_is_not() -> None:
    generator = torch.Generator().manual_seed(1)
    positive = torch.rand(2000, generator=generator) < 0.1
    noise = torch.randn(2000, generator=generator)
    caution = no_better_than_guessing(counts(noise, positive))  # type: ignore[arg-type]
    assert caution is not None
    assert "no better than guessing" in caution
    assert no_better_than_guessing(counts(noise + 2 * positive, positive)) is None  # type: ignore[arg-type]
    same = count_predictions(torch.tensor([[9.0, 0, 0]] * 6), torch.tensor([0, 0, 0, 0, 1, 2]), "abc")
    assert "66.7 %" in str(no_better_than_guessing(same))
    right = count_predictions(torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 2, 0, 1, 2]), "abc")
    assert no_better_than_guessing(right) is None


def test_importance_is_clear_from_twice_the_noise_on() -> None:
    shape = ColumnShape("x", "number", (), (), None, 1.0, 0.5)
    assert shape.clear
    assert not ColumnShape("x", "number", (), (), None, 0.99, 0.5).clear
    assert not ColumnShape("x", "number", (), (), None, 1.0, None).clear
    assert Explanation("y", ("y",), (shape,)).columns == (shape,)
