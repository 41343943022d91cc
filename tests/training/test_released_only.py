"""What scores, weights and the ledger get is what was released, with the noise of its own phase."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tacit.plan import Plan
from tacit.raw.clipping import ROUNDING
from tacit.release.mechanism import Released
from tacit.support.rows import RowScores
from tacit.support.scores import Scores
from tacit.training.update import ActiveUpdate
from training.small import plan, trainer

PLANS = {
    "tp-topk": {"clip_norm": (1.5, 0.2)},
    "on-topk": {},
    "sparta": {"score": "absolute"},
    "sparta by magnitude": {"score": "magnitude"},
}


def private(name: str) -> Plan:
    return plan(name.split()[0], epsilon=30.0, **PLANS[name])


def spied(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> list[Released]:
    """Every release that is handed to a method."""
    seen: list[Released] = []
    real = getattr(kind, method)

    def spy(self: Any, released: Released) -> None:
        seen.append(released)
        real(self, released)

    monkeypatch.setattr(kind, method, spy)
    return seen


@pytest.mark.parametrize("name", PLANS)
def test_scores_and_weights_get_the_very_release(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = [
        spied(monkeypatch, kind, method)
        for kind, method in ((Scores, "add"), (RowScores, "add"), (ActiveUpdate, "step"))
    ]
    steps = list(trainer(private(name)).steps())
    expected = [step.released for step in steps if step.phase.score is not None]
    assert [id(r) for r in scored[0] + scored[1]] == [id(r) for r in expected]
    assert [id(r) for r in scored[2]] == [id(step.released) for step in steps if step.phase.updates]
    assert expected


@pytest.mark.parametrize("name", PLANS)
def test_every_phase_has_its_own_noise_and_is_charged_for_it(name: str) -> None:
    chosen = private(name)
    run = trainer(chosen)
    for step, charge in zip(run.steps(), _charges(run), strict=False):
        phase = chosen.phases[chosen.locate(step.number - 1)[0]]
        deviation = phase.noise_deviation(chosen.batch_size) * (1 + ROUNDING[torch.float64])
        assert step.released.noise_std == pytest.approx(deviation, rel=1e-9)
        assert (charge.phase, charge.noise_multiplier) == (phase.name, phase.noise_multiplier)
        assert (charge.clip_norm, charge.sampling_rate) == (phase.clip_norm, phase.sampling_rate)
    assert len(run._course.ledger) == chosen.steps
    assert run.epsilon == chosen.spent()


def _charges(run: Any) -> Any:
    while True:
        yield run._course.ledger.charges[-1]


def test_plans_here_have_phases_that_differ() -> None:
    first, second = private("tp-topk").phases
    assert first.noise_multiplier != second.noise_multiplier
    assert first.clip_norm != second.clip_norm
