"""A linear layer on sparse rows: the function of ``nn.Linear``, and the rules of embedding tables."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scipy.sparse as sparse
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from tacit import Trainer, make_plan
from tacit.data import SparseRows, Task
from tacit.errors import ArgumentError, ExampleError, ModelError
from tacit.jobs.problem import _check_ids
from tacit.losses import cross_entropy
from tacit.models import SparseLinear, suggest
from tacit.models.networks import LinearWords
from tacit.plan.methods import AdaFEST, CountedRows, Method
from tacit.raw.clipping import Clipper
from tacit.support import Support
from tacit.training.step import PrivateStep

COLUMNS, CLASSES, ROWS = 60, 3, 48


def matrix(rows: int = ROWS) -> sparse.csr_array:
    return sparse.csr_array(sparse.random(rows, COLUMNS, 0.1, random_state=3)) * 4


def data(rows: int = ROWS) -> SparseRows:
    return SparseRows(matrix(rows), torch.arange(rows) % CLASSES)


def started() -> SparseLinear:
    torch.manual_seed(0)
    model = SparseLinear(COLUMNS, CLASSES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        model.table.weight[0] = 0
    return model


def batch_of(rows: SparseRows) -> Any:
    return next(iter(DataLoader(rows, batch_size=len(rows))))


def test_it_is_the_linear_layer_of_the_dense_rows() -> None:
    model = started()
    dense = torch.from_numpy(matrix().toarray()).float()
    answers = model(batch_of(data())[0])
    assert model.bias is not None
    assert torch.allclose(answers, model.dense()(dense), atol=1e-5)
    assert torch.allclose(answers, dense @ model.table.weight[1:] + model.bias.weight[:, 0], atol=1e-5)


@pytest.mark.parametrize("clip_norm", [0.3, 2.0, 100.0])
def test_clipped_sums_are_those_of_the_linear_layer_one_example_at_a_time(clip_norm: float) -> None:
    model = started()
    plain = model.dense()
    dense, targets = torch.from_numpy(matrix().toarray()).float(), torch.arange(ROWS) % CLASSES
    found = Clipper(model, cross_entropy).clipped_sum([batch_of(data())], Support.all(model), clip_norm)
    weight, bias = (
        torch.zeros(CLASSES, COLUMNS, dtype=torch.float64),
        torch.zeros(CLASSES, dtype=torch.float64),
    )
    for row in range(ROWS):
        loss = cross_entropy(plain, (dense[row : row + 1], targets[row : row + 1])).sum()
        own = [part.double() for part in torch.autograd.grad(loss, [plain.weight, plain.bias])]
        share = min(1.0, clip_norm / math.sqrt(sum(float(part.square().sum()) for part in own)))
        weight, bias = weight + share * own[0], bias + share * own[1]
    assert torch.allclose(found.values["table.weight"][1:].double(), weight.t(), atol=1e-5)
    assert torch.allclose(found.values["bias.weight"][:, 0].double(), bias, atol=1e-5)
    assert not found.values["table.weight"][0].any()


def test_an_example_counts_the_columns_that_it_holds_once_each_whatever_their_values() -> None:
    rows = data()
    counted = Clipper(started(), cross_entropy).clipped_sum(
        [batch_of(rows)], Support.all(started()), 1.0, statistic="row-counts"
    )
    held = torch.from_numpy(matrix().toarray() != 0).double()
    expected = (held / held.sum(1, keepdim=True).clamp(min=1).sqrt()).sum(0)
    assert torch.allclose(counted.values["table.weight"].double().flatten()[1:], expected)


@pytest.mark.parametrize(
    ("method", "lazy"),
    [("dp-sgd", False), ("dp-sgd", True), (CountedRows(rows=20), False), (AdaFEST(threshold=0.5), False)],
)
def test_every_way_to_train_rows_of_a_table_trains_it(method: str | Method, lazy: bool) -> None:
    plan = make_plan(method, epsilon=30.0, delta=1e-4, examples=ROWS, batch_size=24, epochs=4)
    model = SparseLinear(COLUMNS, CLASSES)
    trainer = Trainer(
        model,
        data(),
        cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.5),
        lazy_noise=lazy,
        seed=0,
    )
    trainer.fit(progress=False)
    assert bool(model.table.weight[1:].any())
    assert bool(torch.isfinite(model.table.weight).all())


def test_without_noise_lazy_and_adaptive_training_are_that_of_the_linear_layer() -> None:
    found = []
    for lazy, layer in ((True, SparseLinear(COLUMNS, CLASSES)), (False, SparseLinear(COLUMNS, CLASSES))):
        step = PrivateStep(
            layer,
            cross_entropy,
            support=Support.all(layer),
            clip_norm=0.5,
            noise_multiplier=0.0,
            batch_size=ROWS,
            optimizer=lambda named: torch.optim.SGD(named, lr=1.0),
            lazy_noise=lazy,
        )
        for _ in range(3):
            step.step(batch_of(data()))
        step.settle()
        found.append(layer.table.weight.detach().clone())
    assert torch.allclose(found[0], found[1], atol=1e-5)


@pytest.mark.filterwarnings("ignore:Sparse CS:UserWarning")
def test_a_sparse_tensor_as_input_is_refused_and_the_way_is_named() -> None:
    dense, targets = torch.from_numpy(matrix().toarray()).float(), torch.arange(ROWS) % CLASSES
    plan = make_plan("dp-sgd", epsilon=3.0, delta=1e-4, examples=ROWS, batch_size=24, epochs=1)

    class Items(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
            return dense[place].to_sparse(), targets[place]

    for rows in (TensorDataset(dense.to_sparse(), targets), Items()):
        with pytest.raises(ModelError, match=r"tacit\.data\.SparseRows"):
            Trainer(
                nn.Linear(COLUMNS, CLASSES),
                rows,
                cross_entropy,
                plan,
                optimizer=lambda named: torch.optim.SGD(named, lr=1.0),
            ).fit(progress=False)
    model = nn.Linear(COLUMNS, CLASSES)
    step = PrivateStep(
        model,
        cross_entropy,
        support=Support.all(model),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=ROWS,
        optimizer=lambda named: torch.optim.SGD(named, lr=1.0),
    )
    with pytest.raises(ModelError, match="sparse tensor"):
        step.step((dense.to_sparse_csr(), targets))


def test_a_column_that_the_layer_does_not_have_is_one_sentence() -> None:
    model = SparseLinear(5, CLASSES)
    with pytest.raises(ModelError, match="does not have"):
        Clipper(model, cross_entropy).clipped_sum([batch_of(data())], Support.all(model), 1.0)


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize(("columns", "classes"), [(COLUMNS - 1, CLASSES), (COLUMNS, CLASSES - 1)])
def test_a_row_that_does_not_fit_is_found_before_anything_is_spent(
    tmp_path: Path, columns: int, classes: int, part: bool
) -> None:
    """However rare it is: a single row of 400 holds the last column and the last class."""
    held = sparse.lil_array((400, COLUMNS))
    held[:, 3] = 1.0
    held[217, COLUMNS - 1] = 2.0
    targets = torch.zeros(400, dtype=torch.int64)
    targets[217] = CLASSES - 1
    rows: Any = SparseRows(held, targets)
    plan = make_plan("dp-sgd", epsilon=3.0, delta=1e-4, examples=300 if part else 400, batch_size=4, epochs=1)
    with pytest.raises(ExampleError, match="ids that collate, model and loss take"):
        Trainer(
            SparseLinear(columns, classes),
            Subset(rows, range(100, 400)) if part else rows,
            cross_entropy,
            plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.5),
            run_dir=tmp_path / "run",
        ).fit(progress=False)
    assert not (tmp_path / "run").exists()


def test_more_columns_than_memory_are_refused() -> None:
    with pytest.raises(ModelError, match="hash words or columns"):
        SparseLinear(1 << 31, 1 << 20)


def test_rows_of_any_size_count_by_their_direction_in_a_model_of_sparse_rows() -> None:
    model = LinearWords(COLUMNS + 1, CLASSES)
    with torch.no_grad():
        model.words.weight.normal_()
    ids, values = torch.tensor([[3, 7, 0]]), torch.tensor([[3.0, -4.0, 9.0]])
    expected = (0.6 * model.words.weight[3] - 0.8 * model.words.weight[7]) * math.sqrt(1 - model.CONSTANT**2)
    for times in (1.0, 1e-30, 1e30):
        assert torch.allclose(model((ids, values * times))[0], expected, atol=1e-5)
    assert torch.equal(model((ids * 0, values)), torch.zeros(1, CLASSES))
    assert torch.allclose(model((ids, torch.ones(1, 3))), model(ids), atol=1e-6)


def test_held_out_rows_units_and_examples_kept_apart_work(tmp_path: Path) -> None:
    plan = make_plan("dp-sgd", epsilon=30.0, delta=1e-4, units=ROWS // 2, batch_size=12, epochs=2)
    trainer = Trainer(
        SparseLinear(COLUMNS, CLASSES),
        data(),
        cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.5),
        held_out=data(30),
        units=torch.arange(ROWS).numpy() // 2,
        run_dir=tmp_path / "run",
        seed=0,
    )
    assert 0 <= trainer.fit(progress=False).measured["accuracy"] <= 1
    plan = make_plan("dp-sgd", epsilon=30.0, delta=1e-4, examples=ROWS, batch_size=12, epochs=1)
    apart = Trainer(
        SparseLinear(COLUMNS, CLASSES),
        data(),
        cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.5),
        isolation="construction",
        seed=0,
    )
    assert apart.fit(progress=False).finished


def test_a_task_of_sparse_rows_states_as_many_columns_as_they_have() -> None:
    rows = SparseRows(matrix(), torch.arange(ROWS) % CLASSES)
    task = Task(
        name="wide",
        train=rows,
        held_out=None,
        kind="multiclass",
        input_shape=(COLUMNS,),
        classes=("a", "b", "c"),
        vocabulary=COLUMNS + 1,
    )
    assert suggest(task) == "sparse-linear"
    _check_ids(task)
    with pytest.raises(ArgumentError, match="one more, 61"):
        _check_ids(replace(task, vocabulary=COLUMNS))
