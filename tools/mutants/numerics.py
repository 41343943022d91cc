"""Planted bugs in the rounding bounds: norms that are too small, sums that are off, checks that check nothing."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

BASE, GHOST, LINEAR, EXACT, CLIPPING = (
    "raw/gradients/base.py",
    "raw/gradients/ghost.py",
    "raw/gradients/linear.py",
    "raw/exact.py",
    "raw/clipping.py",
)
BOUNDS = ["tests/raw/test_exact.py", "tests/raw/test_hostile.py"]

NUMERICS_MUTANTS = (
    Mutant(
        "ghost norms without a bound",
        "A ghost norm that cancels to zero counts as zero, and the example is not clipped.",
        [
            Edit(
                GHOST,
                "    above = square + error\n",
                "    above = square\n",
            )
        ],
        BOUNDS,
    ),
    Mutant(
        "margin from squared lengths",
        "The margin of a ghost norm grows with the sum of squared lengths, not with the square of their sum.",
        [
            Edit(
                GHOST,
                "    mass = (lengths[0] * lengths[1]).sum(1)\n    unit",
                "    mass = (lengths[0] * lengths[1]).square().sum(1).sqrt()\n    unit",
            )
        ],
        BOUNDS,
    ),
    Mutant(
        "norm of another product than the sum",
        "Gradients that are formed for their norm and summed by another product have no margin.",
        [
            Edit(
                LINEAR,
                "return Norms(squares, above, mass, a.shape[1])",
                "return Norms(squares, squares, squares.sqrt())",
            )
        ],
        BOUNDS,
    ),
    Mutant(
        "lost squares do not count",
        "Squares that underflow in a masked norm count as zero.",
        [
            Edit(
                LINEAR,
                "    above = squares * (1 + 2 * relative) + lost\n",
                "    above = squares * (1 + 2 * relative)\n",
            )
        ],
        BOUNDS,
    ),
    Mutant(
        "every product is close enough",
        "Sums in single precision are taken as they are, however far off.",
        [
            Edit(
                EXACT,
                "            return False\n        self._spent",
                "            pass\n        self._spent",
            )
        ],
        ["tests/raw/test_exact.py"],
    ),
    Mutant(
        "what is formed again is not measured again",
        "Gradients that are formed twice are summed at whatever length they have the second time.",
        [
            Edit(
                BASE,
                "    return torch.where(square > 0, factor, torch.ones_like(factor))\n",
                "    return torch.ones_like(factor)\n",
            )
        ],
        ["tests/raw/test_exact.py"],
    ),
    Mutant(
        "threads agree about small numbers",
        "A subnormal number that one thread takes for zero as an example is measured is not zero in the sum.",
        [Edit(EXACT, "FLUSHED = 2.0**50\n", "FLUSHED = 1.0\n")],
        ["tests/raw/test_exact.py"],
    ),
    Mutant(
        "coarse products in norms",
        "Norms are formed with TF32 or bfloat16 products where the user has allowed them.",
        [Edit(EXACT, '            backend.fp32_precision = "ieee"\n', "            pass\n")],
        ["tests/raw/test_exact.py"],
    ),
    Mutant(
        "autocast in norms",
        "Norms are formed in bfloat16 where a step is made within autocast.",
        [Edit(EXACT, "    with torch._C._DisableAutocast():\n", "    if True:\n")],
        ["tests/raw/test_hostile.py"],
    ),
    Mutant(
        "left-out examples cost a second draw",
        "After an example without a finite gradient the others are drawn again, with a second chance to fall out.",
        [Edit(CLIPPING, "self.views)\n            restore_random_state(state)\n", "self.views)\n")],
        ["tests/raw/test_sensitivity.py"],
    ),
)
