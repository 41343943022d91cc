"""The gradients of an embedding table, one for each pair of a token and an example, against whole tables."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tacit.raw.gradients.embedding import Embedding
from tacit.raw.row_tables import RowSum
from tacit.support import Support

ROWS, WIDTH, EXAMPLES, POSITIONS = 11, 3, 5, 6


def ids(seed: int = 0) -> Tensor:
    return torch.randint(0, ROWS, (EXAMPLES, POSITIONS), generator=torch.Generator().manual_seed(seed))


def same_everywhere() -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(EXAMPLES, 1, WIDTH, generator=draw).repeat(1, POSITIONS, 1)


def other_at_the_end() -> Tensor:
    b = same_everywhere()
    b[2, -1, 1] += 1.0
    return b


def other_everywhere() -> Tensor:
    return torch.randn(EXAMPLES, POSITIONS, WIDTH, generator=torch.Generator().manual_seed(2))


def whole_tables(tokens: Tensor, b: Tensor, padding: int | None) -> Tensor:
    """The gradient of every example as a whole table, by its definition."""
    found = torch.zeros(EXAMPLES, ROWS, WIDTH, dtype=torch.float64)
    for example in range(EXAMPLES):
        for position in range(POSITIONS):
            if int(tokens[example, position]) != padding:
                found[example, tokens[example, position]] += b[example, position].double()
    return found


def dense(total: RowSum) -> Tensor:
    found = torch.zeros(total.shape, dtype=torch.float64)
    for index, values in total.tiles():
        found[index] = values
    return found


BLOCK = Support.all(torch.nn.Embedding(ROWS, WIDTH))["weight"]
WEIGHTS = torch.tensor([1.0, 0.25, 0.5, 2.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("made", [same_everywhere, other_at_the_end, other_everywhere])
def test_norms_and_sums_are_those_of_whole_tables(made: object, padding: int | None) -> None:
    b = made()  # type: ignore[operator]
    use = Embedding(ids(), b, ROWS, padding)
    wanted = whole_tables(ids(), b, padding)
    torch.testing.assert_close(
        use.norms(BLOCK).square.double(), wanted.square().sum((1, 2)), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        dense(use.weighted_rows(WEIGHTS)), (WEIGHTS[:, None, None] * wanted).sum(0), rtol=1e-6, atol=1e-6
    )
    assert torch.equal(use.token, use.token.sort().values)


@pytest.mark.parametrize("made", [same_everywhere, other_at_the_end])
def test_gradients_of_units_are_sums_over_their_examples(made: object) -> None:
    b = made()  # type: ignore[operator]
    owner = torch.tensor([0, 1, 1, 2, 0])
    use = Embedding(ids(), b, ROWS, None).regrouped(owner, 3)
    wanted = torch.zeros(3, ROWS, WIDTH, dtype=torch.float64).index_add_(
        0, owner, whole_tables(ids(), b, None)
    )
    torch.testing.assert_close(
        use.norms(BLOCK).square.double(), wanted.square().sum((1, 2)), rtol=1e-6, atol=0
    )


def test_a_table_that_is_looked_up_twice_has_the_sum_of_both() -> None:
    parts = [(ids(), same_everywhere()), (ids(4), other_everywhere())]
    use = Embedding.joined([Embedding(tokens, b, ROWS, None) for tokens, b in parts])
    wanted = whole_tables(*parts[0], None) + whole_tables(*parts[1], None)
    torch.testing.assert_close(
        dense(use.weighted_rows(WEIGHTS)), (WEIGHTS[:, None, None] * wanted).sum(0), rtol=1e-6, atol=1e-6
    )


def test_sums_in_many_tiles_are_those_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    use = Embedding(ids(), other_everywhere(), ROWS, None)
    whole = dense(use.weighted_rows(WEIGHTS))
    monkeypatch.setattr("tacit.raw.row_tables.TILE", 2 * WIDTH)
    assert torch.equal(dense(use.weighted_rows(WEIGHTS)), whole)


def test_a_position_that_is_not_a_number_is_no_other_positions_gradient() -> None:
    b = same_everywhere()
    b[1] = math.nan
    use = Embedding(ids(), b, ROWS, None)
    found = use.norms(BLOCK).square
    assert bool(found[1].isnan())
    assert bool(found[[0, 2, 3, 4]].isfinite().all())
