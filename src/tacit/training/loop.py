"""A run in a custom training loop: drawn batches, planned noise, a ledger, checkpoints and a certificate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from tacit.errors import ArgumentError
from tacit.losses import Loss
from tacit.plan import Plan, steps_left
from tacit.plan.sources import Own
from tacit.raw.clipping import Clipper, Clipping, Isolation, check_isolation
from tacit.raw.generators import Generators
from tacit.raw.inspector import Inspections
from tacit.release.ledger import Ledger, MemoryLedger, epsilon_of_charges
from tacit.release.mechanism import GaussianMechanism, Query, Released
from tacit.release.noise import Noise, SecureNoise, SeededNoise
from tacit.runs import DEFAULT_GROUP, DEFAULT_UNIT, write_certificate
from tacit.runs.layout import MODEL_FILE
from tacit.runs.run_directory import Run, coordinates_of, support_from_state, support_state
from tacit.support import Support
from tacit.tensors import tensors_digest, write_tensors
from tacit.training.arguments import (
    check_loss,
    check_model,
    check_no_gradients,
    check_optimizer,
    warn_of_evaluation_mode,
)
from tacit.training.examples import rehearse
from tacit.training.loader import PoissonLoader
from tacit.training.open_run import (
    OpenRun,
    Parts,
    check_same_start,
    last_checkpoint,
    open_run,
    parts_of,
    refuse_misfits,
    save_parts,
    start_of,
    start_run,
)
from tacit.training.update import ActiveUpdate, OptimizerFactory

OWN_LOOP = (
    "what the training loop, which is its user's own code, does with examples besides the releases in the ledger; its "
    "choice of active coordinates, of learning rates and of the moment to stop must follow from released values alone"
)
"""What the certificate of such a run does not cover."""


@dataclass(frozen=True)
class Draw:
    """The batch of one step, drawn and not yet used. ``chunks`` can be read once, by ``PrivateLoop.step``."""

    number: int
    chunks: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        """Refused: a batch is for the step, not for the loop."""
        raise ArgumentError(
            "What a PrivateLoop draws is not (inputs, targets) but the batch of one step, whose examples stay behind "
            "the wall; write for draw in loop: released = loop.step(draw)."
        )


class PrivateLoop:
    """Everything of a private run but its loop, which is yours::

        plan = make_plan(OwnLoop(), epsilon=8, delta=1e-5, examples=len(data), batch_size=256, epochs=10)
        loader = PoissonLoader(data, batch_size=256)
        with PrivateLoop(model, loader, loss, plan, optimizer=make, run_dir="runs/mine") as loop:
            scheduler = CosineAnnealingLR(loop.optimizer, plan.steps)
            for draw in loop:
                released = loop.step(draw)
                scheduler.step()

    Every batch that is drawn must be used for one step, also an empty one: a batch that the loop looks at and leaves
    out would not have been drawn at random. Gradients that a backward pass of the loop leaves on the model are refused:
    nothing may be trained with them. The loop may end when it likes, change the ``support`` and steer the
    ``optimizer``. The context ends the run: it writes the model and the certificate of what was spent; after an
    exception it only lets go of the run directory, and a new loop can ``load`` it.

    ``loader`` is a ``PoissonLoader``. ``loss(model, batch)`` gives one loss per example. ``plan`` is made with the
    method ``OwnLoop``. ``support`` is where to start, all coordinates unless given. ``clipping`` is "flat",
    "automatic" (every gradient scaled to nearly the clip norm) or "per-layer". ``unit``, ``not_covered``,
    ``witness``, ``isolation`` and ``autocast`` are those of ``Trainer``; the seed and the ranks are the loader's.
    """

    def __init__(
        self,
        model: nn.Module,
        loader: PoissonLoader,
        loss: Loss,
        plan: Plan,
        *,
        optimizer: OptimizerFactory,
        run_dir: str | Path | None = None,
        support: Support | None = None,
        clipping: Clipping = "flat",
        autocast: torch.dtype | None = None,
        isolation: Isolation = "probed",
        unit: str | None = None,
        not_covered: Sequence[str] = (),
        witness: str | Path | None = None,
    ) -> None:
        check_model(model)
        check_loss(loss)
        check_optimizer(optimizer)
        _check_plan(plan, loader)
        if witness is not None and run_dir is None:
            raise ArgumentError("Only a loop with a run_dir has a ledger for a witness to follow.")
        if unit is None:
            unit = DEFAULT_UNIT if loader.units is None else DEFAULT_GROUP
        if not unit or not all(not_covered):
            raise ArgumentError("A certificate needs a unit of privacy, and no empty entries in not_covered.")
        self.model, self.plan, self.ranks = model, plan, loader.ranks
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._isolated = check_isolation(isolation) == "construction"
        self._start_with = start_of(loader.seed, unit, (OWN_LOOP, *not_covered), isolation, witness)
        self._batches = loader.batches(isolated=self._isolated)
        self._inspections = Inspections(loader.seed)
        pipeline = loader.pipeline(self._batches)
        self._clipper = Clipper(
            model,
            loss,
            autocast=autocast,
            seed=loader.seed,
            inspections=self._inspections,
            pipeline=pipeline,
            isolation=isolation,
            clipping=clipping,
        )
        self._rehearse_with = partial(
            rehearse,
            self._clipper,
            pipeline,
            loader.dataset,
            loader.rows,
            partial(loss, model),
            autocast=autocast,
            isolated=self._isolated,
        )
        settings = (loader.seed, self.run_dir is None, isolation, clipping, loader.rows_per_unit)
        check_same_start(self.ranks, plan, model, loader.dataset, settings, loader.units)
        self._generators = Generators(model, loss, loader.dataset, loader.collate, seed=loader.seed)
        noise: Noise = SecureNoise() if loader.seed is None else SeededNoise(loader.seed)
        self._mechanism = GaussianMechanism(self._clipper, noise, self._generators, self.ranks)
        self._update = ActiveUpdate(model, optimizer, Support.all(model) if support is None else support)
        self._ledger: Ledger = MemoryLedger()
        self._run: Run | None = None
        self._open: Draw | None = None
        self._begun = False
        self.notes: dict[str, Any] = {}
        self.done, self.total = 0, plan.steps

    # The loop -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Draw]:
        """The batches of the steps that are left, one at a time; the first begins the run, unless it was loaded."""
        if not self._begun:
            self._begin()
        self._refuse_unused()
        for _, chunks in self._batches.steps(len(self._ledger), self.total - self.done):
            self._open = Draw(self.done, chunks)
            yield self._open
            self._refuse_unused()

    def step(self, draw: Draw) -> Released:
        """Clip, charge, release and update with a batch that was drawn: once, and before the next is drawn."""
        if draw is not self._open:
            raise ArgumentError("A step needs the batch that was drawn last, and each can be used once.")
        check_no_gradients(self.model)
        # If the step fails, what is left of the batch cannot be tried again.
        self._open = Draw(draw.number, iter(()))
        phase = self.plan.phases[self.plan.locate(self.done)[0]]
        query = Query(
            phase=phase.name,
            step=self.done,
            sampling_rate=phase.sampling_rate,
            # The noise belongs to the place in the ledger: after a crash a step may have another place.
            noise_multiplier=self.plan.noise_at(len(self._ledger)),
            clip_norm=phase.clip_norm,
            batch_size=self.plan.batch_size,
        )
        released = self._mechanism.answer(query, draw.chunks, self.support, self._ledger)
        self._open = None
        self._update.step(released)
        self.done += 1
        return released

    @property
    def support(self) -> Support:
        """The active coordinates. To be set from released values only; optimizer and schedulers are kept."""
        return self._update.support

    @support.setter
    def support(self, support: Support) -> None:
        self._update.change_support(support)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer on the active coordinates, for schedulers of PyTorch."""
        return self._update.optimizer

    @property
    def epsilon(self) -> float:
        """ε of everything that has been charged so far, at the plan's δ."""
        plan = self.plan
        return epsilon_of_charges(self._ledger.charges, plan.gaussian_delta, plan.accountant, plan.relation)

    # The run directory ----------------------------------------------------------------------------

    def save(self, **notes: Any) -> None:
        """Write a checkpoint: model, support, optimizer and learning rates; whole, or not at all.

        ``notes`` are kept with it, in JSON: ``save(scheduler=scheduler.state_dict())``. They are public.
        """
        try:
            self.notes = json.loads(json.dumps(notes, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"Notes of a checkpoint must be plain numbers, texts and lists: {error}."
            ) from error
        self.ranks.check_same("the state of training", self._state_digest)
        self.ranks.together(self._write_checkpoint)

    def load(self) -> None:
        """Go on with the run in ``run_dir`` from its last checkpoint; ``notes`` are those it was saved with.

        Steps that a crash has lost stay charged, and the run ends as many steps earlier (``total``).
        """
        if self.run_dir is None:
            raise ArgumentError("Only a loop with a run_dir can be loaded.")
        self.close()
        self._hold(open_run(self.ranks, self.run_dir, self.plan, self.model, self._start_with))
        try:
            tensors, numbers = self.ranks.lead_tensors(self._last_checkpoint)
            if numbers is None:
                self.save()
            else:
                self._restore(tensors, numbers)
            self.total = self.done + steps_left(self.plan, self._ledger.charges, self.done)
        except BaseException:
            self.close()
            raise

    def finish(self) -> None:
        """Write the model and the certificate of what was spent; the loop may have ended early."""
        self._refuse_unused()
        if not self._begun:
            return
        check_no_gradients(self.model)
        self.save(**self.notes)
        if self._run is not None:
            write_tensors(self._run.path / MODEL_FILE, self.model.state_dict(), {"steps": self.done})
            write_certificate(self._run.path, not_covered=self._start_with.not_covered)

    def close(self) -> None:
        """Let go of the run directory."""
        if self._run is not None:
            self._run.ledger.close()
        if self.run_dir is not None:
            self._run, self._begun = None, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    # Inside ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        warn_of_evaluation_mode(self.model)
        self.ranks.together(self._rehearse)
        self._hold(start_run(self.ranks, self.run_dir, self.plan, self.model, self._start_with))
        self.save()

    def _hold(self, held: OpenRun) -> None:
        self._ledger, self._run, self._begun = held.ledger, held.run, True

    def _rehearse(self) -> None:
        """Refuse what cannot be trained before anything is written."""
        with self._generators.keyed(0, self.ranks.rank):
            self._rehearse_with(self._inspections)

    def _refuse_unused(self) -> None:
        if self._open is not None:
            raise ArgumentError(
                f"The batch of step {self._open.number} was drawn and not used. Call step for every batch, also for "
                "an empty one: leaving some out would change how examples are sampled."
            )

    def _parts(self) -> Parts:
        return {
            "model": (dict(self.model.state_dict()), {}),
            "support": support_state(self.support),
            "optimizer": self._update.state(),
        }

    def _state_digest(self) -> str:
        tensors = {
            f"{part}:{name}": tensor
            for part, (found, _) in self._parts().items()
            for name, tensor in found.items()
        }
        return f"{self.done} {tensors_digest(tensors)}"

    def _write_checkpoint(self) -> None:
        if self._run is None:
            return
        about = {
            "step": self.done,
            "selections": {},
            "coordinates": coordinates_of(self.model),
            "groups": self._update.settings(),
            "notes": self.notes,
        }
        save_parts(self._run, self._parts(), about)

    def _last_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        assert self._run is not None
        return last_checkpoint(self._run)

    def _restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        with refuse_misfits(self.run_dir, "loop"):
            parts = parts_of(tensors, numbers)
            self.model.load_state_dict(parts["model"][0])
            self._update.change_support(support_from_state(*parts["support"]))
            self._update.restore(*parts["optimizer"])
            self._update.set(numbers["groups"])
            self.done, self.notes = int(numbers["step"]), dict(numbers["notes"])


def _check_plan(plan: Plan, loader: PoissonLoader) -> None:
    """Refuse a plan that says something else than what such a loop does."""
    if not isinstance(loader, PoissonLoader):
        raise ArgumentError(
            f"PrivateLoop draws its batches from a PoissonLoader, not from {type(loader).__name__}; for a DataLoader, "
            "give PoissonLoader.like(loader)."
        )
    if not all(isinstance(phase.support, Own) for phase in plan.phases):
        raise ArgumentError(
            f"The plan is for {plan.method}; make one with the method OwnLoop() for a loop of your own."
        )
    planned = (plan.examples, plan.batch_size, plan.grouped)
    if planned != (loader.examples, loader.batch_size, loader.units is not None):
        raise ArgumentError(
            f"The plan is for {plan.examples} {plan.counted} in batches of {plan.batch_size}, the loader has "
            f"{loader.examples} {'examples' if loader.units is None else 'units'} in batches of {loader.batch_size}."
        )
