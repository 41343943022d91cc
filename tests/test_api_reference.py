from __future__ import annotations

import pytest
from tools.api_reference import PAGE, reference


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text() == reference(), "run python -m tools.api_reference"


@pytest.mark.parametrize(
    "name", ["Trainer", "PrivateStep", "Support", "Plan", "FileLedger", "verify", "choose_active"]
)
def test_what_people_use_is_described(name: str) -> None:
    entry = reference().split(f"### `{name}", 1)[1].split("\n\n")[1]
    assert len(entry) > 20
