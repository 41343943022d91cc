"""What Tacit logs inside Flower's processes."""

from __future__ import annotations

import logging
import sys


def show_log() -> None:
    """Print Tacit's own messages on stderr; those of other libraries are left as they are."""
    log = logging.getLogger("tacit.federated")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s tacit: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
