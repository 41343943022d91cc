"""Training with lazy noise: the same sums, the same distribution, through steps, checkpoints and certificates."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from release.statistics import looks_like
from tacit import Trainer
from tacit.errors import ArgumentError, ModelError
from tacit.plan import make_plan
from tacit.raw.clipping import Clipper
from tacit.raw.row_tables import RowSum
from tacit.raw.units import UnitBatch
from tacit.release.lazy_noise import LazyTable
from tacit.release.noise import SecureNoise
from tacit.runs import verify
from tacit.support import Support
from tacit.tensors import read_tensors
from tacit.training import fitting, schedules
from tacit.training.row_tables import NOT_COVERED
from tacit.training.step import PrivateStep
from training.small import nothing_to_learn

WORDS, WIDTH, LENGTH = 300, 6, 5


class Mean(nn.Module):
    """The mean of the rows of a text, then a linear layer."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=padding)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).tanh().mean(1))


class Twice(Mean):
    """One table, looked up for both halves of a text."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids[:, :2]).mean(1) * self.words(ids[:, 2:]).mean(1))


class Bag(nn.Module):
    """The layer that sums or averages rows itself."""

    def __init__(self, mode: str, padding: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.EmbeddingBag(WORDS, WIDTH, mode=mode, padding_idx=padding)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "embedding": Mean,
    "embedding with padding": lambda: Mean(padding=4),
    "a table looked up twice": Twice,
    "sums": lambda: Bag("sum"),
    "means": lambda: Bag("mean"),
    "means with padding": lambda: Bag("mean", padding=4),
    "sums with padding": lambda: Bag("sum", padding=4),
}


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def texts(count: int = 12, seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(40, (count, LENGTH), generator=draw)
    ids[0] = 4  # one word, again and again
    return ids, torch.randint(3, (count,), generator=draw)


def whole(rows: RowSum) -> Tensor:
    """All sums of a table."""
    found = torch.zeros(rows.shape, dtype=torch.float64)
    for index, values in rows.tiles():
        found[index] = values
    return found


def sgd(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=0.5)


def private(model: nn.Module, **options: Any) -> PrivateStep:
    settings: dict[str, Any] = {
        "support": Support.all(model),
        "clip_norm": 0.3,
        "noise_multiplier": 1e-4,
        "batch_size": 12,
        "optimizer": sgd,
    }
    return PrivateStep(model, loss, **{**settings, **options})


@pytest.mark.parametrize("name", MODELS)
def test_sums_over_the_rows_that_occur_are_those_of_per_example_gradients(name: str) -> None:
    """Against plain autograd, one example at a time."""
    model = MODELS[name]()
    table = LazyTable("words.weight", model.get_parameter("words.weight"), SecureNoise(), lambda: 1.0)
    ids, targets = texts()
    clipper = Clipper(model, loss, tables={"words.weight": table})
    found = clipper.clipped_sum([(ids[:7], targets[:7]), (ids[7:], targets[7:])], Support.all(model), 0.3)
    expected = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]
    for row in range(len(ids)):
        own = torch.autograd.grad(
            loss(model, (ids[row : row + 1], targets[row : row + 1])).sum(), list(model.parameters())
        )
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in own))
        for total, gradient in zip(expected, own, strict=True):
            total += gradient.double() * min(1.0, 0.3 / norm)
    rows = found.rows["words.weight"]
    assert torch.allclose(whole(rows), expected[0], atol=1e-6)
    assert len(rows.index) <= 40
    assert set(found.values) == {"head.weight", "head.bias"}
    assert found.size == sum(p.numel() for p in model.parameters())


def test_sums_of_units_are_those_of_whole_tables() -> None:
    ids, targets = texts()
    units = UnitBatch((ids, targets), [row // 3 for row in range(12)])
    model = Mean()
    table = LazyTable("words.weight", model.words.weight, SecureNoise(), lambda: 1.0)
    lazy = Clipper(model, loss, tables={"words.weight": table}).clipped_sum([units], Support.all(model), 0.3)
    dense = Clipper(model, loss).clipped_sum([units], Support.all(model), 0.3)
    assert torch.allclose(whole(lazy.rows["words.weight"]), dense.values["words.weight"].double(), atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_steps_with_next_to_no_noise_are_those_of_the_dense_mechanism(name: str) -> None:
    dense, lazy = MODELS[name](), MODELS[name]()
    with torch.no_grad():  # small weights, so that little noise is not drawn for every row at once
        for model in (dense, lazy):
            model.get_parameter("words.weight").mul_(1e-3)
    steps = [private(dense), private(lazy, lazy_noise=True)]
    for seed in range(4):
        for step in steps:
            step.step(texts(seed=seed))
    steps[1].settle()
    for one, other in zip(dense.parameters(), lazy.parameters(), strict=True):
        assert torch.allclose(one, other, atol=5e-5)


def test_through_real_steps_rows_have_the_noise_of_every_step_touched_or_not() -> None:
    model = nn.Sequential()
    model.add_module("words", nn.EmbeddingBag(30, 1500, mode="sum"))
    before = model.get_parameter("words.weight").detach().clone()

    step = nothing_to_learn(model, lazy_noise=True)
    for rows in ([[0, 1]], [[0, 2], [0, 2]], [[1, 1]], None):
        step.step(None if rows is None else torch.tensor(rows))
    assert bool(model.get_parameter("words.weight").isnan().all())
    step.settle()
    moved = model.get_parameter("words.weight").detach() - before
    deviation = 0.5 * 3.0 * 2.0 / 4 * math.sqrt(4)
    for part in (moved[0], moved[1], moved[2], moved[3:]):
        assert looks_like(
            part, deviation * (1 + 2.0**-8)
        )  # the sensitivity covers rounding, and so does the noise
    assert [charge.active for charge in step.ledger.charges] == [30 * 1500] * 4


def test_looks_at_the_model_walk_over_no_large_table() -> None:
    """A table of 2 GB that no pass may copy or fill: its memory is never touched but in the rows that are read."""
    model = Mean()
    model.words = nn.Embedding(8, WIDTH)
    model.words.weight = nn.Parameter(torch.zeros(1).expand(90_000_000, WIDTH))
    model.words.num_embeddings = 90_000_000
    table = LazyTable("words.weight", model.words.weight, SecureNoise(), lambda: 1.0)
    clipper = Clipper(model, loss, tables={"words.weight": table})
    ids, targets = texts()
    found = clipper.clipped_sum([(ids * 2_000_000, targets)], Support.all(model), 0.3)
    assert found.size > 90_000_000 * WIDTH
    assert len(found.rows["words.weight"].index) <= 40


def test_a_model_that_mixes_examples_is_refused_with_lazy_noise_too() -> None:
    class Mixing(Mean):
        def forward(self, ids: Tensor) -> Tensor:
            rows = self.words(ids).mean(1)
            return self.head(rows - rows.mean(0))

    with pytest.raises(ModelError, match="depends on the other examples"):
        private(Mixing(), lazy_noise=True).step(texts())


def test_tables_of_hugging_face_models_are_read_row_by_row() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=9,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).logits, batch[1], reduction="none")

    names = [f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")]
    tables = {n: LazyTable(n, model.get_parameter(n), SecureNoise(), lambda: 1.0) for n in names}
    ids, targets = texts(6)
    chunk = [(ids, targets % 2)]
    lazy = Clipper(model, losses, tables=tables).clipped_sum(chunk, Support.all(model), 0.3)
    dense = Clipper(model, losses).clipped_sum(chunk, Support.all(model), 0.3)
    for name in names:
        assert torch.allclose(whole(lazy.rows[name]), dense.values[name].double(), atol=1e-7)
    for name, value in lazy.values.items():
        assert torch.allclose(value.double(), dense.values[name].double(), atol=1e-6)


# Refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda named: torch.optim.Adam(named), "Adam moves rows"),
        (lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9), "SGD with momentum moves"),
        (lambda named: torch.optim.SGD(named, lr=0.1, weight_decay=0.1), "SGD with weight_decay moves"),
        (lambda named: torch.optim.SGD(named, lr=0.1, maximize=True), "SGD with maximize moves"),
    ],
)
def test_optimizers_that_make_something_else_of_noise_are_refused(optimizer: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        private(Mean(), lazy_noise=True, optimizer=optimizer)


def test_an_optimizer_that_gets_momentum_later_is_refused_before_the_table_moves() -> None:
    model = Mean()
    step = private(model, lazy_noise=True)
    step.optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(ArgumentError, match="SGD with momentum"):
        step.step(texts())


def test_tied_tables_are_refused_as_modules_and_as_functions() -> None:
    class Tied(Mean):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, WORDS, bias=False)
            self.head.weight = self.words.weight

    class Hidden(Mean):
        def forward(self, ids: Tensor) -> Tensor:
            return F.linear(self.words(ids).mean(1), self.words.weight)

    class Looked(Mean):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * self.words.weight.detach().norm()

    with pytest.raises(ArgumentError, match=r"also a parameter of head \(Linear\)"):
        private(Tied(), lazy_noise=True)
    for model in (Hidden(), Looked()):
        step = private(model, lazy_noise=True)
        with pytest.raises(ModelError, match="used in another way"):
            step.step(texts())
        assert not len(step.ledger)


def test_what_lazy_noise_cannot_serve_is_refused_before_anything_is_charged() -> None:
    with pytest.raises(ArgumentError, match="trains none"):
        private(nn.Sequential(nn.Linear(3, 3)), lazy_noise=True)
    model = Mean()
    with pytest.raises(ArgumentError, match="active as a whole"):
        private(model, lazy_noise=True, support=Support.random(model, ratio=0.5, seed=1))
    step = private(model, lazy_noise=True)
    with pytest.raises(ArgumentError, match="active as a whole"):
        step.support = Support.random(model, ratio=0.5, seed=1)
    with pytest.raises(ArgumentError, match="probed"):
        private(Mean(), lazy_noise=True, isolation="construction")


def test_bags_that_nobody_can_take_apart_are_refused() -> None:
    model = Bag("max")
    with pytest.raises(ModelError, match="sums and means"):
        private(model, lazy_noise=True).step(texts())


def test_an_id_that_the_table_does_not_have_costs_nothing() -> None:
    step = private(Mean(), lazy_noise=True)
    ids, targets = texts()
    ids[3, 2] = WORDS
    with pytest.raises(ModelError, match="its rows are 0 to 299"):
        step.step((ids, targets))
    assert not len(step.ledger)


# Runs ---------------------------------------------------------------------------------------------------------


def trainer(directory: Path | None = None, model: nn.Module | None = None, **options: Any) -> Trainer:
    plan = make_plan("dp-sgd", epsilon=4.0, delta=1e-5, examples=40, batch_size=8, epochs=4, accountant="rdp")
    settings: dict[str, Any] = {"optimizer": sgd, "run_dir": directory, "lazy_noise": True}
    data = TensorDataset(*texts(40))
    return Trainer(model or Mean(), data, loss, plan, **{**settings, **options})


@pytest.mark.parametrize("schedule", [schedules.constant, schedules.cosine])
def test_a_run_ends_with_weights_that_were_noised_everywhere_and_says_what_its_timing_tells(
    tmp_path: Path, schedule: schedules.Schedule
) -> None:
    model = Mean()
    before = copy.deepcopy(model.words.weight.detach())
    run = trainer(tmp_path / "run", model, schedule=schedule, held_out=TensorDataset(*texts(9, seed=8)))
    result = run.fit(progress=False)
    assert result.finished
    assert result.measured["loss"] > 0
    released, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    assert torch.equal(released["words.weight"], model.words.weight)
    phase = run.plan.phases[0]
    factors = [schedule(step, run.plan.steps) for step in range(run.plan.steps)]
    deviation = 0.5 * phase.noise_deviation(8) * math.sqrt(sum(f**2 for f in factors)) * (1 + 2.0**-8)
    assert looks_like((model.words.weight.detach() - before)[40:], deviation)
    assert NOT_COVERED in json.loads((tmp_path / "run" / "certificate.json").read_text())["not_covered"]
    assert not verify(tmp_path / "run").problems


def test_a_checkpoint_owes_nothing_and_a_run_goes_on_from_it_after_a_crash(tmp_path: Path) -> None:
    model = Mean()
    before = model.words.weight.detach().clone()
    run = trainer(tmp_path / "run", model)
    for step in run.steps():
        assert bool(model.words.weight.isnan().all())
        if step.number == 6:
            run.save()
            saved = model.words.weight.detach().clone()
            assert bool(saved.isfinite().all())
        if step.number == 9:
            break
    run.close()
    again = trainer(tmp_path / "run", Mean())
    again.load()
    assert torch.equal(again.model.get_parameter("words.weight"), saved)
    result = again.resume(progress=False)
    assert result.finished
    assert result.steps == again.plan.steps - 3
    deviation = 0.5 * again.plan.phases[0].noise_deviation(8) * math.sqrt(result.steps) * (1 + 2.0**-8)
    assert looks_like((again.model.get_parameter("words.weight").detach() - before)[40:], deviation)


def test_a_run_that_is_interrupted_as_rows_get_their_noise_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    model = Mean()
    run = trainer(tmp_path / "run", model)
    steps = run.steps()
    for _ in range(6):
        next(steps)
    run.save()
    saved = model.words.weight.detach().clone()
    next(steps)
    monkeypatch.setattr(LazyTable, "_owe", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    monkeypatch.undo()
    for use in (run.save, run.settle, lambda: run.predict(texts(2)[0])):
        with pytest.raises(ModelError, match="go on from the last checkpoint"):
            use()
    run.close()
    assert bool(model.words.weight.isnan().all())
    run.load()
    assert torch.equal(model.words.weight, saved)
    assert run.resume(progress=False).finished
    assert not verify(tmp_path / "run").problems


def test_a_seeded_run_repeats_itself() -> None:
    found = []
    for _ in range(2):
        model = Mean()
        trainer(None, model, seed=3).fit(progress=False)
        found.append(model.words.weight.detach().clone())
    assert torch.equal(*found)


def test_the_clock_decides_nothing_in_a_seeded_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "REPORTS", 1)
    found = []
    for seconds in (0.0, 1e9):
        model = Mean()
        run = trainer(tmp_path / f"{seconds}", model, seed=3, checkpoint_seconds=seconds)
        run.fit(progress=False)
        found.append(model.words.weight.detach().clone())
    assert torch.equal(*found)


def test_plans_and_averages_that_need_every_value_are_refused() -> None:
    with pytest.raises(ArgumentError, match="leave out average"):
        trainer(average=0.9)
    plan = make_plan(
        "tp-topk",
        epsilon=4.0,
        delta=1e-5,
        examples=40,
        batch_size=8,
        epochs=4,
        active_ratio=0.5,
        accountant="rdp",
    )
    with pytest.raises(ArgumentError, match="chooses or scores coordinates"):
        Trainer(Mean(), TensorDataset(*texts(40)), loss, plan, optimizer=sgd, lazy_noise=True)
