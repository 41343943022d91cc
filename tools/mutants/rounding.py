"""More bugs in sums and norms, in the audit's rule, and in commands under torchrun."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

BASE = "raw/gradients/base.py"
EXACT = "raw/exact.py"
CLIPPING = "raw/clipping.py"
AUDIT = "audit/mechanism.py"

EXACT_TESTS = ["tests/raw/test_exact.py", "tests/raw/test_hostile.py"]

ROUNDING_MUTANTS = (
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
                "if self._summed * (mass * depth * 2.0**-53 + LARGEST_MASS / FLUSHED) > self._slack / 16:",
                "if self._summed < 0:",
            )
        ],
        ["tests/raw/test_exact.py"],
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
                "if source.follows_releases and not (source.ranks_public_weights and not moved):",
                'if source.follows_releases and source.kind != "soft" and not (source.ranks_public_weights and not moved):',
            )
        ],
        ["tests/audit/test_mechanism.py"],
    ),
    Mutant(
        "every process by itself",
        "A command under torchrun trains one model per process on the same data, and certifies each as the only one.",
        [
            Edit(
                "jobs/run.py",
                "    if processes() > 1:\n",
                "    if processes() > 1_000_000:\n",
            )
        ],
        ["tests/cli/test_refusals.py"],
    ),
)
