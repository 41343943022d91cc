"""Bugs by which raw values leave with the model, or random numbers stop being secret."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

GENERATORS = "raw/generators.py"
FOOTPRINT = "raw/footprint.py"
SAMPLING = "raw/sampling.py"
CLIPPING = "raw/clipping.py"
TRAINER = "training/trainer.py"
STEP = "training/step.py"
MEMORY = "raw/memory.py"
FINGERPRINT = "raw/fingerprint.py"

SECRET_TESTS = ["tests/raw/test_generators.py", "tests/training/test_secret_randomness.py"]

TRACE_MUTANTS = (
    Mutant(
        "an error quotes an example",
        "What PyTorch or a data set says of an example that it does not take is seen by whoever sees the error.",
        [
            Edit(
                "raw/mishaps.py",
                "model, None) from None\n        raise stopping(error, charged=charged) from None\n",
                "model, None) from None\n        raise\n",
            )
        ],
        ["tests/training/test_examples.py"],
    ),
    Mutant(
        "an error names the file of an example",
        "An image that cannot be read is named, after the first charge, to whoever sees the error.",
        [
            Edit(
                "raw/mishaps.py",
                "            raise\n        raise stopping(error, charged=charged) from None\n    except",
                "            raise\n        raise\n    except",
            )
        ],
        ["tests/training/test_examples.py"],
    ),
    Mutant(
        "items of the training list are measured on",
        "Held-out data may hold items of the list that is trained on, so that figures on it give them away.",
        [Edit(FINGERPRINT, "        if any(id(item) in mine for item in other):\n", "        if False:\n")],
        ["tests/training/test_examples.py", "tests/integrations/test_hugging_face.py"],
    ),
    Mutant(
        "odd rows noted in the result",
        "The result of a run says which columns seem to hold codes, which one row more or less decides.",
        [
            Edit(
                "data/task.py",
                "return tuple(one for one in sentences if not isinstance(one, OfRows))",
                "return tuple(sentences)",
            )
        ],
        ["tests/jobs/test_statistics.py"],
    ),
    Mutant(
        "dropout from the global generator",
        "A step draws its dropout masks from PyTorch's generator as the user left it.",
        [
            Edit(
                TRAINER,
                "            noise,\n            self._generators,\n            self.ranks,",
                "            noise,\n            None,\n            self.ranks,",
            )
        ],
        ["tests/training/test_secret_randomness.py"],
    ),
    Mutant(
        "single steps draw in the open",
        "A private step of a custom loop draws its masks from PyTorch's generator as the user left it.",
        [
            Edit(
                STEP,
                "Generators(model, loss) if noise.secure else None",
                "Generators(model, loss) if not noise.secure else None",
            )
        ],
        ["tests/training/test_secret_randomness.py"],
    ),
    Mutant(
        "keys of 32 bits",
        "PyTorch's generator is seeded, by which only 32 of its 19,937 bits are random.",
        [
            Edit(
                GENERATORS,
                "            generator.set_state(twister_state(source))\n",
                '            generator.manual_seed(int.from_bytes(source(4), "little"))\n',
            ),
            Edit(
                GENERATORS,
                "    words = np.frombuffer(source(4 * WORDS), np.uint32).astype(np.uint64)\n",
                "    words = np.tile(np.frombuffer(source(4), np.uint32), WORDS).astype(np.uint64)\n",
            ),
        ],
        ["tests/raw/test_generators.py"],
    ),
    Mutant(
        "numpy not keyed",
        "NumPy's global generator keeps the seed that the user gave it.",
        [
            Edit(
                GENERATORS,
                "random.getstate.__self__, _NUMPY]",
                "random.getstate.__self__]",
            )
        ],
        SECRET_TESTS,
    ),
    Mutant(
        "a data set's generator not keyed",
        "A generator that a data set or an augmentation holds keeps the seed that it was made with.",
        [
            Edit(
                GENERATORS,
                "[] if self._seed is not None else held_by(*self._users)",
                "[]",
            )
        ],
        SECRET_TESTS,
    ),
    Mutant(
        "workers draw from their loader's seed",
        "Random transformations of a data set draw from the seed that the loader gave its worker.",
        [
            Edit(
                SAMPLING,
                "        with self._generators.keyed(request.step, int(request.indices[0])):\n",
                "        if True:\n",
            )
        ],
        SECRET_TESTS,
    ),
    Mutant(
        "random state left behind",
        "After a step the global generators stand where the step left them, which tells the size of its batch.",
        [
            Edit(
                GENERATORS,
                "        finally:\n            restore_random_state(before)\n",
                "        finally:\n            pass\n",
            )
        ],
        SECRET_TESTS,
    ),
    Mutant(
        "random state in the checkpoint",
        "A checkpoint holds the state of PyTorch's generator, and a resumed run goes on from it.",
        [
            Edit(
                "training/open_run.py",
                "    tensors: dict[str, Tensor] = {}\n",
                '    tensors: dict[str, Tensor] = {"rng": torch.get_rng_state()}\n',
            )
        ],
        ["tests/training/test_secret_randomness.py"],
    ),
    Mutant(
        "short seeds are not found",
        "Kernels that stretch one word of the generator are used for dropout masks.",
        [Edit(GENERATORS, "            if torch.equal(*drawn):\n", "            if False:\n")],
        ["tests/raw/test_generators.py"],
    ),
    Mutant(
        "writes noticed once",
        "What a forward pass writes is noticed by the probe only, not at every step.",
        [
            Edit(
                FOOTPRINT,
                "        if not self._changed():\n",
                "        if not refuse or not self._changed():\n",
            ),
        ],
        ["tests/raw/test_footprint.py"],
    ),
    Mutant(
        "in-place writes unnoticed",
        "A buffer that is written in place, not replaced, keeps what was written.",
        [
            Edit(
                FOOTPRINT,
                "        return _mark(self.tensor) != self._mark or (self.copy is not None and self._differs())\n",
                "        return False\n",
            )
        ],
        ["tests/raw/test_footprint.py"],
    ),
    Mutant(
        "new attributes stay",
        "An attribute that a forward pass makes stays with the model.",
        [
            Edit(
                FOOTPRINT,
                "        len(now) == len(before)\n        and (len(now)",
                "        len(now) >= len(before)\n        and (len(now)",
            )
        ],
        ["tests/raw/test_footprint.py"],
    ),
    Mutant(
        "state reaches the next chunk",
        "What a pass writes is taken back at the end of a step, so the next chunk of the batch still sees it.",
        [Edit(CLIPPING, "            self.footprint.taken_back(),\n", "")],
        ["tests/raw/test_footprint.py"],
    ),
    Mutant(
        "written buffers are not refused",
        "A model whose buffers follow the data is trained with them put back, and does not work as meant.",
        [Edit(FOOTPRINT, "            for name in found.buffers:\n", "            for name in []:\n")],
        ["tests/raw/test_footprint.py"],
    ),
    Mutant(
        "batch size in a warning",
        "The warning that memory ran out says how many examples were drawn.",
        [
            Edit(
                MEMORY,
                '            "Memory ran out, so fewer examples',
                '            f"Memory ran out with {examples} examples, so fewer',
            )
        ],
        ["tests/raw/test_memory.py"],
    ),
    Mutant(
        "measured on the training data",
        "Held-out data may overlap the training data.",
        [
            Edit(
                FINGERPRINT,
                "        return bool(np.intersect1d(_positions(dataset), _positions(other)).size)\n",
                "        return False\n",
            )
        ],
        ["tests/training/test_evaluation.py"],
    ),
)
