"""Real processes for tests: forked, connected by gloo, each with what came of it."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tacit.distributed import Group, Ranks

_fork = multiprocessing.get_context("fork")
PATIENCE = 120.0


@dataclass(frozen=True)
class Ending:
    """How one rank ended: what it returned, or the kind and words of its error, or the signal that ended it."""

    result: Any
    error: str
    exitcode: int


def run_ranks(size: int, place: Path, work: Callable[[Ranks], Any], *, timeout: float = 60.0) -> list[Ending]:
    """Let ``size`` processes do ``work`` together; what it returns must be plain JSON."""
    place.mkdir(parents=True, exist_ok=True)
    store = place / f"store-{len(list(place.iterdir()))}"
    ends = [store.with_suffix(f".rank{rank}") for rank in range(size)]
    processes = [
        _fork.Process(target=_rank, args=(rank, size, store, ends[rank], work, timeout))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
    return [_ending(end, process.exitcode) for end, process in zip(ends, processes, strict=True)]


def succeed(size: int, place: Path, work: Callable[[Ranks], Any]) -> list[Any]:
    """What every rank returned; all must have."""
    endings = run_ranks(size, place, work)
    assert not [ending for ending in endings if ending.error or ending.exitcode], endings
    return [ending.result for ending in endings]


def _ending(end: Path, exitcode: int | None) -> Ending:
    assert exitcode is not None
    found = json.loads(end.read_text()) if end.exists() else {"result": None, "error": "killed"}
    return Ending(found["result"], found["error"], exitcode)


def _rank(rank: int, size: int, store: Path, end: Path, work: Callable[[Ranks], Any], timeout: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )
    result, error = None, ""
    try:
        result = work(Group(dist.group.WORLD))
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    end.write_text(json.dumps({"result": result, "error": error}))
    # Leave at once: what pytest has registered for the end of the process is not a child's business.
    os._exit(0)
