"""The page about model families, from what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from benchmarks.families.family import Family
from benchmarks.families.judging import SIZES, Verdict

_PACKAGES = ("torch", "opacus", "transformers", "peft", "timm", "x-transformers")


def document(
    commit: str,
    families: Sequence[Family],
    found: Mapping[str, Mapping[str, Verdict]],
    missing: Collection[str] = (),
) -> dict[str, Any]:
    """Everything that was found, with the versions it was found with; ``missing`` are families whose library is."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    rows = [
        {
            "family": family.name,
            "tolerance": family.tolerance,
            "refusal expected": family.refused,
            **{name: asdict(verdict) for name, verdict in found[family.name].items()},
        }
        for family in families
        if family.name in found
    ]
    left_out = [family.name for family in families if family.name in missing]
    waiting = [f.name for f in families if f.name not in missing and f.name not in found]
    return {"commit": commit, "versions": versions, "rows": rows, "left out": left_out, "not judged": waiting}


def as_expected(row: Mapping[str, Any]) -> bool:
    """Whether Tacit is exact on a family, or refuses it in time and for the reason that the family is there for."""
    verdict, refusal = row["tacit"], row["refusal expected"]
    if refusal:
        return verdict["word"] == "refused" and refusal in verdict["sentence"]
    return bool(verdict["word"] == "exact")


def page(content: Mapping[str, Any]) -> str:
    """The page in Markdown."""
    rows = content["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    unexpected = [row["family"] for row in rows if not as_expected(row)]
    lines = [
        "# Models that users bring",
        "",
        f"Written by `python -m benchmarks.families --write` at commit {content['commit'][:12]}; {versions}. With "
        "`--resume` rows of an interrupted run are kept, so they may have been judged some commits before. A dash is a "
        "judge that was not asked.",
        "",
        "Each row is a small model with random weights, unmodified where it comes from a library. *Tacit*: clipped "
        "sums on five supports (all, 30 % and 3 % of coordinates, 40 % of rows, soft columns) and batches of "
        f"{', '.join(map(str, SIZES))} examples, against autograd of every single loss in double precision, with the "
        "clip norm at 0.9 of the median norm and dropout on where the model has it. *Opacus hooks*: all per-example "
        "gradients; "
        '*ghost*: norms only, a weaker test. The figure is the largest relative error. "followed" means that a part of '
        "the model has no rule and is served through the operations that use its parameters.",
        "",
        f"{_summary(rows)} "
        + (
            "Every family is exact or is refused for its own reason before anything is spent."
            if not unexpected
            else f"Not as expected: {'; '.join(unexpected)}."
        ),
        "",
        *_named("Left out, because their library is not installed", content["left out"]),
        *_named("Not judged in this run", content["not judged"]),
        "| model | Tacit | Opacus hooks | Opacus ghost |",
        "|---|---|---|---|",
        *(
            f"| {row['family']} | {' | '.join(_cell(row.get(name)) for name in ('tacit', 'hooks', 'ghost'))} |"
            for row in rows
        ),
        "",
        "## What is refused, and in which words",
        "",
        *(
            f"- **{row['family']}**: {row['tacit']['sentence']}"
            for row in rows
            if row["tacit"]["word"] != "exact"
        ),
        "",
    ]
    return "\n".join(lines)


def _named(words: str, names: Sequence[str]) -> list[str]:
    return [f"{words}: {'; '.join(names)}.", ""] if names else []


def _summary(rows: Sequence[Mapping[str, Any]]) -> str:
    titles = {"tacit": "Tacit", "hooks": "Opacus hooks", "ghost": "Opacus ghost"}
    parts = []
    for name, title in titles.items():
        counts = Counter(row[name]["word"] for row in rows if name in row)
        if counts:
            parts.append(f"{title}: {', '.join(f'{n} {word}' for word, n in counts.most_common())}")
    return f"{len(rows)} families. {'; '.join(parts)}."


def _cell(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return "–"
    figure = "" if verdict["error"] is None else f" {verdict['error']:.0e}"
    return f"{verdict['word']}{' (followed)' if verdict['fallback'] else ''}{figure}"
