"""Bugs in budgets of data sets and in bundles."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

BUDGET = "release/budget.py"
BUNDLE = "runs/bundle.py"

BUDGET_MUTANTS = (
    Mutant(
        "sites without a budget",
        "A data set with a budget is shared out among sites without asking it.",
        [
            Edit(
                "sites/one_machine.py",
                "        reserved = reserve_shared(folder, name, [plan_of(terms, part, epsilon) for part in parts.values()])\n",
                "",
            )
        ],
        ["tests/sites/test_reserving.py"],
    ),
    Mutant(
        "sites cost as little as the cheapest",
        "The budget of a data set that is shared out counts the site with the most noise.",
        [
            Edit(
                "sites/reserving.py",
                "        min(spend.noise_multiplier for spend in spends),\n",
                "        max(spend.noise_multiplier for spend in spends),\n",
            )
        ],
        ["tests/sites/test_reserving.py"],
    ),
    Mutant(
        "a model that lies there means finished",
        "A run that is not finished goes on without a reservation, because its directory holds a model.",
        [Edit("jobs/budget.py", ".is_file() and _all_charged(run_dir, plan):", ".is_file():")],
        ["tests/jobs/test_budget.py"],
    ),
    Mutant(
        "simulations without a budget",
        "Simulations with seeded noise take data that has a budget.",
        [
            Edit(
                "cli/fed_own.py",
                "    found = find_budget(data)\n    if found is not None:\n",
                "    if False:\n",
            )
        ],
        ["tests/sites/test_reserving.py"],
    ),
    Mutant(
        "pure runs beside Gaussian ones cost nothing",
        "The filter leaves out the divergence of runs that promise a pure epsilon.",
        [
            Edit(
                "plan/budgets.py",
                "divergence += math.fsum(pure_divergence(epsilon, self.order) for epsilon in total.pure)",
                "divergence += 0.0",
            )
        ],
        ["tests/plan/test_budgets.py"],
    ),
    Mutant(
        "a pure epsilon counted as a concentrated one of half its size",
        "The divergence of a pure epsilon is taken for that of a Gaussian mechanism with an eighth of its square.",
        [
            Edit(
                "plan/budgets.py",
                "exact = (_log_cosh((order - 0.5) * epsilon) - _log_cosh(epsilon / 2)) / (order - 1)",
                "exact = order * epsilon**2 / 8",
            )
        ],
        ["tests/plan/test_budgets.py"],
    ),
    Mutant(
        "plain sums for mixed runs",
        "Pure epsilons may add up to the budget's beside Gaussian runs, which are then not counted.",
        [Edit("plan/budgets.py", "        if not total.spends:\n", "        if total.pure:\n")],
        ["tests/plan/test_budgets.py"],
    ),
    Mutant(
        "two small pure runs cover a large one",
        "Reservations of pure epsilons are compared by their sums.",
        [
            Edit(
                BUDGET,
                "and all(one >= other for one, other in zip_longest(counted.pure, cost.pure, fillvalue=0.0))",
                "and sum(counted.pure) >= sum(cost.pure)",
            )
        ],
        ["tests/release/test_budget.py"],
    ),
    Mutant(
        "a run that was raised to the whole budget was let in small",
        "What a first run was let in with is what it asked for first; others follow after it has filled the budget.",
        [Edit(BUDGET, "else _most(before.reserved, cost)", "else before.reserved")],
        ["tests/release/test_budget.py"],
    ),
    Mutant(
        "a local client without a reservation",
        "A client whose records have a budget answers without asking it.",
        [Edit("cli/fed.py", "    reserve_client(folder, budget)\n", "")],
        ["tests/federated/test_own_records.py"],
    ),
    Mutant(
        "local clients of a table without a reservation",
        "A table with a budget is shared out among local clients without asking it.",
        [Edit("cli/fed_local.py", "    reserve_clients(folder, data, budget)\n", "")],
        ["tests/federated/test_own_records.py"],
    ),
    Mutant(
        "reservation dropped",
        "A run that is let in is not written to the budget.",
        [
            Edit(
                BUDGET,
                '        _append(descriptor, record, {"reserve": about})\n        return chosen',
                "        return chosen",
            )
        ],
        ["tests/release/test_budget.py"],
    ),
    Mutant(
        "a run counted while it goes on",
        "What a run had reserved is given to others while it still charges its ledger.",
        [Edit("jobs/budget.py", "    check_idle(run_dir / LEDGER_FILE)", "    pass")],
        ["tests/jobs/test_budget.py"],
    ),
    Mutant(
        "runs on one data set not composed",
        "A budget counts its most expensive run only.",
        [
            Edit(
                "plan/budgets.py",
                "divergence = float(renyi_cost(total.spends)[place]) if total.spends else 0.0",
                "divergence = max(float(renyi_cost(cost.spends)[place]) if cost.spends else 0.0 for cost in costs)",
            )
        ],
        ["tests/plan/test_budgets.py", "tests/release/test_budget.py"],
    ),
    Mutant(
        "no refusal beyond the budget",
        "A run that does not fit is let in.",
        [Edit(BUDGET, "if not record.admits(cost, instead_of=number):", "if False:")],
        ["tests/release/test_budget.py"],
    ),
    Mutant(
        "every run may use the whole budget",
        "The tight bound for a first run is granted to each run.",
        [Edit("plan/budgets.py", "return len(costs) == 1 and", "return")],
        ["tests/plan/test_budgets.py"],
    ),
    Mutant(
        "a first run that filled the budget forgotten",
        "After a first run that needed all of the budget and was stopped early, others are let in.",
        [
            Edit(
                "plan/budgets.py",
                "if self.used(costs) <= 1 and self.used([first]) <= 1:",
                "if self.used(costs) <= 1:",
            )
        ],
        ["tests/plan/test_budgets.py"],
    ),
    Mutant(
        "delta set aside not counted",
        "A delta that a run sets aside for an event of its own costs the budget nothing.",
        [Edit("plan/budgets.py", "aside = total.aside / (ASIDE_SHARE * self.delta)", "aside = 0.0")],
        ["tests/plan/test_budgets.py"],
    ),
    Mutant(
        "budget without a lock",
        "Two processes read a budget at once, and both are let in.",
        [Edit(BUDGET, "        _lock(descriptor, path)\n", "")],
        ["tests/release/test_budget.py"],
    ),
    Mutant(
        "cut budget believed",
        "A budget that was cut is taken for a shorter one.",
        [Edit(BUDGET, "    _check_note(path, digests)\n", "")],
        ["tests/release/test_budget.py"],
    ),
    Mutant(
        "copied run not paid for",
        "A copy of a run that was stopped goes on under the reservation of the original.",
        [Edit("jobs/budget.py", "known is not None and known.place == place", "known is not None")],
        ["tests/cli/test_journey.py"],
    ),
    Mutant(
        "comparison not reserved",
        "The runs of a comparison are not taken from the budget.",
        [
            Edit(
                "jobs/comparison.py",
                'reserve_for(fresh[0].experiment, costs_of(fresh), "compare"',
                'reserve_for(fresh[0].experiment, [], "compare"',
            )
        ],
        ["tests/cli/test_journey.py"],
    ),
    Mutant(
        "bundle digest not compared",
        "A model that was swapped passes for the one that the certificate speaks of.",
        [Edit(BUNDLE, "elif file_digest(directory / name) != named[name]:", "elif False:")],
        ["tests/runs/test_bundle.py"],
    ),
    Mutant(
        "a bundle's certificate taken at its word",
        "What the certificate of a bundle says is not compared with the plan and the ledger beside it.",
        [Edit(BUNDLE, "return recount_paid(directory)", "return recount_paid(directory)[0], []")],
        ["tests/runs/test_bundle.py"],
    ),
    Mutant(
        "manifest not compared",
        "An edited part of a bundle is used.",
        [Edit(BUNDLE, "elif present and file_digest(directory / name) != digests[name]:", "elif False:")],
        ["tests/runs/test_bundle.py"],
    ),
    Mutant(
        "data recognised by a plain digest",
        "Whoever knows all rows but one can try out the last one against a run directory.",
        [
            Edit(
                "jobs/fingerprint.py",
                'digest = hmac.new(key, b"file\\n", hashlib.sha256)',
                "digest = hashlib.sha256()",
            )
        ],
        ["tests/cli/test_train.py"],
    ),
    Mutant(
        "a raised run forgets what it has spent",
        "A run that is let in again for something else counts for that alone.",
        [
            Edit(BUDGET, "            cost = _most(known.cost, cost)\n", "            pass\n"),
            Edit(
                BUDGET,
                "charged = None if before is None else _most(before.cost, cost)",
                "charged = None if before is None else cost",
            ),
        ],
        ["tests/release/test_budget.py"],
    ),
    Mutant(
        "a copy lowers the count",
        "A run that was put back to an earlier state is counted for what it had charged then.",
        [Edit(BUDGET, "if known.settled and not _covers(cost, known.cost):", "if False:")],
        ["tests/release/test_budget.py"],
    ),
    Mutant(
        "resumed before its ledger is held",
        "While a run starts again somebody counts it for what it has charged so far, and lets another one in.",
        [
            Edit(
                "jobs/run.py",
                "    trainer.load()\n    try:\n        trainer.ranks.lead(lambda: resume_reservation(run_dir, experiment, plan))\n",
                "    try:\n        trainer.ranks.lead(lambda: resume_reservation(run_dir, experiment, plan))\n        trainer.load()\n",
            )
        ],
        ["tests/jobs/test_budget.py"],
    ),
)
