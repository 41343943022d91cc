"""The ledger never forgets a charge, and never believes a damaged file."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.errors import ArgumentError, LedgerError
from tacit.release.ledger import FileLedger, MemoryLedger, read_ledger
from tacit.release.ledger_file import Charge, head_file, note_head

PLAN = "ab" * 32


def charge(index: int, noise_multiplier: float = 1.25) -> Charge:
    return Charge(index, index, "warm-up", 0.02, noise_multiplier, 1.0, 100, 4321, True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def filled(path: Path) -> Path:
    with FileLedger.create(path, run="run-1", plan_digest=PLAN) as ledger:
        for index in range(5):
            ledger.charge(charge(index))
    return path


def test_charges_come_back_after_reopening(filled: Path) -> None:
    with FileLedger.open(filled, plan_digest=PLAN, run="run-1") as ledger:
        assert ledger.charges == tuple(charge(index) for index in range(5))
        ledger.charge(charge(5, 0.75))
        ledger.charge(charge(6))
    record = read_ledger(filled)
    assert [item.noise_multiplier for item in record.charges] == [1.25] * 5 + [0.75, 1.25]
    assert (record.run, record.plan, record.torn) == ("run-1", PLAN, 0)


def test_lines_are_json_for_an_auditor(filled: Path) -> None:
    header, *lines = [json.loads(line) for line in filled.read_text().splitlines()]
    assert header["header"] == {"format": "tacit-ledger", "version": 1, "run": "run-1", "plan": PLAN}
    assert [line["charge"] for line in lines] == [dataclasses.asdict(charge(index)) for index in range(5)]
    assert [line["previous"] for line in lines] == [
        header["digest"],
        *(line["digest"] for line in lines[:-1]),
    ]
    assert all(line["at"].endswith("+00:00") for line in lines)


@pytest.mark.parametrize("ledger_type", ["memory", "file"])
def test_indices_cannot_be_skipped_or_repeated(ledger_type: str, path: Path) -> None:
    ledger = (
        MemoryLedger() if ledger_type == "memory" else FileLedger.create(path, run="run-1", plan_digest=PLAN)
    )
    ledger.charge(charge(0))
    for wrong in (0, 2):
        with pytest.raises(LedgerError, match="must have index 1"):
            ledger.charge(charge(wrong))
    ledger.charge(charge(1))
    assert ledger.charges == (charge(0), charge(1))
    assert len(ledger) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"index": -1},
        {"step": 0.5},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.5},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": float("nan")},
        {"clip_norm": 0.0},
        {"batch_size": 0},
        {"active": -1},
    ],
)
def test_impossible_charges_cannot_be_made(change: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        dataclasses.replace(charge(0), **change)
    with pytest.raises(LedgerError):
        dataclasses.replace(charge(0), phase="")


# Durability


def test_charge_returns_only_after_the_whole_line_was_synced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = FileLedger.create(path, run="run-1", plan_digest=PLAN)
    seen: list[int] = []
    real = os.fsync

    def watched(descriptor: int) -> None:
        seen.append(path.read_bytes().count(b"\n") if path.read_bytes().endswith(b"\n") else -1)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    ledger.charge(charge(0))
    ledger.charge(charge(1))
    assert seen == [2, 3]


def test_creating_syncs_the_file_and_its_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    FileLedger.create(path, run="run-1", plan_digest=PLAN)
    assert [Path(place).parent for place in synced] == [path.parent, path.parent.parent]
    assert not path.with_name(f".{path.name}.{os.getpid()}").exists()


def test_a_ledger_never_exists_without_its_header(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    for call in ("write", "fsync", "link"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, crash)
            with pytest.raises(KeyboardInterrupt):
                FileLedger.create(path, run="run-1", plan_digest=PLAN)
        assert not path.exists()


@pytest.mark.parametrize("call", ["fsync", "write"])
def test_a_failing_disk_fails_the_charge_and_closes_the_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ledger = FileLedger.create(path, run="run-1", plan_digest=PLAN)
    ledger.charge(charge(0))

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, broken)
        with pytest.raises(LedgerError, match="Nothing was released"):
            ledger.charge(charge(1))
    with pytest.raises(LedgerError, match="is closed"):
        ledger.charge(charge(1))
    # With a failed sync the line may be on disk, so it counts; with a failed write it is not there.
    with FileLedger.open(path, plan_digest=PLAN) as again:
        assert len(again) == (2 if call == "fsync" else 1)


def test_short_writes_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = FileLedger.create(path, run="run-1", plan_digest=PLAN)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    ledger.charge(charge(0))
    assert read_ledger(path).charges == (charge(0),)


def test_an_interrupt_inside_a_charge_leaves_no_ledger_that_disagrees_with_its_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = FileLedger.create(path, run="run-1", plan_digest=PLAN)

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.charge(charge(0))
    with pytest.raises(LedgerError, match="is closed"):
        ledger.charge(charge(0))
    with FileLedger.open(path, plan_digest=PLAN) as again:
        assert len(again) == 1


def in_fork(work: Callable[[int], None]) -> tuple[int, int]:
    """Run ``work`` in a child with the writing end of a pipe; return the child and the reading end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            work(writing)
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def read_all(descriptor: int) -> bytes:
    content = b""
    while part := os.read(descriptor, 65536):
        content += part
    os.close(descriptor)
    return content


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_sigkill_at_any_moment_loses_no_charge_that_returned(path: Path) -> None:
    FileLedger.create(path, run="run-1", plan_digest=PLAN).close()

    def charge_for_ever(writing: int) -> None:
        ledger = FileLedger.open(path, plan_digest=PLAN)
        while True:
            ledger.charge(charge(len(ledger)))
            os.write(writing, b".")

    known = 0
    for attempt in range(25):
        child, reading = in_fork(charge_for_ever)
        first = len(os.read(reading, 1)) if attempt % 2 else 0
        time.sleep(0.0007 * attempt)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        returned = first + len(read_all(reading))
        found = len(read_ledger(path).charges)
        assert found - known - returned in (0, 1)
        known = found
    assert known >= 12


def test_a_torn_last_line_is_no_charge_but_is_noted(filled: Path) -> None:
    whole = filled.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    before = next(head for head, count in read_ledger(filled).counts.items() if count == 4)
    for cut in (last + 1, last + 60, last + 200, len(whole) - 2):
        filled.write_bytes(whole[:cut])
        note_head(filled, before)  # a crash while the line is written is before its note
        assert len(read_ledger(filled).charges) == 4
        with FileLedger.open(filled, plan_digest=PLAN) as ledger:
            assert (len(ledger), ledger.torn) == (4, 1)
            ledger.charge(charge(4, 0.5))
        record = read_ledger(filled)
        assert record.torn == 1
        assert record.charges[4].noise_multiplier == 0.5
        assert b'"torn"' in filled.read_bytes()


def test_a_last_line_that_lacks_only_its_newline_counts(filled: Path) -> None:
    filled.write_bytes(filled.read_bytes()[:-1])
    assert len(read_ledger(filled).charges) == 5
    with FileLedger.open(filled, plan_digest=PLAN) as ledger:
        assert (len(ledger), ledger.torn) == (5, 0)
        ledger.charge(charge(5))
    assert len(read_ledger(filled).charges) == 6


def test_a_torn_header_means_that_nothing_was_charged(path: Path) -> None:
    path.write_bytes(b'{"digest":"12')
    with pytest.raises(LedgerError, match="nothing was ever charged"):
        FileLedger.open(path, plan_digest=PLAN)


# Tampering


def test_every_flipped_bit_is_found(filled: Path) -> None:
    whole = filled.read_bytes()
    for position in [*range(0, len(whole), 3), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        filled.write_bytes(bytes(damaged))
        with pytest.raises(LedgerError):
            read_ledger(filled)


def test_an_edited_noise_multiplier_is_found(filled: Path) -> None:
    text = filled.read_text()
    assert '"noise_multiplier":1.25' in text
    filled.write_text(text.replace('"noise_multiplier":1.25', '"noise_multiplier":9.25', 1))
    with pytest.raises(LedgerError, match=r"Line 2 .* is damaged"):
        FileLedger.open(filled, plan_digest=PLAN)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 3, 4, 5], "Line 3 .* a line is missing"),
        ([0, 2, 1, 3, 4, 5], "Line 2 .* wrong place"),
        ([0, 1, 2, 2, 3, 4, 5], "Line 4 .* was added"),
        ([1, 2, 3, 4, 5], "Line 1 .* does not follow"),
    ],
)
def test_missing_reordered_and_repeated_lines_are_found(filled: Path, order: list[int], message: str) -> None:
    lines = filled.read_bytes().splitlines(keepends=True)
    filled.write_bytes(b"".join(lines[index] for index in order))
    with pytest.raises(LedgerError, match=message):
        FileLedger.open(filled, plan_digest=PLAN)


def test_lines_of_another_run_do_not_fit(filled: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    with FileLedger.create(other, run="run-2", plan_digest=PLAN) as ledger:
        ledger.charge(charge(0))
    stolen = other.read_bytes().splitlines(keepends=True)[0] + b"".join(
        filled.read_bytes().splitlines(keepends=True)[1:]
    )
    filled.write_bytes(stolen)
    with pytest.raises(LedgerError, match=r"Line 2 .* does not follow"):
        FileLedger.open(filled, plan_digest=PLAN)


def test_the_ledger_of_another_plan_or_run_is_refused(filled: Path) -> None:
    with pytest.raises(LedgerError, match="belongs to another plan"):
        FileLedger.open(filled, plan_digest="cd" * 32)
    with pytest.raises(LedgerError, match="belongs to the run 'run-1', not to 'run-2'"):
        FileLedger.open(filled, plan_digest=PLAN, run="run-2")


def test_a_ledger_that_was_cut_after_a_checkpoint_is_found(filled: Path) -> None:
    with FileLedger.open(filled, plan_digest=PLAN) as ledger:
        head = ledger.head
        assert ledger.confirm(head) == 5
    lines = filled.read_bytes().splitlines(keepends=True)
    filled.write_bytes(b"".join(lines[:-1]))
    head_file(filled).unlink()
    with (
        FileLedger.open(filled, plan_digest=PLAN) as ledger,
        pytest.raises(LedgerError, match="no true epsilon can be stated"),
    ):
        ledger.confirm(head)


def test_a_ledger_that_was_cut_anywhere_after_its_lines_were_synced_is_refused(filled: Path) -> None:
    """Only the last newline may be missing: nothing is lost with it."""
    whole = filled.read_bytes()
    for cut in range(whole.find(b"\n") + 1, len(whole) - 1, 7):
        filled.write_bytes(whole[:cut])
        with pytest.raises(LedgerError, match="cut, rewritten"):
            FileLedger.open(filled, plan_digest=PLAN)
        assert filled.read_bytes() == whole[:cut]


@pytest.mark.parametrize("note", [b"", b"0" * 64 + b"\n", b"\xff\x00", None])
def test_a_note_that_is_damaged_is_refused_and_one_that_is_gone_is_not(
    filled: Path, note: bytes | None
) -> None:
    if note is None:
        head_file(filled).unlink()
        with FileLedger.open(filled, plan_digest=PLAN) as ledger:
            assert head_file(filled).read_text() == f"{ledger.head}\n"
    else:
        head_file(filled).write_bytes(note)
        with pytest.raises(LedgerError, match="one of the two is damaged"):
            FileLedger.open(filled, plan_digest=PLAN)


def test_heads_stay_valid_while_the_ledger_grows_and_is_torn(filled: Path) -> None:
    with FileLedger.open(filled, plan_digest=PLAN) as ledger:
        before = ledger.head
        ledger.charge(charge(5))
    filled.write_bytes(filled.read_bytes()[:-10])
    note_head(filled, before)
    with FileLedger.open(filled, plan_digest=PLAN) as ledger:
        after_note = ledger.head
        ledger.charge(charge(5))
        assert (ledger.confirm(before), ledger.confirm(after_note), ledger.confirm(ledger.head)) == (5, 5, 6)


def test_other_files_are_refused(path: Path, tmp_path: Path) -> None:
    path.write_text("hello\n")
    with pytest.raises(LedgerError, match="damaged"):
        FileLedger.open(path, plan_digest=PLAN)
    with pytest.raises(LedgerError, match="cannot be opened"):
        FileLedger.open(tmp_path / "absent", plan_digest=PLAN)
    with pytest.raises(LedgerError, match="cannot be read"):
        read_ledger(tmp_path / "absent")
    with pytest.raises(LedgerError, match="cannot be created"):
        FileLedger.create(tmp_path / "no" / "ledger", run="r", plan_digest=PLAN)


# One process at a time


def test_a_ledger_is_never_overwritten(filled: Path) -> None:
    with pytest.raises(LedgerError, match="exists already"):
        FileLedger.create(filled, run="run-1", plan_digest=PLAN)
    assert len(read_ledger(filled).charges) == 5


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_ledger_that_is_gone_is_not_started_again(filled: Path) -> None:
    """What was paid would be forgotten; the note beside it is what is left."""
    content = filled.read_bytes()
    filled.unlink()
    with pytest.raises(LedgerError, match=r"ledger\.head is there without ledger\.jsonl"):
        FileLedger.create(filled, run="run-2", plan_digest=PLAN)
    assert not filled.exists()
    filled.write_bytes(content)
    with FileLedger.open(filled, plan_digest=PLAN) as ledger:
        assert len(ledger) == 5


def test_a_start_on_a_full_disk_can_be_made_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, content: bytes, place: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(LedgerError, match="cannot be written: No space left"):
            FileLedger.create(path, run="run-1", plan_digest=PLAN)
    assert not path.exists()
    FileLedger.create(path, run="run-1", plan_digest=PLAN).close()


def test_a_first_note_that_a_crash_has_left_empty_is_written_again(path: Path) -> None:
    FileLedger.create(path, run="run-1", plan_digest=PLAN).close()
    head_file(path).write_bytes(b"")
    FileLedger.open(path, plan_digest=PLAN).close()
    assert head_file(path).stat().st_size > 0


def test_a_start_that_a_crash_has_cut_off_can_be_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            FileLedger.create(path, run="run-1", plan_digest=PLAN)
    FileLedger.create(path, run="run-1", plan_digest=PLAN).close()


def test_a_second_holder_is_refused_until_the_first_lets_go(filled: Path) -> None:
    def second(writing: int) -> None:
        try:
            FileLedger.open(filled, plan_digest=PLAN)
            os.write(writing, b"opened")
        except LedgerError as error:
            os.write(writing, str(error).encode())

    def verdict() -> bytes:
        child, reading = in_fork(second)
        answer = read_all(reading)
        os.waitpid(child, 0)
        return answer

    with FileLedger.open(filled, plan_digest=PLAN):
        assert b"in use by another process" in verdict()
        with pytest.raises(LedgerError, match="in use"):
            FileLedger.open(filled, plan_digest=PLAN)
    assert verdict() == b"opened"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_neither_charges_nor_keeps_the_lock(filled: Path) -> None:
    def train_with_a_worker(writing: int) -> None:
        ledger = FileLedger.open(filled, plan_digest=PLAN)
        if os.fork() == 0:
            try:
                ledger.charge(charge(5))
                os.write(writing, f"charged {os.getpid()}".encode())
            except LedgerError:
                os.write(writing, f"refused {os.getpid()}".encode())
        signal.pause()

    parent, reading = in_fork(train_with_a_worker)
    verdict, worker = os.read(reading, 100).split()
    try:
        assert verdict == b"refused"
        with pytest.raises(LedgerError, match="in use"):
            FileLedger.open(filled, plan_digest=PLAN)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        with FileLedger.open(filled, plan_digest=PLAN) as again:
            assert len(again) == 5
    finally:
        os.kill(int(worker), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(parent, os.WNOHANG)
            os.kill(parent, signal.SIGKILL)
        os.close(reading)
