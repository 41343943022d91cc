"""Planted bugs in sites: the engine that answers, the vault, its messages and its socket."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

ANSWERING, VAULT, MESSAGES = "training/answering.py", "sites/vault.py", "sites/messages.py"
SHARES, MASKS, COORDINATOR = "release/shares.py", "sites/masks.py", "sites/coordinator.py"
SERVING, WIRE, TERMS = "sites/serving.py", "sites/wire.py", "sites/terms.py"
ACCOUNTS = "federated/accounts.py"
ENGINE = ["tests/training/test_answering.py"]
VAULTS = ["tests/sites/test_vault.py"]
SUMS = ["tests/sites/test_secure_sum.py"]
MISSING = ["tests/sites/test_missing_sites.py"]
LOCAL = ["tests/sites/test_local_vault.py"]

SITE_MUTANTS = (
    Mutant(
        "sites share one noise",
        "A site adds the noise that all sites together should have, so its own records are protected by a part of it.",
        [
            Edit(
                ANSWERING,
                "noise_multiplier=self.plan.noise_at(place),",
                "noise_multiplier=self.plan.noise_at(place) / 2,",
            )
        ],
        ENGINE,
    ),
    Mutant(
        "answers that a crash has lost are forgotten",
        "What is left of the plan is counted by answers that were given, not by answers that were charged.",
        [
            Edit(
                ANSWERING,
                "return max(0, self.plan.steps - self.charged)",
                "return max(0, self.plan.steps - self.done)",
            )
        ],
        ENGINE,
    ),
    Mutant(
        "a site answers without end",
        "A question after the last planned answer is answered as well.",
        [Edit(ANSWERING, "        if not self.left:\n", "        if False:\n")],
        ENGINE,
    ),
    Mutant(
        "weights that are not numbers pass",
        "The range of weights is checked so that not-a-number lies in it.",
        [
            Edit(
                ANSWERING,
                "if not all(bool((value.abs() <= MOST_WEIGHT).all()) for value in weights.values()):",
                "if any(bool((value.abs() > MOST_WEIGHT).any()) for value in weights.values()):",
            )
        ],
        ENGINE,
    ),
    Mutant(
        "looks at weights of others",
        "The model is probed again at weights that the server chose; whether it fails tells about examples.",
        [Edit(ANSWERING, "Inspections(later=False)", "Inspections()")],
        ENGINE,
    ),
    Mutant(
        "a site looks at its records with weights that the coordinator chose",
        "The first look is taken at the weights under [start]; whether it fails tells about records.",
        [Edit(VAULT, "replace(terms, start=None).build_model()", "terms.build_model()")],
        ["tests/sites/test_extending.py"],
    ),
    Mutant(
        "an answer is sent before it is kept",
        "The newest answer lives in memory only: after a restart the same round is answered afresh.",
        [Edit(ANSWERING, "        self._save(given.values, about)\n", "        self._save({}, {})\n")],
        ENGINE,
    ),
    Mutant(
        "a site follows a seed",
        "Sampling may come from a seed, which the server may know.",
        [Edit(ANSWERING, "    if loader.seed is not None:\n", "    if False:\n")],
        ENGINE,
    ),
    Mutant(
        "a round that is asked again is answered again",
        "Every repetition of a round is a new release; the server spends the budget on one set of weights.",
        [
            Edit(
                VAULT,
                "if last is None or number > last.round:",
                "if last is None or number >= last.round:",
            )
        ],
        VAULTS,
    ),
    Mutant(
        "failures are explained to the server",
        "The text of an exception, which may quote a record, is sent.",
        [Edit(VAULT, "return refusal(FAILED)", "return refusal(str(error))")],
        VAULTS,
    ),
    Mutant(
        "questions for other terms are answered",
        "A site answers a training that it has not agreed to.",
        [Edit(VAULT, 'if content["training"] != self.terms.digest:', "if False:")],
        VAULTS,
    ),
    Mutant(
        "a question may bring more than its entries",
        "Entries that a question must not have, such as a noise multiplier, are let pass.",
        [
            Edit(
                VAULT,
                'if kind != "round" or set(content) - {"support", "among"} != {"kind", "training", "round"}:',
                'if kind != "round" or not {"kind", "training", "round"} <= set(content):',
            )
        ],
        VAULTS,
    ),
    Mutant(
        "records may be exchanged",
        "A vault opens with other records than its ledger has paid for.",
        [Edit(VAULT, 'if record["records"] != file_digest(folder / RECORDS_FILE):', "if False:")],
        VAULTS,
    ),
    Mutant(
        "the folder of a site is open",
        "Other users of the machine can enter the folder of a site.",
        [Edit(VAULT, "    folder.chmod(0o700)\n", "    folder.chmod(0o755)\n")],
        VAULTS,
    ),
    Mutant(
        "an open folder is served",
        "The vault does not look who else can enter its folder.",
        [Edit(SERVING, "    check_private(folder)\n", "")],
        ["tests/sites/test_serving.py"],
    ),
    Mutant(
        "everybody may ask a vault",
        "Every user of the machine can connect to the socket.",
        [Edit(WIRE, "os.umask(0o177)", "os.umask(0)")],
        ["tests/sites/test_serving.py"],
    ),
    Mutant(
        "messages of any length are read",
        "A message is read whole, however long it says it is.",
        [Edit(WIRE, "    if size > longest:\n", "    if False:\n")],
        ["tests/sites/test_serving.py"],
    ),
    Mutant(
        "tensors may overlap",
        "Tensors of a message may lie over each other, or leave gaps.",
        [Edit(MESSAGES, "        if first != end:\n", "        if False:\n")],
        ["tests/sites/test_messages.py"],
    ),
    Mutant(
        "a schema read off rows is agreed on",
        "Ranges and categories that one site has read off its rows are shared with everybody.",
        [Edit(TERMS, "        check_public(self.schema)\n", "")],
        VAULTS,
    ),
    Mutant(
        "shares of noise for all where fewer are honest",
        "A share of the noise is one of as many as there are honest sites, squared: those who count have too little.",
        [Edit(SHARES, "* step) / math.sqrt(honest)\n", "* step) / honest\n")],
        ["tests/release/test_shares.py"],
    ),
    Mutant(
        "rounding is free",
        "The sensitivity of a share does not cover what rounding to the lattice adds.",
        [Edit(SHARES, "(sensitivity + math.sqrt(size) * step)", "sensitivity")],
        ["tests/release/test_shares.py"],
    ),
    Mutant(
        "noise on a coarser lattice",
        "Sums are rounded to a finer lattice than noise is drawn on: their low bits have no noise.",
        [
            Edit(
                SHARES,
                "    step, scale = share_noise(charge.noise_multiplier, clipped.sensitivity, clipped.size, honest)\n",
                "    step, scale = share_noise(charge.noise_multiplier, clipped.sensitivity, clipped.size, honest)\n"
                "    step = step / 2\n",
            )
        ],
        ["tests/release/test_shares.py"],
    ),
    Mutant(
        "a share is charged after its noise",
        "The ledger is charged once the share is made; a crash in between releases what nobody paid for.",
        [
            Edit(SHARES, "    ledger.charge(charge)\n", ""),
            Edit(
                SHARES,
                "    return Masked(values, step, scale)\n",
                "    ledger.charge(charge)\n    return Masked(values, step, scale)\n",
            ),
        ],
        ["tests/release/test_shares.py"],
    ),
    Mutant(
        "one mask for all rounds",
        "Masks do not depend on the round: the difference of two answers is free of them.",
        [Edit(MASKS, "{pair} {number} {asked}", "{pair} {asked}")],
        SUMS,
    ),
    Mutant(
        "masks whatever the weights",
        "Masks do not depend on the weights: a server that asks sites about different ones still gets a sum.",
        [Edit(MASKS, "{pair} {number} {asked}", "{pair} {number}")],
        SUMS,
    ),
    Mutant(
        "half of the masks",
        "A site masks for those whose names come before its own only; the first in order is not masked at all.",
        [
            Edit(
                MASKS,
                "for other, secret in self._secrets.items():",
                "for other, secret in [s for s in self._secrets.items() if s[0] < self.name]:",
            )
        ],
        SUMS,
    ),
    Mutant(
        "a share without a mask",
        "A site sends its share with its part of the noise and no mask.",
        [Edit(SHARES, "drawn.numpy().view(np.uint64) + words", "drawn.numpy().view(np.uint64)")],
        ["tests/release/test_shares.py"],
    ),
    Mutant(
        "a sum of some",
        "The coordinator takes a sum in which answers are missing.",
        [Edit(COORDINATOR, "            if self.quorum != len(sites):\n", "            if False:\n")],
        SUMS,
    ),
    Mutant(
        "a sum over any few",
        "A site answers for a sum over fewer sites than its noise was planned for.",
        [Edit(VAULT, "        if len(names) < sums.fewest:\n", "        if False:\n")],
        MISSING,
    ),
    Mutant(
        "masks whatever the sites of the sum",
        "The sites of a sum are not part of its masks: answers for different sums cancel each other's.",
        [Edit(VAULT, "weights_digest(weights, bits, among)", "weights_digest(weights, bits)")],
        MISSING,
    ),
    Mutant(
        "noise for all where fewer count",
        "More sites than a sum takes are counted on for its noise.",
        [
            Edit(
                "sites/options.py",
                'if check_count("honest", self.honest) > self.needed:',
                'if check_count("honest", self.honest) > len(self.members):',
            )
        ],
        MISSING,
    ),
    Mutant(
        "a certificate for sums over all",
        "The certificate of a site whose sums may be over fewer counts on more honest sites than there need be.",
        [
            Edit(
                "runs/certificate.py",
                "TRUSTED.format(plan.summed - plan.honest + 1, plan.sites)",
                "TRUSTED.format(plan.sites - plan.honest + 1, plan.sites)",
            )
        ],
        MISSING,
    ),
    Mutant(
        "a sum that is none",
        "Masks that did not cancel move the model.",
        [
            Edit(
                COORDINATOR,
                "if any(bool((value.abs() > most).any()) for value in summed.values()):",
                "if False:",
            )
        ],
        SUMS,
    ),
    Mutant(
        "a key for many trainings",
        "The key of a site stays where it was: two folders can mask different answers alike.",
        [Edit(VAULT, "        key.unlink()\n", "        pass\n")],
        SUMS,
    ),
    Mutant(
        "a site that has paid is made anew",
        "A site whose description is gone is made again with an empty ledger.",
        [Edit("sites/one_machine.py", "        _check_never_asked(place)\n", "        pass\n")],
        ["tests/sites/test_reserving.py"],
    ),
    Mutant(
        "a round is answered twice under one mask",
        "A checkpoint that was put back by itself is believed: a round that was answered is answered afresh.",
        [Edit(ANSWERING, "            self._check_sent(run.ledger)\n", "")],
        SUMS,
    ),
    Mutant(
        "what was sent is not noted",
        "An answer leaves before there is a note of it that a checkpoint which was put back can be compared with.",
        [Edit(ANSWERING, "        run.ledger.note_sent(given.round, given.digest)\n", "")],
        SUMS,
    ),
    Mutant(
        "a forged checkpoint passes for one that was not sent yet",
        "A checkpoint of an earlier round, edited so that it looks newer than what was sent, is believed.",
        [
            Edit(
                ANSWERING,
                "(last is None or last.round <= sent.round or last.charged <= sent.charges)",
                "(last is None or last.charged <= sent.charges)",
            ),
            Edit("release/ledger_file.py", "if sent.round <= last.round or", "if"),
            Edit(ANSWERING, 'question["round"] <= before', "False"),
        ],
        SUMS,
    ),
    Mutant(
        "the witness does not hear of what was sent",
        "Ledger, note of its head and checkpoint can be put back to the moment after a charge.",
        [
            Edit(
                "release/ledger.py",
                "            if self._witness is not None:\n                self._witness.note(self.run, "
                "len(self._charges) + len(charges), digests[-1])",
                "            if self._witness is not None and charges:\n                self._witness.note(self.run, "
                "len(self._charges) + len(charges), digests[-1])",
            )
        ],
        SUMS,
    ),
    Mutant(
        "a local site takes more than round and weights",
        "A question may bring other numbers than the terms have, and is answered.",
        [
            Edit(
                "sites/local_vault.py",
                'set(content) != {"kind", "training", "round"} or not tensors',
                "not tensors",
            )
        ],
        LOCAL,
    ),
    Mutant(
        "a local site answers for other terms",
        "A site under local privacy answers a training that it has not agreed to.",
        [
            Edit(
                "sites/local_vault.py",
                '        if content["training"] != self.terms.digest:\n',
                "        if False:\n",
            )
        ],
        LOCAL,
    ),
    Mutant(
        "any terms will do for a local site",
        "A local site agrees to terms that cost more than its budget.",
        [Edit("sites/local_vault.py", "    if not cost <= epsilon:\n", "    if False:\n")],
        LOCAL,
    ),
    Mutant(
        "a local site without a reservation",
        "A local site whose records have a budget is made without asking it.",
        [
            Edit(
                "sites/local_vault.py",
                "            reserve_client(folder, terms.local.epsilon)\n",
                "            pass\n",
            )
        ],
        LOCAL,
    ),
    Mutant(
        "a local vault without its notes",
        "A local vault opens a ledger that is shorter than its notes say.",
        [
            Edit(
                "sites/local_vault.py",
                "            check_notes(folder / LEDGER_FILE, self._client.witness)\n",
                "            pass\n",
            )
        ],
        LOCAL,
    ),
    Mutant(
        "any budget will do",
        "A site joins a secure sum whose noise gives its records more than its budget.",
        [Edit(VAULT, "    if not spent <= epsilon:\n", "    if False:\n")],
        SUMS,
    ),
    Mutant(
        "the certificate does not say who is trusted",
        "That colluding sites are not covered is left out.",
        [Edit("runs/certificate.py", "    if plan.sites:\n", "    if False:\n")],
        SUMS,
    ),
    Mutant(
        "answers for other coordinates count",
        "The digest of a question leaves out its support: an answer about other coordinates is used, and masked alike.",
        [
            Edit(
                MESSAGES,
                'hashlib.sha256(b"" if bits is None else json.dumps(dict(bits), sort_keys=True).encode())',
                'hashlib.sha256(b"")',
            )
        ],
        ["tests/sites/test_supports.py"],
    ),
    Mutant(
        "a support where none is agreed",
        "A server may name coordinates in any round, also where the terms are for all of them.",
        [Edit(VAULT, "        if training.sparse(number) != (bits is not None):\n", "        if False:\n")],
        ["tests/sites/test_supports.py"],
    ),
    Mutant(
        "silent coordinates drift",
        "Silent coordinates keep what the warm-up gave them; sites compute gradients at other weights than are trained.",
        [Edit(COORDINATOR, "        self._return_silent()\n", "")],
        ["tests/sites/test_supports.py"],
    ),
    Mutant(
        "charges below what answers cost are verified",
        "The check of a client believes the ε of its ledger instead of computing it from the plan.",
        [Edit(ACCOUNTS, "        if charge.epsilon < _cost(question):\n", "        if False:\n")],
        ["tests/federated/test_accounts.py"],
    ),
    Mutant(
        "plans of a client may be edited",
        "The check of a client takes a plan that is not the one that was charged.",
        [Edit(ACCOUNTS, "        if question.digest != digest:\n", "        if False:\n")],
        ["tests/federated/test_accounts.py"],
    ),
    Mutant(
        "a training extends itself",
        "A training may extend one of the same name: clients repeat answers to other weights.",
        [Edit("federated/server.py", "    if before.training == question.training:\n", "    if False:\n")],
        ["tests/federated/test_flower_apps.py"],
    ),
    Mutant(
        "a lost wish to stop",
        "A vault that was told to stop while a connection failed goes on to answer.",
        [Edit(SERVING, "        stop.check()\n", "")],
        ["tests/sites/test_serving.py"],
    ),
)
