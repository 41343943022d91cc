"""Every Python snippet in the documentation runs, every link leads somewhere, every named file exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tacit.jobs.run import run_job
from tacit.jobs.settings import DataConfig, Experiment, TrainingConfig

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATH = re.compile(
    r"`((?:src|tests|tools|papers|benchmarks|examples|docs|raw|release|training|support|plan)/[\w./-]+)`"
)
# Files that a reader or a command writes.
TO_BE_WRITTEN = {"src/tacit/data/breast_cancer.py", "src/tacit/version.py", "docs/attack.md"}
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def write_the_files_that_snippets_read(directory: Path) -> None:
    rows = [
        f"{20 + i % 50},{'north' if i % 3 else 'south'},{'yes' if i % 4 == 0 else 'no'}" for i in range(200)
    ]
    (directory / "customers.csv").write_text("age,region,churn\n" + "\n".join(rows) + "\n")
    image = pytest.importorskip("PIL.Image")
    for kind in ("cats", "dogs"):
        (directory / "pets" / kind).mkdir(parents=True)
        for number in range(20):
            image.new("RGB", (40, 30), (10 * number, 120, 7 * number + len(kind))).save(
                directory / "pets" / kind / f"{number}.png"
            )


def train_the_run_that_snippets_load() -> None:
    data = DataConfig(source="customers.csv", target="churn")
    training = TrainingConfig(batch_size=40, epochs=1.0)
    run_job(Experiment(data=data, training=training), Path("runs/clinic"), progress=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = SNIPPET.findall(page.read_text())
    if not snippets:
        pytest.skip("no snippets on this page")
    monkeypatch.chdir(tmp_path)
    write_the_files_that_snippets_read(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    if page.name == "predict-and-share.md":
        train_the_run_that_snippets_load()
        names["frame"] = "customers.csv"
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{page.name} snippet {number}", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    for named in set(PATH.findall(page.read_text())) - TO_BE_WRITTEN:
        assert (ROOT / named).exists() or (ROOT / "src" / "tacit" / named).exists(), f"{page.name}: {named}"
