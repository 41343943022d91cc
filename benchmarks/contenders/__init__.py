"""Who takes part: every way to take one step, by name."""

from __future__ import annotations

from benchmarks.contenders.opacus import OPACUS
from benchmarks.contenders.plain import PLAIN
from benchmarks.contenders.tacit import TACIT
from benchmarks.contenders.types import Contender
from benchmarks.workloads import Workload

CONTENDERS = {contender.name: contender for contender in (*PLAIN, *OPACUS, *TACIT)}


def contenders_for(workload: Workload, names: list[str] | None = None) -> list[Contender]:
    """The contenders that apply to a workload: channels_last variants only where there are convolutions."""
    return [
        contender
        for name, contender in CONTENDERS.items()
        if (names is None or name in names)
        and (workload.convolutional or not contender.only_convolutional)
        and (workload.pretrained or not contender.only_pretrained)
    ]
