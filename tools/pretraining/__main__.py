"""``python -m tools.pretraining`` writes the weights that come with the package, and prints their digest.

About an hour on one core. The same kind of processor and the same PyTorch give the same file; other ones give
weights that differ in their last bits and then drift apart, which changes features but not what they are worth.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import torch
from safetensors.torch import save

from tacit.data.features import network
from tacit.data.features.synthetic import dead_leaves
from tacit.files import write_atomically
from tools.pretraining.contrast import Pretraining, pretrain

IMAGES, SIDE, SEED = 24_000, 48, 77


def main() -> None:
    """Paint the images, train, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(network.__file__).parent / network.WEIGHTS_FILE)
    parser.add_argument("--steps", type=int, default=Pretraining.steps)
    parser.add_argument("--images", type=int, default=IMAGES)
    given = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    painted = (dead_leaves(given.images, SIDE, 3, SEED) * 255).byte()
    print(f"{len(painted):,} images after {time.monotonic() - started:.0f} s", flush=True)

    def report(step: int, loss: float) -> None:
        if step % 100 == 0 or step == given.steps:
            print(f"step {step:,}: loss {loss:.3f} after {time.monotonic() - started:.0f} s", flush=True)

    encoder = pretrain(painted, Pretraining(steps=given.steps), report)
    written = save({name: value.half() for name, value in encoder.folded().items()})
    write_atomically(given.out, lambda place: place.write_bytes(written))
    print(f"{given.out}: {hashlib.sha256(written).hexdigest()}")


if __name__ == "__main__":
    main()
