from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tacit.cli.output import plain
from tacit.errors import FileError
from tacit.jobs.comparison import CellResult
from tacit.jobs.summary import comparison_record, read_comparison, summarise


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    results = [
        CellResult("dp-sgd", 3.0, 0, {"auc": 0.5}, 9, 9, 1.0),
        CellResult("dp-sgd", 3.0, 1, {"auc": 0.7}, 9, 9, 1.0),
        CellResult("tp-topk", 3.0, 0, {"auc": 0.6}, 3, 9, 2.0),
        CellResult("tp-topk", 3.0, 1, {"auc": 0.9}, 3, 9, 2.0),
        CellResult("no-noise", math.inf, 0, {"auc": math.nan}, 9, 9, 1.0),
    ]
    rows = summarise(results, "auc")
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps(plain(comparison_record("table", "auc", rows, results)), allow_nan=False))
    found = read_comparison(path)
    assert (found.data, found.measure, found.paired_with) == ("table", "auc", "dp-sgd")
    assert repr(list(found.rows)) == repr(rows), "as text, since nan is not equal to itself"
    good = json.loads(path.read_text())
    for change in (
        {"rows": 3},
        {"rows": []},
        {"measure": "r2"},
        {"rows": [{**good["rows"][0], "coordinates": 0}]},
        {"rows": [{**good["rows"][0], "active": 10}]},
        {"rows": [{**good["rows"][0], "epsilon": -1}]},
        {"rows": [{**good["rows"][0], "seeds": 0}]},
        {"rows": [{**good["rows"][0], "measures": {"auc": {"mean": 0.5, "deviation": -1}}}]},
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(FileError, match="is not a comparison"):
            read_comparison(path)
