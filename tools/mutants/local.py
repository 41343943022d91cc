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
                '_encoding("pe", d, k, float(calibrated_logit(d, k, epsilon)), epsilon)',
                '_encoding("pe", d, k, epsilon, math.inf)',
            )
        ],
        ["tests/federated/test_selection.py", "tests/federated/test_check.py"],
    ),
    Mutant(
        "EXP with a sensitivity of half",
        "The exponential mechanism's tickets grow twice as fast, and nothing holds the least of them up.",
        [
            Edit(
                "federated/selection.py",
                "np.exp(epsilon * (np.arange(1, d + 1) - d) / (d - 1))",
                "np.exp(2 * epsilon * (np.arange(1, d + 1) - d) / (d - 1))",
            ),
            Edit(
                "federated/selection.py",
                'RankLaw("exp", np.clip(between, least, most))',
                'RankLaw("exp", between)',
            ),
        ],
        ["tests/federated/test_selection.py"],
    ),
    Mutant(
        "PM with a wrong C",
        "The plateau of the piecewise mechanism has the width of twice its ε.",
        [
            Edit(
                "federated/lattice.py",
                "growth = math.expm1(epsilon / 2)",
                "growth = math.expm1(epsilon)",
            )
        ],
        ["tests/federated/test_perturbation.py"],
    ),
    Mutant(
        "PM with too high a plateau",
        "The steps of the piecewise mechanism's plateau are likelier than e^ε times the rest, by one ticket.",
        [
            Edit(
                "federated/lattice.py",
                "        high = most_within(epsilon, low)\n        # At a value",
                "        high = most_within(epsilon, low) + 1\n        # At a value",
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
        "a client's certificate is no note of its ledger",
        "A ledger that was put back with its note, and is shorter than the certificate says, is charged again.",
        [Edit("federated/local_ledger.py", "        if head not in self._digests:\n", "        if False:\n")],
        ["tests/federated/test_accounts.py"],
    ),
    Mutant(
        "client budget per answer",
        "A client compares each answer with its budget, not their sum.",
        [
            Edit(
                "federated/client.py",
                "if ledger.spent + cost > self.budget * (1 + ROUNDING):",
                "if cost > self.budget * (1 + ROUNDING):",
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
                "        )\n        self._charge(question, reply, plan.answer_epsilon(), ledger)\n",
                '        )\n        write_bytes(self._residual_file(question), save({"residual": left}), mode=0o600)\n'
                "        self._charge(question, reply, plan.answer_epsilon(), ledger)\n",
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
    Mutant(
        "tickets rounded up",
        "The largest number of tickets is rounded up, so that its ratio to the least is above e^ε.",
        [
            Edit(
                "federated/lattice.py", "to_integral_value(ROUND_FLOOR)", "to_integral_value(ROUND_CEILING)"
            ),
            Edit("federated/lattice.py", "import ROUND_FLOOR,", "import ROUND_CEILING,"),
        ],
        ["tests/federated/test_lattice.py", "tests/federated/test_perturbation.py"],
    ),
    Mutant(
        "tickets by remainder",
        "The system's words are reduced by their remainder, so that small numbers are likelier.",
        [
            Edit(
                "federated/sampling.py",
                "words[words < np.uint64(count)]",
                "words % np.uint64(count)",
            )
        ],
        ["tests/federated/test_sampling.py"],
    ),
    Mutant(
        "plateau out of range",
        "The plateau of a value near 1 hangs over the end of the range, where some replies are then impossible.",
        [
            Edit(
                "federated/lattice.py",
                "return np.clip(wanted, self.half - self.reach, self.reach - self.half)",
                "return wanted + np.sign(wanted) * (self.half // 2)",
            )
        ],
        ["tests/federated/test_lattice.py", "tests/federated/test_perturbation.py"],
    ),
    Mutant(
        "any epsilon answered",
        "A question may have any ε that is above zero.",
        [
            Edit(
                "federated/protocol.py",
                '_check_range("The ε₂ of an answer", plan.epsilon2, LEAST_EPSILON2, MOST_EPSILON2)',
                "pass",
            ),
            Edit(
                "federated/perturbation.py",
                'check_epsilon("epsilon2", epsilon, LEAST_EPSILON2, MOST_EPSILON2)',
                'check_positive("epsilon2", epsilon)',
            ),
        ],
        ["tests/federated/test_protocol.py", "tests/federated/test_client.py"],
    ),
    Mutant(
        "numbers that are none pass as weights",
        "Weights are compared so that NaN is in range.",
        [
            Edit(
                "federated/protocol.py",
                "if not np.all(np.abs(weights) <= MOST_WEIGHT):",
                "if np.any(np.abs(weights) > MOST_WEIGHT):",
            )
        ],
        ["tests/federated/test_protocol.py", "tests/federated/test_client.py"],
    ),
    Mutant(
        "client's ledger without a head",
        "A client does not compare its ledger with the note of how far it reached.",
        [
            Edit(
                "federated/local_ledger.py",
                "if noted not in digests:",
                "if not digests and noted in digests:",
            )
        ],
        ["tests/federated/test_local_ledger.py", "tests/federated/test_client.py"],
    ),
    Mutant(
        "a client's lost note is forgiven",
        "A ledger with charges whose note is gone is accepted.",
        [
            Edit(
                "federated/local_ledger.py",
                "needs_note = content.has_header and bool(content.charges)",
                "needs_note = False",
            )
        ],
        ["tests/federated/test_local_ledger.py"],
    ),
    Mutant(
        "noted before it is charged",
        "A client notes a line before it is written, so a full disk makes a ledger that is refused for good.",
        [
            Edit(
                "federated/local_ledger.py",
                "        try:\n            written = 0\n",
                "        self._note(head)\n        try:\n            written = 0\n",
            )
        ],
        ["tests/federated/test_local_ledger.py"],
    ),
    Mutant(
        "residual ranks of numbers that are none",
        "Only the gradient is cleaned of numbers that are none, not its sum with the residual.",
        [
            Edit(
                "federated/local.py",
                "accumulated = gradients.copy() if residual is None else gradients + residual",
                "accumulated = np.nan_to_num(gradients, nan=0.0, posinf=0.0, neginf=0.0)",
            ),
            Edit(
                "federated/local.py",
                "    np.nan_to_num(accumulated, copy=False, nan=0.0, posinf=0.0, neginf=0.0)\n",
                "    if residual is not None:\n        accumulated += residual\n",
            ),
        ],
        ["tests/federated/test_local.py"],
    ),
    Mutant(
        "any app accepted",
        "A node answers whatever app the server sent along.",
        [
            Edit(
                "federated/flower/node.py",
                "if hashlib.sha256(bundle).hexdigest() != bundle_digest():",
                "if not hashlib.sha256(bundle).hexdigest():",
            )
        ],
        ["tests/federated/test_flower_apps.py"],
    ),
    Mutant(
        "vector replies by threshold",
        "Every direction that agrees with the vector has the tickets of the best, however many do.",
        [
            Edit(
                "federated/vector.py",
                "indices[row] = sample_coordinates(self.law, scores[None, :], uniforms)[0]",
                "best = int(np.count_nonzero(scores > 0))\n            law = RankLaw('ps', np.r_[np.ones("
                "self.directions - best, np.int64), np.full(best, 3, np.int64)])\n            "
                "indices[row] = sample_coordinates(law, scores[None, :], uniforms)[0]",
            )
        ],
        ["tests/federated/test_vector.py"],
    ),
    Mutant(
        "vector replies at twice their epsilon",
        "The best directions have e^(2ε) times as many tickets as the others.",
        [
            Edit(
                "federated/vector.py",
                "perturbed_sampling(self.directions, self.top, self.requested)",
                "perturbed_sampling(self.directions, self.top, 2 * self.requested)",
            )
        ],
        ["tests/federated/test_vector.py"],
    ),
    Mutant(
        "vector replies draw no list",
        "The seed of the directions is taken from the vector, so it tells about it.",
        [
            Edit(
                "federated/vector.py",
                "seeds = uniforms.integers(0, SEEDS, len(vectors))",
                "seeds = uniforms.integers(0, SEEDS, len(vectors)) * 0 + np.abs(units[:, 0] * 1000).astype(np.int64)",
            )
        ],
        ["tests/federated/test_vector.py"],
    ),
    Mutant(
        "a round without answers counts",
        "A round is finished however few have answered it.",
        [
            Edit(
                "federated/server.py",
                "return len(self._replies) >= self.training.quorum",
                "return True",
            )
        ],
        ["tests/federated/test_server.py"],
    ),
    Mutant(
        "a lost ledger begins anew",
        "A folder that has answered gets a new ledger when the old one and its note are gone.",
        [
            Edit(
                "federated/client.py",
                'elif memory.exists() or any(self.folder.glob("residual-*.safetensors")):',
                "elif False:",
            )
        ],
        ["tests/federated/test_client.py"],
    ),
    Mutant(
        "a folder takes another split",
        "Records that lie in a client's folder are used, whatever the training gives it.",
        [
            Edit(
                "federated/flower/loopback.py",
                "elif not _same_records(read_records(client / RECORDS_FILE), share):",
                "elif False:",
            )
        ],
        ["tests/federated/test_flower_apps.py"],
    ),
    Mutant(
        "own records are scaled by their largest value",
        "What a client's own rows become depends on its other rows, not on the public schema alone.",
        [
            Edit(
                "federated/own_records.py",
                "    x = records.x.numpy()\n",
                "    x = records.x.numpy() / np.maximum(1e-9, np.abs(records.x.numpy()).max(axis=0))\n",
            )
        ],
        ["tests/federated/test_own_records.py"],
    ),
    Mutant(
        "a client's folder is overwritten",
        "A client is made in a folder that has answered, whose ledger then belongs to other records.",
        [
            Edit(
                "federated/own_records.py",
                "    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):\n",
                "    if folder.exists() and not folder.is_dir():\n",
            )
        ],
        ["tests/federated/test_own_records.py"],
    ),
    Mutant(
        "local clients take ranges from somebody's rows",
        "A schema whose ranges were read off private rows is good enough for local clients.",
        [Edit("federated/own_records.py", "    check_public(schema)\n", "")],
        ["tests/federated/test_own_records.py"],
    ),
    Mutant(
        "more clones than there are",
        "Every answer counts as a clone twice as often as the theorem allows.",
        [
            Edit(
                "federated/shuffling.py",
                "_clones(answers, math.exp(-epsilon))",
                "_clones(answers, 2 / (1 + math.exp(epsilon)))",
            )
        ],
        ["tests/federated/test_shuffling.py"],
    ),
    Mutant(
        "shuffled losses are rounded down",
        "The privacy loss of shuffled answers is put on the grid point below.",
        [Edit("federated/shuffling.py", "Losses(step, -_CELLS - 1,", "Losses(step, -_CELLS - 2,")],
        ["tests/federated/test_shuffling.py"],
    ),
    Mutant(
        "shuffled answers forget the tail",
        "What lies beyond the grid counts as no loss at all.",
        [Edit("federated/shuffling.py", "max(0.0, 1 - float(known[-1]))", "0.0")],
        ["tests/federated/test_shuffling.py"],
    ),
)
