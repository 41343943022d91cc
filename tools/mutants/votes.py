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
        [Edit(ROWS, "return clip_norm / math.sqrt(sum(min(", "return clip_norm / max(1, 0 * sum(min(")],
        TESTS,
    ),
    Mutant(
        "votes in each layer for the whole norm",
        "The votes of every layer have the clip norm, all layers together more.",
        [
            Edit(
                ROWS,
                "sum(min(votes, block.row_count) for block in support.values() if block.size)",
                "votes",
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
            Edit(
                CLIPPING,
                "        assert batches.rows(chunk) == self.views if sizes is None else len(sizes) == 1\n",
                "",
            ),
        ],
        TESTS,
    ),
    Mutant(
        "votes by autograd for all rows",
        "An example whose gradients come from plain autograd votes for every row that they reach.",
        [Edit(ROWS, "stable=True).indices[:votes]", "stable=True).indices")],
        TESTS,
    ),
    Mutant(
        "votes by autograd weighted by gradients",
        "Where gradients come from plain autograd a vote counts as much as the row's gradient is long.",
        [Edit(ROWS, ".mul_(norms > 0)", ".mul_(norms)")],
        TESTS,
    ),
    Mutant(
        "votes for modules of full weight",
        "A vote for a module counts as much as the clip norm, however many modules an example votes for.",
        [
            Edit(
                ROWS,
                "vote, found = clip_norm / math.sqrt(min(votes, len(modules))), {}",
                "vote, found = clip_norm, {}",
            )
        ],
        TESTS,
    ),
    Mutant(
        "votes for all modules",
        "An example votes for every module that its gradient reaches.",
        [Edit(ROWS, "key=lambda module: -lengths[module])[:votes]", "key=lambda module: -lengths[module])")],
        TESTS,
    ),
    Mutant(
        "votes for modules weighted by gradients",
        "A vote for a module counts as much as its gradient is long, which nothing bounds.",
        [Edit(ROWS, "found[first][0] = vote", "found[first][0] = vote * lengths[module]")],
        TESTS,
    ),
)
