"""Which texts are trained on: each by itself, or the certificate says that it is not so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tacit.jobs.settings import DataConfig
from tacit.jobs.text_rows import FIRST_NOT_COVERED, text_rows


def train_rows(path: Path, config: DataConfig, left_out: int | None) -> tuple[set[int], tuple[str, ...]]:
    """The rows of a file, without one, that are trained on, by the number that each text holds."""
    rows = [f"text {row},{'no' if row % 3 else 'yes'}" for row in range(60) if row != left_out]
    path.write_text("\n".join(["words,liked", *rows]) + "\n")
    task = text_rows(replace(config, source=str(path))).task(
        config, lambda texts: np.array([[int(text.split()[1])] for text in texts]), "numbers"
    )
    return {int(x[0]) for x, _ in (task.train[i] for i in range(len(task.train)))}, task.not_covered  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [None, 20])
def test_a_row_moves_no_other_one_into_training_unless_the_certificate_says_so(
    tmp_path: Path, most: int | None
) -> None:
    config = DataConfig("", target="liked", text="words", examples=most)
    whole, not_covered = train_rows(tmp_path / "t.csv", config, None)
    apart = [len(whole ^ train_rows(tmp_path / "t.csv", config, row)[0]) for row in sorted(whole)[:5]]
    assert (max(apart) <= 1) == (FIRST_NOT_COVERED not in not_covered)
