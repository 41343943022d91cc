"""The page: one file, no request, nothing that runs but its own script."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from tacit.errors import FileError
from tacit.files import write_text
from tacit.plotting import measure_name
from tacit.report.markup import Content, Markup, element, joined, listed, note, tile, tiles
from tacit.report.plot import number, share
from tacit.report.reading import Material, RunView, read_material
from tacit.report.sections.audit import audit
from tacit.report.sections.columns import columns
from tacit.report.sections.comparison import comparison
from tacit.report.sections.coordinates import coordinates
from tacit.report.sections.learning import learning
from tacit.report.sections.predictions import predictions
from tacit.report.sections.promise import badge, promise, status_of
from tacit.report.sections.runs import runs_side_by_side
from tacit.report.sections.spending import settings
from tacit.version import __version__

GENERATOR = "Tacit report"


def write_report(paths: Sequence[Path], out: Path) -> Material:
    """Write the page on the runs and comparisons in ``paths`` to ``out``; refuse to replace another file."""
    if out.is_dir():
        raise FileError(f"{out} is a directory; name the file to write, as in {out / 'report.html'}.")
    if out.exists() and GENERATOR.encode() not in out.read_bytes()[:2000]:
        raise FileError(f"{out} exists and is not a report; choose another --out.")
    material = read_material(paths)
    write_text(out, page(material))
    return material


def page(material: Material) -> str:
    """The whole page. The same material gives the same page, to the byte."""
    title = _title(material)
    return _whole(title, _header(material, title), _content(material))


def framed(title: str, content: Markup) -> str:
    """A page about something else than runs, in the same frame."""
    return _whole(title, _top(title, None, None), content)


def _whole(title: str, header: Markup, content: Markup) -> str:
    style = Markup(_part("style.css"))
    script = Markup(_part("script.js"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=GENERATOR),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{title} · Tacit report"),
        element("link", rel="icon", href="data:,"),
        element("style", style),
    )
    body = element(
        "body",
        element("a", "Skip to the report", href="#main", class_="skip"),
        header,
        element("main", content, id="main"),
        _footer(),
        element("script", script),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _title(material: Material) -> str:
    runs, comparisons = len(material.runs), len(material.comparisons)
    if runs == 1:
        return material.runs[0].name
    if runs == 0 and comparisons == 1:
        return f"Comparison on {material.comparisons[0][1].data}"
    parts = [f"{runs} runs"] if runs else []
    if comparisons:
        parts.append(f"{comparisons} comparison{'s' if comparisons > 1 else ''}")
    return " and ".join(parts)


def _header(material: Material, title: str) -> Markup:
    lead: Content = None
    if len(material.runs) == 1:
        run = material.runs[0]
        lead = element("p", _subtitle(run), class_="lead")
    return _top(title, lead, _contents(material))


def _top(title: str, lead: Content, contents: Content) -> Markup:
    modes = [
        element("button", word, type="button", data_theme=mode, aria_pressed="true" if not mode else "false")
        for mode, word in (("", "Auto"), ("light", "Light"), ("dark", "Dark"))
    ]
    return element(
        "header",
        element(
            "div",
            element("p", "Tacit report", class_="brand"),
            element("div", modes, class_="themes", role="group", aria_label="Colours", hidden=True),
            class_="bar-top",
        ),
        element("h1", title),
        lead,
        contents,
    )


def _contents(material: Material) -> Markup | None:
    """Links to the parts of the page."""
    links: list[tuple[str, str]] = []
    if len(material.runs) == 1:
        links = [(f"#{key}", name) for key, name in _parts_of(material.runs[0], "run-1")]
    elif material.runs:
        links = [("#runs", "Side by side")]
        links += [(f"#run-{i}", run.name) for i, run in enumerate(material.runs, 1)]
    links += [
        (f"#comparison-{i}", f"Comparison: {found.data}")
        for i, (_, found) in enumerate(material.comparisons, 1)
    ]
    if len(links) < 2:
        return None
    return element(
        "nav",
        element("ul", [element("li", element("a", n, href=h)) for h, n in links]),
        aria_label="Contents",
    )


def _parts_of(run: RunView, key: str) -> list[tuple[str, str]]:
    parts = [(f"{key}-promise", "Promise"), (f"{key}-course", "Course")]
    if run.held_out is not None:
        parts.append((f"{key}-predictions", "Predictions"))
    if run.diagnosis is not None and run.diagnosis.explanation is not None:
        parts.append((f"{key}-columns", "Columns"))
    if run.diagnosis is not None:
        parts.append((f"{key}-coordinates", "Coordinates"))
    if run.audit is not None:
        parts.append((f"{key}-audit", "Audit"))
    if run.settings:
        parts.append((f"{key}-settings", "Settings"))
    return parts


def _content(material: Material) -> Markup:
    keys = [f"run-{i}" for i in range(1, len(material.runs) + 1)]
    alone = len(material.runs) == 1
    runs = [_run(run, key, alone=alone) for run, key in zip(material.runs, keys, strict=True)]
    compared = [
        comparison(found, f"comparison-{i}", 2) for i, (_, found) in enumerate(material.comparisons, 1)
    ]
    if alone:
        return joined(runs, compared)
    return joined(runs_side_by_side(material.runs, keys, 2) if keys else None, compared, runs)


def _run(run: RunView, key: str, *, alone: bool) -> Markup:
    level = 2 if alone else 3
    title = None
    if not alone:
        title = element(
            "div",
            element("h2", run.name, id=f"{key}-title"),
            element("p", _subtitle(run), badge(status_of(run)), class_="lead"),
            class_="run-title",
        )
    return element(
        "article",
        title,
        _tiles(run),
        promise(run, key, level),
        learning(run, key, level),
        predictions(run, key, level),
        columns(run, key, level),
        coordinates(run, key, level),
        audit(run, key, level),
        settings(run, key, level),
        _troubles(run),
        id=key,
        aria_labelledby=None if alone else f"{key}-title",
    )


def _subtitle(run: RunView) -> str:
    return " · ".join(part for part in (run.data, run.model, run.plan.method) if part)


def _tiles(run: RunView) -> Markup:
    spent = run.spending.epsilons[-1] if run.spending is not None else None
    items = [
        tile(
            "ε spent",
            "unknown" if spent is None else number(spent),
            "no noise is added"
            if math.isinf(run.plan.epsilon)
            else f"of {number(run.plan.epsilon)} promised",
        ),
        tile("δ", number(run.plan.delta), f"below 1 / {run.plan.examples:,} {run.plan.counted}"),
    ]
    for name, value in list(run.measured.items())[:1]:
        items.append(tile(f"Held-out {measure_name(name)}", number(value), "not covered by ε"))
    if run.diagnosis is not None:
        active, d = run.diagnosis.active, run.diagnosis.coordinates
        items.append(tile("Active coordinates", share(active / d), f"{active:,} of {d:,}"))
    items.append(
        tile("Steps", f"{run.plan.steps:,}", f"of {run.plan.batch_size:,} {run.plan.counted} on average")
    )
    return tiles(items)


def _troubles(run: RunView) -> Markup | None:
    if not run.troubles:
        return None
    return joined(note("Not everything in the run directory could be read:"), listed(run.troubles))


def _footer() -> Markup:
    return element(
        "footer",
        note(
            f"Written by tacit report, Tacit {__version__}, from released values, public "
            "numbers and figures on held-out data. This file asks nothing of any network. To check a run "
            "again: ",
            element("code", "tacit verify RUN"),
            ".",
        ),
    )


def _policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere, and only this page's own script and style count."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _part(name: str) -> str:
    return resources.files("tacit.report").joinpath(name).read_text(encoding="utf-8")
