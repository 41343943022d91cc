"""Training in several processes: what each rank does alone, and what all do together.

A script that gives ``ranks=tacit.distributed.join()`` to a trainer runs as it is under ``python`` and under
``torchrun``. With one process every operation here does nothing.
"""

from tacit.distributed.group import Group, join
from tacit.distributed.ranks import ALONE, Alone, Ranks

__all__ = ["ALONE", "Alone", "Group", "Ranks", "join"]
