"""Planted bugs in loops of one's own and in the ways to clip."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

LOOP, LOADER, CLIPPING = "training/loop.py", "training/loader.py", "raw/clipping.py"
LOOPS = ["tests/training/test_loop.py"]
WAYS = ["tests/raw/test_clipping_ways.py"]

LOOP_MUTANTS = (
    Mutant(
        "drawn batches may be left out",
        "A loop of one's own may look at a batch and draw another in its place.",
        [
            Edit(
                LOOP,
                "            yield self._open\n            self._refuse_unused()\n",
                "            yield self._open\n",
            )
        ],
        LOOPS,
    ),
    Mutant(
        "a failed batch is tried again",
        "What is left of a batch after an error can be used for a step: the examples of the first chunks are missing.",
        [Edit(LOOP, "self._open = Draw(draw.number, iter(()))", "self._open = draw")],
        LOOPS,
    ),
    Mutant(
        "weighted samplers are taken as plain",
        "A DataLoader that draws some examples more often is accounted for as if all came alike.",
        [Edit(LOADER, "        if not plain:\n", "        if False:\n")],
        LOOPS,
    ),
    Mutant(
        "steps lost by a loop are repeated",
        "A loop that goes on after a crash takes all planned steps on top of those it has paid for.",
        [
            Edit(
                LOOP,
                "self.total = self.done + steps_left(self.plan, self._ledger.charges, self.done)",
                "self.total = self.plan.steps",
            )
        ],
        LOOPS,
    ),
    Mutant(
        "automatic clipping by the computed norm alone",
        "Gradients are scaled to the clip norm without regard to small ones, and to what rounding has hidden.",
        [
            Edit(
                CLIPPING,
                "weights = clip_norm / (length + NEAR_ZERO)",
                "weights = clip_norm * (1 + NEAR_ZERO) / length",
            )
        ],
        WAYS,
    ),
    Mutant(
        "every layer gets the whole clip norm",
        "Per-layer clipping clips each layer to C, so that an example adds √L times C.",
        [Edit(CLIPPING, "share = clip_norm / math.sqrt(len(layers))", "share = clip_norm")],
        WAYS,
    ),
    Mutant(
        "shares of layers follow the example",
        "The clip norm is shared among the layers that a chunk reaches, which differ from chunk to chunk.",
        [
            Edit(
                CLIPPING,
                "share = clip_norm / math.sqrt(len(layers))",
                "share = clip_norm / math.sqrt(len(found))",
            )
        ],
        WAYS,
    ),
    Mutant(
        "an example ends its batch",
        "StopIteration of a data set passes for the end of the data: one example takes the others of its batch with it.",
        [
            Edit(
                "raw/sampling.py",
                "        except StopIteration as error:\n",
                "        except ZeroDivisionError as error:\n",
            )
        ],
        ["tests/training/test_examples.py"],
    ),
    Mutant(
        "an augmentation ends its batch",
        "StopIteration of an augmentation ends the batch without a word, and leaves other examples out.",
        [
            Edit(
                "training/examples.py",
                "yield (self.viewed(chunk) for chunk in chunks)",
                "yield map(self.viewed, chunks)",
            )
        ],
        ["tests/training/test_examples.py"],
    ),
)
