"""Bugs in accounting, calibration and certificates."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

ACCOUNTING_MUTANTS = (
    Mutant(
        "phases not composed",
        "ε of a run is that of its most expensive phase.",
        [
            Edit(
                "plan/accountants.py",
                "return ACCOUNTANTS[accountant](merged, delta)",
                "return max(ACCOUNTANTS[accountant]((spend,), delta) for spend in merged)",
            )
        ],
        ["tests/plan/test_accountants.py"],
    ),
    Mutant(
        "steps not added up",
        "Of phases with equal noise only the last one counts.",
        [Edit("plan/accountants.py", "steps.get(key, 0) + spend.steps", "spend.steps")],
        ["tests/plan/test_accountants.py"],
    ),
    Mutant(
        "sampling rate halved in accounting",
        "The accountant counts on half the sampling rate.",
        [
            Edit(
                "plan/accountants.py",
                "gaussian_losses(rate, noise,",
                "gaussian_losses(rate / 2, noise,",
            )
        ],
        ["tests/plan/test_accountants.py"],
    ),
    Mutant(
        "optimistic accounting",
        "The privacy loss is rounded down, so ε is a lower bound.",
        [
            Edit(
                "plan/loss_distribution.py",
                "return Losses(width, first, np.maximum",
                "return Losses(width, first - 1, np.maximum",
            )
        ],
        ["tests/plan/test_loss_distribution.py"],
    ),
    Mutant(
        "cut tails are free",
        "What a convolution cuts off its ends counts for nothing.",
        [Edit("plan/loss_distribution.py", "cut = _CUT * math.exp(", "cut = 0.0 * math.exp(")],
        ["tests/plan/test_loss_distribution.py"],
    ),
    Mutant(
        "rounding of transforms is free",
        "What a million steps add up to in rounding may make δ too small.",
        [
            Edit(
                "plan/loss_distribution.py",
                "masses = np.maximum(masses + spread, 0.0)",
                "masses = np.maximum(masses, 0.0)",
            )
        ],
        ["tests/plan/test_truth.py"],
    ),
    Mutant(
        "a small δ is computed like a large one",
        "Without tilting, the bound on rounding makes ε of many steps several times too large.",
        [
            Edit(
                "plan/accountants.py",
                "if found[0].added <= ROUNDED * delta:",
                "if found[0].added <= 1:",
            ),
            Edit("plan/accountants.py", "if whole or _USUALLY_ADDED *", "if whole or 0 *"),
        ],
        ["tests/plan/test_truth.py"],
    ),
    Mutant(
        "disclosure counts once",
        "Losses above the grid are as likely after many steps as after one.",
        [
            Edit(
                "plan/loss_distribution.py",
                "math.expm1(count * math.log1p(-self.infinite))",
                "math.expm1(math.log1p(-self.infinite))",
            )
        ],
        ["tests/plan/test_loss_distribution.py"],
    ),
    Mutant(
        "one direction only",
        "The accountant covers the removal of an example, not its addition.",
        [
            Edit(
                "plan/loss_distribution.py",
                'if replaced else ("remove", "add")',
                'if replaced else ("remove",)',
            )
        ],
        ["tests/plan/test_loss_distribution.py"],
    ),
    Mutant(
        "composition wraps around",
        "A convolution is cut where its window is too short, and what is beyond comes back as small losses.",
        [
            Edit(
                "plan/loss_distribution.py",
                "high = min(high, math.ceil(bound))",
                "high = min(high, math.ceil(bound * 0.75))",
            )
        ],
        ["tests/plan/test_loss_distribution.py"],
    ),
    Mutant(
        "calibrated beyond the promise",
        "The search for the noise stops above the promised ε.",
        [Edit("plan/calibrate.py", "_PROMISED = (1 - SLACK, 1.0)", "_PROMISED = (1.0, 1 + SLACK)")],
        ["tests/plan/test_make_plan.py"],
    ),
    Mutant(
        "warm-up is free",
        "The second phase is calibrated as if nothing had been spent before.",
        [
            Edit(
                "plan/calibrate.py",
                "return (*before, Spend(rate, noise, steps))",
                "return (Spend(rate, noise, steps),)",
            ),
            Edit("plan/calibrate.py", "    plan.check_promise()\n", ""),
        ],
        ["tests/plan/test_make_plan.py"],
    ),
    Mutant(
        "lost charges are free",
        "After a crash only the steps that were kept count as paid.",
        [
            Edit(
                "plan/remaining.py",
                "left = max(0, plan.steps - len(paid))",
                "paid = paid[:kept]\n    left = max(0, plan.steps - len(paid))",
            )
        ],
        ["tests/plan/test_remaining.py"],
    ),
    Mutant(
        "noise by step, not by place",
        "After a crash a step has the noise of its phase, so whoever times crashes chooses the sequence of noise.",
        [
            Edit(
                "training/course.py",
                "self._plan.noise_at(len(self.ledger) + later)",
                "self._plan.noise_at(self.done + later)",
            )
        ],
        ["tests/training/test_resume.py"],
    ),
    Mutant(
        "replacing costs what removing does",
        "A plan for neighbours that differ in one unit's contents is accounted for one unit more or less.",
        [
            Edit(
                "plan/loss_distribution.py",
                '("replace",) if replaced else',
                '("remove", "add") if replaced else',
            )
        ],
        ["tests/plan/test_relations.py"],
    ),
    Mutant(
        "several units cost as often as much as one",
        "The certificate multiplies ε by the number of units and keeps δ.",
        [
            Edit(
                "plan/relations.py",
                "found = [(size, _group_epsilon(merged, delta, size)) for size in sizes]",
                "found = [(size, size * _group_epsilon(merged, delta, 1)) for size in sizes]",
            )
        ],
        ["tests/plan/test_relations.py"],
    ),
    Mutant(
        "verification ignores the relation",
        "The independent accountant takes every relation for one unit more or less.",
        [
            Edit(
                "runs/verification.py",
                "epsilon = recount(counts, delta, replaced=relation == REPLACE_ONE)",
                "epsilon = recount(counts, delta)",
            )
        ],
        ["tests/runs/test_relations.py"],
    ),
    Mutant(
        "certificate believes the plan",
        "The certificate states what was planned, not what was charged.",
        [
            Edit(
                "runs/certificate.py",
                "spent = epsilon_of(spends, plan.gaussian_delta, plan.accountant, plan.relation)",
                "spent = plan.spent()",
            )
        ],
        ["tests/runs/test_certificate.py"],
    ),
    Mutant(
        "seeded runs for release",
        "A run with seeded noise is certified for release.",
        [Edit("runs/certificate.py", "    if seeded:\n", "    if seeded and not ledger.charges:\n")],
        ["tests/runs/test_certificate.py"],
    ),
    Mutant(
        "less noise than planned passes",
        "Releases with less noise than planned are not held against a run.",
        [
            Edit(
                "runs/certificate.py",
                "charge.noise_multiplier < min(least, phase.noise_multiplier)",
                "charge.noise_multiplier < 0",
            )
        ],
        ["tests/runs/test_certificate.py"],
    ),
    Mutant(
        "model not looked at",
        "Verification does not compare the model with the digest on the certificate, nor with the checkpoint.",
        [
            Edit(
                "runs/verification.py",
                "        elif found.digests[name] != digest:\n",
                "        elif name != MODEL_FILE and found.digests[name] != digest:\n",
            ),
            Edit(
                "runs/verification.py",
                "    elif not averaged and last != found.model.tensors:\n",
                "    elif not last:\n",
            ),
        ],
        ["tests/runs/test_verification.py"],
    ),
    Mutant(
        "seed not looked at",
        "A ledger that calls seeded noise secure is believed, whatever run.json says.",
        [
            Edit(
                "runs/verification.py",
                "if found.run.seed is not None and secure:",
                "if found.run.seed is not None and not ledger.charges:",
            )
        ],
        ["tests/runs/test_verification.py"],
    ),
    Mutant(
        "checkpoint stamp not looked at",
        "A ledger that was cut below its checkpoint verifies.",
        [
            Edit(
                "runs/verification.py",
                "        problems += _checkpoint(found.checkpoint.numbers, ledger, found.plan)\n",
                "        pass\n",
            )
        ],
        ["tests/runs/test_verification.py"],
    ),
    Mutant(
        "page not compared",
        "The certificate's page may say anything.",
        [
            Edit(
                "runs/verification.py",
                "    elif found.page != certificate_page(certificate).encode():\n",
                "    elif not found.page:\n",
            )
        ],
        ["tests/runs/test_verification.py"],
    ),
    Mutant(
        "words of the start forgotten",
        "The certificate may leave out what the run was started with as not covered.",
        [
            Edit(
                "runs/verification.py",
                "listed = () if begun is None or begun.not_covered is None else begun.not_covered",
                "listed = certificate.not_covered",
            )
        ],
        ["tests/runs/test_verification.py"],
    ),
    Mutant(
        "any key will do",
        "A signature with any key passes for one with the trusted key.",
        [
            Edit(
                "runs/signing.py",
                "if trusted is not None and signature.key != trusted:",
                "if trusted is not None and not signature.key:",
            )
        ],
        ["tests/runs/test_verification.py"],
    ),
    Mutant(
        "signature binds nothing",
        "A signature is checked against what it says, not against the files.",
        [
            Edit(
                "runs/signing.py",
                "        elif found[name] != signature.signed[name]:\n",
                "        elif not found[name]:\n",
            )
        ],
        ["tests/runs/test_verification.py"],
    ),
    Mutant(
        "witness behind what is released",
        "The witness hears of a run's releases only when the run is opened.",
        [
            Edit(
                "release/ledger.py",
                "                self._witness.note(self.run, len(self._charges) + len(charges), digests[-1])\n",
                "                pass\n",
            )
        ],
        ["tests/runs/test_verification.py"],
    ),
    Mutant(
        "witness not asked",
        "A run directory that was put back from a backup is resumed although its witness knows better.",
        [Edit("release/ledger.py", "                witness.check(record)\n", "                pass\n")],
        ["tests/runs/test_verification.py"],
    ),
    Mutant(
        "verification in one direction",
        "The independent accountant counts removing an example only.",
        [
            Edit(
                "runs/recounting.py",
                "(True,) if replaced else (True, False):",
                "(True,) if replaced else (False,):",
            )
        ],
        ["tests/runs/test_recount.py"],
    ),
)
