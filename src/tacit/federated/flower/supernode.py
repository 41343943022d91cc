"""Flower's SuperNode, asking for messages twice a second. By itself it waits three seconds: most of a round."""

from __future__ import annotations

import time
from types import SimpleNamespace

from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

LONGEST_PAUSE = 0.5


def main() -> None:
    """Run the SuperNode by its own command line, with shorter pauses."""

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, LONGEST_PAUSE))

    # The pause is no option of Flower's, so the module that pauses gets a clock of its own.
    vars(start_client_internal)["time"] = SimpleNamespace(**{**vars(time), "sleep": sleep})
    flower_supernode()


if __name__ == "__main__":
    main()
