"""The work of an attack, in parts that run side by side, and what each part found as plain data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tools.attack import crowds
from tools.attack.end_to_end import detect
from tools.attack.measuring import Subject, Tacit
from tools.attack.peers import MODES, Opacus
from tools.attack.search import search
from tools.attack.settings import SUPPORTS
from tools.attack.targets import BY_NAME, TARGETS, Target

CROWDED = ("all", "dense")
"""Hostile companions are tried on these supports."""


@dataclass(frozen=True)
class Job:
    """A part of the attack: a search ("alone" or "crowd"), a peer, a kind of large crowd, or runs of the Trainer."""

    kind: str
    target: str = ""
    variant: str = ""

    @property
    def name(self) -> str:
        """For the terminal and for ``--only``."""
        return " / ".join(part for part in (self.kind, self.target, self.variant) if part)

    @property
    def share(self) -> float:
        """How much of the time it takes relative to others; 0 where it takes as long as it takes."""
        if self.kind in ("large crowd", "trainer"):
            return 0.0
        return (0.5 if self.kind == "peer" else 1.0) * (3.0 if _is_slow(BY_NAME[self.target]) else 1.0)


def all_jobs() -> list[Job]:
    """Everything, the longest first."""
    jobs = [Job("trainer"), *(Job("large crowd", variant=kind) for kind in crowds.KINDS)]
    for target in TARGETS:
        jobs += [Job("alone", target.name, support) for support in SUPPORTS]
        jobs += [Job("crowd", target.name, support) for support in CROWDED]
        jobs += [Job("peer", target.name, mode) for mode in MODES]
    return sorted(jobs, key=lambda job: -(job.share or 100))


def run(job: Job, seed: int, seconds: float | None, evaluations: int | None) -> list[dict[str, Any]]:
    """Do one part. With ``evaluations`` it is the same every time; with ``seconds`` it ends by the clock."""
    torch.set_num_threads(1)
    if job.kind == "trainer":
        return [asdict(job) | asdict(detect(seed))]
    if job.kind == "large crowd":
        made = crowds.KINDS[job.variant](seed)
        return [asdict(job) | asdict(crowd) | {"assumed_away": crowd.assumed_away} for crowd in made]
    target = BY_NAME[job.target]
    peer = job.kind == "peer"
    subject: Subject = Opacus(target, job.variant) if peer else Tacit(target)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            worst = search(
                subject,
                target,
                "all" if peer else job.variant,
                seed,
                crowd=job.kind == "crowd",
                evaluations=evaluations,
                seconds=seconds,
                limited=peer,
            )
    except Exception as error:
        if not peer:
            raise
        return [asdict(job) | {"unsupported": f"{type(error).__name__}: {str(error)[:200]}"}]
    found: dict[str, Any] = asdict(job) | {
        "ratio": worst.ratio,
        "evaluations": worst.evaluations,
        "refused": worst.refused,
        "refusals": sorted(worst.refusals)[:3],
        "poisoned": worst.poisoned,
        "by_setting": worst.by_setting,
    }
    if worst.best is not None:
        found |= {"attack": worst.best.attack, "setting": worst.best.setting.short}
    return [found]


def violations(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What shows that Tacit's bound does not hold.

    Companions whose own rounding changes with one example more are shown, but the proof assumes that there are none;
    with isolation by construction there cannot be.
    """
    return [
        record
        for record in found
        if (record["kind"] == "alone" and record["ratio"] > 1)
        or (record["kind"] == "large crowd" and record["ratio"] > 1 and not record["assumed_away"])
        or (record["kind"] == "trainer" and record["epsilon"] > record["claimed"])
    ]


def _is_slow(target: Target) -> bool:
    """Whether one evaluation takes tens of milliseconds."""
    return (
        sum(getattr(field, "positions", 0) * getattr(field, "features", 0) for field in target.fields) > 8000
    )
