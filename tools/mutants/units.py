"""Bugs in what makes a group of examples the unit of privacy."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

SAMPLING = "raw/sampling.py"
CLIPPING = "raw/clipping.py"
COURSE = "training/course.py"
KERNEL = "tests/raw/test_units.py"
TRAINING = "tests/training/test_units.py"
JOBS = "tests/jobs/test_units.py"

PARTED = "            _refuse_parted(chunk, seen)\n            if self._inspector.pending:\n"

UNIT_MUTANTS = (
    Mutant(
        "masked ids",
        "Where the id of an example is masked, what lies below the mask says whose it is.",
        [Edit("units.py", "    if isinstance(ids, np.ma.MaskedArray):\n", "    if False:\n")],
        [TRAINING],
    ),
    Mutant(
        "another unit after a stop",
        "A run is resumed for another unit than the one that its certificate names.",
        [Edit("runs/run_directory.py", "if about.unit not in (None, start.unit):", "if False:")],
        ["tests/training/test_resume.py"],
    ),
    Mutant(
        "units are clipped row by row",
        "Every example of a unit is clipped by itself, so a unit with ten of them counts ten times.",
        [
            Edit(
                CLIPPING,
                "return (chunk.batch, None, None) if found is None else (found.batch, found.sizes, found.order)",
                "return chunk.batch, None, None",
            )
        ],
        [KERNEL, TRAINING],
    ),
    Mutant(
        "rows are sampled",
        "A unit takes part if one of its examples is drawn: more often than the plan says.",
        [
            Edit(
                SAMPLING,
                "        source = self._source(step)\n        drawn = self._successes(source)\n",
                "        source = self._source(step)\n"
                "        hits = source.uniform(len(self.units.codes)) < self.rate\n"
                "        drawn = np.unique(self.units.codes[hits])\n",
            )
        ],
        [TRAINING],
    ),
    Mutant(
        "divisor in rows",
        "The sum over units is divided by the expected number of examples.",
        [
            Edit(
                COURSE,
                "            batch_size=self._plan.batch_size,\n",
                "            batch_size=self._plan.batch_size if not self._plan.grouped else round(\n"
                "                self._plan.sampling_rate * self._examples.count\n            ),\n",
            )
        ],
        [TRAINING],
    ),
    Mutant(
        "a unit in two chunks",
        "A unit larger than a chunk is parted, clipped in each chunk, and counts twice.",
        [
            Edit(
                SAMPLING,
                "        yield _Request(step, rows[own], np.repeat(units[part], sizes[part]))\n",
                "        ids, held, limit = np.repeat(units[part], sizes[part]), rows[own], chunk_size or 10**9\n"
                "        for at in range(0, max(1, len(held)), limit):\n"
                "            yield _Request(step, held[at : at + limit], ids[at : at + limit])\n",
            ),
            Edit(CLIPPING, PARTED, "            if self._inspector.pending:\n"),
        ],
        [TRAINING],
    ),
    Mutant(
        "parted units are not refused",
        "Whoever brings chunks of their own may give a unit in two of them.",
        [Edit(CLIPPING, PARTED, "            if self._inspector.pending:\n")],
        [KERNEL],
    ),
    Mutant(
        "a unit on two ranks",
        "The examples of a unit are shared out among ranks, each of which clips its part.",
        [
            Edit(
                SAMPLING,
                "& (places % self._size == self._rank)",
                "& (np.arange(len(places)) % self._size == self._rank)",
            ),
            Edit(
                SAMPLING,
                "        return drawn[mine], sizes[mine], self.units.order[positions[taken]]\n",
                "        own = np.bincount(places[taken], minlength=len(drawn))\n"
                "        return drawn[own > 0], own[own > 0], self.units.order[positions[taken]]\n",
            ),
        ],
        [TRAINING],
    ),
    Mutant(
        "pieces part a unit",
        "Where memory is scarce a unit is worked on in pieces, each of which is clipped.",
        [
            Edit(
                "raw/memory.py",
                "                    own = sizes[units : units + _whole(sizes[units:], size)]\n"
                "                    size = int(own.sum())\n",
                "                    own = np.minimum(sizes[units : units + _whole(sizes[units:], size)], size)\n"
                "                    sizes = np.insert(sizes, units + 1, sizes[units] - own[0]) if own[0] < sizes[units] "
                "else sizes\n"
                "                    size = int(own.sum())\n",
            )
        ],
        [KERNEL],
    ),
    Mutant(
        "no cap on rows",
        "A unit brings all its examples, however many.",
        [
            Edit(
                SAMPLING,
                "sizes = whole if self._rows_per_unit is None else np.minimum(whole, self._rows_per_unit)",
                "sizes = whole",
            )
        ],
        [TRAINING],
    ),
    Mutant(
        "the choice of rows is known",
        "Which examples of a large unit take part is always the same: its first.",
        [Edit(SAMPLING, "        if (sizes < whole).any():\n", "        if False:\n")],
        [TRAINING],
    ),
    Mutant(
        "ranks may have other units",
        "Processes that group the examples differently train together.",
        [
            Edit(
                "training/open_run.py",
                'lambda: "" if units is None else sha256(units.codes.tobytes()).hexdigest()',
                'lambda: ""',
            )
        ],
        [TRAINING],
    ),
    Mutant(
        "units on both sides of the split",
        "Rows of one unit are trained on and held out.",
        [
            Edit(
                "data/read_table.py",
                "        drop, split_by = (*drop, unit), unit\n",
                "        drop = (*drop, unit)\n",
            ),
            Edit("data/task.py", "            if both.size:\n", "            if False:\n"),
        ],
        [JOBS],
    ),
)
