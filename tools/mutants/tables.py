"""Planted bugs in embedding tables that are read row by row: noise that is late, short, or not drawn at all."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

LAZY, NOISE, TABLES, EMBEDDING, RECORDER, TRAINER, LAZILY, ROWS, CHOSEN, UPDATE = (
    "release/lazy_noise.py",
    "release/noise.py",
    "raw/row_tables.py",
    "raw/gradients/embedding.py",
    "raw/recorder.py",
    "training/trainer.py",
    "training/row_tables.py",
    "raw/row_statistics.py",
    "release/adaptive_rows.py",
    "training/update.py",
)
STATE = ["tests/release/test_lazy_noise.py"]
STEPS = ["tests/training/test_lazy_noise.py"]
COUNTS = ["tests/raw/test_row_counts.py"]
PAIRS = ["tests/raw/test_embedding_pairs.py"]
CHOICE = ["tests/release/test_adaptive_rows.py"]
CHOSEN_STEPS = ["tests/training/test_adafest.py"]

TABLE_MUTANTS = (
    Mutant(
        "rows are read before they are paid",
        "A step reads rows without the noise that they are owed.",
        [
            Edit(
                LAZY,
                "        self._pay(self._codes, torch.unique(asked[self._paid[asked] < self._moves]))\n",
                "",
            )
        ],
        STATE,
    ),
    Mutant(
        "the last move is never owed",
        "A row that waited for one step only is read without the noise of that step.",
        [Edit(LAZY, "self._paid[asked] < self._moves]", "self._paid[asked] < self._moves - 1]")],
        STATE,
    ),
    Mutant(
        "the first two positions stand for all",
        "Gradients that differ further on in a text are taken for equal, so norm and sum are of another example.",
        [
            Edit(
                EMBEDDING,
                "before, after = b.detach()[:, :-1], b.detach()[:, 1:]",
                "before, after = b.detach()[:, :1], b.detach()[:, 1:2]",
            )
        ],
        PAIRS,
    ),
    Mutant(
        "pairs of another unit",
        "Gradients of units are sorted by the number of examples, so that units share pairs.",
        [
            Edit(
                EMBEDDING,
                "use._add_up(use._keys(owner[self.example]), self.gradients)",
                "use._add_up(use._keys(owner[self.example]) - self.token, self.gradients)",
            )
        ],
        PAIRS,
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
                "_move(codes, rows, deviations, means, factor, partial(self._normals_on, codes.device))",
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
        "codes where others read",
        "A table is moved in the memory that a kept state_dict shows: which rows change there is that of the examples.",
        [Edit(LAZY, "shared = _holders(weights) > own or", "shared = _holders(weights) > 9 or")],
        STATE,
    ),
    Mutant(
        "codes in the memory of an array",
        "A table is moved in the memory of the array that it came from: which rows change there is that of the examples.",
        [Edit(LAZY, " or _is_foreign(weights)\n", "\n")],
        STATE,
    ),
    Mutant(
        "a move that was interrupted is settled",
        "Rows that have the noise of a step and rows that do not are shown side by side.",
        [Edit(LAZY, "            self._broken = True\n            yield\n", "            yield\n")],
        STATE,
    ),
    Mutant(
        "a gradient from elsewhere moves a table",
        "A table that a release moves itself follows the gradient, too, that a backward pass has left on it.",
        [
            Edit(
                UPDATE,
                "compact.grad = None  # one that somebody's backward pass has left there was never released",
                "pass",
            )
        ],
        CHOSEN_STEPS,
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
                "        self.settle()\n        self._course.check_same(",
                "        self._course.check_same(",
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
                ROWS,
                "given = (clip_norm / rows.sqrt()).clamp_(max=1.0)\n",
                "given = torch.ones_like(rows)\n",
            )
        ],
        COUNTS,
    ),
    Mutant(
        "votes clipped by a fourth root",
        "Each of n votes is C over the fourth root of n, so that together they are too long.",
        [Edit(ROWS, "(clip_norm / rows.sqrt())", "(clip_norm / rows.sqrt().sqrt())")],
        COUNTS,
    ),
    Mutant(
        "votes clipped table by table",
        "Every table has the whole clip norm for itself.",
        [
            Edit(
                ROWS,
                "rows = sum((use.rows_per_example() for use in uses.values()), torch.zeros(()))",
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
                "found.index_add_(0, self.token, self._taken(weights.double()[self.example]))",
                "found.index_add_(0, self.token, self._factors(weights))",
            )
        ],
        COUNTS,
    ),
    Mutant(
        "chosen rows at the noise of one question",
        "Counts and gradients get the noise that each would need alone.",
        [
            Edit(
                CHOSEN,
                "both = sigma * math.sqrt(1 + ratio**2)\n    return both, both / ratio",
                "return sigma, sigma",
            )
        ],
        CHOICE,
    ),
    Mutant(
        "no row is chosen that no example touched",
        "False positives are left out, so that a chosen row was looked up for sure.",
        [Edit(CHOSEN, "return torch.cat([*found, (jumps", "return torch.cat([*found, (jumps[:0]")],
        CHOICE,
    ),
    Mutant(
        "false positives beside the lattice",
        "The chance of an untouched row ignores that counts are rounded.",
        [Edit(CHOSEN, "least = (math.ceil(threshold / step) - 0.5) * step", "least = threshold")],
        CHOICE,
    ),
    Mutant(
        "jumps that land too far",
        "After each false positive one row is skipped.",
        [Edit(CHOSEN, ".clamp(max=float(places)) + 1", ".clamp(max=float(places)) + 2")],
        CHOICE,
    ),
    Mutant(
        "counts decide without noise",
        "Rows are chosen by exact counts.",
        [Edit(CHOSEN, "            self._noise.add(noisy, scale, 1.0)\n", "")],
        CHOICE,
    ),
    Mutant(
        "rows that were not chosen move",
        "Every touched row gets its gradient, chosen or not.",
        [Edit(CHOSEN, "in total.on(chosen):", "in total.tiles():")],
        CHOICE,
    ),
)
