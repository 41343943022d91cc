"""One thread per test process: the suite runs on all cores as it is, and a thread pool does not survive a fork.

Property tests draw the same cases every time, so that the suite judges a change and nothing else; under ``make fuzz``
(TACIT_FUZZ) they draw fresh ones.

No test reaches the network; what needs more than the repository skips and says what it needs.

A run looks at its model before the first step, and at later ones where a test is about that.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import settings

from no_network import keep_to_this_machine
from tacit.raw import inspector

os.environ.setdefault("OMP_NUM_THREADS", "1")
keep_to_this_machine()
# Budgets, and the key that data is recognised by, stay out of the home of whoever runs the tests.
os.environ["TACIT_BUDGETS"] = tempfile.mkdtemp(prefix="tacit-budgets-")
# Started in the background of a shell, a process ignores interrupts, and so would those that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("tacit", derandomize=os.environ.get("TACIT_FUZZ", "1") == "1", database=None)
settings.load_profile("tacit")


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(os.environ["TACIT_BUDGETS"], ignore_errors=True)


@pytest.fixture(autouse=True)
def only_the_first_look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later looks take a third of the time of a short run."""
    about_looks = {"raw", "audit", "tools", "fuzz"} & set(request.path.parts[-3:-1])
    if not about_looks and request.path.stem not in ("test_isolation", "test_answering"):
        monkeypatch.setattr(inspector, "FIRST", 1 << 30)
