"""The page about patients and stays says what was measured, and the bars hold."""

from __future__ import annotations

import json

import pytest
from tools.unit_page import FOUND, PAGE, page


def test_the_page_is_the_one_that_its_figures_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(FOUND.read_text(encoding="utf-8")))


def test_protecting_patients_costs_less_than_a_point_of_auc_and_less_than_a_third_more_time() -> None:
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    auc = {
        case: [run["auc"] for name, run in found["runs"].items() if name.startswith(f"{case} /")]
        for case in ("row", "unit")
    }
    row, unit = (sum(values) / len(values) for values in auc.values())
    assert row - unit < 0.01
    assert found["step_seconds"]["unit"] < 1.3 * found["step_seconds"]["row"]
    assert dict(found["groups"])[1] == pytest.approx(3.0, rel=0.01)
