"""The distributions that an installation of Tacit consists of, as their metadata tells."""

from __future__ import annotations

import re
from importlib import metadata

from packaging.requirements import Requirement

ROOT = "tacit-dp"


def normal(name: str) -> str:
    """The one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(extras: tuple[str, ...] = ()) -> dict[str, metadata.Distribution]:
    """Tacit with the given extras and everything it needs, by normal name, as far as it is installed."""
    found: dict[str, metadata.Distribution] = {}
    todo: list[tuple[str, tuple[str, ...]]] = [(ROOT, extras)]
    seen = set()
    while todo:
        name, wanted = todo.pop()
        if (normal(name), wanted) in seen:
            continue
        seen.add((normal(name), wanted))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[normal(name)] = distribution
        todo += [(need.name, tuple(sorted(need.extras))) for need in requirements(distribution, wanted)]
    return dict(sorted(found.items()))


def requirements(distribution: metadata.Distribution, extras: tuple[str, ...] = ()) -> list[Requirement]:
    """What a distribution needs here, with the given extras."""
    needs = [Requirement(text) for text in distribution.requires or ()]
    return [
        need
        for need in needs
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]
