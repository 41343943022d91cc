"""The page of texts says what its figures say."""

from __future__ import annotations

import json
from dataclasses import replace

from benchmarks.machine import Machine
from benchmarks.texts import CONTENDERS, EPSILONS, FIGURES, GRID, PAGE, Figure, origin, page


def test_the_page_is_made_of_the_figures() -> None:
    record = json.loads(FIGURES.read_text(encoding="utf-8"))
    figures = [Figure(**figure) for figure in record["figures"]]
    assert PAGE.read_text(encoding="utf-8") == page(figures, origin(Machine(**record["machine"]), figures))
    assert {figure.contender for figure in figures} <= set(CONTENDERS)
    keys = [(f.data, f.contender, f.epsilon, f.seed) for f in figures]
    assert len(set(keys)) == len(keys)


def test_differences_are_those_of_equal_seeds_at_the_worst_epsilon() -> None:
    one = Figure("sst2", "dense", 1.0, 0, 0.80, 0.7, 0.5, 10.0)
    other = replace(one, contender="adafest", auc=0.75)
    figures = [one, replace(one, seed=1, auc=0.90), replace(one, epsilon=3.0, auc=0.95)]
    figures += [other, replace(other, seed=2, auc=0.1), replace(other, epsilon=3.0, auc=0.94)]
    made = page(figures, "here")
    assert "rows that every step chooses (AdaFEST): -0.0500 at ε = 1, over 1 seed\n" in made
    assert "| 0.8500 ± 0.0707 (2) |" in made
    assert "How AdaFEST's threshold was chosen" not in made
    assert "| 1 | 0.5 |  | 0.8000 |  |" in page([*figures, replace(one, contender="adafest 1, 0.5")], "here")
    assert "adafest 1, 0.5" in GRID


def test_the_page_names_what_was_left_out() -> None:
    one = Figure("sst2", "embedding, dense", 1.0, 0, 0.80, 0.7, 0.5, 10.0)
    made = page([one, replace(one, contender="lazy")], "here")
    assert "Not measured: embeddings: all rows (DP-SGD, the default) at ε = 0.5, 3.\n" in made
    assert "Not measured" not in page([replace(one, epsilon=epsilon) for epsilon in EPSILONS], "here")


def test_the_page_names_the_commits_of_all_its_figures() -> None:
    facts = Machine(**json.loads(FIGURES.read_text(encoding="utf-8"))["machine"])
    one = Figure("sst2", "dense", 1.0, 0, 0.80, 0.7, 0.5, 10.0, "aaa")
    assert ", commit aaa, " in origin(facts, [one, one])
    assert ", commits aaa, bbb + changes, " in origin(facts, [one, replace(one, commit="bbb + changes")])
    assert f", commit {facts.commit[:12]}, " in origin(facts, [])
