"""With units of several examples, the place of an example in its batch says whose it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tacit import Trainer, make_plan
from tacit.errors import ModelError
from tacit.losses import cross_entropy

PEOPLE, EACH = 12, 3


class Texts(Dataset[tuple[Tensor, int]]):
    """Examples of different lengths: those of one person are long and short ones."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.x = [torch.randn(1 + i % 5, 4, generator=draw) for i in range(PEOPLE * EACH)]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return self.x[place], place % 2


class SortedTexts(Texts):
    """Fetches the examples of a batch in the order of the data set, whatever was asked for."""

    def __getitems__(self, places: list[int]) -> list[tuple[Tensor, int]]:
        return [self[place] for place in sorted(places)]


class Summed(nn.Module):
    """A linear layer on the sum over an example: padding makes no difference."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x.sum(1))


def padded(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True), torch.tensor(
        [y for _, y in items]
    )


def by_length(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return padded(sorted(items, key=lambda item: -len(item[0])))


def by_contents(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return padded(sorted(items, key=lambda item: float(item[0].sum())))


def shuffled_by_torch(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(batch[0]))
    return batch[0][order], batch[1][order]


def shuffled_by_numpy(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    order = torch.from_numpy(np.random.permutation(len(batch[0])))  # noqa: NPY002 (a generator that users draw from)
    return batch[0][order], batch[1][order]


def trained(
    dataset: Dataset[Any],
    collate: Callable[[Any], Any] = padded,
    augment: Callable[[Any], Any] | None = None,
    *,
    units: bool = True,
    isolation: Any = "probed",
) -> Trainer:
    counted = {"units": PEOPLE} if units else {"examples": PEOPLE * EACH}
    plan = make_plan("dp-sgd", epsilon=8.0, delta=1e-5, batch_size=6, epochs=1, **counted)  # type: ignore[call-overload]
    trainer = Trainer(
        Summed(),
        dataset,
        cross_entropy,
        plan,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        collate=collate,
        augment=augment,
        units=[f"person {place // EACH}" for place in range(PEOPLE * EACH)] if units else None,
        isolation=isolation,
        seed=1,
    )
    trainer.fit(progress=False)
    return trainer


@pytest.mark.parametrize(
    ("dataset", "collate", "augment"),
    [
        (Texts(), by_length, None),
        (Texts(), by_contents, None),
        (Texts(), padded, shuffled_by_torch),
        (Texts(), padded, shuffled_by_numpy),
        (SortedTexts(), padded, None),
    ],
    ids=["by length", "by contents", "by chance of torch", "by chance of numpy", "by fetching"],
)
def test_a_pipeline_that_puts_examples_in_another_order_is_refused_where_places_say_whose_they_are(
    dataset: Dataset[Any], collate: Callable[[Any], Any], augment: Callable[[Any], Any] | None
) -> None:
    with pytest.raises(ModelError, match=r"another order|depends on the other examples"):
        trained(dataset, collate, augment)


def test_order_does_not_matter_where_every_example_is_its_own_unit() -> None:
    assert trained(Texts(), by_length, units=False).done


def test_order_does_not_matter_within_a_unit_that_is_worked_on_by_itself() -> None:
    assert trained(Texts(), by_length, isolation="construction").done


def test_a_pipeline_that_keeps_the_order_is_trained_with() -> None:
    assert trained(Texts()).done
