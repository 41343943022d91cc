from __future__ import annotations

from pathlib import Path

import pytest

from tacit.training import answering


@pytest.fixture(scope="session")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where folders of sites are made once."""
    return tmp_path_factory.mktemp("sites")


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vaults open sooner: what the look before the first answer finds is not what the test is about."""
    monkeypatch.setattr(answering, "LOOKED_AT", 2)
