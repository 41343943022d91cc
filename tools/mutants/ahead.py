"""Bugs of what is done ahead of its step: charges in groups, and rows that are read for many steps at once."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

LEDGER = "release/ledger.py"
CHARGING = ["tests/training/test_charging.py"]
FOLDER = ["tests/data/test_folder.py"]

AHEAD_MUTANTS = (
    Mutant(
        "charged ahead in memory only",
        "Charges that are written ahead reach the disk when the last of them is used.",
        [
            Edit(
                LEDGER,
                "        if charges:\n            self._append(charges)\n",
                "        if charges:\n            self._append(charges[:1])\n            self._charges += charges[1:]\n",
            )
        ],
        CHARGING,
    ),
    Mutant(
        "any release uses what was charged ahead",
        "A release with less noise uses up a charge that was written ahead for one with more.",
        [Edit(LEDGER, "        elif charge != self._charges[self._used]:\n", "        elif False:\n")],
        CHARGING,
    ),
    Mutant(
        "charged ahead twice over",
        "Charges that were written ahead and not used can be used after the ledger was opened again.",
        [
            Edit(
                LEDGER,
                "        self._used = len(self._charges)\n",
                "        self._used = len({charge.step for charge in self._charges}) // 2\n",
            )
        ],
        CHARGING,
    ),
    Mutant(
        "charged ahead and never used up",
        "One charge pays for every release until the run ends.",
        [
            Edit(
                LEDGER,
                "        if not self.ahead:\n            self._append([charge])\n",
                "        if not self._charges:\n            self._append([charge])\n        elif not self.ahead:\n"
                "            self._charges.append(charge)\n",
            )
        ],
        CHARGING,
    ),
    Mutant(
        "groups without a sync",
        "Of charges that are written ahead the disk need not have any when their noise is drawn.",
        [
            Edit(
                LEDGER,
                "        os.fsync(descriptor)\n    except OSError as error:\n",
                '        if line.count(b"\\n") < 2:\n            os.fsync(descriptor)\n    except OSError as error:\n',
            )
        ],
        CHARGING,
    ),
    Mutant(
        "a witness behind by any number",
        "A witness that was put back is believed, because a group of charges may be ahead of it.",
        [
            Edit(
                "release/witness.py",
                "charged - count > ledger.newest:",
                "charged - count > 64:",
            )
        ],
        CHARGING,
    ),
    Mutant(
        "stopped with charges left",
        "An orderly stop leaves charges behind that no release follows, and a resumed run ends otherwise.",
        [Edit("training/fitting.py", "            here = not trainer.ahead\n", "            here = True\n")],
        CHARGING,
    ),
    Mutant(
        "rows of the step before",
        "A step gets rows that were drawn for another one, because places in what was read ahead are shifted.",
        [
            Edit(
                "raw/sampling.py",
                "                yield request.step, batch(start, stop)\n",
                "                yield request.step, batch(max(0, start - 1), stop)\n",
            )
        ],
        FOLDER,
    ),
    Mutant(
        "one draw for all steps that are read together",
        "Steps that are read in one pass share a draw, so a row is in all of them or in none.",
        [
            Edit(
                "raw/sampling.py",
                "            drawn = self._sampler.draw(step)\n",
                "            drawn = self._sampler.draw(step - step % 2)\n",
            )
        ],
        [*FOLDER, "tests/raw/test_sampling.py"],
    ),
    Mutant(
        "a neighbour's row",
        "A row of a row group is read in place of the one that was drawn.",
        [
            Edit(
                "data/row_groups.py",
                "        return int(self.ends[number - 1]) if number else 0\n",
                "        return int(self.ends[number - 1]) - 1 if number else 0\n",
            )
        ],
        FOLDER,
    ),
    Mutant(
        "held-out files are trained on",
        "Files that are measured on, without protection, are trained on as well.",
        [
            Edit(
                "data/stored_folder.py",
                "        [file for file in files if file not in chosen],\n",
                "        files,\n",
            )
        ],
        FOLDER,
    ),
    Mutant(
        "a file counts twice",
        "Copies and links of a file are other files: rows count twice, or are measured on although they are trained on.",
        [Edit("data/stored_folder.py", "    refuse_copies([*groups.with_rows, *others.with_rows])\n", "")],
        FOLDER,
    ),
    Mutant(
        "tested on a file that is trained on",
        "A file of the folder may be named as test rows.",
        [Edit("jobs/own_test.py", "    if isinstance(task.train, StoredRows):\n", "    if False:\n")],
        FOLDER,
    ),
    Mutant(
        "files exchanged while training",
        "A file is read again without a look at whether it is still the one that training began with.",
        [
            Edit(
                "data/row_groups.py",
                "                    if _state(path) != self.states[file]:\n",
                "                    if False:\n",
            )
        ],
        FOLDER,
    ),
    Mutant(
        "a cell that is read by its neighbours",
        "A number with a NUL behind it is a number among plain ones, and missing beside an odd cell.",
        [Edit("data/values.py", 'for sign in "_\\0"', 'for sign in "_"')],
        FOLDER,
    ),
    Mutant(
        "a signed nan stops a run",
        "A text such as -nan is a missing number by itself, and an error beside an odd cell.",
        [Edit("data/values.py", "None if unusual or np.isinf", "None if np.isinf")],
        FOLDER,
    ),
    Mutant(
        "bytes that are no text stop a run",
        "A cell of a Parquet file that is no UTF-8 ends a run in the middle, which tells of one row.",
        [
            Edit(
                "data/stored_rows.py",
                "        cells = cells_of(read, tolerant=True)\n",
                "        cells = cells_of(read)\n",
            )
        ],
        FOLDER,
    ),
    Mutant(
        "one odd cell stops a run",
        "A cell that cannot be read ends a run in the middle, which tells of one row.",
        [
            Edit(
                "data/stored_rows.py",
                "    readable = tolerate(table, Schema(_ANY_TARGET, {name: column})).table.column(name)\n",
                "    readable = table.column(name)\n",
            )
        ],
        FOLDER,
    ),
)
