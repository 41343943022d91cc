from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from cli.conftest import Tacit
from tacit.jobs import demo
from tacit.jobs.summary import Spread
from tacit.runs import load_certificate


def test_settings_are_paired_and_keep_the_promise() -> None:
    cells = demo.cells(3)
    assert [(cell.method, cell.seed) for cell in cells] == [
        *(("TP-TopK", seed) for seed in range(3)),
        *(("DP-SGD", seed) for seed in range(3)),
        ("not private", 0),
    ]
    for cell in cells:
        same = replace(cell.experiment, method=demo.TP_TOPK.method, privacy=demo.TP_TOPK.privacy)
        training = replace(demo.TP_TOPK.training, seed=cell.seed, clip_norm=same.training.clip_norm)
        assert same == replace(demo.TP_TOPK, training=training)
    assert math.isinf(cells[-1].epsilon)
    assert demo.TP_TOPK.privacy.epsilon == 3
    assert demo.TP_TOPK.training.seed is None, "the certified run draws cryptographic noise"


@pytest.mark.parametrize(
    ("difference", "words"),
    [(-0.01, "BELOW DP-SGD"), (0.01, "above DP-SGD"), (-0.001, "no difference beyond the noise")],
)
def test_the_verdict_does_not_flatter(difference: float, words: str) -> None:
    assert words in demo.Demonstration({}, (), Spread(difference, 0.002)).verdict


def test_what_no_table_shows_is_a_tie() -> None:
    assert "a tie" in demo.Demonstration({}, (), Spread(-1e-4, 1e-6)).verdict


def test_a_short_demonstration_ends_with_table_and_certificate(
    tacit: Tacit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TP_TOPK", "DP_SGD", "NOT_PRIVATE"):
        plain = getattr(demo, name)
        short = replace(
            plain,
            training=replace(plain.training, epochs=8.0),
            privacy=replace(plain.privacy, accountant="rdp"),
        )
        monkeypatch.setattr(demo, name, short)
    done = tacit("demo --pairs 2 --workers 1 --out d")
    assert done.code == 0, done.err
    for words in ("TP-TopK, certified", "DP-SGD, mean of 2", "not private", "∞", "AUC", "sensitivity"):
        assert words in done.out
    assert "at most a factor of" in " ".join(done.out.split())
    certificate = load_certificate(Path("d/run/certificate.json"))
    assert certificate.for_release
    assert certificate.epsilon == 3
    assert tacit("verify d/run").code == 0
    page = Path("d/report.html").read_text()
    assert "Verified, for release" in page
    assert "Methods compared on nhanes" in page
    assert "already exists" in tacit("demo --pairs 2 --out d --quiet").sentence


def test_the_held_out_auc_of_the_demo_is_at_least_088() -> None:
    """The bar for the demonstration, with the settings it uses and two different noises."""
    from tacit.jobs.comparison import run_cell

    cells = [cell for cell in demo.cells(2) if cell.method == "TP-TopK"]
    for cell in cells:
        assert run_cell(cell).held_out["auc"] >= 0.88
