"""The course of a run: phase after phase and step after step, each charged, released and followed."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.distributed.ranks import Ranks
from tacit.plan import Phase, Plan, steps_left
from tacit.plan.sources import Stops
from tacit.release.ledger import Ledger, MemoryLedger
from tacit.release.mechanism import GaussianMechanism, Query, Released
from tacit.support.selection import Selection
from tacit.training.examples import Examples
from tacit.training.schedules import Schedule
from tacit.training.state import TrainingState

MOST = 64
LEAST_SHARE = 100
"""At most one in so many of a run's steps is charged ahead."""
DISK_SHARE = 0.05
"""The share of time that may go to the disk before more is charged at once."""


@dataclass(frozen=True)
class Step:
    """One step that has been taken: everything in it is released."""

    number: int
    phase: Phase
    released: Released
    selection: Selection


class Together:
    """Watches how long steps take, and says how many charges to write at once.

    A line that is certain to be on disk can take longer than a small step. But charges that are written ahead stay
    charged if a crash comes before their releases, and the run then ends that many steps earlier. Hence few of them:
    one by one where steps are slow, and never more than a hundredth of the run.
    """

    def __init__(self, steps: int) -> None:
        self._most = min(MOST, steps // LEAST_SHARE)
        self._began, self._count = 0.0, 0

    def count(self, left: int, disk: float) -> int:
        """How many releases to charge now, of ``left`` that are sure to come; at least the next.

        ``disk`` is how long it took to write the last charges, which were as many as this said.
        """
        now, wanted = time.monotonic(), 1
        if self._count and self._most > 1:
            each = max(1e-6, (now - self._began - disk) / self._count)
            wanted = math.ceil(disk / (DISK_SHARE * each))
        self._began, self._count = now, max(1, min(wanted, self._most, left))
        return self._count


class Course:
    """Takes the steps of a plan.

    ``done`` of ``total`` steps were taken; after a crash that has cost some, ``total`` is less than the plan says.
    ``name`` is that of the run, once it has one, and ``ledger`` is charged. ``selections`` says for each phase that was
    entered why its coordinates were chosen; ``selection`` is the last. ``together`` lets steps be charged several at a
    time.
    """

    def __init__(
        self,
        plan: Plan,
        schedule: Schedule,
        ranks: Ranks,
        examples: Examples,
        mechanism: GaussianMechanism,
        state: TrainingState,
        seed: int | None,
    ) -> None:
        self._plan, self._schedule, self._ranks, self._seed = plan, schedule, ranks, seed
        self._examples, self._mechanism, self._state = examples, mechanism, state
        self.name: str | None = None
        self.ledger: Ledger = MemoryLedger()
        self.together: Together | None = None
        self.selection: Selection | None = None
        self.selections: dict[str, str] = {}
        self.done, self.total = 0, plan.steps

    def steps(self) -> Iterator[Step]:
        """Take the steps that are left; each is charged, released and applied before it is yielded."""
        while self.done < self.total:
            place, within = self._plan.locate(self.done)
            phase = self._plan.phases[place]
            if isinstance(phase.support, Stops):
                yield self._choose(phase)
                continue
            if within == 0:
                self._enter(phase, place)
            count = min(phase.steps - within, self.total - self.done)
            for taken, chunks in enumerate(self._examples.steps(len(self.ledger), count)):
                yield self._step(phase, chunks, count - taken)

    def check_same(self) -> None:
        """Refuse to continue when ranks are at different steps."""
        self._ranks.check_same("the state of training", lambda: f"{self.done} {self._state.digest()}")

    def go_on(self, numbers: Mapping[str, Any]) -> None:
        """Go on from the place of a checkpoint, whose state has been restored."""
        self.done = int(numbers["step"])
        self.selections = dict(numbers["selections"])
        phase = self._plan.phases[self._plan.locate(max(0, self.done - 1))[0]]
        self.selection = Selection(self._state.support, self.selections.get(phase.name, "Resumed."))

    def give_up_lost(self) -> bool:
        """End as many steps earlier as were charged and then lost in a crash; whether that has moved the place."""
        charges = self.ledger.charges
        left = steps_left(self._plan, charges, self.done)
        skipped = self._state.candidates is not None and self.done < len(charges)
        if skipped:
            self._skip_to(len(charges))
        self.total = self.done + left
        return skipped

    # One step -------------------------------------------------------------------------------------

    def _step(self, phase: Phase, chunks: Iterator[Any], left: int) -> Step:
        """Take a step of a phase, which has ``left`` of them, this one included."""
        following = self._following(phase, left)
        phase, query = self._query(phase)
        # Weights that training chose follow the release: before the clip they would cost weak columns their signal.
        support = self._state.support.unweighted()
        self._state.update.set_rates(self._rate_factor())
        released = self._mechanism.answer(query, chunks, support, self.ledger, following)
        self._state.follow(phase, released)
        self.done += 1
        if phase.updates:
            self._state.end_candidate(self.done)
        assert self.selection is not None
        return Step(self.done, phase, released, self.selection)

    def _following(self, phase: Phase, left: int) -> list[Query]:
        """What the next releases ask that are charged together with this one."""
        if self.together is None or self.ledger.ahead:
            return []
        count = self.together.count(left, self.ledger.write_seconds)
        return [self._query(phase, later)[1] for later in range(1, count)]

    def _query(self, phase: Phase, later: int = 0) -> tuple[Phase, Query]:
        """The phase with the noise of its next release, and what that release asks; or one so many steps later."""
        # The noise belongs to the place in the ledger, not to the step: after a crash a step may have another place.
        noise = self._plan.noise_at(len(self.ledger) + later)
        phase = dataclasses.replace(phase, noise_multiplier=noise)
        query = Query(
            phase=phase.name,
            step=self.done + later,
            sampling_rate=phase.sampling_rate,
            noise_multiplier=phase.noise_multiplier,
            clip_norm=phase.clip_norm,
            batch_size=self._plan.batch_size,
            statistic=phase.statistic,
            clip_order=phase.clip_order,
            votes=phase.votes,
        )
        return phase, query

    def _rate_factor(self) -> float:
        """The factor on the learning rate of the next step."""
        if self._state.candidates is not None:
            return self._state.candidates.factor(self.done, self._schedule)
        lost = self._plan.steps - self.total
        return self._schedule(self.done + lost, self._plan.steps)

    # Phases and runs ------------------------------------------------------------------------------

    def _enter(self, phase: Phase, place: int) -> None:
        """Choose the support of a phase, once all ranks are found to stand at the same place."""
        self.check_same()
        noise = phase.noise_deviation(self._plan.batch_size) ** 2
        self.selection = self._state.enter(phase, noise, self._support_seed(place))
        self.selections[phase.name] = self.selection.reason

    def _support_seed(self, place: int) -> int:
        """A public seed for random supports: fixed by the run, the same again after a resume."""
        run = self._seed if self._seed is not None else self.name
        digest = hashlib.blake2b(f"{run} {place}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def _choose(self, phase: Phase) -> Step:
        """Take the weights of the run whose losses, on examples that none was trained on, are lowest as released."""
        candidates = self._state.candidates
        assert candidates is not None
        assert candidates.last
        phase, query = self._query(phase)
        chunks = self._examples.batches.apart(len(self.ledger))
        released = self._mechanism.compare(query, chunks, candidates.ended, self.ledger)
        summed = released.values["losses"] * self._plan.batch_size
        selection = self._take(*candidates.chosen(summed, self._plan.examples))
        self.done += 1
        return Step(self.done, phase, released, selection)

    def _take(self, place: int, reason: str) -> Selection:
        """Go on with the weights of one of the runs."""
        assert self._state.candidates is not None
        self._state.restart(self._state.candidates.ended[place])
        self.selections[self._plan.phases[-1].name] = reason
        self.selection = Selection(self._state.support, reason)
        return self.selection

    def _skip_to(self, charged: int) -> None:
        """Leave out the steps that a crash has lost, so that the choice at the end keeps its place in the ledger."""
        assert self._state.candidates is not None
        for done in range(self.done + 1, charged + 1):
            self._state.end_candidate(done)
        self.done = charged
        if charged == self._plan.steps:
            self._take(*self._state.candidates.lost())
