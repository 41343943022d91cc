"""Planted bugs in cross-validation: what several runs on the same data promise together."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

FOLDS, RUN, TASK = "runs/folds.py", "jobs/run.py", "data/task.py"
PROMISE = ["tests/runs/test_folds.py"]
COMMAND = ["tests/cli/test_folds.py"]

FOLD_MUTANTS = (
    Mutant(
        "folds as if they were disjoint",
        "A cross-validation promises what its most expensive run alone costs, though most rows are in all but one.",
        [
            Edit(
                FOLDS,
                "parts = [together([*costs[:place], *costs[place + 1 :]]) for place in range(len(costs))]",
                "parts = [together([cost]) for cost in costs]",
            )
        ],
        PROMISE,
    ),
    Mutant(
        "the most expensive fold left out",
        "Of the ways to leave a run out, a cross-validation promises the cheapest instead of the worst.",
        [Edit(FOLDS, "max(epsilon(part.spends, delta) for part", "min(epsilon(part.spends, delta) for part")],
        PROMISE,
    ),
    Mutant(
        "a replaced row is in all folds but one",
        "Where neighbours replace a row, the run that the new row enters is not counted.",
        [Edit(FOLDS, "if relation not in (RELATION, ZERO_OUT):", "if False:")],
        PROMISE,
    ),
    Mutant(
        "the delta that folds set aside forgotten",
        "What runs of a cross-validation set aside for names of categories is not added to its delta.",
        [Edit(FOLDS, "delta + max(part.aside for part in parts)", "delta")],
        PROMISE,
    ),
    Mutant(
        "runs beside the list overlooked",
        "Verification of a cross-validation does not look for runs that its list leaves out, nor at what each held out.",
        [Edit(FOLDS, "    problems += _beside(folder, list(runs))\n", "")],
        PROMISE,
    ),
    Mutant(
        "folds verified without a recount",
        "Verification of a cross-validation takes its epsilon on trust.",
        [Edit(FOLDS, "not again.epsilon <= claimed * (1 + TOLERANCE)", "False")],
        PROMISE,
    ),
    Mutant(
        "a fold begins without its reservation",
        "A run of a cross-validation whose reservation was given back starts without asking the budget again.",
        [Edit(RUN, "        reserved = renewed(reserved, cost, str(run_dir))\n", "        del cost\n")],
        COMMAND,
    ),
    Mutant(
        "parts that overlap",
        "Every part of a cross-validation begins at the first row: rows are held out by several runs, or by none.",
        [Edit(TASK, "marks = places >= np.uint64(int(low * 2**64))", "marks = places >= np.uint64(0)")],
        COMMAND,
    ),
)
