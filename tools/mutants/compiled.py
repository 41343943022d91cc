"""Bugs in compiled code. What the check at load time finds is not used, so these are bugs that it cannot see."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

EXACT, NOISE = "raw/exact.c", "release/noise.c"
WINDOWS, GHOST = "raw/gradients/windows.c", "raw/gradients/ghost.c"

COMPILED_MUTANTS = (
    Mutant(
        "compiled norm without the rest",
        "compiled norms leave out the numbers that fill no whole block: gradients are clipped too little",
        [Edit(EXACT, "for (; j < width; j++) total += (double)x[j] * (double)x[j];", "")],
        ["tests/raw/test_exact.py"],
    ),
    Mutant(
        "compiled sum with one weight",
        "a compiled sum gives every example the weight of the first",
        [
            Edit(EXACT, "double w = weight[i];", "double w = weight[0];"),
            Edit(
                EXACT,
                "const double *w = weight + i;",
                "const double w[] = {*weight, *weight, *weight, *weight};",
            ),
        ],
        ["tests/raw/test_exact.py"],
    ),
    Mutant(
        "compiled windows flush small numbers",
        "gradients of convolutions are formed in the rounding mode that the thread happens to have: differently twice",
        [Edit(WINDOWS, "        _mm_setcsr(0x1F80);\n", "")],
        ["tests/raw/test_compiled.py"],
    ),
    Mutant(
        "compiled ghost norms flush small numbers",
        "norms from Gram matrices lose what the thread happens to flush, though the sum may hold it",
        [Edit(GHOST, "    _mm_setcsr(0x1F80);\n", "")],
        ["tests/raw/test_exact.py"],
    ),
    Mutant(
        "compiled noise repeats",
        "every block of 1,024 numbers gets the noise of the first one",
        [Edit(NOISE, "start += 2 * PAIRS, key += 2 * PAIRS) {    ", "start += 2 * PAIRS) {    ")],
        ["tests/release/test_noise.py"],
    ),
    Mutant(
        "compiled noise off the lattice",
        "compiled noise is not rounded to the lattice, so its low bits tell of the sum",
        [
            Edit(
                NOISE,
                "(rint(((double)values[start + i] + scale * noise[i]) * inverse) * unit)",
                "((((double)values[start + i] + scale * noise[i]) * inverse) * unit)",
            )
        ],
        ["tests/release/test_noise.py"],
    ),
    Mutant(
        "stacked products of the first example",
        "gradients formed by the other library's products are those of the first example for all of them",
        [Edit("raw/products.py", "_in_parts(one, other, place)", "_in_parts(left[0], right[0], place)")],
        ["tests/raw/test_products.py"],
    ),
    Mutant(
        "the number of examples chooses the library",
        "masked norms are found by one library or the other, as the number of examples has it",
        [
            Edit(
                "raw/gradients/linear.py",
                "linear(a[part].square(), columns.t(), None)",
                "product(a[part].square(), columns, a.new_empty(len(a[part]), columns.shape[1]))",
            )
        ],
        ["tests/raw/test_products.py"],
    ),
    Mutant(
        "keystream past its counter",
        "a keystream keeps its key until its counter of 32 bits starts again, and with it the noise",
        [Edit("randomness.py", "        self._left -= count\n", "")],
        ["tests/test_randomness.py"],
    ),
)
