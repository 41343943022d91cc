"""Planted bugs in embedding tables that are read row by row: noise that is late, short, or not drawn at all."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

LAZY, NOISE, TABLES, EMBEDDING, RECORDER, TRAINER, LAZILY, CLIPPING = (
    "release/lazy_noise.py",
    "release/noise.py",
    "raw/row_tables.py",
    "raw/gradients/embedding.py",
    "raw/recorder.py",
    "training/trainer.py",
    "training/lazy.py",
    "raw/clipping.py",
)
STATE = ["tests/release/test_lazy_noise.py"]
STEPS = ["tests/training/test_lazy_noise.py"]
COUNTS = ["tests/raw/test_row_counts.py"]

TABLE_MUTANTS = (
    Mutant(
        "rows are read before they are paid",
        "A step reads rows without the noise that they are owed.",
        [Edit(LAZY, "        self._pay(self._codes, rows)\n        return", "        return")],
        STATE,
    ),
    Mutant(
        "untouched rows owe nothing",
        "Rows that no example touches get no noise.",
        [Edit(LAZY, "            self._owe(variance)\n", "            pass\n")],
        STATE,
    ),
    Mutant(
        "touched rows pay later",
        "Rows that a step touches move without noise in that step.",
        [Edit(LAZY, "(len(index),), math.sqrt(variance)", "(len(index),), 0.0")],
        STATE,
    ),
    Mutant(
        "deviations add up in place of variances",
        "The noise of n moves at once has n times the deviation of one.",
        [
            Edit(
                LAZY,
                "deviations = (owed + (moves - 1) / 12)[owing].sqrt()",
                "deviations = (owed * moves)[owing].sqrt()",
            )
        ],
        STATE,
    ),
    Mutant(
        "roundings that are saved are not made up for",
        "Rows that wait have less variance than rows that are touched, by a twelfth of a lattice step for each move.",
        [Edit(LAZY, "(owed + (moves - 1) / 12)", "owed")],
        STATE,
    ),
    Mutant(
        "debts of the last settlement again",
        "Rows that were paid when they were read are not marked as paid.",
        [Edit(LAZY, "        self._paid[rows] = self._moves\n", "")],
        STATE,
    ),
    Mutant(
        "a lattice that tells when a row was touched",
        "Noise that was owed is drawn with a coarser grain than the lattice.",
        [
            Edit(
                NOISE,
                "_move(codes, rows, deviations, means, factor, self._normals)",
                "_move(codes, rows, (deviations / 64).round() * 64, means, factor, lambda n: self._normals(n).mul(4).round().div(4))",
            ),
            Edit(NOISE, "if _native_move is None or codes", "if True or codes"),
        ],
        STATE,
    ),
    Mutant(
        "a table that is owed noise can be read",
        "The model's parameter shows the table while noise is owed.",
        [
            Edit(
                LAZY,
                "self._parameter.data = weights.new_full((), math.nan).expand(weights.shape)",
                "self._parameter.data = codes * self._step",
            )
        ],
        STATE,
    ),
    Mutant(
        "coarse moves are grouped",
        "Noise of less than a lattice step waits like any other.",
        [Edit(LAZY, "        if 0 < deviation < COARSE * self._step or float(", "        if float(")],
        STATE,
    ),
    Mutant(
        "a checkpoint before the debts are settled",
        "A checkpoint is written while rows are owed noise.",
        [
            Edit(
                TRAINER,
                "        self.settle()\n        self.ranks.check_same(",
                "        self.ranks.check_same(",
            )
        ],
        STEPS,
    ),
    Mutant(
        "momentum with lazy noise",
        "An optimizer with momentum is not refused.",
        [Edit(LAZILY, '("momentum", "weight_decay", "maximize")', '("weight_decay", "maximize")')],
        STEPS,
    ),
    Mutant(
        "a tied table with lazy noise",
        "A table that the model reads as a whole is not refused.",
        [
            Edit(TABLES, "        if self._reading:\n            raise misused(name)\n", "        pass\n"),
            Edit(RECORDER, "        elif key in self.tables:", "        elif False:"),
        ],
        STEPS,
    ),
    Mutant(
        "repeated lookups are not joined",
        "Of a table that is looked up twice, the norm of an example is that of its first lookup.",
        [
            Edit(
                EMBEDDING,
                "        if len(uses) == 1:\n            return uses[0]\n",
                "        if uses:\n            return uses[0]\n",
            )
        ],
        STEPS,
    ),
    Mutant(
        "votes without a bound",
        "An example that looks up many rows counts fully for each of them.",
        [
            Edit(
                CLIPPING,
                "weights = (clip_norm / rows.sqrt()).clamp_(max=1.0)",
                "weights = torch.ones_like(rows)",
            )
        ],
        COUNTS,
    ),
    Mutant(
        "votes clipped by a fourth root",
        "Each of n votes is C over the fourth root of n, so that together they are too long.",
        [Edit(CLIPPING, "(clip_norm / rows.sqrt())", "(clip_norm / rows.sqrt().sqrt())")],
        COUNTS,
    ),
    Mutant(
        "votes clipped table by table",
        "Every table has the whole clip norm for itself.",
        [
            Edit(
                CLIPPING,
                "rows = torch.stack([use.rows_per_example() for use in uses.values()]).sum(0)",
                "rows = torch.stack([use.rows_per_example() for use in uses.values()]).amax(0)",
            )
        ],
        COUNTS,
    ),
    Mutant(
        "a repeated word votes again",
        "A row counts as often as an example looks it up.",
        [
            Edit(
                EMBEDDING,
                "found.index_add_(0, self.token, weights.double()[self.example])",
                "found.index_add_(0, self.token, self._factors(weights))",
            )
        ],
        COUNTS,
    ),
)
