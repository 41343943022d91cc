"""Bugs in the counts of a table's columns that are released before training."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

COUNTS = "raw/histograms.py"
RELEASE = "release/columns.py"
RUN = "jobs/columns.py"
TABLE = "data/open_table.py"

COLUMN_MUTANTS = (
    Mutant(
        "columns not charged",
        "Counts of the columns are released without a charge.",
        [Edit(RELEASE, "    ledger.charge(charge)\n", "")],
        ["tests/release/test_columns.py", "tests/jobs/test_statistics.py"],
    ),
    Mutant(
        "columns charged afterwards",
        "Counts of the columns are noised before their charge is on disk.",
        [
            Edit(
                RELEASE,
                "    ledger.charge(charge)\n    noise.begin(charge.index)\n",
                "    noise.begin(charge.index)\n",
            ),
            Edit(
                RELEASE,
                "    return ReleasedColumns(binned",
                "    ledger.charge(charge)\n    return ReleasedColumns(binned",
            ),
        ],
        ["tests/release/test_columns.py"],
    ),
    Mutant(
        "columns' sensitivity halved",
        "The noise of the counts is for rows of half their norm.",
        [Edit(COUNTS, "dict(weights), 1 + ROUNDING)", "dict(weights), 0.5 + ROUNDING)")],
        ["tests/release/test_columns.py"],
    ),
    Mutant(
        "a column counted twice",
        "The weight of a row's target comes on top of that of its other columns.",
        [
            Edit(TABLE, "np.sqrt((1 - share) / len(others))", "np.sqrt(1 / len(others))"),
            Edit(COUNTS, "    if total > 1 + ROUNDING / 4:\n", "    if total > 2 + ROUNDING / 4:\n"),
        ],
        ["tests/release/test_columns.py", "tests/jobs/test_statistics.py"],
    ),
    Mutant(
        "a row in two bins",
        "A row is counted in its bin and in the first one.",
        [
            Edit(
                COUNTS,
                "np.bincount(places, minlength=bins).astype(np.float64)",
                "(np.bincount(places, minlength=bins) + len(places) * (np.arange(bins) == 0)).astype(np.float64)",
            )
        ],
        ["tests/release/test_columns.py"],
    ),
    Mutant(
        "weights forgotten in the noise of names",
        "The counts of names get the noise of a column of weight 1.",
        [
            Edit(
                RELEASE, "noise.add(noisy, scale, 1 / weight)", "noise.add(noisy, scale * weight, 1 / weight)"
            )
        ],
        ["tests/release/test_columns.py"],
    ),
    Mutant(
        "names by count alone",
        "A name appears as soon as its noisy count is above one.",
        [Edit(RELEASE, "least = 1 + cut * scale / weight", "least = 1.0")],
        ["tests/release/test_columns.py"],
    ),
    Mutant(
        "names counted per column",
        "Every column may show a name with the probability that is set aside for all of them.",
        [Edit(RELEASE, "ndtri_exp(log_delta - math.log(columns))", "ndtri_exp(log_delta)")],
        ["tests/release/test_columns.py"],
    ),
    Mutant(
        "names forget what else is told",
        "The delta of names is not divided by e^epsilon.",
        [Edit(RUN, "math.log(support.delta) - plan.epsilon - math", "math.log(support.delta) - math")],
        ["tests/jobs/test_statistics.py"],
    ),
    Mutant(
        "delta of names not set aside",
        "The releases use the whole delta, and the names some more.",
        [Edit("plan/plan.py", "return self.delta - sum(aside)", "return self.delta - 0 * sum(aside)")],
        ["tests/plan/test_counting.py"],
    ),
    Mutant(
        "counting left out of the plan's noise",
        "Training is calibrated as if counting cost nothing.",
        [
            Edit(
                "plan/calibrate.py",
                "        before = tuple(phase.spend for phase in (*phases, *choice))\n",
                "        before = tuple(phase.spend for phase in phases if phase.updates)\n",
            ),
            Edit("plan/calibrate.py", "    plan.check_promise()\n    return plan\n", "    return plan\n"),
        ],
        ["tests/plan/test_counting.py"],
    ),
    Mutant(
        "held-out rows counted",
        "Rows that are held out are counted with the others.",
        [
            Edit(
                TABLE,
                "self.labels[1] if self.held_out is None else self.labels[1] & ~self.held_out",
                "self.labels[1]",
            )
        ],
        ["tests/jobs/test_statistics.py"],
    ),
    Mutant(
        "a lost round repeated",
        "A round of counts that a crash has lost is released once more.",
        [Edit(RUN, "while len(ledger) < plan.counts:", "while len(rounds) < plan.counts:")],
        ["tests/jobs/test_statistics.py"],
    ),
)
