"""Bugs in how raw texts become numbers: a row of data that another row decides, words that change meaning."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

BAGS, RUN, PROBLEM = "data/bags.py", "jobs/run.py", "jobs/problem.py"
READING, COMMANDS = ["tests/data/test_bags.py"], ["tests/cli/test_texts.py"]

TEXT_MUTANTS = (
    Mutant(
        "the first rows pass for all",
        "Training on the first rows of a file does not say that one row more moves another one out.",
        [
            Edit(
                "jobs/text_rows.py",
                "                *([FIRST_NOT_COVERED] if config.examples is not None else []),\n",
                "",
            )
        ],
        ["tests/jobs/test_text_rows.py"],
    ),
    Mutant(
        "a pair over the end of a text",
        "The last word of a text and the first of the next make a pair: a row of data depends on another row.",
        [Edit(BAGS, "np.where(owner[:-1] == owner[1:], pairs, 0)", "pairs")],
        READING,
    ),
    Mutant(
        "a word counts in the first text that has it",
        "Words are kept once among all texts that are read together, not once in each.",
        [
            Edit(
                BAGS,
                "np.unique(whose[places] * np.int64(MOST_BUCKETS) + both[places], ",
                "np.unique(both[places], ",
            )
        ],
        READING,
    ),
    Mutant(
        "another word list after a stop",
        "A run continues with a word list that has changed since it was started.",
        [Edit(RUN, "    _check_same_words(run_dir, experiment, problem)\n", "")],
        COMMANDS,
    ),
    Mutant(
        "ids that no table has",
        "An id beyond the vocabulary is met in the middle of training, after epsilon was spent.",
        [Edit(PROBLEM, "        _check_ids(found)\n", "")],
        COMMANDS,
    ),
)
