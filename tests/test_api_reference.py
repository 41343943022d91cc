from __future__ import annotations

import pytest
from tools.api_reference import PAGE, lacking, members, parameters, reference

import tacit.plan
from tacit.plan import METHODS


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text() == reference(), "run python -m tools.api_reference"


def test_every_public_name_and_every_parameter_has_words() -> None:
    assert list(lacking()) == []


@pytest.mark.parametrize("name", ["make_plan", *(method.__name__ for method in METHODS.values())])
def test_every_parameter_of_a_method_is_in_the_reference(name: str) -> None:
    entry = reference().split(f"### `{name}`", 1)[1].split("\n### ")[0]
    member = dict(members(tacit.plan))[name]
    for parameter in parameters(member):
        row = next(line for line in entry.splitlines() if line.startswith("| `") and parameter.name in line)
        assert len(row.split("|")[3].strip()) > 10


@pytest.mark.parametrize(
    "name", ["Trainer", "PrivateStep", "Support", "Plan", "FileLedger", "verify", "choose_active"]
)
def test_what_people_use_is_described(name: str) -> None:
    entry = reference().split(f"### `{name}`", 1)[1].split("```\n\n")[1].split("\n\n")[0]
    assert len(entry) > 20
