"""The documentation site: every page is in its navigation, links hold on it, and it builds without a warning."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.docs_site import OPTIONAL, PAGES, rendered

from test_layers import MAY_IMPORT, RELEASED

ROOT = Path(__file__).parent.parent
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", CONFIG.partition("\nnav:\n")[2], flags=re.MULTILINE)
    assert len(listed) == len(set(listed))
    inside = re.findall(
        r"^  /(\S+)$", CONFIG.partition("not_in_nav:")[2].partition("\nnav:")[0], re.MULTILINE
    )
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    shown = {page for page in pages if not any(fnmatch.fnmatch(page, pattern) for pattern in inside)}
    assert set(listed) - OPTIONAL == (shown | set(PAGES.values())) - OPTIONAL


def test_links_between_the_root_and_the_pages_hold_on_the_site() -> None:
    assert rendered("[a](docs/guide/data.md#x)", "index.md") == "[a](guide/data.md#x)"
    assert rendered("[a](../../README.md)", "guide/data.md") == "[a](../index.md)"
    assert rendered("[a](../../examples/text.py)", "guide/data.md") == "[a](../examples/text.py)"
    assert rendered("[a](https://a.b/c)", "guide/data.md") == "[a](https://a.b/c)"
    assert rendered("```\n[a](docs/x.md)\n```", "index.md") == "```\n[a](docs/x.md)\n```"


def test_a_list_right_below_a_sentence_is_a_list() -> None:
    assert rendered("It can\n- see\n- stop", "index.md") == "It can\n\n- see\n- stop"
    assert rendered("1. one\n   more\n2. two", "index.md") == "1. one\n   more\n2. two"


def test_long_signatures_of_the_reference_have_a_line_per_parameter() -> None:
    long = ", ".join(f"parameter{i}: dict[str, int] = {{}}" for i in range(5))
    page = rendered(f"### `f({long}) -> int`", "reference/api.md")
    assert page.startswith("### `f`\n\n```python\nf(\n    parameter0: dict[str, int] = {},\n")
    assert page.endswith("\n) -> int\n```")
    assert "```python\nf(x)\n```" in rendered("### `f(x)`", "reference/api.md")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?://', home)


def test_the_architecture_page_has_the_table_of_imports() -> None:
    page = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    found = {}
    for name, allowed in re.findall(r"^\| [12] \| `(\w+)/` \| .* \| ([^|]+) \|$", page, flags=re.MULTILINE):
        named = set(re.findall(r"\w+", allowed.replace("ring 1 without raw", ""))) - {"nothing"}
        found[name] = named | (RELEASED if "ring 1 without raw" in allowed else set())
    assert found == MAY_IMPORT
