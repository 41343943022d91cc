"""Bugs in the selection of rows by votes: votes that are too many, too heavy, or decided by others."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

CLIPPING = "raw/clipping.py"
ROWS = "raw/row_statistics.py"
TESTS = ["tests/raw/test_votes.py"]

VOTE_MUTANTS = (
    Mutant(
        "votes of full weight",
        "Every vote counts as much as the clip norm, so that an example with n votes has √n times that.",
        [Edit(ROWS, "vote = clip_norm / math.sqrt(most)", "vote = clip_norm")],
        TESTS,
    ),
    Mutant(
        "votes in each layer for the whole norm",
        "The votes of every layer have the clip norm, all layers together more.",
        [
            Edit(
                ROWS,
                "    most = sum(min(votes, block.row_count) for block in support.values() if block.size)\n",
                "    most = votes\n",
            )
        ],
        TESTS,
    ),
    Mutant(
        "votes for all rows above zero",
        "An example votes for every row that its gradient reaches.",
        [Edit(ROWS, ".topk(min(votes, len(part)))", ".topk(len(part))")],
        TESTS,
    ),
    Mutant(
        "votes weighted by gradients",
        "A vote counts as much as the row's gradient is long, which nothing bounds.",
        [Edit(ROWS, "(best.values > 0).double() * vote", "best.values.double() * vote")],
        TESTS,
    ),
    Mutant(
        "votes in company",
        "Examples are worked on together, so that the rounding of one may turn the votes of others.",
        [
            Edit(CLIPPING, "        if self._votes is not None:\n            return 1\n", ""),
            Edit(CLIPPING, "            assert len(norms.square) == 1 or self._alone is not None\n", ""),
        ],
        TESTS,
    ),
)
