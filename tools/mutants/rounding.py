"""Bugs by which rounding hides part of a gradient, so that it is not clipped; and by which the audit would not tell."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

BASE = "raw/uses/base.py"
LINEAR = "raw/uses/linear.py"
EXACT = "raw/exact.py"
CLIPPING = "raw/clipping.py"
AUDIT = "audit/mechanism.py"

EXACT_TESTS = ["tests/raw/test_exact.py", "tests/raw/test_hostile.py"]

ROUNDING_MUTANTS = (
    Mutant(
        "ghost norms without a margin",
        "What rounding may have hidden in a norm over positions counts as nothing, as in most libraries.",
        [Edit(BASE, "return Norms(square, square + error, mass, a.shape[1])", "return Norms.exact(square)")],
        ["tests/raw/test_hostile.py", "tests/audit/test_hostile.py"],
    ),
    Mutant(
        "norm of another product",
        "Gradients that are formed for their norms and not kept are taken for what the sum adds up.",
        [
            Edit(
                LINEAR,
                "return Norms(squares, (squares.sqrt() + error).square(), mass, a.shape[1])",
                "return Norms.exact(squares)",
            )
        ],
        ["tests/fuzz/test_sensitivity.py"],
    ),
    Mutant(
        "formed again, not measured again",
        "Gradients that are formed a second time are summed at whatever length they then have.",
        [Edit(BASE, "            if self._measured is not None:\n", "            if False:\n")],
        EXACT_TESTS,
    ),
    Mutant(
        "products unverified",
        "A sum in single precision is taken as it comes, however far off it is.",
        [
            Edit(
                LINEAR,
                "        if allowance.accepts(total, lambda probes: through_probes(b, a, weights, probes)):\n",
                "        if len(total):\n",
            )
        ],
        EXACT_TESTS,
    ),
    Mutant(
        "verified in known directions",
        "The directions in which a sum is checked are the same in every step, and known.",
        [
            Edit(
                EXACT,
                'int.from_bytes(os.urandom(7), "little") if seed is None else seed',
                "0",
            )
        ],
        EXACT_TESTS,
    ),
    Mutant(
        "squares that vanish",
        "Norms are squared in single precision, where the squares of small numbers are zero.",
        [
            Edit(
                EXACT,
                "norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)\n"
                "        return norms.square_()",
                "norms: Tensor = rows.square().sum(1).double()\n        return norms",
            )
        ],
        EXACT_TESTS,
    ),
    Mutant(
        "examples added up in single precision",
        "The sum over the examples of a batch is rounded at every one of them.",
        [
            Edit(
                EXACT,
                "            total += w @ (part.abs() if absolute else part).double()\n",
                "            total += (w.to(part.dtype) @ (part.abs() if absolute else part)).double()\n",
            )
        ],
        EXACT_TESTS,
    ),
    Mutant(
        "batches of any length",
        "A batch so large that the rounding of its sum is not covered is summed all the same.",
        [
            Edit(
                CLIPPING,
                "if self._summed * mass * depth * 2.0**-53 > self._slack / 16:",
                "if self._summed < 0:",
            )
        ],
        ["tests/raw/test_clipping.py"],
    ),
    Mutant(
        "short products for long sums",
        "Matrix products may be rounded to ten bits, as the user has asked PyTorch for speed.",
        [Edit(EXACT, '    if chosen == "highest":\n', "    if chosen:\n")],
        EXACT_TESTS,
    ),
    Mutant(
        "infinity in the sum",
        "A gradient that overflows as it is formed again is summed, and the release tells that it was there.",
        [
            Edit(
                BASE,
                "            rows = torch.where(squares.isfinite()[:, None], rows, torch.zeros_like(rows))\n",
                "",
            )
        ],
        EXACT_TESTS,
    ),
    Mutant(
        "soft weights taken for fresh coins",
        "The audit judges runs whose weights follow releases by a bound for trials that do not influence each other.",
        [
            Edit(
                AUDIT,
                "fixed = isinstance(source, All | Named | Random) or (",
                'fixed = isinstance(source, All | Named | Random) or source.kind == "soft" or (',
            )
        ],
        ["tests/audit/test_mechanism.py"],
    ),
    Mutant(
        "every process by itself",
        "A command under torchrun trains one model per process on the same data, and certifies each as the only one.",
        [
            Edit(
                "cli/options.py",
                "    if processes() > 1:\n",
                "    if processes() > 1_000_000:\n",
            )
        ],
        ["tests/cli/test_refusals.py"],
    ),
)
