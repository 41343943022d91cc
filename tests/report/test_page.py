"""The page, read without a browser: well-formed, inert, truthful, the same every time."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from report.conftest import HOSTILE
from report.reading_html import Node, read
from tacit.errors import ArgumentError, FileError
from tacit.jobs.diagnosis import diagnose
from tacit.jobs.held_out import read_held_out
from tacit.plan import load_plan
from tacit.release.ledger_file import read_ledger
from tacit.report import page, read_material, write_report
from tacit.report.page import _part
from tacit.report.sections.coordinates import _percent
from tacit.runs import load_certificate

COMPARISON = {
    "data": HOSTILE,
    "measure": "auc",
    "paired_with": "dp-sgd",
    "for_release": False,
    "rows": [
        {
            "method": method,
            "epsilon": epsilon,
            "seeds": 3,
            "measures": {
                "auc": {"mean": mean, "deviation": spread},
                "loss": {"mean": 0.5, "deviation": None},
            },
            "difference": None if method != "tp-topk" else {"mean": 0.01, "deviation": 0.002},
            "active": 30.0,
            "coordinates": 60,
            "seconds": 1.0,
        }
        for method, epsilon, mean, spread in (
            ("dp-sgd", 1, 0.7, 0.01),
            ("dp-sgd", 3, 0.8, 0.01),
            ("tp-topk", 1, 0.71, 0.02),
            ("tp-topk", 3, 0.81, 0.02),
            (HOSTILE, "inf", 0.9, None),
        )
    ],
    "runs": [],
}


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("compared") / "cmp"
    place.mkdir()
    (place / "comparison.json").write_text(json.dumps(COMPARISON))
    return place


@pytest.fixture(scope="session")
def everything(hostile_run: Path, dense_run: Path, released_run: Path, comparison: Path) -> str:
    return page(read_material([hostile_run, dense_run, released_run, comparison]))


@pytest.fixture(scope="session")
def single(hostile_run: Path) -> str:
    return page(read_material([hostile_run]))


@pytest.fixture
def copied(hostile_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(hostile_run, tmp_path / "copy"))


@pytest.fixture
def copied_release(released_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released_run, tmp_path / "copy"))


def made(path: Path) -> Node:
    return read(page(read_material([path])))


def check_page(text: str) -> Node:
    """What must hold on every page."""
    tree = read(text)
    ids = [node.attributes["id"] for node in tree.walk() if "id" in node.attributes]
    assert len(set(ids)) == len(ids), "an id is used twice"
    for node in tree.walk():
        for name, value in node.attributes.items():
            assert not name.startswith("on"), "no inline handlers"
            assert name not in ("style", "src", "srcset", "action")
            if name in ("aria-labelledby", "for"):
                assert value in ids
            if name == "href":
                assert value == "data:," or (value or "")[1:] in ids, f"{value} leads out of the page"
    assert not re.search(r"https?:|url\(|@import|//www", text.replace('"http://www.w3.org/2000/svg"', ""))
    for drawing in tree.all("svg"):
        seen = drawing.attributes.get("aria-hidden") == "true"
        assert seen or len(drawing.attributes["aria-label"] or "") > 30, "a figure without words"
    for figure in tree.all("figure", class_="plot"):
        assert figure.all("figcaption")
        assert figure.all("table") or figure.all("svg", role="img")
    assert [node.tag for node in tree.walk()].count("h1") == 1
    assert len(text.encode()) < 1_000_000
    return tree


def test_pages_are_well_formed_and_reach_for_nothing(everything: str, single: str, comparison: Path) -> None:
    for text in (everything, single, page(read_material([comparison]))):
        check_page(text)
        assert text.startswith("<!doctype html>\n<html lang=")


def test_hostile_names_are_text(everything: str) -> None:
    tree = read(everything)
    (script,) = tree.all("script")
    assert script.text == _part("script.js"), "the page's own script, and no other"
    assert not tree.all("img")
    assert not tree.all("b")
    shown = tree.one("main").text
    assert HOSTILE in shown, "the names stand there, as text"
    assert "run <b>&'1" in shown


def test_the_policy_allows_this_script_and_style_and_nothing_else(everything: str) -> None:
    tree = read(everything)
    policy = tree.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        digest = base64.b64encode(hashlib.sha256(tree.one(tag).text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:"
    head = tree.one("head")
    assert [node.tag for node in head.children if isinstance(node, Node)][:2] == ["meta", "meta"]
    assert "unsafe" not in (policy or "")


def test_the_same_run_gives_the_same_page_wherever_it_lies(copied: Path, hostile_run: Path) -> None:
    place = copied.parent / "elsewhere" / hostile_run.name
    place.parent.mkdir()
    copied.rename(place)
    text = page(read_material([place]))
    assert text == page(read_material([hostile_run]))
    assert str(place.parent) not in text
    assert str(hostile_run.parent) not in text, "where the data lay is nobody's business"


def test_the_certificate_is_told_and_was_verified(released_run: Path) -> None:
    certificate = load_certificate(released_run / "certificate.json")
    tree = made(released_run)
    assert tree.one("div", class_="status").attributes["class"] == "status ok"
    assert "Verified, for release" in tree.one("div", class_="status").text
    assert tree.one("p", class_="statement").text == certificate.statement
    promised = tree.one("section", id="run-1-promise").text
    for sentence in certificate.not_covered:
        assert sentence[1:] in promised
    assert certificate.ledger_head in promised


def test_seeded_noise_is_not_for_release(dense_run: Path) -> None:
    status = made(dense_run).one("div", class_="status")
    assert status.attributes["class"] == "status warn"
    assert "seeded noise" in status.text


@pytest.mark.parametrize("file", ["ledger.jsonl", "certificate.json"])
def test_a_run_that_was_tampered_with_makes_no_promise(copied_release: Path, file: str) -> None:
    path = copied_release / file
    text = path.read_text()
    if file == "ledger.jsonl":
        lines = text.splitlines(keepends=True)
        path.write_text("".join([*lines[:5], *lines[6:]]))
    else:
        record = json.loads(text)
        path.write_text(json.dumps({**record, "epsilon_spent": 0.5}))
    tree = made(copied_release)
    status = tree.one("div", class_="status")
    assert status.attributes["class"] == "status bad"
    assert "Does not verify" in status.text
    assert status.all("li")
    assert not tree.all("p", class_="statement"), "what does not verify is not repeated"
    assert str(copied_release) not in tree.text


def test_a_run_that_was_stopped_says_so(copied: Path) -> None:
    for name in ("certificate.json", "certificate.txt", "result.json", "held_out.json"):
        (copied / name).unlink()
    ledger = (copied / "ledger.jsonl").read_text().splitlines(keepends=True)
    (copied / "ledger.jsonl").write_text("".join(ledger[:11]))
    tree = made(copied)
    status = tree.one("div", class_="status")
    assert status.attributes["class"] == "status warn"
    assert "Not finished" in status.text
    assert "stopped after 10 of" in status.text
    assert not tree.all("section", id="run-1-predictions")


def test_a_run_with_little_left_still_has_a_page(copied_release: Path) -> None:
    for file in copied_release.iterdir():
        if file.name not in ("plan.json", "ledger.jsonl", "certificate.json"):
            file.unlink()
    tree = check_page(page(read_material([copied_release])))
    assert "model.safetensors is missing" in tree.one("div", class_="status").text
    assert tree.all("figure", id="run-1-epsilon"), "ε comes from the ledger alone"
    assert not tree.all("section", id="run-1-coordinates")
    assert "checkpoint.safetensors" in tree.text
    assert "No held-out data was measured" in tree.text


def test_damaged_extras_are_told_and_do_no_harm(copied: Path) -> None:
    for name in ("held_out.json", "result.json", "experiment.json", "audit.json"):
        (copied / name).write_text("{")
    tree = check_page(page(read_material([copied])))
    for name in ("held_out.json", "result.json", "experiment.json", "audit.json"):
        assert f"{name} cannot be read" in tree.text
    (copied / "metrics.jsonl").write_text('{"step": 1, "held_out_auc": "high"}\n[]\n{"step": 2}\n')
    check_page(page(read_material([copied])))


def points(tree: Node, figure: str, line: str) -> list[tuple[str, str]]:
    """What a figure's script reads off one of its lines: x and y in words."""
    canvas = tree.one("figure", id=figure).one("div", class_="canvas")
    (found,) = [
        entry["points"]
        for entry in json.loads(canvas.attributes["data-plot"] or "")["lines"]
        if entry["name"] == line
    ]
    return [(x, y) for _, _, x, y in found]


def test_epsilon_over_releases_is_the_ledgers(hostile_run: Path, single: str) -> None:
    certificate = load_certificate(hostile_run / "certificate.json")
    charges = read_ledger(hostile_run / "ledger.jsonl").charges
    spent = points(read(single), "run-1-epsilon", "spent")
    assert spent[0] == ("0", "0")
    assert spent[-1] == (f"{len(charges):,}", f"{certificate.epsilon_spent:.4g}")
    assert points(read(single), "run-1-epsilon", "planned") == spent
    plan = load_plan(hostile_run / "plan.json")
    at, epsilon = spent[len(spent) // 2]
    assert float(epsilon) == pytest.approx(plan.spent(int(at)), rel=1e-3)


def test_the_break_even_line_is_where_silence_pays(single: str, hostile_run: Path) -> None:
    found = diagnose(hostile_run)
    energy = found.energy
    assert energy is not None
    d = found.coordinates
    judged = energy.counts[-1]  # biases are not judged
    needed = [1 - (judged - k) * energy.noise_variance / energy.total for k in energy.counts]
    pays = [
        k for k, c, n in zip(energy.counts, energy.captured, needed, strict=True) if k < judged and c >= n
    ]
    assert energy.break_even == (pays[0] if pays else None)
    tree = read(single)
    assert f"active: k = {found.active:,}" in tree.one("figure", id="run-1-energy").text
    drawn = points(tree, "run-1-energy", "break-even with ν₂²")
    visible = [(k / d, n) for k, n in zip(energy.counts, needed, strict=True) if n >= 0]
    assert [y for _, y in drawn] == [_percent(n) for _, n in visible]
    assert [x for x, _ in drawn] == [_percent(k) for k, _ in visible]
    assert points(tree, "run-1-energy", "captured (± one standard deviation)")[-1] == (
        _percent(judged / d),
        "100 %",
    )


def test_layers_and_predictions_add_up(hostile_run: Path, single: str) -> None:
    tree = read(single)
    counts = read_held_out(hostile_run)
    assert counts is not None
    (tn, fp), (fn, tp) = counts.confusion
    cells = {cell.attributes["data-cell"]: cell for cell in tree.all("span", class_="heat")}
    assert {name: int(cell.one("span", class_="count").text) for name, cell in cells.items()} == {
        "tn": tn,
        "fp": fp,
        "fn": fn,
        "tp": tp,
    }
    measured = json.loads((hostile_run / "result.json").read_text())["measured"]
    for name in ("sensitivity", "specificity"):
        shown = tree.one("span", data_figure=name).text
        assert shown == f"{100 * measured[name]:.1f} %"
    assert "ε does not cover" in tree.one("section", id="run-1-predictions").text
    assert "fitted to" in tree.one("section", id="run-1-predictions").text
    layers = tree.one("figure", id="run-1-layers")
    shown = [cell.text.split(" of ") for cell in layers.all("span", class_="soft")]
    found = diagnose(hostile_run)
    assert sum(int(active) for active, _ in shown) == found.active
    assert sum(int(total) for _, total in shown) == found.coordinates


def test_several_runs_and_a_comparison(everything: str, dense_run: Path) -> None:
    tree = read(everything)
    assert tree.one("h1").text == "3 runs and 1 comparison"
    assert len(tree.all("article")) == 3
    table = tree.one("section", id="runs").all("table")[0]
    assert "Verified, for release" in table.text
    assert "Verified, not for release" in table.text
    compared = tree.one("section", id="comparison-1")
    assert "+0.0100 ± 0.0020" in compared.text
    assert "not for release" in compared.text
    assert points(tree, "comparison-1-by-epsilon", "tp-topk") == [("1", "0.71"), ("3", "0.81")]
    confusion = tree.one("article", id="run-2").one("table", class_="confusion")
    counts = read_held_out(dense_run)
    assert counts is not None
    shown = [
        [int(c.text) for c in row.all("span", class_="heat")] for row in confusion.one("tbody").all("tr")
    ]
    assert shown == [list(row) for row in counts.confusion]


AUDIT = {
    "format": "tacit-audit",
    "version": 1,
    "source": "/home/somebody/run",
    "verdict": f"No claim is contradicted. {HOSTILE}",
    "holds": True,
    "findings": [
        {
            "kind": kind,
            "name": "tp-topk",
            "trials": 4096,
            "guesses": 236,
            "right": 196,
            "confidence": 0.999,
            "epsilon_claimed": 2.996,
            "epsilon_lower": lower,
            "noise_scale": 2.4,
        }
        for kind, lower in (("release", 0.75), ("run", 1.094))
    ],
    "local": [],
    "curves": [
        {name: [[0.0, 1.0], [at, 0.7], [1.0, 0.0]] for name in ("claimed", "measured", "lower")}
        for at in (0.2, 0.1)
    ],
}


def test_an_audit_stands_beside_the_claim(copied: Path) -> None:
    (copied / "audit.json").write_text(json.dumps(AUDIT))
    tree = check_page(page(read_material([copied])))
    audit = tree.one("section", id="run-1-audit")
    assert "No claim is contradicted" in audit.one("div", class_="ok").text
    assert HOSTILE in audit.text
    cells = [cell.text for cell in audit.one("figure", id="run-1-bounds").one("tbody").all("tr")[1].all("td")]
    assert cells[1:] == ["1.09", "3"]
    assert "196 of 236 guesses right" in audit.text
    assert points(tree, "run-1-tradeoff", "reached by the audit") == [
        ("0 %", "100 %"),
        ("10 %", "70 %"),
        ("100 %", "0 %"),
    ]
    assert "/home/somebody" not in tree.text
    assert any(link.attributes["href"] == "#run-1-audit" for link in tree.all("a"))


@pytest.mark.parametrize(("holds", "lower"), [(False, 1.0), (True, 3.5)])
def test_a_broken_claim_is_not_praised(copied: Path, holds: bool, lower: float) -> None:
    findings = [{**finding, "epsilon_lower": lower} for finding in AUDIT["findings"]]  # type: ignore[attr-defined]
    (copied / "audit.json").write_text(json.dumps({**AUDIT, "holds": holds, "findings": findings}))
    audit = made(copied).one("section", id="run-1-audit")
    assert "A claim is broken" in audit.one("div", class_="bad").text


def test_an_audit_of_another_kind_is_not_guessed_at(copied: Path) -> None:
    for change in ({"format": "x"}, {"version": 2}, {"findings": [{}]}, {"findings": []}, {"findings": None}):
        (copied / "audit.json").write_text(json.dumps({**AUDIT, **change}))
        assert "not of this version" in made(copied).one("section", id="run-1-audit").text


def test_folders_are_looked_into_and_names_made_unique(hostile_run: Path, tmp_path: Path) -> None:
    for name in ("a/run", "b/run", "b/other"):
        shutil.copytree(hostile_run, tmp_path / name)
    (tmp_path / "b" / "notes").mkdir()
    material = read_material([tmp_path / "b", tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert [run.name for run in material.runs] == ["other", "b/run", "a/run"]
    with pytest.raises(ArgumentError, match="holds no run"):
        read_material([tmp_path])
    with pytest.raises(FileError, match="no directory"):
        read_material([tmp_path / "nowhere"])


def test_only_a_report_is_replaced(hostile_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    write_report([hostile_run], out)
    first = out.read_text()
    write_report([hostile_run], out)
    assert out.read_text() == first
    out.write_text("my notes")
    with pytest.raises(FileError, match="is not a report"):
        write_report([hostile_run], out)
    assert out.read_text() == "my notes"
    with pytest.raises(FileError, match="is a directory"):
        write_report([hostile_run], tmp_path)
