"""One thread per test process: the suite runs on all cores as it is, and a thread pool does not survive a fork.

Property tests draw the same cases every time, so that the suite judges a change and nothing else; under ``make fuzz``
(TACIT_FUZZ) they draw fresh ones.

No test reaches the network; what needs more than the repository skips and says what it needs.
"""

from __future__ import annotations

import os
import signal
import tempfile

from hypothesis import settings

from no_network import keep_to_this_machine

os.environ.setdefault("OMP_NUM_THREADS", "1")
keep_to_this_machine()
# Budgets, and the key that data is recognised by, stay out of the home of whoever runs the tests.
os.environ["TACIT_BUDGETS"] = tempfile.mkdtemp(prefix="tacit-budgets-")
# Started in the background of a shell, a process ignores interrupts, and so would those that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("tacit", derandomize=os.environ.get("TACIT_FUZZ", "1") == "1", database=None)
settings.load_profile("tacit")
