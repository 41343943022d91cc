"""Text: words become ids by a fixed public hash, an embedding is averaged, and only some of it is noised."""

from __future__ import annotations

import random
import zlib

import torch
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from tacit.losses import binary_cross_entropy

VOCABULARY, LENGTH = 512, 12
GOOD = ["great", "fine", "lovely", "clever", "warm", "bright", "honest", "moving"]
BAD = ["dull", "weak", "poor", "boring", "cold", "empty", "clumsy", "tired"]
OTHER = [
    "the",
    "a",
    "film",
    "it",
    "was",
    "and",
    "plot",
    "actor",
    "scene",
    "story",
    "with",
    "of",
    "this",
    "that",
    "very",
    "rather",
]


def ids(text: str) -> list[int]:
    """One id per word, from the word alone: no vocabulary is taken from the private texts. 0 is padding."""
    found = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in text.split()][:LENGTH]
    return found + [0] * (LENGTH - len(found))


def reviews(count: int, seed: int) -> TensorDataset:
    rng = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        label = rng.randrange(2)
        words = rng.choices(OTHER, k=7) + rng.choices(GOOD if label else BAD, k=2)
        rng.shuffle(words)
        texts.append(ids(" ".join(words)))
        labels.append(float(label))
    return TensorDataset(torch.tensor(texts), torch.tensor(labels))


class MeanOfWords(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.out = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        there = (x > 0).float().unsqueeze(-1)
        return self.out((self.words(x) * there).sum(1) / there.sum(1).clamp(min=1))


def main() -> float:
    torch.manual_seed(0)
    train, held_out = reviews(4000, 1), reviews(1000, 2)
    plan = tacit.make_plan(
        "tp-topk",
        epsilon=3,
        delta=1e-5,
        examples=len(train),
        batch_size=512,
        epochs=20,
        active_ratio="auto",
        pooling="row",  # one row per word: a word is active or silent as a whole
        reset=True,
    )
    trainer = tacit.Trainer(
        MeanOfWords(),
        train,
        binary_cross_entropy,
        plan,
        optimizer=lambda named: torch.optim.SGD(named, lr=2.0),
        held_out=held_out,
    )
    result = trainer.fit(progress=False)
    print(f"accuracy {result.measured['accuracy']:.3f} at epsilon {result.epsilon:.3f}")
    print(result.selections["sparse"])
    return result.measured["accuracy"]


if __name__ == "__main__":
    main()
