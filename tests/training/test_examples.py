"""Examples that a model or loss does not take, or that count for nothing, and what users bring in place of data sets.

They are found before ε is spent, or told in a sentence that gives none away.
"""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import tacit
from tacit.errors import ArgumentError, ExampleError, ModelError, TacitError
from tacit.losses import Loss, binary_cross_entropy, cross_entropy, huber_error, next_token, squared_error
from tacit.plan import make_plan
from tacit.raw.first_look import odd_positions
from tacit.runs import verify

EXAMPLES = 60


def rows() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(EXAMPLES, 4, generator=draw), torch.randint(3, (EXAMPLES,), generator=draw)


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def trainer(
    data: Any, loss: Loss = cross_entropy, model: nn.Module | None = None, **options: Any
) -> tacit.Trainer:
    plan = make_plan(
        "dp-sgd",
        epsilon=4.0,
        delta=1e-3,
        examples=EXAMPLES,
        batch_size=20,
        epochs=4,
        accountant="rdp",
    )
    return tacit.Trainer(
        model or network(),
        data,
        loss,
        plan,
        **{"optimizer": lambda named: torch.optim.SGD(named, lr=0.1), **options},
    )


class Items(Dataset[Any]):
    """Examples that are made one by one, as a data set of one's own makes them; ``odd`` are replaced."""

    def __init__(self, odd: dict[int, Any] | None = None) -> None:
        self.odd = odd or {}

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, place: int) -> Any:
        x, y = rows()
        return self.odd.get(place, (x[place], y[place]))


# Numbers that are not finite ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("isolation", ["probed", "construction"])
def test_data_of_which_nothing_counts_is_refused(value: float, isolation: Any, tmp_path: Path) -> None:
    data = TensorDataset(torch.full((EXAMPLES, 4), value), rows()[1])
    with pytest.raises(ModelError, match=r"None of 60 examples.* finite loss and gradient"):
        trainer(data, isolation=isolation, run_dir=tmp_path / "run").fit(progress=False)
    assert not (tmp_path / "run").exists()


def test_a_few_such_rows_are_told_once_and_count_as_zero() -> None:
    x, y = rows()
    x[7, 1], x[8, 0] = float("nan"), float("inf")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert trainer(TensorDataset(x, y), seed=1).fit(progress=False).finished
    told = [one for one in seen if "count as zero" in str(one.message)]
    assert len(told) == 1
    assert told[0].filename == __file__


def test_a_model_that_fills_in_missing_values_is_not_warned_of() -> None:
    class Filling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = network()

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.inside(x.nan_to_num())
            return answer

    x, y = rows()
    x[::2, 1] = float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(TensorDataset(x, y), model=Filling()).fit(progress=False)


def test_weights_that_are_no_numbers_are_told() -> None:
    def exploding(named: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(named, lr=1e30, weight_decay=1.0)

    with pytest.warns(UserWarning, match="trained weights are not finite"):
        trainer(TensorDataset(*rows()), optimizer=exploding).fit(progress=False)


def test_a_held_out_loss_that_is_no_number_is_told() -> None:
    x, y = rows()
    held_out = TensorDataset(torch.full((5, 4), float("nan")), y[:5].clone())
    with pytest.warns(UserWarning, match="loss on the held-out data is not finite"):
        trainer(TensorDataset(x, y), held_out=held_out).fit(progress=False)


# Losses without a gradient --------------------------------------------------------------------------


def contrastive(model: nn.Module, batch: Any) -> Tensor:
    found = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(found @ found.T / 0.1, torch.arange(len(found)), reduction="none")


@pytest.mark.parametrize(
    ("loss", "isolation", "words"),
    [
        (contrastive, "probed", "depends on the other examples of its batch"),
        (contrastive, "construction", "The loss compares the examples of a batch"),
        (
            lambda model, batch: model(batch[0]).detach().square().sum(1),
            "probed",
            "does not depend on the trained parameters",
        ),
    ],
)
def test_a_loss_from_which_nothing_can_be_learnt_is_refused(
    loss: Loss, isolation: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=words):
        trainer(TensorDataset(*rows()), loss, isolation=isolation, run_dir=tmp_path / "run").fit(
            progress=False
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("isolation", ["probed", "construction"])
def test_examples_that_have_nothing_to_teach_yet_are_no_reason_to_stop(isolation: Any) -> None:
    """As a hinge that is satisfied, or places that hold nothing."""

    def hinge(model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = F.relu(model(batch[0]).sum(1) - 1e3)
        return loss

    assert trainer(TensorDataset(*rows()), hinge, isolation=isolation).fit(progress=False).finished


# Examples that do not go through --------------------------------------------------------------------


def with_label(value: int) -> TensorDataset:
    x, y = rows()
    y[-2] = value
    return TensorDataset(x, y)


def listed(data: TensorDataset) -> list[Any]:
    return [data[place] for place in range(len(data))]


@pytest.mark.parametrize("isolation", ["probed", "construction"])
@pytest.mark.parametrize(
    "data",
    [
        with_label(7),
        with_label(-1),
        Subset(with_label(7), range(EXAMPLES)),
        listed(with_label(7)),
    ],
)
def test_an_example_that_would_stop_the_run_is_found_before_it_starts(
    data: Any, isolation: Any, tmp_path: Path
) -> None:
    for _ in range(4):  # whichever examples are looked at first
        with pytest.raises(ExampleError, match="An example cannot be worked on") as found:
            trainer(data, isolation=isolation, run_dir=tmp_path / "run").fit(progress=False)
        message = re.sub(r"line \d+", "", str(found.value))
        assert not any(words in message for words in ("7", "-1", "58", "59", "Target", "size"))
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("isolation", ["probed", "construction"])
def test_an_example_of_another_shape_is_found_before_the_run_starts(isolation: Any) -> None:
    data = [*listed(TensorDataset(*rows()))[:-1], (torch.zeros(9), 1)]
    for _ in range(4):
        with pytest.raises(ExampleError, match=r"have different shapes|An example cannot be worked on"):
            trainer(data, isolation=isolation).fit(progress=False)


class Ragged(Items):
    def __getitem__(self, place: int) -> Any:
        return torch.ones(4, 1 + place % 5), torch.tensor(0)


def test_examples_of_many_lengths_need_a_collate() -> None:
    model = nn.Sequential(nn.Conv1d(4, 3, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    for _ in range(4):
        with pytest.raises(ModelError, match=r"different shapes.*give collate= that pads them"):
            trainer(Ragged(), model=model).fit(progress=False)


def test_labels_that_the_loss_ignores_are_no_reason_to_stop() -> None:
    assert trainer(with_label(-100)).fit(progress=False).finished


@pytest.mark.parametrize("odd", [(torch.zeros(9), torch.tensor(1)), (torch.zeros(4), torch.tensor(7))])
def test_an_example_that_stops_a_run_stays_private_and_the_run_goes_on_with_mended_data(
    odd: Any, tmp_path: Path
) -> None:
    """In data that is not in memory it shows when it is drawn: nothing is lost but the rest of the run."""
    data = Items()
    run = trainer(data, run_dir=tmp_path / "run", seed=2, checkpoint_seconds=1e9)
    steps = run.steps

    def spoiled() -> Any:
        for step in steps():
            yield step
            if step.number == 3:
                data.odd = dict.fromkeys(range(EXAMPLES), (torch.zeros(4), torch.tensor(0)))
                data.odd[41] = odd
                data.odd.update(dict.fromkeys(range(20), odd))

    run.steps = spoiled  # type: ignore[method-assign]
    with pytest.raises(ExampleError, match="What was charged stays charged") as found:
        run.fit(progress=False)
    message = str(found.value)
    assert not any(words in message for words in ("Target", "[9]", "entry", "equal size"))
    assert found.value.__suppress_context__
    data.odd = {}
    again = trainer(data, run_dir=tmp_path / "run", seed=2)
    result = again.resume(progress=False)
    assert result.finished
    assert result.steps == again.plan.steps  # those before the odd example were not lost
    assert verify(tmp_path / "run").agrees


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_data_set_stays_private(workers: int) -> None:
    class Failing(Items):
        def __getitem__(self, place: int) -> Any:
            if place > 3:
                raise KeyError(f"person {place}")
            return super().__getitem__(place)

    class Later(Failing):
        """Fails in steps only: looks take several examples, a step of these plans many."""

        def __getitems__(self, places: list[int]) -> list[Any]:
            return (
                [Items()[place] for place in places] if len(places) < 8 else [self[place] for place in places]
            )

    with pytest.raises(ExampleError, match="An example cannot be worked on") as found:
        trainer(Later(), workers=workers).fit(progress=False)
    assert "person" not in str(found.value)
    assert found.value.__suppress_context__


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [OSError, EOFError, FileNotFoundError, ConnectionError])
def test_an_error_of_a_file_names_none_once_something_is_charged(
    kind: type[Exception], workers: int, tmp_path: Path
) -> None:
    """Images that cannot be read raise an OSError with the name of their file."""
    broken = tmp_path / "broken"

    class Files(Items):
        def __getitem__(self, place: int) -> Any:
            if broken.exists():
                raise kind(2, f"person {place}") if kind is FileNotFoundError else kind(f"person {place}")
            return super().__getitem__(place)

    run = trainer(Files(), workers=workers)
    steps = run.steps

    def spoiled() -> Any:
        for step in steps():
            yield step
            broken.touch()

    run.steps = spoiled  # type: ignore[method-assign]
    with pytest.raises(ExampleError, match=f"An example cannot be worked on .{kind.__name__}") as found:
        run.fit(progress=False)
    assert "person" not in str(found.value)
    assert found.value.__suppress_context__


@pytest.mark.parametrize("where", ["data set", "augment"])
def test_an_example_that_raises_stop_iteration_does_not_take_others_with_it(where: str) -> None:
    """Python would end the loop over the rest of the batch: one example would remove all that come after it."""

    def stop_at(row: Tensor, active: bool) -> None:
        if active and bool((row == 41.0).any()):
            next(iter(()))

    class Marked(Items):
        def __getitems__(self, places: list[int]) -> list[Any]:
            found = [(torch.full((4,), float(place)), torch.tensor(0)) for place in places]
            for x, _ in found:
                stop_at(x, where == "data set" and len(places) >= 8)
            return found

    def augment(batch: Any) -> Any:
        stop_at(batch[0], where == "augment" and len(batch[0]) >= 8)
        return batch

    with pytest.raises(TacitError, match="RuntimeError"):
        trainer(Marked(), augment=augment).fit(progress=False)


def test_a_metric_that_fails_does_not_end_a_run_that_was_paid_for() -> None:
    data = TensorDataset(torch.ones(5, 4), torch.zeros(5, dtype=torch.int64))
    metrics = {"none": lambda outputs, targets: outputs.nothing, "word": lambda outputs, targets: "good"}
    with pytest.warns(UserWarning, match="gives no number"):
        result = trainer(TensorDataset(*rows()), held_out=data, metrics=metrics).fit(progress=False)
    assert result.finished
    assert math.isnan(result.measured["none"])
    assert math.isnan(result.measured["word"])
    assert math.isfinite(result.measured["loss"])


# What is brought in place of batches and data sets --------------------------------------------------


class Named(Items):
    def __getitem__(self, place: int) -> Any:
        x, y = super().__getitem__(place)
        return {"x": x, "y": y}


@pytest.mark.parametrize("loss", [cross_entropy, binary_cross_entropy, squared_error, huber_error])
def test_batches_of_another_form_get_a_sentence(loss: Loss) -> None:
    with pytest.raises(
        ModelError, match=r"dictionaries with 'x', 'y'; write a loss .*model\(batch\['x'\]\), batch\['y'\]"
    ):
        trainer(Named(), loss).fit(progress=False)
    with pytest.raises(ModelError, match="a list of 3 parts"):
        trainer(TensorDataset(*rows(), rows()[1]), loss).fit(progress=False)


def test_tokens_of_another_form_get_a_sentence() -> None:
    with pytest.raises(ModelError, match="dictionaries with 'input_ids'"):
        trainer(TensorDataset(*rows()), next_token).fit(progress=False)


@pytest.mark.parametrize(
    ("loss", "words"),
    [(binary_cross_entropy, "one output per example"), (squared_error, "as many outputs as targets")],
)
def test_outputs_that_do_not_fit_the_targets_get_a_sentence(loss: Loss, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        trainer(TensorDataset(*rows()), loss).fit(progress=False)


def test_class_numbers_may_come_in_any_whole_form() -> None:
    x, y = rows()
    expected = cross_entropy(network(), (x, y))
    for targets in (y.int(), y.byte(), y[:, None], F.one_hot(y, 3), F.one_hot(y, 3).double()):
        assert torch.equal(cross_entropy(network(), (x, targets)), expected)
    with pytest.raises(ModelError, match=r"class numbers, and these are torch.float32"):
        trainer(TensorDataset(x, y.float())).fit(progress=False)


@pytest.mark.parametrize("kind", [torch.float16, torch.float64, torch.int64, torch.uint8])
def test_inputs_of_another_type_get_a_sentence(kind: torch.dtype) -> None:
    x, y = rows()
    with pytest.raises(ModelError, match=r"parameters are torch.float32.*tensor.to\(torch.float32\)"):
        trainer(TensorDataset(x.to(kind), y)).fit(progress=False)


def test_inputs_of_another_shape_get_a_sentence() -> None:
    x, y = rows()
    with pytest.raises(ModelError, match=r"cannot be computed on a batch.*try loss\(model, batch\)"):
        trainer(TensorDataset(x[:, :3], y)).fit(progress=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda data: {"val": data}, r"not a dictionary of them \('val'\)"),
        (lambda data: DataLoader(data), "not a DataLoader; give loader.dataset"),
        (lambda data: data.tensors, "not a tuple of arrays"),
    ],
)
def test_held_out_data_of_another_form_gets_a_sentence(given: Any, words: str) -> None:
    data = TensorDataset(torch.ones(5, 4), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=words):
        trainer(TensorDataset(*rows()), held_out=given(data))
    with pytest.raises(ArgumentError, match=words):
        trainer(TensorDataset(*rows())).evaluate(given(data))


def test_items_of_the_training_list_are_not_measured_on() -> None:
    items = listed(TensorDataset(*rows()))
    with pytest.raises(ArgumentError, match="holds rows that are trained on"):
        trainer(items, held_out=items[5:9])
    numbers = [(place, place % 3) for place in range(EXAMPLES)]  # equal numbers are not the same example
    trainer(numbers, held_out=numbers[:2])


def test_a_tuple_of_arrays_is_no_data_set() -> None:
    with pytest.raises(TacitError, match=r"give TensorDataset\(inputs, targets\)"):
        trainer(rows())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": lambda x: x}, "must be a torch.nn.Module that is made already, not function"),
        ({"model": nn.Linear}, "not the class Linear"),
        ({"model": nn.Linear(4, 3, device="meta")}, "meta device"),
        ({"augment": 3}, "augment= takes a function, not int"),
        ({"collate": "pad"}, "collate= takes a function, not str"),
        ({"metrics": ["accuracy"]}, "metrics= takes a dictionary of functions"),
        ({"data": dict(zip("xy", rows(), strict=True))}, "a dictionary of columns"),
    ],
)
def test_arguments_of_another_kind_get_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        trainer(**{"data": TensorDataset(*rows()), **options})


def test_a_data_frame_is_no_data_set() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ArgumentError, match=r"data frame.*PrivateClassifier"):
        trainer(pandas.DataFrame(rows()[0].numpy()))


@pytest.mark.parametrize("isolation", ["probed", "construction"])
def test_the_way_out_of_batch_norms_works(isolation: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    with pytest.raises(ModelError, match=r"without_batch_norm\(model\)"):
        trainer(TensorDataset(*rows()), model=model, isolation=isolation).fit(progress=False)
    replaced = tacit.models.without_batch_norm(model)
    x = rows()[0]
    assert not torch.allclose(replaced(x[:1]), replaced(x[1:2]))  # groups of one number would be constant
    assert trainer(TensorDataset(*rows()), model=replaced, isolation=isolation).fit(progress=False).finished


def test_a_loader_is_for_a_loop() -> None:
    with pytest.raises(ArgumentError, match="PoissonLoader is for a PrivateLoop"):
        trainer(tacit.PoissonLoader(TensorDataset(*rows()), batch_size=20))
    with pytest.raises(ArgumentError, match="give it to a PrivateLoop"):
        list(tacit.PoissonLoader(TensorDataset(*rows()), batch_size=20))


def test_what_a_loop_draws_is_no_pair() -> None:
    plan = make_plan(tacit.OwnLoop(), epsilon=4.0, delta=1e-3, examples=EXAMPLES, batch_size=20, epochs=1)
    loader = tacit.PoissonLoader(TensorDataset(*rows()), batch_size=20)
    loop = tacit.PrivateLoop(
        network(), loader, cross_entropy, plan, optimizer=lambda named: torch.optim.SGD(named, lr=0.1)
    )
    with pytest.raises(ArgumentError, match=r"for draw in loop: released = loop.step\(draw\)"):
        for _x, _y in loop:  # type: ignore[misc]
            pass
    assert loop.epsilon == 0.0


# Where to look --------------------------------------------------------------------------------------


def test_the_oddest_examples_in_memory_are_found() -> None:
    x, y = rows()
    x[11, 2], y[12], y[13] = float("nan"), -5, 9
    assert set(odd_positions(TensorDataset(x, y))) == {11, 12, 13}
    assert set(odd_positions(Subset(TensorDataset(x, y), [13, 20, 11]))) >= {0, 2}
    items: list[Any] = [(x[place], int(y[place])) for place in range(EXAMPLES)]
    assert set(odd_positions(items)) == {11, 12, 13}
    items[30] = (torch.zeros(9), 1)
    assert {0, 30} <= set(odd_positions(items))
    assert odd_positions(Items()) == []
    assert odd_positions(TensorDataset(torch.ones(3, 2), torch.ones(3))) == []
