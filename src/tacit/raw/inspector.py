"""Looks at models during training: when, at which steps, and what each look compares."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tacit import batches
from tacit.errors import ModelError, Unseen
from tacit.randomness import Keystream, Seeded
from tacit.raw.gradients import scratch
from tacit.raw.instrumentation import Instrumentation
from tacit.raw.memory import is_out_of_memory, largest_output
from tacit.raw.pipeline import Pipeline
from tacit.raw.probe import MOST, Findings, examine, examine_whole, learnt, probe, steady
from tacit.raw.recorder import Recorder
from tacit.raw.rehearsal import untouched
from tacit.support import Support

FIRST, GROWTH = 2, 4
"""Steps FIRST to FIRST·GROWTH hold one look, the next GROWTH times as many the next, and so on."""

FURTHER = 32
"""Passes whose layout is learnt again at most, where their paths depend on examples or chance."""

PROBED = 13
"""Examples that a probe of the model puts together, at most."""

APART = 32
"""A new support is looked at if the last look is this many steps ago."""


class Inspections:
    """Chooses one step of every window, each window several times as long as all before it.

    So the first updates, in which parts that started at zero wake up, are looked at soon, and a long run pays for a
    few looks only. Without a seed the choice comes from a cryptographic keystream: it is secret.

    Without ``later`` looks the one before the first step is the only one: where somebody who is not trusted chooses the
    weights, whether a look finds something would tell about the examples that it is taken at.
    """

    def __init__(self, seed: int | None = None, *, later: bool = True) -> None:
        self._seed, self.later = seed, later
        self._keystream = Keystream()
        self._drawn = 0
        self._steps = self._last = 0
        self._window = FIRST
        self._next = self._choose()

    def due(self, *, changed: bool = False) -> bool:
        """Count one step: whether to look in it. ``changed``: it is the first on another support."""
        if not self.later:
            return False
        self._steps += 1
        if self._steps >= self._next:
            while self._window <= self._steps:
                self._window *= GROWTH
            self._next = self._choose()
        elif not (changed and self._steps - self._last >= APART):
            return False
        self._last = self._steps
        return True

    def generator(self) -> torch.Generator:
        """A fresh generator for what is random about one look."""
        return torch.Generator().manual_seed(int(self._uniform() * 2**53))

    def _choose(self) -> int:
        """A step of the current window."""
        return self._window + int(self._uniform() * self._window * (GROWTH - 1))

    def _uniform(self) -> float:
        self._drawn += 1
        source = self._keystream if self._seed is None else Seeded(self._seed, 2**62 + self._drawn)
        return float(source.uniform(1)[0])


Losses = Callable[[Any], Tensor]
Census = dict[tuple[str, int], int]
"""How many rows each call of each layer sees of one example."""


class Inspector:
    """Looks at a model before its first step and at unpredictable later ones; raises ``ModelError`` on what it finds.

    ``pipeline`` is how batches are made, where that is known; it is looked at as well. ``conditions`` is a context in
    which all looks take place.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        *,
        views: int,
        reduced_precision: bool,
        inspections: Inspections,
        pipeline: Pipeline | None = None,
        conditions: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._conditions = conditions
        self._model, self._losses, self._views = model, losses, views
        self._reduced = reduced_precision
        self._inspections, self._pipeline = inspections, pipeline
        self._support: Support | None = None
        self.pending = self._due = False
        self._steps = self._looks = 0
        self.findings: dict[Hashable, Findings] = {}
        self._censuses: dict[Hashable, tuple[Census, int]] = {}

    def begin(self, support: Support) -> None:
        """A step begins; it may be one to look at."""
        changed, self._support = support is not self._support, support
        self._steps += 1
        self._due |= self._inspections.due(changed=changed)
        self.pending |= self._due or (self._steps == 1 and self._inspections.later)

    def meet(self, chunk: Any, most: Callable[[], int]) -> None:
        """The first chunk with examples of a step that is to be looked at; ``most`` are worked on at once."""
        if not batches.rows(chunk):
            return
        due, self.pending, self._due = self._due, False, False
        try:
            if batches.rows(chunk) > PROBED * self._views:
                self._look_at_whole(chunk, most)
            if due:
                self.look_again(chunk)
                self.look_at_pipeline()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise ModelError(
                "Memory does not suffice for another look at how the model treats examples, which takes several "
                "gradients of single examples in double precision: resume the run on a machine with more memory."
            ) from None
        except ModelError as error:
            raise ModelError(
                f"{error} This was found at step {self._steps}: what was charged stays charged, and what this run "
                "released before is not covered by its promise."
            ) from error

    def about(self, chunk: Any) -> Findings | None:
        """The findings for a chunk, from a probe where there are none yet; None if nothing in it is finite."""
        situation = self._situation(chunk)
        findings = self.findings.get(situation)
        if findings is None:
            findings = self._probe(chunk)
            if (
                findings is not None
                and Instrumentation(self._model, Support.all(self._model), findings.ways).follows()
            ):
                self.check(chunk, findings, as_it_is=True)
            if findings is not None and findings.conclusive:
                self.findings[situation] = findings
        return findings

    def look_further(self, chunk: Any, findings: Findings) -> None:
        """A pass over a chunk took a path that no look has met: learn its layout, and check it on the chunk itself."""
        self._looks += 1
        if self._looks > FURTHER:
            raise ModelError(
                "Passes over examples take ever new paths through the model, so it is not known which gradients belong "
                'to which example; train with isolation="construction".'
            )
        instrumentation = Instrumentation(self._model, Support.all(self._model), findings.ways)
        with self._looking(), untouched(self._model):
            layout = learnt(instrumentation, steady(self._model, self._losses), chunk, self._views)
        extended = findings.extended(layout)
        self.check(chunk, extended)
        self.findings[self._situation(chunk)] = extended

    def look_again(self, chunk: Any) -> None:
        """Probe the model once more, with the weights it has now, and check the findings on the chunk itself."""
        findings, again = self.about(chunk), self._probe(chunk)
        if findings is None or again is None:
            return
        if not again.ways <= findings.ways:
            names = sorted(again.ways.escaped | again.ways.unruled | again.ways.followed)
            raise ModelError(
                f"The gradients of {', '.join(names[:4])} reach their examples in another way than when the model was "
                'first looked at. Train with isolation="construction".'
            )
        try:
            self.check(chunk, findings)
        except Unseen:
            self.look_further(chunk, findings)

    def _look_at_whole(self, chunk: Any, most: Callable[[], int]) -> None:
        """Look for what depends on how many examples come together: in as many as the model is given at once."""
        try:
            part = batches.part(chunk, 0, min(most() * self._views, batches.rows(chunk)))
            if batches.rows(part) <= PROBED * self._views:
                return
            with self._looking():
                draw = self._inspections.generator()
                examine_whole(
                    self._model, self._losses, part, self._views, draw=draw, reduced_precision=self._reduced
                )
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise

    def check(self, chunk: Any, findings: Findings, *, as_it_is: bool = False) -> None:
        """Check the findings on a real chunk, or as much of it as memory suffices for."""
        most = MOST
        while most > 1:
            try:
                with self._looking():
                    examine(
                        self._model,
                        self._losses,
                        chunk,
                        self._views,
                        findings,
                        draw=self._inspections.generator(),
                        most=most,
                        reduced_precision=self._reduced,
                        as_it_is=as_it_is,
                    )
                return
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                most //= 4

    def look_at_pipeline(self) -> None:
        """Check that an example's loss does not depend on whom it is fetched, collated and augmented with."""
        if self._pipeline is not None:
            device = next(self._model.parameters()).device

            def losses(batch: Any) -> Tensor:
                return self._losses(batches.place(batch, device, channels_last=False))

            with self._conditions():
                self._pipeline.check(
                    self._model, losses, self._inspections.generator(), reduced=self._reduced
                )

    def measured(self, chunk: Any, findings: Findings) -> tuple[Census, int]:
        """How many rows each layer sees of one example of this shape; and the bytes of its largest layer output."""
        shapes = batches.shapes(chunk)
        if shapes not in self._censuses:
            instrumentation = Instrumentation(self._model, Support.all(self._model), findings.ways)
            device = next(self._model.parameters()).device
            recorder = Recorder(instrumentation.blocks, 1, self._views, device)
            with (
                self._conditions(),
                untouched(self._model),
                torch.enable_grad(),
                instrumentation.watching(recorder, findings.layout),
                largest_output() as largest,
            ):
                self._losses(batches.part(chunk, 0, self._views))
            census = {(name, call): rows for name, call, rows in recorder.entered}
            self._censuses[shapes] = (census, max(recorder.largest_bytes, *largest))
        return self._censuses[shapes]

    def count(self, recorder: Recorder, chunk: Any, findings: Findings) -> None:
        """Check the chunk itself if a layer saw another number of rows than examples of this shape have.

        Layers on selected rows show themselves so: how many rows are selected depends on more than shapes.
        """
        census, _ = self.measured(chunk, findings)
        if any(
            rows != census.get((name, call), -1) * recorder.examples for name, call, rows in recorder.entered
        ):
            self.check(chunk, findings)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Looks work in double precision: what they have used as scratch memory is of no use to a step."""
        with self._conditions():
            try:
                yield
            finally:
                scratch.forget()

    def _probe(self, chunk: Any) -> Findings | None:
        with self._looking():
            return probe(
                self._model,
                self._losses,
                chunk,
                self._views,
                draw=self._inspections.generator(),
                reduced_precision=self._reduced,
            )

    def _situation(self, chunk: Any) -> Hashable:
        """What findings depend on: the mode of every module, what is trained, and which sizes are degenerate.

        With one position, say, interleaved and consecutive examples look alike; with two they do not.
        """
        return (
            tuple(module.training for module in self._model.modules()),
            tuple(parameter.requires_grad for parameter in self._model.parameters()),
            tuple(tuple(size == 1 for size in leaf.shape[1:]) for leaf in batches.tensors(chunk)),
        )
