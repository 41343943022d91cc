"""What mkdocs does besides rendering docs/: pages from the root, links to them, lists as GitHub reads them.

``mkdocs.yml`` names this file as a hook; ``make docs`` builds the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Files beside docs/ that are pages of the site as well.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
# Pages that a command writes and that may not have been written yet.
OPTIONAL = {"attack.md"}

_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_ENTRY = re.compile(r"### `(\w+)(\(.*)?`")
_WIDTH = 100


def on_config(config: Any) -> Any:
    """Leave pages that were not written yet out of the navigation."""
    absent = {name for name in OPTIONAL if not (ROOT / "docs" / name).exists()}
    config.nav = _without(config.nav, absent)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and examples that lie beside docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for example in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{example.name}", abs_src_path=str(example)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with links that hold on the site, and lists and headings that mkdocs renders as GitHub does."""
    return rendered(markdown, page.file.src_uri)


def rendered(markdown: str, uri: str) -> str:
    """The text of the page at ``uri`` of the site."""
    source = next((name for name, page in PAGES.items() if page == uri), f"docs/{uri}")
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if not fenced:
            line = _LINK.sub(lambda found: f"]({_target(found[1], source, uri)}{found[2] or ''})", line)
            above = lines[-1] if lines else ""
            if _ITEM.match(line) and above and not above.startswith(" ") and not _ITEM.match(above):
                lines.append("")
            if uri == "reference/api.md" and (found := _ENTRY.fullmatch(line)):
                lines += [f"### `{found[1]}`", "", "```python", _wrapped(found[1] + (found[2] or "")), "```"]
                continue
        lines.append(line)
    return "\n".join(lines)


def _target(target: str, source: str, uri: str) -> str:
    """A link of the file ``source`` as a link of the page ``uri``."""
    if "://" in target or target.startswith("mailto:"):
        return target
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    place = PAGES.get(path) or path.removeprefix("docs/")
    return posixpath.relpath(place, posixpath.dirname(uri) or ".")


def _without(nav: list[Any], absent: set[str]) -> list[Any]:
    kept: list[Any] = []
    for entry in nav:
        (below,) = entry.values() if isinstance(entry, dict) else (entry,)
        if isinstance(below, list):
            kept.append({next(iter(entry)): _without(below, absent)})
        elif below not in absent:
            kept.append(entry)
    return kept


def _wrapped(signature: str) -> str:
    """One parameter per line where a signature is long."""
    if len(signature) <= _WIDTH or "(" not in signature:
        return signature
    start = signature.index("(") + 1
    parts, depth, begun = [], 0, start
    for place in range(start, len(signature)):
        if signature[place] in "([{":
            depth += 1
        elif signature[place] in ")]}":
            depth -= 1
            if depth < 0:
                parts.append(signature[begun:place])
                listed = "".join(f"\n    {part.strip()}," for part in parts)
                return signature[:start] + listed + "\n" + signature[place:]
        elif signature[place] == "," and depth == 0:
            parts.append(signature[begun:place])
            begun = place + 1
    return signature
