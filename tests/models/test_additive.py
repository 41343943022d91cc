from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call, grad, vmap

from tacit.data.task import NumberFeature
from tacit.errors import ArgumentError
from tacit.losses import Loss, binary_cross_entropy, huber_error
from tacit.models.additive import Additive, Shapes

SIXTEEN = tuple(step / 8 for step in range(-7, 8))
NUMBERS = (NumberFeature(0, 1, SIXTEEN), NumberFeature(2, None, (0.25,)))


def rows(count: int = 50) -> torch.Tensor:
    x = torch.rand(count, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1
    x[:, 1] = (x[:, 1] > 0.6).float()
    x[:, 0] *= 1 - x[:, 1]
    return x


def test_every_row_has_norm_one() -> None:
    shapes = Shapes(5, NUMBERS)
    found = shapes(rows())
    assert found.shape == (50, shapes.features)
    assert torch.allclose(found.norm(dim=1), torch.ones(50))
    nothing = Shapes(2, [NumberFeature(0, 1, SIXTEEN)])(torch.tensor([[0.0, 1.0]]))
    assert nothing.isfinite().all()


def test_a_number_is_divided_at_its_cuts_and_a_cut_belongs_to_the_part_above() -> None:
    shapes = Shapes(1, [NumberFeature(0, None, (-0.5, 0.0, 0.5))])
    below, at, above, far = shapes(torch.tensor([[-1e-3], [0.0], [0.49], [0.5]]))[:, :-1]
    assert torch.equal(at.sign(), above.sign())
    assert not torch.equal(below.sign(), at.sign())
    assert not torch.equal(above.sign(), far.sign())


def test_parts_say_nothing_on_average_and_a_missing_number_says_nothing_at_all() -> None:
    shapes = Shapes(2, [NumberFeature(0, 1, SIXTEEN)])
    one_each = torch.tensor([(low + 1 / 16, 0.0) for low in (-1.0, *SIXTEEN)])
    widths = torch.tensor([2, 4, 8, 16])
    assert shapes.features == 1 + int(widths.sum()) + 1
    assert shapes.parts[0].mean(0).abs().max() < 1e-6
    assert (shapes(one_each)[:, 0] == 0).all()
    missing = shapes(torch.tensor([[0.9, 1.0]]))
    assert missing[0, 0] == 1
    assert (missing[0, 1:] == 0).all()


def test_a_code_far_outside_the_cuts_does_not_squeeze_the_line() -> None:
    shapes = Shapes(1, [NumberFeature(0, None, tuple(-1 + step / 1000 for step in range(1, 16)))])
    first, last, code = (shapes(torch.tensor([[place]]))[0, -1] for place in (-0.999, -0.985, 1.0))
    assert last - first > 0.5
    assert code == pytest.approx(float(last), abs=0.05)


@pytest.mark.parametrize(("loss", "target"), [(binary_cross_entropy, 1.0), (huber_error, 1e6)])
def test_no_gradient_is_longer_than_one(loss: Loss, target: float) -> None:
    model = Additive(5, 1, NUMBERS, 4)
    x, y = rows(), torch.full((50, 1), target)
    parameters = dict(model.named_parameters())

    def one(weights: dict[str, torch.Tensor], row: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return loss(lambda inputs: functional_call(model, weights, (inputs,)), (row[None], goal[None])).sum()  # type: ignore[arg-type]

    for scale in (0.0, -30.0):
        weights = {name: torch.full_like(value, scale) for name, value in parameters.items()}
        found = vmap(grad(one), (None, 0, 0))(weights, x, y)
        norms = torch.cat([part.flatten(1) for part in found.values()], 1).norm(dim=1)
        assert norms.max() <= 1 + 1e-5


@pytest.mark.parametrize("columns", [1, 4, 1000])
def test_it_starts_where_it_is_told_to(columns: int) -> None:
    model = Additive(5, 1, NUMBERS, columns)
    model.start_at(math.log(0.1 / 0.9))
    assert torch.allclose(torch.sigmoid(model(rows())), torch.tensor(0.1), atol=1e-6)


def test_a_table_without_numbers() -> None:
    model = Additive(3, 4, (), 1)
    assert model(torch.eye(3)).shape == (3, 4)
    assert model.rows.features == 3


def test_without_detail_only_lines_are_left_and_rows_keep_norm_one() -> None:
    plain = Shapes(5, NUMBERS, detail=0.0)
    assert plain.features == 3 + 2
    assert torch.allclose(plain(rows()).norm(dim=1), torch.ones(50))
    half = Shapes(5, NUMBERS, detail=0.5)
    assert half.features == Shapes(5, NUMBERS).features
    assert torch.allclose(half(rows()).norm(dim=1), torch.ones(50))
    line = [float(shapes(rows())[:, -2:].square().sum()) for shapes in (Shapes(5, NUMBERS), half, plain)]
    assert line[0] < line[1] < line[2]
    with pytest.raises(ArgumentError, match="detail"):
        Shapes(5, NUMBERS, detail=1.5)
