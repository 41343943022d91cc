"""One thread per test process: the suite runs on all cores as it is, and a thread pool does not survive a fork."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
