"""Training embedding rows by private frequency: counted, charged, noised, then chosen."""

from __future__ import annotations

import json
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
from tacit.release.ledger import read_ledger
from tacit.runs import verify

WORDS, WIDTH, EXAMPLES, BATCH = 400, 4, 300, 60
FREQUENT = range(20, 30)


class Bag(nn.Module):
    """The mean of the rows of a text, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(2)
    rare = torch.randint(30, WORDS, (EXAMPLES, 2), generator=draw)
    frequent = torch.randint(FREQUENT.start, FREQUENT.stop, (EXAMPLES, 6), generator=draw)
    return TensorDataset(torch.cat([rare, frequent], 1), torch.randint(2, (EXAMPLES,), generator=draw))


def plan(**options: Any) -> Plan:
    settings: dict[str, Any] = {"rows": 10, "epsilon": 6.0, "accountant": "rdp", **options}
    return make_plan("counted-rows", delta=1e-5, examples=EXAMPLES, batch_size=BATCH, epochs=6, **settings)


def trainer(
    plan: Plan, directory: Path | None = None, model: nn.Module | None = None, **options: Any
) -> Trainer:
    sgd = lambda named: torch.optim.SGD(named, lr=0.5)  # noqa: E731
    return Trainer(model or Bag(), data(), loss, plan, optimizer=sgd, run_dir=directory, **options)


def test_frequent_rows_and_all_other_parameters_are_trained_and_other_rows_keep_every_bit(
    tmp_path: Path,
) -> None:
    model = Bag()
    before = model.words.weight.detach().clone()
    run = trainer(plan(), tmp_path / "run", model)
    assert run.fit(progress=False).finished
    moved = (model.words.weight.detach() != before).any(1).nonzero().flatten().tolist()
    assert moved == list(FREQUENT)
    assert run.support.size == 10 * WIDTH + sum(p.numel() for p in model.head.parameters())
    assert not verify(tmp_path / "run").problems
    charges = read_ledger(tmp_path / "run" / "ledger.jsonl").charges
    counted = [charge for charge in charges if charge.phase == "counts"]
    assert [charge.active for charge in counted] == [WORDS] * 5
    text = json.dumps(json.loads((tmp_path / "run" / "certificate.json").read_text()))
    assert "noisy counts of the examples that use each row" in text


def test_counts_carry_the_noise_that_was_charged() -> None:
    run = trainer(plan(epsilon=0.5))
    for step in run.steps():
        if step.phase.name != "counts":
            break
        values = step.released.values["words.weight"]
        assert set(step.released.values) == {"words.weight"}
        unused = torch.cat([values[:20], values[400:]])  # no text has these words
        assert looks_like(unused, step.released.noise_std)
        expected = step.phase.noise_multiplier * step.phase.clip_norm * (1 + 2.0**-8) / BATCH
        assert step.released.noise_std == pytest.approx(expected)


def test_a_run_that_is_stopped_while_it_counts_goes_on_counting(tmp_path: Path) -> None:
    whole, parted = Bag(), Bag()
    trainer(plan(), tmp_path / "whole", whole, seed=4).fit(progress=False)
    first = trainer(plan(), tmp_path / "parted", parted, seed=4)
    for step in first.steps():
        if step.number == 3:
            first.save()
            break
    first.close()
    again = Bag()
    trainer(plan(), tmp_path / "parted", again, seed=4).resume(progress=False)
    assert torch.equal(whole.words.weight, again.words.weight)


def test_models_without_tables_or_with_too_few_rows_are_refused_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    plain = nn.Sequential(nn.Linear(8, 2))
    with pytest.raises(ArgumentError, match="there is none to choose from"):
        trainer(plan(), tmp_path / "run", plain)
    with pytest.raises(ArgumentError, match="has 400 rows, fewer than the 500"):
        trainer(plan(rows=500), tmp_path / "run")
    assert not (tmp_path / "run").exists()
