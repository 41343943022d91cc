"""Compiled code goes on where its threads take no more work."""

from __future__ import annotations

import subprocess
import sys

GOES_ON = """
import threading
import torch
from tacit.raw.gradients.threads import share_out

def shared():
    done = []
    share_out(5, lambda start, stop: done.append((start, stop)))
    return sorted(done)

def late():
    threading.main_thread().join()
    for _ in range(3):
        print(shared() == before)

torch.set_num_threads(2)
before = shared()
threading.Thread(target=late).start()
"""


def test_a_thread_that_outlives_the_main_one_goes_on_with_the_same_parts() -> None:
    found = subprocess.run([sys.executable, "-c", GOES_ON], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True"] * 3, found.stderr
