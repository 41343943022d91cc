"""A planted bug: a few exact replacements in the source, and the tests that should notice first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class PatchError(Exception):
    """A mutant does not fit the source any more; write it again."""


@dataclass(frozen=True)
class Edit:
    """Replace ``before``, which occurs exactly once in ``file``, by ``after``."""

    file: str
    before: str
    after: str

    def apply(self, package: Path) -> None:
        """Change the file below ``package``."""
        path = package / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.before) != 1:
            raise PatchError(
                f"{self.file} holds {self.before!r} {text.count(self.before)} times, not once; the code has "
                "changed, so rewrite this mutant."
            )
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")


@dataclass(frozen=True)
class Mutant:
    """A bug by name, in one sentence, as edits; ``tests`` are the files where it should be caught."""

    name: str
    what: str
    edits: Sequence[Edit]
    tests: Sequence[str]

    @property
    def compiled(self) -> bool:
        """Whether the bug is in code that must be compiled before it runs."""
        return any(edit.file.endswith(".c") for edit in self.edits)

    def apply(self, package: Path) -> None:
        """Plant the bug in a copy of the package; what was Python must still be."""
        for edit in self.edits:
            edit.apply(package)
        for file in {edit.file for edit in self.edits}:
            if file.endswith(".py"):
                compile((package / file).read_text(encoding="utf-8"), file, "exec")
