"""Bugs in rows of sparse matrices: a row that another row decides, values that the clip does not see, forgotten groups."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

ROWS, LAYERS, ESTIMATOR = "data/sparse_rows.py", "raw/rules/layers.py", "integrations/scikit_learn.py"
READING, TRAINING = ["tests/data/test_sparse_rows.py"], ["tests/models/test_sparse_linear.py"]

SPARSE_MUTANTS = (
    Mutant(
        "an entry of the next row",
        "Short rows are filled up with the first entry of the row behind them.",
        [
            Edit(
                ROWS,
                "real = places < sizes[:, None]",
                "real = places < np.minimum(sizes[:, None] + 1, sizes.max())",
            )
        ],
        READING,
    ),
    Mutant(
        "the largest entries of all rows",
        "Which entries of a long row count is decided among the entries of all rows.",
        [
            Edit(
                ROWS,
                "order = np.lexsort((-np.abs(self._values), owner))",
                "order = np.argsort(-np.abs(self._values))",
            ),
        ],
        READING,
    ),
    Mutant(
        "values that the clip does not see",
        "The gradient of a weighted bag is measured and clipped as if all values were 1.",
        [
            Edit(
                LAYERS,
                "rows = rows * per_sample_weights.unsqueeze(-1)",
                "rows = rows + (rows * per_sample_weights.unsqueeze(-1) - rows).detach()",
            )
        ],
        TRAINING,
    ),
    Mutant(
        "sparse rows without their groups",
        "A fit on a sparse matrix protects rows where groups of them were to be protected.",
        [
            Edit(
                ESTIMATOR,
                "units=None if unit is None else _owners(groups, X.shape[0], unit),",
                "units=None,",
            )
        ],
        ["tests/integrations/test_scikit_learn.py"],
    ),
)
