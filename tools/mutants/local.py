"""Bugs in local differential privacy (FedSel)."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

LOCAL_MUTANTS = (
    Mutant(
        "PE with the paper's p",
        "Perturbed encoding keeps marks with p = e^ε/(1+e^ε), which is not ε-LDP.",
        [
            Edit(
                "federated/selection.py",
                '_encoding("pe", d, k, float(calibrated_logit(d, k, epsilon)))',
                '_encoding("pe", d, k, epsilon)',
            )
        ],
        ["tests/federated/test_selection.py", "tests/federated/test_check.py"],
    ),
    Mutant(
        "EXP with a sensitivity of half",
        "The exponential mechanism's weights grow twice as fast.",
        [
            Edit(
                "federated/selection.py",
                "np.exp(epsilon * (np.arange(1, d + 1) - d) / (d - 1))",
                "np.exp(2 * epsilon * (np.arange(1, d + 1) - d) / (d - 1))",
            )
        ],
        ["tests/federated/test_selection.py"],
    ),
    Mutant(
        "PM with a wrong C",
        "The piecewise mechanism has the range of Duchi's.",
        [
            Edit(
                "federated/perturbation.py",
                "return 1 / math.tanh(self.epsilon / 4)",
                "return 1 / math.tanh(self.epsilon / 2)",
            )
        ],
        ["tests/federated/test_perturbation.py"],
    ),
    Mutant(
        "PM with too high a plateau",
        "The piecewise mechanism falls on its plateau with the probability of twice its ε.",
        [
            Edit(
                "federated/perturbation.py",
                "return 1 / (1 + math.exp(-self.epsilon / 2))",
                "return 1 / (1 + math.exp(-self.epsilon))",
            )
        ],
        ["tests/federated/test_perturbation.py"],
    ),
    Mutant(
        "values not clipped",
        "A value outside [-1, 1] is perturbed as it is.",
        [
            Edit(
                "federated/perturbation.py",
                "return np.clip(np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=1.0, neginf=-1.0), -1.0, 1.0)",
                "return np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=1.0, neginf=-1.0)",
            )
        ],
        ["tests/federated/test_perturbation.py", "tests/federated/test_local.py"],
    ),
    Mutant(
        "residual sent in clear",
        "What a client kept from earlier rounds is added after the perturbation.",
        [
            Edit(
                "federated/local.py",
                "    if residual is not None:\n        sent += momentum * residual[rows, chosen]\n",
                "",
            ),
            Edit(
                "federated/local.py",
                "    value[rows] = perturbation.sample(sent, uniforms)\n",
                "    value[rows] = perturbation.sample(sent, uniforms)\n"
                "    if residual is not None:\n        value[rows] += momentum * residual[rows, chosen]\n",
            ),
        ],
        ["tests/federated/test_local.py", "tests/federated/test_client.py"],
    ),
    Mutant(
        "ranks by the raw value",
        "The selection ranks by the value itself, so that its sign shows.",
        [
            Edit(
                "federated/local.py",
                "sample_coordinates(law, np.abs(accumulated), uniforms)",
                "sample_coordinates(law, accumulated, uniforms)",
            )
        ],
        ["tests/federated/test_local.py"],
    ),
    Mutant(
        "every answer costs the whole budget",
        "An answer uses the ε of the whole training instead of its share.",
        [Edit("federated/plan.py", "return self.epsilon / self.epochs", "return self.epsilon")],
        ["tests/federated/test_plan.py"],
    ),
    Mutant(
        "client budget per answer",
        "A client compares each answer with its budget, not their sum.",
        [
            Edit(
                "federated/client.py",
                "if ledger.spent + cost > self.budget * (1 + 1e-12):",
                "if cost > self.budget * (1 + 1e-12):",
            )
        ],
        ["tests/federated/test_client.py"],
    ),
    Mutant(
        "answered again with fresh noise",
        "The same question gets a new answer every time.",
        [
            Edit(
                "federated/client.py",
                "            if before is not None:\n                return Reply(",
                "            if before is None and before:\n                return Reply(",
            )
        ],
        ["tests/federated/test_client.py"],
    ),
    Mutant(
        "answered before it is charged",
        "A client's residual is written before its charge, so a crash leaves an answer without one.",
        [
            Edit(
                "federated/client.py",
                "        cost = plan.exact_epsilon() / question.rounds\n        ledger.charge(",
                '        write_bytes(self._residual_file(question), save({"residual": left}), mode=0o600)\n'
                "        cost = plan.exact_epsilon() / question.rounds\n        ledger.charge(",
            )
        ],
        ["tests/federated/test_client.py"],
    ),
    Mutant(
        "predictable client",
        "Clients draw from a seeded generator.",
        [
            Edit(
                "federated/client.py",
                "uniforms: Uniforms = field(default_factory=SystemUniforms)",
                "uniforms: Uniforms = field(default_factory=lambda: np.random.default_rng(0))",
            )
        ],
        ["tests/federated/test_client.py"],
    ),
)
