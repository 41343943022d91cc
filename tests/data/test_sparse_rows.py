"""Rows of sparse matrices: what they hold is kept, row by row, and what is no such matrix is one sentence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from torch import Tensor
from torch.utils.data import default_collate

from tacit.data import SparseRows
from tacit.data.sparse_rows import LONGEST
from tacit.errors import ArgumentError

DENSE = torch.tensor(
    [[0.0, 2.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0], [5.0, 0.0, 0.5, 0.25]], dtype=torch.float64
)
TARGETS = torch.tensor([1, 0, 1])


def dense_again(rows: SparseRows) -> Tensor:
    (ids, values), _ = default_collate(rows.__getitems__(list(range(len(rows)))))
    return torch.zeros(len(rows), rows.columns + 1).scatter_add_(1, ids, values)[:, 1:].double()


FORMS: dict[str, Callable[[], object]] = {
    "csr": lambda: sparse.csr_array(DENSE.numpy()),
    "csc": lambda: sparse.csc_matrix(DENSE.numpy()),
    "coo": lambda: sparse.coo_array(DENSE.numpy()),
    "lil": lambda: sparse.lil_array(DENSE.numpy()),
    "csr tensor": DENSE.to_sparse_csr,
    "csc tensor": DENSE.to_sparse_csc,
    "coo tensor": DENSE.to_sparse_coo,
    "single precision": lambda: DENSE.float().to_sparse_csr(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:Sparse CS:UserWarning")
def test_every_form_of_a_sparse_matrix_has_the_same_rows(form: str) -> None:
    rows = SparseRows(FORMS[form](), TARGETS)
    assert (len(rows), rows.columns) == (3, 4)
    assert torch.equal(dense_again(rows), DENSE)
    (ids, values), target = rows[0]
    assert (ids.tolist(), values.tolist(), int(target)) == ([2, 4], [2.0, -1.0], 1)
    assert torch.equal(rows[-1][0][0], rows[2][0][0])


def test_a_row_does_not_depend_on_the_rows_beside_it_but_for_what_fills_up() -> None:
    rows = SparseRows(DENSE.to_sparse(), TARGETS)
    together = rows.__getitems__([1, 2])
    assert together[0][0][0].tolist() == [0, 0, 0]
    assert rows[1][0][0].tolist() == [0]


def test_entries_given_twice_add_up_and_zeros_do_not_count() -> None:
    twice = sparse.coo_array(([1.0, 2.0, 0.0, 3.0, -3.0], ([0, 0, 0, 1, 1], [1, 1, 2, 0, 0])), shape=(2, 3))
    rows = SparseRows(twice, [0, 1])
    assert rows[0][0][0].tolist() == [2]
    assert rows[0][0][1].tolist() == [3.0]
    assert rows[1][0][0].tolist() == [0]


def test_of_a_long_row_the_largest_entries_count_and_other_rows_stay() -> None:
    wide = sparse.lil_array((2, 1_000_000))
    wide[1, 7] = 1.0
    wide = sparse.csr_array(wide) + sparse.csr_array(
        (np.linspace(-1, 0.9, 1_000_000), (np.zeros(1_000_000, int), np.arange(1_000_000))),
        shape=(2, 1_000_000),
    )
    with pytest.raises(ArgumentError, match="give length"):
        SparseRows(wide, [0, 1])
    rows = SparseRows(wide, [0, 1], length=100)
    assert rows[0][0][0].tolist() == list(range(1, 101))  # the most negative ones
    assert rows[1][0][0].tolist() == [8]
    assert LONGEST < 1_000_000


def test_what_is_no_sparse_matrix_is_refused_with_a_sentence() -> None:
    good = sparse.csr_array(DENSE.numpy())
    bad = good.copy()
    bad.indices = bad.indices.copy()
    bad.indices[0] = 9
    negative = good.copy()
    negative.indices = negative.indices.copy()
    negative.indices[0] = -1
    infinite = good.copy()
    infinite.data = infinite.data * np.inf
    for matrix, targets, words in (
        (DENSE, TARGETS, "got a Tensor"),
        (np.zeros((2, 2)), [0, 1], "got a ndarray"),
        (good, [0, 1], "3 rows and 2 targets"),
        (good, 1, "one per row"),
        (bad, TARGETS, "column that the matrix does not have"),
        (negative, TARGETS, "column that the matrix does not have"),
        (infinite, TARGETS, "not a finite number"),
        (good * 1e300, TARGETS, "not a finite number in single precision"),
        (good.astype(complex), TARGETS, "hold numbers"),
        (torch.zeros(3).to_sparse(), TARGETS, "two dimensions"),
        (torch.zeros(3, 4, 2).to_sparse(2), TARGETS, "two dimensions"),
        (sparse.csr_array((3, 0)), TARGETS, "columns, got 0"),
        (sparse.coo_array((3, 1 << 40)), TARGETS, "columns, got"),
    ):
        with pytest.raises(ArgumentError, match=words):
            SparseRows(matrix, targets)
    with pytest.raises(ArgumentError, match="length"):
        SparseRows(good, TARGETS, length=0)
    with pytest.raises(IndexError):
        SparseRows(good, TARGETS)[3]
