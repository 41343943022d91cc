"""Training the rows that every step chooses: charged once, moved alone, resumed exactly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from release.statistics import looks_like
from tacit import Trainer
from tacit.errors import ArgumentError
from tacit.plan import Plan, make_plan
from tacit.plan.sources import AdaptiveRows
from tacit.release.adaptive_rows import multipliers
from tacit.release.ledger import read_ledger
from tacit.runs import verify
from tacit.support import Support
from tacit.training.row_tables import NOT_COVERED
from tacit.training.step import PrivateStep
from training.small import nothing_to_learn

WORDS, WIDTH, EXAMPLES, BATCH = 500, 4, 200, 40


class Bag(nn.Module):
    """The sum of the rows of a text, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.EmbeddingBag(WORDS, WIDTH, mode="sum")
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(2)
    return TensorDataset(
        torch.randint(0, 4, (EXAMPLES, 3), generator=draw), torch.randint(2, (EXAMPLES,), generator=draw)
    )


def sgd(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=0.5)


def plan(**options: Any) -> Plan:
    settings = {"epsilon": 6.0, "accountant": "rdp", "threshold": 4.0, **options}
    return make_plan("adafest", delta=1e-5, examples=EXAMPLES, batch_size=BATCH, epochs=4, **settings)


def trainer(directory: Path | None = None, model: nn.Module | None = None, **options: Any) -> Trainer:
    settings = {"optimizer": sgd, "run_dir": directory, **options}
    return Trainer(model or Bag(), data(), loss, settings.pop("plan", plan()), **settings)


def test_a_run_moves_the_rows_that_are_used_and_few_others_and_verifies(tmp_path: Path) -> None:
    model = Bag()
    before = model.words.weight.detach().clone()
    run = trainer(tmp_path / "run", model)
    assert run.fit(progress=False).finished
    moved = (model.words.weight.detach() != before).any(1)
    assert bool(moved[:4].all())
    assert int(moved[4:].sum()) < 20  # each of 496 with a chance of 3·10⁻⁵ in each of 20 steps
    assert not verify(tmp_path / "run").problems
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert NOT_COVERED in certificate["not_covered"]
    assert "reaches 4 standard deviations of its noise" in json.dumps(certificate)
    charges = read_ledger(tmp_path / "run" / "ledger.jsonl").charges
    whole = WORDS * (WIDTH + 1) + sum(p.numel() for p in model.head.parameters())
    assert {charge.active for charge in charges} == {whole}
    assert {charge.noise_multiplier for charge in charges} == {run.plan.phases[0].noise_multiplier}


def test_gradients_of_all_parameters_have_the_noise_that_is_left_to_them() -> None:
    model = nn.Sequential()
    model.add_module("words", nn.EmbeddingBag(30, 1500, mode="sum"))
    model.add_module("head", nn.Linear(1500, 2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    step = nothing_to_learn(model, adaptive_rows=AdaptiveRows(threshold=0.5, selection_share=0.25))
    released = step.step(torch.tensor([[1, 2], [1, 1]]))
    deviation = multipliers(3.0, 0.25)[1] * 2.0 * (1 + 2.0**-8) / 4
    assert released.noise_std == pytest.approx(deviation)
    chosen = released.chosen["words.weight"]
    moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    assert sorted(moved["words.weight"].any(1).nonzero().flatten().tolist()) == chosen.tolist()
    assert looks_like(moved["words.weight"][chosen], 0.5 * deviation)
    assert looks_like(moved["head.weight"], 0.5 * deviation)
    assert [charge.noise_multiplier for charge in step.ledger.charges] == [3.0]


def test_a_gradient_that_was_left_on_a_table_does_not_move_it() -> None:
    model = Bag()
    before = model.words.weight.detach().clone()
    step = PrivateStep(
        model,
        loss,
        support=Support.all(model),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=BATCH,
        optimizer=sgd,
        adaptive_rows=AdaptiveRows(threshold=4.0),
    )
    examples = data()[:BATCH]
    loss(model, (examples[0] + 100, examples[1])).sum().backward()
    released = step.step(examples)
    moved = (model.words.weight.detach() != before).any(1).nonzero().flatten()
    assert set(moved.tolist()) <= set(released.chosen["words.weight"].tolist())
    assert model.words.weight.grad is None


def test_without_noise_steps_are_those_of_plain_clipped_sgd() -> None:
    found = []
    for options in ({}, {"adaptive_rows": AdaptiveRows()}):
        model = Bag()
        step = PrivateStep(
            model,
            loss,
            support=Support.all(model),
            clip_norm=0.5,
            noise_multiplier=0.0,
            batch_size=BATCH,
            optimizer=sgd,
            **options,  # type: ignore[arg-type]
        )
        for start in (0, 40, 80):
            step.step(data()[start : start + 40])
        found.append([p.detach().clone() for p in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_run_that_is_stopped_and_resumed_is_the_run_that_is_not(tmp_path: Path) -> None:
    whole, again = Bag(), Bag()
    trainer(None, whole, seed=5).fit(progress=False)
    first = trainer(tmp_path / "run", Bag(), seed=5)
    for step in first.steps():
        if step.number == 7:
            first.save()
            break
    first.close()
    trainer(tmp_path / "run", again, seed=5).resume(progress=False)
    assert torch.equal(whole.words.weight, again.words.weight)


def test_what_it_cannot_serve_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Adam moves rows"):
        trainer(optimizer=lambda named: torch.optim.Adam(named))
    with pytest.raises(ArgumentError, match="trains none"):
        trainer(model=nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(ArgumentError, match="chooses or scores"):
        trainer(lazy_noise=True)
    with pytest.raises(ArgumentError, match="threshold"):
        plan(threshold=-1.0)
    assert math.isfinite(plan(threshold=3).phases[0].noise_multiplier)
