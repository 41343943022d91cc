"""Planted bugs in which one example changes what others add to a sum."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

BASE, LINEAR, CONVOLUTION, EMBEDDING = (
    f"raw/gradients/{name}.py" for name in ("base", "linear", "convolution", "embedding")
)
TESTS = ["tests/raw/test_company.py"]

COMPANY_MUTANTS = (
    Mutant(
        "whoever stands in is counted",
        "An example without a finite gradient counts the rows of the example that stands in its place.",
        [Edit("raw/clipping.py", "recorder.left_out = left_out", "recorder.left_out = None")],
        TESTS,
    ),
    Mutant(
        "all measured again for one",
        "If one example overflows, all others are measured in double precision too, and weigh more than without it.",
        [
            Edit(
                BASE,
                "rows = (~sure).nonzero().flatten()",
                "rows = torch.arange(len(sure) if not sure.all() else 0)",
            ),
            Edit(
                BASE,
                "found[0].isfinite() & (found[1] <= (1 + MATERIAL) * found[0] + NOTHING)",
                "found[0].isfinite()",
            ),
        ],
        TESTS,
    ),
    Mutant(
        "the longest decides how others are measured",
        "Kept gradients forget how long their terms are, so padding to the length of another one changes weights.",
        [
            Edit(
                LINEAR,
                "return Norms(squares, above if block.kind is Kind.COORDINATES else squares, mass)",
                "return Norms.exact(squares)",
            ),
            Edit(BASE, "(found[1] <= (1 + MATERIAL) * found[0] + NOTHING)", "found[1].isfinite()"),
        ],
        TESTS,
    ),
    Mutant(
        "terms that the support does not hold",
        "An example of one position is judged by all of its gradient where it is padded to two.",
        [Edit(LINEAR, "found[:, part] = Linear(self.a[part], self.b[part]).masked_error(block)", "pass")],
        TESTS,
    ),
    Mutant(
        "the longest decides on convolutions",
        "Kept gradients of convolutions forget how long their terms are.",
        [Edit(CONVOLUTION, "return Norms(squares, squares, mass)", "return Norms.exact(squares)")],
        TESTS,
    ),
    Mutant(
        "convolutions that nobody measures again",
        "What rounding may have hidden of a convolution's gradient lowers its weight where it is not kept.",
        [
            Edit(
                CONVOLUTION,
                "if self.a.dtype is not torch.float64:\n            squares",
                "if False:\n            squares",
            )
        ],
        TESTS,
    ),
    Mutant(
        "infinite where nothing is active",
        "The mass of a convolution's gradient is infinite times nothing where an inactive input is infinite.",
        [
            Edit(
                CONVOLUTION,
                "part = (b[:, lines] @ mask[outputs][lines][:, columns]).mul_(a[:, columns]).sum(1)",
                "part = (b @ mask[outputs]).mul_(a).sum(1)",
            )
        ],
        TESTS,
    ),
    Mutant(
        "a mass that is not a number",
        "An example whose mass overflows has a weight that is not a number, and so has the sum.",
        [Edit("raw/clipping.py", "return torch.where(length.isfinite(), weights, 0.0)", "return weights")],
        TESTS,
    ),
    Mutant(
        "repeated tokens added up in single precision",
        "The gradient of a repeated token is rounded at every repetition, unless no example differs in its positions.",
        [Edit(EMBEDDING, "if len(repeated):", "if False:")],
        TESTS,
    ),
    Mutant(
        "a data set that remembers",
        "An example that is not the same when it is fetched again counts as one that depends on chance.",
        [Edit("raw/pipeline.py", "if not self._close(alone[target], again):", "if False:")],
        ["tests/training/test_isolation.py"],
    ),
    Mutant(
        "large batches never looked at",
        "What a model does to more examples than a probe puts together is not compared with what it does to fewer.",
        [
            Edit(
                "raw/inspector.py",
                "            if batches.rows(chunk) > PROBED * self._views:\n                self._look",
                "            if False:\n                self._look",
            )
        ],
        ["tests/training/test_isolation.py"],
    ),
)
