"""Images that stay in their files: a folder of very many is listed at the start, and read image by image.

Listing reads the names in each folder and nothing about the files themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from tacit.errors import FileError

MANY = 50_000
"""More images than this stay in their files, and more files than this are told apart by name alone."""

MEASURED_ON = 5_000
"""Held-out images of a folder of very many that are measured on, at most."""


def files_below(folder: Path) -> Iterator[str]:
    """The paths of all files below a folder, relative to it, in no order; without a look at any file."""
    waiting = [""]
    while waiting:
        place = waiting.pop()
        with os.scandir(folder / place) as entries:
            for entry in entries:
                path = f"{place}/{entry.name}" if place else entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif entry.is_file():
                    yield path


class StoredImages(Dataset[tuple[Tensor, Tensor]]):
    """Images at ``paths`` below ``root``, read and scaled when they are asked for, with their labels.

    ``read`` gives the pixels of a file of the size that ``shape`` says, scaled. A file that cannot be read counts as an
    image of zeros: an error in the middle of training would tell of one image.
    """

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        labels: NDArray[np.generic],
        shape: tuple[int, int, int],
        read: Callable[[Path], NDArray[np.float32]],
    ) -> None:
        self._root, self._shape, self._read = str(root), shape, read
        # One block of bytes: a million texts of their own would take ten times the memory.
        raw = [os.fsencode(path) for path in paths]
        self._names = b"".join(raw)
        self._ends = np.cumsum([len(name) for name in raw], dtype=np.int64)
        self._labels = torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self._ends)

    def path(self, position: int) -> Path:
        """Where an image lies."""
        start = int(self._ends[position - 1]) if position else 0
        return Path(self._root) / os.fsdecode(self._names[start : int(self._ends[position])])

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        position = range(len(self))[position]
        try:
            pixels = torch.from_numpy(self._read(self.path(position)))
        except FileError:
            pixels = torch.zeros(self._shape)
        return pixels, self._labels[position]
