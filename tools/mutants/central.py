"""Bugs in clipping, sampling, noise, ledger and training."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

CLIPPING = "raw/clipping.py"
SAMPLING = "raw/sampling.py"
DOOR = "release/mechanism.py"
NOISE = "release/noise.py"
LEDGER = "release/ledger.py"
RANDOM = "randomness.py"
PROBE = "raw/probe.py"
AGREEMENT = "raw/agreement.py"
TRAINER = "training/trainer.py"
COURSE = "training/course.py"
STATE = "training/state.py"
STEP = "training/step.py"

NOISE_MUTANTS = (
    Mutant(
        "noise two thirds",
        "The noise is two thirds of what is charged.",
        [
            Edit(
                DOOR,
                "scale = of_gradients * clipped.sensitivity",
                "scale = of_gradients * clipped.sensitivity * 2 / 3",
            )
        ],
        ["tests/release/test_release.py", "tests/audit/test_mechanism.py"],
    ),
    Mutant(
        "no noise on vectors",
        "Parameters of one dimension (biases, norms) are released without noise.",
        [
            Edit(
                DOOR,
                "noise.add(value, scale, 1 / batch_size)",
                "noise.add(value, scale if value.dim() > 1 else 0.0, 1 / batch_size)",
            )
        ],
        ["tests/release/test_release.py"],
    ),
    Mutant(
        "no noise at the end",
        "The last coordinate of every parameter is released without noise.",
        [
            Edit(
                NOISE,
                "        step = lattice(scale)\n",
                "        step, last = lattice(scale), float(flat[-1])\n",
            ),
            Edit(
                NOISE,
                "        if flat.data_ptr() != dense.data_ptr():\n",
                "        flat[-1] = last * factor\n        if flat.data_ptr() != dense.data_ptr():\n",
            ),
        ],
        ["tests/release/test_noise.py", "tests/release/test_release.py"],
    ),
    Mutant(
        "noise halved in chunks",
        "A batch that comes in several chunks gets half the noise.",
        [
            Edit(
                CLIPPING,
                "        for chunk in chunks:\n            _refuse_parted(chunk, seen)\n            if self._inspector",
                "        pieces = 0\n        for chunk in chunks:\n            pieces += 1\n"
                "            _refuse_parted(chunk, seen)\n            if self._inspector",
            ),
            Edit(
                CLIPPING,
                "sensitivity = clip_norm * (1 + self._slack)",
                "sensitivity = clip_norm * (1 + self._slack) / (1 + (pieces > 1))",
            ),
        ],
        ["tests/raw/test_clipping.py", "tests/release/test_release.py", "tests/raw/test_sensitivity.py"],
    ),
    Mutant(
        "no lattice",
        "The low bits of the noisy sum are those of floating-point addition.",
        [
            Edit(
                NOISE,
                "part.copy_((noisy / step).round_().mul_(step * factor))",
                "part.copy_(noisy.mul_(factor))",
            )
        ],
        ["tests/release/test_noise.py"],
    ),
    Mutant(
        "key reused",
        "Every keystream has the same key.",
        [Edit(RANDOM, "algorithms.AES(os.urandom(32))", "algorithms.AES(bytes(32))")],
        ["tests/test_randomness.py", "tests/release/test_noise.py"],
    ),
    Mutant(
        "counter reused",
        "Every draw starts at the beginning of the keystream.",
        [
            Edit(RANDOM, "        self._encryptor = cipher.encryptor()\n", "        self._cipher = cipher\n"),
            Edit(
                RANDOM,
                "self._encryptor.update_into(self._zeros[:count], buffer)",
                "self._cipher.encryptor().update_into(self._zeros[:count], buffer)",
            ),
        ],
        ["tests/test_randomness.py", "tests/release/test_noise.py"],
    ),
    Mutant(
        "key shared by forks",
        "A forked process goes on with its parent's keystream.",
        [Edit(RANDOM, "if this_process() != self._process or ", "if ")],
        ["tests/test_randomness.py", "tests/release/test_noise.py"],
    ),
    Mutant(
        "seeded noise repeated",
        "Seeded noise is the same in every release.",
        [Edit(NOISE, 'f"{self._seed} {index}".encode()', 'f"{self._seed}".encode()')],
        ["tests/release/test_noise.py", "tests/training/test_resume.py"],
    ),
)

CLIPPING_MUTANTS = (
    Mutant(
        "clip after sum",
        "The sum is clipped, and no example's gradient.",
        [
            Edit(
                CLIPPING,
                "weights = (clip_norm / length).clamp_(max=1.0)",
                "weights = torch.ones_like(length)",
            ),
            Edit(
                CLIPPING,
                "        self._check_length()\n",
                "        length = float(sum(t.double().square().sum() for t in total.values())) ** 0.5\n"
                "        total = {n: t * min(1.0, clip_norm / max(length, 1e-30)) for n, t in total.items()}\n"
                "        self._check_length()\n",
            ),
        ],
        ["tests/training/test_methods.py", "tests/raw/test_clipping.py"],
    ),
    Mutant(
        "clip to twice the norm",
        "Gradients are clipped to 2C, and C is charged.",
        [Edit(CLIPPING, "(clip_norm / length).clamp_(max=1.0)", "(2 * clip_norm / length).clamp_(max=1.0)")],
        ["tests/training/test_methods.py", "tests/raw/test_sensitivity.py"],
    ),
    Mutant(
        "mask after clip counted as before",
        "Gradients are clipped on all coordinates and then masked, though the plan says otherwise.",
        [
            Edit(
                CLIPPING,
                'clipped_on = support if clip_order == "mask-then-clip" else self._everything',
                "clipped_on = self._everything",
            )
        ],
        ["tests/raw/test_sensitivity.py", "tests/training/test_methods.py"],
    ),
    Mutant(
        "NaN poisons the sum",
        "An example without a finite gradient takes part in the sum.",
        [
            Edit(
                CLIPPING,
                "finite = torch.isfinite(recorder.norms.square) & torch.isfinite(recorder.norms.above)",
                "finite = torch.ones_like(operations.norms.square, dtype=torch.bool)",
            )
        ],
        ["tests/raw/test_sensitivity.py"],
    ),
    Mutant(
        "views are examples",
        "Every augmented view of an example is clipped by itself.",
        [
            Edit(
                TRAINER,
                "                views=views,\n                autocast=autocast,\n",
                "                views=1,\n                autocast=autocast,\n",
            )
        ],
        ["tests/training/test_methods.py"],
    ),
    Mutant(
        "mixing goes unnoticed",
        "A loss that depends on other examples of the batch is not refused.",
        [
            Edit(
                AGREEMENT,
                "    return bool((difference <= tolerance * (other.abs().double() + 0.1) + doubt).all())\n",
                "    return True\n",
            )
        ],
        ["tests/raw/test_probe.py"],
    ),
    Mutant(
        "what sleeps stays asleep",
        "The probe looks at the weights as they start, where zeros let no gradient through.",
        [
            Edit(
                "raw/rehearsal.py",
                "if draw is not None and parameter.requires_grad:",
                "if False:",
            )
        ],
        ["tests/raw/test_isolation.py"],
    ),
    Mutant(
        "only friendly company",
        "The probe puts examples among other examples of the batch only, not among outliers, blanks or other lengths.",
        [Edit(PROBE, "for change in CHANGES.values()),", "for change in ()),")],
        ["tests/raw/test_isolation.py"],
    ),
    Mutant(
        "company in one order",
        "The probe puts examples first in every batch, in their own order.",
        [Edit(PROBE, "        self._choice.shuffle(members)\n", "")],
        ["tests/raw/test_isolation.py"],
    ),
    Mutant(
        "a hundredth may be missing",
        "A gradient that differs by less than 1 % from that of the example alone passes.",
        [
            Edit(
                AGREEMENT,
                "Precision(True, 1e-7, 1e-6, 1e-10, nudge=1e-9, doubt=1e-4)",
                "Precision(True, 1e-7, 1e-2, 1e-5, nudge=1e-9, doubt=1e-4)",
            )
        ],
        ["tests/raw/test_isolation.py"],
    ),
    Mutant(
        "everything may be rounding",
        "A difference passes for rounding if the inputs of an example could make it at all.",
        [
            Edit(
                AGREEMENT,
                "Precision(True, 1e-7, 1e-6, 1e-10, nudge=1e-9, doubt=1e-4)",
                "Precision(True, 1e-7, 1e-6, 1e-10, nudge=1e-9, doubt=1e9)",
            )
        ],
        ["tests/raw/test_isolation.py", "tests/raw/test_probe.py"],
    ),
    Mutant(
        "the pipeline goes unseen",
        "What fetch, collate and augment do is not looked at.",
        [Edit("raw/inspector.py", "if self._pipeline is not None:", "if False:")],
        ["tests/training/test_isolation.py"],
    ),
    Mutant(
        "one look for ever",
        "The model is not looked at again after its first step.",
        [
            Edit(
                "raw/inspector.py",
                "        self._last = self._steps\n        return True\n",
                "        return False\n",
            )
        ],
        ["tests/raw/test_isolation.py", "tests/training/test_isolation.py"],
    ),
    Mutant(
        "selected rows go unnoticed",
        "A layer may see another number of rows than its examples have.",
        [
            Edit(
                "raw/inspector.py",
                "rows != census.get((name, call), -1) * recorder.examples",
                "rows % operations.examples",
            )
        ],
        ["tests/raw/test_isolation.py"],
    ),
    Mutant(
        "isolated examples are collated together",
        "By construction every example should be fetched and collated by itself, and is not.",
        [Edit(SAMPLING, "        if self._isolated:\n", "        if False:\n")],
        ["tests/training/test_isolation.py"],
    ),
    Mutant(
        "probed runs claim construction",
        "The certificate of a probed run says that examples were kept apart by construction.",
        [Edit("training/open_run.py", "ISOLATION[check_isolation(isolation)]", 'ISOLATION["construction"]')],
        ["tests/training/test_isolation.py"],
    ),
    Mutant(
        "divisor len(batch) in the trainer",
        "The sum is divided by the number of drawn examples, which is private.",
        [
            Edit(
                COURSE,
                "            batch_size=self._plan.batch_size,\n            statistic=",
                "            batch_size=max(1, len(self._examples.batches._sampler.draw(len(self.ledger)))),\n"
                "            statistic=",
            ),
        ],
        ["tests/training/test_methods.py"],
    ),
    Mutant(
        "divisor len(batch) in a single step",
        "A step of one's own loop divides by the number of examples in its batch.",
        [
            Edit(
                STEP,
                "from tacit.losses import Loss\n",
                "from tacit import batches\nfrom tacit.losses import Loss\n",
            ),
            Edit(
                STEP,
                "        query = Query(\n",
                "        chunks = list(chunks)\n"
                "        self.batch_size = max(1, sum(batches.rows(chunk) for chunk in chunks))\n"
                "        query = Query(\n",
            ),
        ],
        ["tests/release/test_private_step.py", "tests/release/test_release.py"],
    ),
)

SAMPLING_MUTANTS = (
    Mutant(
        "sampling without replacement",
        "Batches of fixed size are drawn, and accounted as Poisson samples.",
        [
            Edit(
                SAMPLING,
                "        # The gaps between successes",
                "        draws = source.uniform(trials)\n"
                "        return np.sort(np.argsort(draws)[: round(self.rate * trials)])\n"
                "        # The gaps between successes",
            )
        ],
        ["tests/raw/test_sampling.py"],
    ),
    Mutant(
        "neighbours drawn together",
        "Examples are drawn in pairs.",
        [
            Edit(
                SAMPLING,
                "        return chosen[chosen < trials]\n",
                "        pairs = chosen[chosen < trials // 2]\n        return np.sort(np.concatenate([2 * pairs, 2 * pairs + 1]))\n",
            )
        ],
        ["tests/raw/test_sampling.py"],
    ),
    Mutant(
        "sampling rate doubled",
        "Every example is drawn twice as often as accounted.",
        [
            Edit(
                SAMPLING,
                "/ math.log1p(-self.rate)",
                "/ math.log1p(-min(0.99, 2 * self.rate))",
            )
        ],
        ["tests/raw/test_sampling.py", "tests/audit/test_mechanism.py"],
    ),
    Mutant(
        "same batch every step",
        "A seeded sampler draws the same examples in every step.",
        [Edit(SAMPLING, "Seeded(self._seed, step)", "Seeded(self._seed, 0)")],
        ["tests/raw/test_sampling.py"],
    ),
    Mutant(
        "shares overlap",
        "Every process takes all examples of the common draw, so each counts several times.",
        [Edit(SAMPLING, "return drawn[slice(*ends)]", "return drawn")],
        ["tests/raw/test_sampling.py", "tests/distributed"],
    ),
    Mutant(
        "draw under one key repeated",
        "Processes that draw together draw the same examples in every step.",
        [Edit(SAMPLING, "Keyed(self._key, step)", "Keyed(self._key, 0)")],
        ["tests/raw/test_sampling.py", "tests/distributed"],
    ),
    Mutant(
        "empty batches skipped",
        "A step without examples releases nothing, which tells that there were none.",
        [
            Edit(
                SAMPLING,
                "for start in range(0, max(1, len(drawn)), size):",
                "for start in range(0, len(drawn), size):",
            )
        ],
        ["tests/raw/test_sampling.py"],
    ),
)

LEDGER_MUTANTS = (
    Mutant(
        "a lost ledger is started again",
        "Where the ledger of a run was deleted, a new one begins, and what was paid is forgotten.",
        [Edit("release/ledger.py", "                    _check_none_lost(path)\n", "")],
        ["tests/release/test_ledger.py"],
    ),
    Mutant(
        "charged after the release",
        "Noise is drawn first and charged afterwards; a crash between the two is free.",
        [
            Edit(DOOR, "    ranks.together(lambda: ledger.charge(charge))\n", ""),
            Edit(
                DOOR,
                "    ranks.spread(values)\n",
                "    ranks.together(lambda: ledger.charge(charge))\n    ranks.spread(values)\n",
            ),
        ],
        ["tests/release/test_release.py", "tests/training/test_crash_points.py"],
    ),
    Mutant(
        "charge not synced",
        "A charge returns before it is on disk.",
        [
            Edit(
                LEDGER,
                "            written += os.write(descriptor, line[written:])\n        os.fsync(descriptor)\n",
                "            written += os.write(descriptor, line[written:])\n",
            )
        ],
        ["tests/release/test_ledger.py"],
    ),
    Mutant(
        "damaged lines believed",
        "A ledger line whose digest does not fit is taken as it stands.",
        [Edit("release/ledger_file.py", "if not _is_whole(line):", "if not line:")],
        ["tests/release/test_ledger.py"],
    ),
    Mutant(
        "all lines of a ledger like the first",
        "A charge with less noise is read as one with the noise of an earlier line.",
        [
            Edit(
                "release/ledger_lines.py",
                "known = self._known.get((before, between))",
                "known = next(iter(self._known.values()), None)",
            )
        ],
        ["tests/release/test_ledger_lines.py"],
    ),
    Mutant(
        "a head between two lines",
        "Bytes that lie across two digests pass for a line that the ledger has had.",
        [Edit("release/ledger_lines.py", "while at >= 0 and at % _DIGEST:", "while False:")],
        ["tests/release/test_ledger_lines.py"],
    ),
    Mutant(
        "two processes on one ledger",
        "The lock of a ledger is shared.",
        [Edit(LEDGER, "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB")],
        ["tests/release/test_ledger.py", "tests/training/test_resume.py"],
    ),
    Mutant(
        "charges lost on resume",
        "Charges after the checkpoint are forgotten when a run goes on.",
        [
            Edit(
                COURSE,
                "        charges = self.ledger.charges\n",
                "        charges = self.ledger.charges[: self.done]\n",
            )
        ],
        ["tests/training/test_resume.py"],
    ),
    Mutant(
        "lost steps made up for",
        "Lost steps are taken again, and all others too: more releases than planned.",
        [
            Edit(
                COURSE,
                "self.total = self.done + left",
                "self.total = self._plan.steps",
            ),
            Edit(COURSE, "self._plan.noise_at(len(self.ledger) + later)", "phase.noise_multiplier"),
        ],
        ["tests/training/test_resume.py"],
    ),
    Mutant(
        "checkpoint ahead of the ledger",
        "A checkpoint with more steps than were charged is accepted.",
        [Edit("runs/run_directory.py", "not 0 <= step <= paid", "not 0 <= step")],
        ["tests/training/test_resume.py"],
    ),
    Mutant(
        "step repeated after a crash",
        "A step that is taken again after a crash draws the batch and the noise of the lost one.",
        [
            Edit(
                COURSE,
                "self._examples.steps(len(self.ledger), count)",
                "self._examples.steps(self.done, count)",
            )
        ],
        ["tests/training/test_resume.py"],
    ),
)

KEEP_RAW = Edit(
    DOOR,
    "        return release(\n            clipped,",
    "        self.raw = {name: value / query.batch_size for name, value in clipped.values.items()}\n"
    "        return release(\n            clipped,",
)
TAKE_RAW = Edit(
    COURSE,
    "        self._state.follow(",
    "        self._state.raw = self._mechanism.raw\n        self._state.follow(",
)

TRAINING_MUTANTS = (
    Mutant(
        "scores from raw gradients",
        "Coordinates are ranked by sums that were not released.",
        [
            KEEP_RAW,
            TAKE_RAW,
            Edit(
                STATE,
                "            self.scores.add(released)\n",
                "            self.scores.add(Released(self.raw, released.support, 0.0, released.batch_size))\n",
            ),
        ],
        ["tests/training/test_released_only.py", "tests/training/test_methods.py"],
    ),
    Mutant(
        "row scores from raw gradients",
        "Rows are ranked by sums that were not released.",
        [
            KEEP_RAW,
            TAKE_RAW,
            Edit(
                STATE,
                "            self._row_scores.add(released)\n",
                "            self._row_scores.add(\n"
                "                Released(self.raw, released.support, 0.0, released.batch_size, released.statistic)\n"
                "            )\n",
            ),
        ],
        ["tests/training/test_released_only.py", "tests/training/test_methods.py"],
    ),
    Mutant(
        "update from raw gradients",
        "Weights move by the sum before noise.",
        [
            KEEP_RAW,
            TAKE_RAW,
            Edit(
                STATE,
                "            self.update.step(released)\n",
                "            self.update.step(Released(self.raw, released.support, 0.0, released.batch_size))\n",
            ),
        ],
        ["tests/training/test_released_only.py", "tests/training/test_resume.py"],
    ),
    Mutant(
        "support refreshed inside a batch",
        "The support is chosen anew for every physical chunk of a logical batch.",
        [
            Edit(
                COURSE,
                "        released = self._mechanism.answer(",
                "        def refreshed(chunks, entered=phase):\n"
                "            for chunk in chunks:\n"
                "                self._enter(entered, self.done + id(chunk) % 7)\n"
                "                yield chunk\n"
                "        chunks = refreshed(chunks)\n"
                "        released = self._mechanism.answer(",
            )
        ],
        ["tests/training/test_methods.py"],
    ),
    Mutant(
        "noise of phase 1 in phase 2",
        "All phases have the noise of the first.",
        [
            Edit(
                COURSE,
                "            noise_multiplier=phase.noise_multiplier,\n",
                "            noise_multiplier=self._plan.phases[0].noise_multiplier,\n",
            ),
        ],
        [
            "tests/training/test_released_only.py",
            "tests/runs/test_metrics.py",
            "tests/training/test_resume.py",
        ],
    ),
    Mutant(
        "clip norm of phase 1 in phase 2",
        "The second phase clips as the first one does, and charges its own clip norm.",
        [
            Edit(
                COURSE,
                "        released = self._mechanism.answer(",
                "        self._mechanism.first_clip = self._plan.phases[0].clip_norm\n"
                "        released = self._mechanism.answer(",
            ),
            Edit(
                DOOR,
                "                    support,\n                    query.clip_norm,\n",
                "                    support,\n                    getattr(self, 'first_clip', query.clip_norm),\n",
            ),
        ],
        ["tests/training/test_methods.py"],
    ),
)
