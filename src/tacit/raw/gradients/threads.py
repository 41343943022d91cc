"""Compiled code on as many threads as tensor operations have."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import torch

_lock = threading.Lock()
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""By process, since a forked one has no threads, and by number of threads."""


def share_out(examples: int, work: Callable[[int, int], None]) -> None:
    """Call ``work(start, stop)`` for parts that make up all examples, each on a thread of its own."""
    threads = min(torch.get_num_threads(), examples)
    if threads < 2:
        work(0, examples)
        return
    cuts = [examples * part // threads for part in range(threads + 1)]
    with _lock:
        pool = _pools.setdefault((os.getpid(), threads), ThreadPoolExecutor(threads, "gradients"))
    waiting: list[Future[None]] = []
    for start, stop in pairwise(cuts):
        try:
            waiting.append(pool.submit(work, start, stop))
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise
            work(start, stop)  # once the main thread has ended no other takes work, but this one may go on
    for part in waiting:
        part.result()
