"""The page of instructions says what its counts say."""

from __future__ import annotations

import json

import pytest
from benchmarks.instructions import DEFAULT_JSON, PRIVATE, Count, Counts, counted, page, take
from benchmarks.machine import machine
from benchmarks.workloads import WORKLOADS

from benchmarks import instructions
from tacit.raw import inspector


@pytest.mark.skipif(not DEFAULT_JSON.exists(), reason="needs counts, and none are recorded yet")
def test_the_page_is_made_of_the_counts() -> None:
    records = json.loads(DEFAULT_JSON.read_text(encoding="utf-8"))
    found = [Counts.read(record) for record in records]
    assert DEFAULT_JSON.with_suffix(".md").read_text(encoding="utf-8") == page(found)
    for one, record in zip(found, records, strict=True):
        assert one.record == {**record, "machine": one.record["machine"]} | {"counts": one.record["counts"]}
        assert [count["ratio"] for count in one.record["counts"]] == [c["ratio"] for c in record["counts"]]
        assert tuple(count.contender for count in one.counts[1:]) == PRIVATE
        assert one.counts[0].contender.startswith("sgd")
    assert [one.workload for one in found] == [
        name for name in WORKLOADS if name in {f.workload for f in found}
    ]


def test_a_step_is_what_the_longer_process_has_more() -> None:
    counts = (Count("sgd", (2, 4), (1_000, 1_200)), Count("tacit-dense", (2, 4), (5_000, 5_250)))
    one = Counts("W1", "valgrind-9", machine(1), counts)
    assert [figure["ratio"] for figure in one.record["counts"]] == [1.0, 1.25]
    assert Counts.read(json.loads(json.dumps(one.record))) == one
    assert "| Tacit, all coordinates | 0.0 | 1.25 |" in page([one])


def test_no_look_falls_into_the_steps_that_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    due = inspector.Inspections.due

    def noted(self: inspector.Inspections, *, changed: bool = False) -> bool:
        found = due(self, changed=changed)
        looks.append(int(found))
        return found

    monkeypatch.setattr(inspector.Inspections, "due", noted)
    monkeypatch.setattr(inspector, "FIRST", inspector.FIRST)  # put back what ``take`` changes
    monkeypatch.setattr(instructions.torch, "set_num_threads", lambda threads: None)
    take("W2", "tacit-rows", 8)
    assert looks == [0] * 8


def test_what_went_wrong_in_the_counted_process_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "COUNTER", ())  # valgrind takes a minute to start
    with pytest.raises(SystemExit, match="W1 nobody, 2 steps"):
        counted("W1", "nobody", 2)
