"""Bugs in the training of sharded models."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

DOOR = "release/mechanism.py"
NOISE = "release/noise.py"
SHARDS = "distributed/shards.py"
GROUP = "distributed/group.py"
SHARDING = "training/sharding.py"
TESTS = ["tests/distributed/test_sharded.py"]

ADDED = "        noise.add_part(value, first, rows, scale, 1 / charge.batch_size)\n"
CHARGED = "    ranks.together(partial(ledger.charge, charge))  # no rank draws before it is on disk\n"
PART = "    part = support.part(shards, ranks.rank)\n"

SHARD_MUTANTS = (
    Mutant(
        "a shard without noise",
        "Only the first process adds noise to its shard.",
        [Edit(DOOR, ADDED, ADDED.replace("scale", "scale * (ranks.rank == 0)"))],
        TESTS,
    ),
    Mutant(
        "the noise of a shard is a share",
        "Every process draws noise as if the others added theirs to the same numbers.",
        [Edit(DOOR, ADDED, ADDED.replace("scale", "scale / ranks.size**0.5"))],
        TESTS,
    ),
    Mutant(
        "shards have the same noise",
        "Processes draw from streams that begin alike, so the difference of two shards has no noise.",
        [
            Edit(
                NOISE,
                "        self.add(values, scale, factor)\n\n    def _add_there",
                "        drawn = torch.randn(values.shape, generator=torch.Generator().manual_seed(len(values)))\n"
                "        self.add(values, 0.0, 1.0)\n"
                "        values.add_(drawn, alpha=scale).mul_(factor)\n\n    def _add_there",
            )
        ],
        TESTS,
    ),
    Mutant(
        "shards are noised before the charge",
        "Processes draw the noise of their shards first; a crash before the charge is free.",
        [Edit(DOOR, CHARGED, ""), Edit(DOOR, PART, CHARGED + PART)],
        TESTS,
    ),
    Mutant(
        "norms of a shard",
        "Per-example norms are those of a model of which a process knows its own rows only.",
        [
            Edit(
                SHARDS,
                "                    self._whole[name].data = values\n",
                "                    own = slice(*self.rows[name][self._ranks.rank : self._ranks.rank + 2])\n"
                "                    self._whole[name].data = torch.zeros_like(values)\n"
                "                    self._whole[name].data[own] = values[own]\n",
            )
        ],
        TESTS,
    ),
    Mutant(
        "shards of other steps",
        "A checkpoint is read with whatever shards lie in its folder.",
        [Edit(SHARDING, 'if found != about["digests"]:', "if not found:")],
        TESTS,
    ),
)
