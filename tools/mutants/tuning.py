"""Bugs in the choice among several runs of training."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

LOSSES = "raw/losses.py"
SAMPLER = "raw/sampling.py"
PLAN = "plan/calibrate.py"
COURSE = "training/course.py"
CLIPPER = "raw/clipping.py"
CERTIFICATE = "runs/certificate.py"

_RUN = "tests/training/test_tuning.py"

TUNING_MUTANTS = (
    Mutant(
        "losses not clipped",
        "An example adds its whole losses to those that are compared.",
        [Edit(LOSSES, "clipped = apart * (clip_norm / norms.clamp_min(clip_norm))", "clipped = apart * 1.0")],
        ["tests/raw/test_losses.py"],
    ),
    Mutant(
        "losses clipped one by one",
        "Each loss of an example is clipped to C, so that all of them together are longer.",
        [
            Edit(
                LOSSES,
                "clipped = apart * (clip_norm / norms.clamp_min(clip_norm))",
                "clipped = apart.clamp(-clip_norm, clip_norm)",
            )
        ],
        ["tests/raw/test_losses.py"],
    ),
    Mutant(
        "losses rounded up",
        "The losses of an example are rounded away from zero after the clip.",
        [
            Edit(
                LOSSES,
                ".trunc().to(torch.int64)",
                ".sign().add(clipped * (STEPS / clip_norm)).to(torch.int64)",
            )
        ],
        ["tests/raw/test_losses.py"],
    ),
    Mutant(
        "losses of a batch",
        "The losses that are compared come from batches, in which a model may mix examples.",
        [
            Edit(
                LOSSES,
                "    exact = pytree.tree_map(_doubled, batch)\n",
                "    exact = pytree.tree_map(_doubled, batch)\n"
                "    columns = [\n"
                "        loss(Called({name: value[place] for name, value in weights.items()}), exact)\n"
                "        for place in range(len(next(iter(weights.values()))))\n"
                "    ]\n"
                "    return torch.stack(columns, 1)\n",
            )
        ],
        ["tests/raw/test_losses.py"],
    ),
    Mutant(
        "comparison not paid for",
        "The noise of training is calibrated as if the runs were not compared.",
        [
            Edit(
                PLAN,
                "        before = tuple(phase.spend for phase in (*phases, *choice))\n",
                "        before = tuple(phase.spend for phase in phases)\n",
            ),
            Edit(PLAN, "    plan.check_promise()\n", ""),
        ],
        ["tests/plan/test_tuning.py"],
    ),
    Mutant(
        "one run paid for",
        "The noise of training is calibrated for one of the runs.",
        [
            Edit(
                PLAN, "    steps = sum(draft.steps for draft in block)\n", "    steps = block[0].steps // 2\n"
            ),
            Edit(PLAN, "    plan.check_promise()\n", ""),
        ],
        ["tests/plan/test_tuning.py"],
    ),
    Mutant(
        "compared without noise",
        "The losses that are compared carry next to no noise.",
        [
            Edit(
                CLIPPER,
                "        sensitivity = clip_norm * (1 + LOSS_ROUNDING)\n",
                "        sensitivity = clip_norm * LOSS_ROUNDING\n",
            )
        ],
        ["tests/raw/test_losses.py", _RUN],
    ),
    Mutant(
        "apart by place",
        "Which examples are apart follows from their places, so that one example less moves all after it over.",
        [
            Edit(
                SAMPLER,
                "            self.apart = coins.uniform(examples) < apart\n",
                "            self.apart = np.arange(examples) % round(1 / apart) == 0\n",
            )
        ],
        [_RUN],
    ),
    Mutant(
        "losses clipped by example",
        "Each example of a unit adds losses of its own to those that are compared.",
        [
            Edit(
                LOSSES,
                "    if not isinstance(batch, UnitBatch):\n        return _losses(model, loss, weights, batch)\n",
                "    if not isinstance(batch, UnitBatch):\n        return _losses(model, loss, weights, batch)\n    return _losses(model, loss, weights, batch.batch)\n",
            )
        ],
        ["tests/raw/test_losses.py"],
    ),
    Mutant(
        "units apart are trained on",
        "Runs are trained on all units, those that they are compared on among them.",
        [
            Edit(
                SAMPLER,
                "        drawn = self._successes(source)\n        if self.apart is not None:\n            drawn = drawn[~self.apart[drawn]]\n        return self._brought",
                "        drawn = self._successes(source)\n        return self._brought",
            )
        ],
        [_RUN],
    ),
    Mutant(
        "units compared in two parts",
        "A unit that two chunks hold is clipped, and counts, twice when runs are compared.",
        [
            Edit(
                CLIPPER,
                "                _refuse_parted(chunk, seen)\n                yield",
                "                yield",
            )
        ],
        ["tests/raw/test_losses.py"],
    ),
    Mutant(
        "lost choice repeated",
        "A choice that a crash has lost is made once more, beyond what the plan has paid for.",
        [
            Edit(
                COURSE,
                "        self.done = charged\n        if charged == self._plan.steps:\n",
                "        self.done = min(charged, self._plan.steps - 1)\n        if False:\n",
            ),
            Edit(
                COURSE,
                "        self.total = self.done + left\n",
                "        self.total = self._plan.steps\n",
            ),
        ],
        [_RUN],
    ),
    Mutant(
        "tuning kept quiet",
        "The certificate of a tuned run says that nothing was tuned.",
        [
            Edit(
                CERTIFICATE,
                "    if not isinstance(source, Stops):\n",
                "    if isinstance(source, Stops) or True:\n",
            )
        ],
        [_RUN],
    ),
)
