"""Bugs in features of images and in the phase that learns their centre."""

from __future__ import annotations

from tools.mutants.mutant import Edit, Mutant

LOSSES = "losses.py"
METHODS = "plan/methods.py"

CENTRE_MUTANTS = (
    Mutant(
        "distances with the batch in them",
        "An example's distance has the middle of its batch in it, so that one example moves what all others add.",
        [
            Edit(
                LOSSES,
                "distance: Tensor = 0.5 * model.from_centre(inputs).square().sum(1)",
                "distance: Tensor = 0.5 * (model.from_centre(inputs) + inputs.mean(0)).square().sum(1)",
            )
        ],
        ["tests/models/test_unit_linear.py"],
    ),
    Mutant(
        "a centre that never rests",
        "The centre goes on moving while the layer is trained, with gradients as long as the layer's beside it.",
        [
            Edit(
                METHODS,
                'Draft("train", second, Named(("*",), (CENTRE,)))',
                'Draft("train", second, All())',
            )
        ],
        ["tests/plan/test_methods.py"],
    ),
    Mutant(
        "features that tell how many images there are",
        "The last group of images is smaller than the others, so a library rounds their vectors differently.",
        [Edit("data/company.py", "missing = size - len(rows)", "missing = 0")],
        [f"tests/data/features/test_{name}.py" for name in ("patches", "apply", "network")],
    ),
    Mutant(
        "weights that somebody exchanged",
        "The weights of the network are used whatever they are; made from private images they would tell of them.",
        [Edit("data/features/network.py", "!= WEIGHTS_DIGEST:", "== b'':")],
        ["tests/data/features/test_network.py"],
    ),
    Mutant(
        "signs that a library chose",
        "Directions have the sign that this processor's library gives them, so a model meets others elsewhere.",
        [
            Edit(
                "data/features/synthetic.py",
                "torch.where(weights @ axes < 0, -axes, axes)",
                "axes",
            )
        ],
        ["tests/data/features/test_whitening.py"],
    ),
    Mutant(
        "features that nobody compares",
        "A model is asked on whatever features this installation computes under the name.",
        [Edit("data/features/registry.py", "<= _ALIKE for one", "<= 1e9 for one")],
        ["tests/data/features/test_apply.py", "tests/cli/test_starts.py"],
    ),
    Mutant(
        "kept vectors of other images",
        "A file of vectors that was exchanged is read as if it were of these images.",
        [Edit("tensors.py", "tensors_digest(tensors, text) != digest", "False")],
        ["tests/data/features/test_apply.py"],
    ),
)
