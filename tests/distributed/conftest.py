"""Everything is loaded before processes are forked, so that each need not load it anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.small import plan, trainer


@pytest.fixture(scope="session", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    place: Path = tmp_path_factory.mktemp("loaded")
    trainer(plan(epsilon=3.0, epochs=0.75), run_dir=place / "run").fit(progress=False)
