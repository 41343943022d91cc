"""Bugs in how an estimator describes its job: what it promises about the rows that it was given."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

ESTIMATORS = "integrations/scikit_learn.py"
TESTS = "tests/integrations/test_scikit_learn.py"

ESTIMATOR_MUTANTS = (
    Mutant(
        "a unit that sparse rows do not have",
        "A fit on a sparse matrix that was told to protect persons protects rows, and says nothing.",
        [Edit(ESTIMATORS, "        if experiment.data.unit != unit:\n", "        if False:\n")],
        [TESTS],
    ),
    Mutant(
        "ids of sparse rows taken as they are",
        "A person whose id is spelled in two ways, or is missing, is several units where rows are sparse.",
        [
            Edit(
                ESTIMATORS,
                "_owners(groups, X.shape[0], unit),",
                "np.unique(_answers(groups, X.shape[0]).astype(str), return_inverse=True)[1],",
            )
        ],
        [TESTS],
    ),
    Mutant(
        "groups of an estimator forgotten",
        "fit takes groups, and protects single rows.",
        [Edit(ESTIMATORS, '"unit": unit,', '"unit": None,')],
        [TESTS],
    ),
    Mutant(
        "a guessed target is declared",
        "An estimator that is told ranges of columns takes the target off the rows and calls it public.",
        [
            Edit(
                ESTIMATORS,
                "schema = Schema(target or guess_target(table, name, kind, None), columns)",
                "guess = vars(guess_target(table, name, kind, None))\n"
                '                schema = Schema(target or Target(**{**guess, "public": True}), columns)',
            )
        ],
        [TESTS],
    ),
)
