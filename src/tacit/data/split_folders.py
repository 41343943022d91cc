"""Folders called train and test: the two sides of a split that came with the data."""

from __future__ import annotations

from pathlib import Path

_TRAINING = ("train", "training")
_MEASURING = ("test", "testing", "val", "valid", "validation")


def folders(root: Path) -> list[Path]:
    """The folders in a folder, by name, but for hidden ones."""
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def split_folders(root: Path) -> list[Path]:
    """The folder itself, or where its subfolders are called train and test: these two, and not classes.

    Of a test and a validation folder the test folder is measured on.
    """
    names = {folder.name.lower(): folder for folder in folders(root)}
    training = [names[name] for name in _TRAINING if name in names]
    measuring = [names[name] for name in _MEASURING if name in names]
    if not training or not measuring or set(names) - {*_TRAINING, *_MEASURING}:
        return [root]
    return [training[0], measuring[0]]
