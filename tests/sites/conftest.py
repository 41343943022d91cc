from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where folders of sites are made once."""
    return tmp_path_factory.mktemp("sites")
