"""The trainer: a model trained by a plan, in one call or step by step, and resumed after any interruption."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tacit.distributed.group import checked
from tacit.distributed.ranks import Ranks
from tacit.errors import ArgumentError, ModelError, TacitError, check_count
from tacit.losses import Loss
from tacit.plan import Plan
from tacit.raw.clipping import Clipper, Clipping, Isolation, check_isolation
from tacit.raw.generators import Generators
from tacit.raw.sampling import check_dataset
from tacit.release.lazy_noise import LazyTable
from tacit.release.ledger import MemoryLedger, epsilon_of_charges
from tacit.release.ledger_file import Charge
from tacit.release.mechanism import GaussianMechanism
from tacit.release.noise import Noise, SecureNoise, SeededNoise
from tacit.runs import DEFAULT_GROUP, DEFAULT_UNIT, write_certificate
from tacit.runs.layout import MODEL_FILE, RUN_FILE
from tacit.runs.run_directory import Run, coordinates_of, holds_charges
from tacit.support import Support
from tacit.tensors import write_tensors
from tacit.training import evaluation, row_tables, schedules
from tacit.training.arguments import (
    check_functions,
    check_held_out,
    check_loss,
    check_metrics,
    check_model,
    check_optimizer,
    check_schedule,
    check_supports,
    refuse_training_rows,
    units_of,
    warn_of_evaluation_mode,
)
from tacit.training.course import Course, Step, Together
from tacit.training.examples import Examples
from tacit.training.fitting import Result, fit
from tacit.training.open_run import (
    OpenRun,
    check_same_start,
    last_checkpoint,
    open_run,
    refuse_misfits,
    save_parts,
    start_of,
    start_run,
)
from tacit.training.state import TrainingState, sharding_of
from tacit.training.update import OptimizerFactory
from tacit.units import ROWS_PER_UNIT


class Trainer:
    """Trains a model on private data exactly as a plan says.

    ``loss(model, batch)`` gives one loss per example; see ``tacit.losses``. ``optimizer`` makes any
    ``torch.optim`` optimizer from named parameters. With ``run_dir`` every release is charged to a ledger on
    disk before its noise is drawn, and training can be resumed after any interruption; without it nothing
    outlives the process.

    ``seed=None`` draws noise and batches from a cryptographic source, and puts every other generator (dropout,
    augmentation, random transformations) under secret keys while examples are worked on. A seed makes the run
    reproducible, whatever else was seeded, and for that reason not for release. ``augment`` is applied to a
    batch in which every example is repeated ``views`` times in a row; the gradient of an example is the mean over its
    views, clipped once. ``average`` is the decay of an exponential average of the weights, used for evaluation
    and for the final model.

    ``units`` makes a group of examples the unit of privacy: one id per example (a string, an integer or a tuple), equal
    for those of one person, say. Steps then sample units. The gradient of a unit is the mean over its examples in that
    step, clipped once, and the plan counts units (``make_plan(units=…)``). Of a unit with more than ``rows_per_unit``
    examples so many take part in a step, chosen at random each time; None means all of them.

    ``held_out`` is data to measure on during training, public or not trained on; figures from it are not
    covered by the privacy guarantee.

    ``unit`` says what one example represents, ``not_covered`` what else ε does not cover; both are fixed at the start
    and written on the certificate. ``witness`` is a file outside of the run directory, best on another machine, that
    notes every charge too: ``resume`` and ``verify`` then notice a run directory that was put back from a backup.
    ``isolation`` says how examples are kept apart. "probed": they share batches, and the whole pipeline (fetch,
    collate, augment, model, loss) is checked for mixing at the start and at unpredictable later steps.
    "construction": every example is fetched, collated, augmented and differentiated as its own batch, which is
    slower and needs no check.
    ``clipping`` is "flat", "automatic" (every gradient scaled to nearly the clip norm, small ones
    too) or "per-layer" (each layer to an equal share of the clip norm); the noise is the same.

    ``lazy_noise`` draws the noise of an embedding table's rows when they are next read, so that a step costs what its
    batch touches; what is evaluated, saved and released has the same distribution. It needs plain SGD and a plan that
    trains all coordinates. Between the steps of a custom loop the table reads as not-a-number: call ``settle`` before
    you read it.

    ``begun`` is a run that was begun before there was a model: a plan that begins with counts of a table's columns has
    charged them to its ledger already. ``warn`` is given the last figures on held-out data and answers with sentences
    on what speaks against relying on the model; they are on the certificate.

    ``ranks`` are the processes that train this model together, each on its share of the same data set; see
    ``tacit.distributed.join``. All of them call the same methods. The run directory is the first one's. A model that
    ``fully_shard`` has divided among them stays divided, and with it the optimizer's state and everything else that
    has a number per coordinate; then all processes must see the run directory.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset[Any],
        loss: Loss,
        plan: Plan,
        *,
        optimizer: OptimizerFactory,
        schedule: schedules.Schedule = schedules.constant,
        run_dir: str | Path | None = None,
        held_out: Dataset[Any] | None = None,
        metrics: Mapping[str, evaluation.Metric] | None = None,
        average: float | None = None,
        views: int = 1,
        augment: Callable[[Any], Any] | None = None,
        chunk_size: int | None = None,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        autocast: torch.dtype | None = None,
        seed: int | None = None,
        checkpoint_seconds: float = 30.0,
        units: Sequence[Hashable] | np.ndarray | None = None,
        rows_per_unit: int | None = ROWS_PER_UNIT,
        unit: str | None = None,
        not_covered: Sequence[str] = (),
        witness: str | Path | None = None,
        isolation: Isolation = "probed",
        lazy_noise: bool = False,
        clipping: Clipping = "flat",
        ranks: Ranks | None = None,
        begun: OpenRun | None = None,
        warn: Callable[[Mapping[str, float]], Sequence[str]] | None = None,
    ) -> None:
        check_model(model)
        check_loss(loss)
        check_functions(augment=augment, collate=collate)
        check_metrics(metrics)
        check_optimizer(optimizer)
        check_schedule(schedule)
        groups = units_of(plan, dataset, units)
        check_dataset(dataset, plan.examples if groups is None else len(groups.codes))
        if unit is None:
            unit = DEFAULT_UNIT if groups is None else DEFAULT_GROUP
        self.ranks = checked(ranks)
        if seed is not None:
            check_count("seed", seed, least=0)
        check_held_out(held_out)
        refuse_training_rows(dataset, held_out)
        self._looked_through = held_out  # once is enough: it may be large, and is measured on again and again
        self.model, self.plan, self.seed = model, plan, seed
        self._dataset, self._collate = dataset, collate
        self.run_dir = Path(run_dir) if run_dir is not None else None
        adaptive = row_tables.adaptive_source(plan)
        by_row = lazy_noise or adaptive is not None
        self.not_covered = (*not_covered, *((row_tables.NOT_COVERED,) if by_row else ()))
        if not unit or not all(not_covered):
            raise ArgumentError("A certificate needs a unit of privacy, and no empty entries in not_covered.")
        if witness is not None and run_dir is None:
            raise ArgumentError("Only a trainer with a run_dir has a ledger for a witness to follow.")
        self._start_with = start_of(seed, unit, self.not_covered, isolation, witness)
        self._begun, self._warn = begun, warn
        self.checkpoint_seconds = checkpoint_seconds
        self.held_out, self.loss, self._autocast = held_out, loss, autocast
        self.metrics = None if metrics is None else dict(metrics)
        self.isolation = check_isolation(isolation)
        self._examples = Examples(
            dataset,
            plan,
            groups,
            self.ranks,
            views=views,
            augment=augment,
            collate=collate,
            chunk_size=chunk_size,
            workers=workers,
            rows_per_unit=rows_per_unit,
            isolation=isolation,
            seed=seed,
        )
        self._sharding = sharding_of(model, plan, self.ranks, by_row=by_row)
        self._lent = nullcontext if self._sharding is None else self._sharding.shards.lent
        noise: Noise = SecureNoise() if seed is None else SeededNoise(seed)
        if lazy_noise:
            row_tables.check_lazy_plan(plan, average)
        self._tables = row_tables.tables_of(
            model, noise, lambda: self._state.update, self.ranks, lazy=lazy_noise, adaptive=adaptive
        )
        with self._lent():
            self._clipper = Clipper(
                model,
                loss,
                views=views,
                autocast=autocast,
                seed=seed,
                inspections=self._examples.inspections,
                pipeline=self._examples.pipeline,
                isolation=isolation,
                tables=self._tables,
                clipping=clipping,
            )
        self._clipper.footprint.include(augment=augment)
        check_supports(plan, model)
        check_same_start(
            self.ranks,
            plan,
            model,
            dataset,
            (seed, views, average, self.run_dir is None, isolation, rows_per_unit, clipping),
            groups,
        )
        if plan.choosing and self.ranks.size > 1:
            raise ArgumentError("Tuning trains in one process; start it without torchrun.")
        self._generators = Generators(model, loss, augment, dataset, collate, seed=seed)
        self._mechanism = GaussianMechanism(
            self._clipper,
            noise,
            self._generators,
            self.ranks,
            self._tables,
            None if adaptive is None else adaptive.selection_share,
            None if self._sharding is None else self._sharding.shards.rows,
            self._lent,
        )
        self._state = TrainingState(model, plan, optimizer, average, self._sharding)
        row_tables.check_rates(self._tables, model, self._state.update.optimizer)
        self._schedule = schedule
        self._course = Course(plan, schedule, self.ranks, self._examples, self._mechanism, self._state, seed)
        self._run: Run | None = None
        self._charged: Sequence[Charge] = ()  # what was charged before the run directory was closed

    # Running --------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """Take the steps that are left, one at a time: for custom training loops.

        A step is charged, released and applied before it is yielded. Call ``save`` to write a checkpoint.
        """
        if self._course.name is None:
            self._start()
        yield from self._course.steps()

    def fit(self, *, progress: bool = True) -> Result:
        """Start the run and take all its steps; refuse a run directory that already holds one."""
        return fit(self, progress=progress)

    def resume(self, *, progress: bool = True) -> Result:
        """Go on with the run in ``run_dir`` from its last checkpoint, after whatever stopped it.

        With a seed, a run that was stopped in an orderly way ends exactly as it would have without the stop.
        """
        self.load()
        return fit(self, progress=progress)

    def load(self) -> None:
        """Load the last checkpoint of the run directory.

        Steps that a crash has lost stay charged, and the run ends as many steps earlier (``total``).
        """
        if self.run_dir is None:
            raise ArgumentError("Only a trainer with a run_dir can resume.")
        self.close()
        directory = self.run_dir
        if self.ranks.lead(lambda: (directory / RUN_FILE).exists() and not holds_charges(directory)):
            self._start()
            return
        self._hold(open_run(self.ranks, directory, self.plan, self.model, self._start_with))
        try:
            tensors, numbers = self.ranks.lead_tensors(self._last_checkpoint)
            if numbers is None:
                self._course.done = self.plan.counts
                self.save()
            else:
                self._restore(tensors, numbers)
            if self._course.give_up_lost():
                self.save()
        except BaseException:
            self.close()
            raise

    def save(self) -> None:
        """Write a checkpoint, whole or not at all, once all ranks are found to stand at the same place."""
        self.settle()
        self._course.check_same()
        self.ranks.together(self._write_checkpoint)

    def settle(self) -> None:
        """Draw all noise that lazy tables are owed, so that the model can be read, evaluated and saved."""
        for table in self._tables.values():
            table.settle()

    def finish(self, measured: Mapping[str, float] | None = None) -> None:
        """Write the final model and the certificate; ``measured`` are the last figures on held-out data."""
        if self._run is None and (self._sharding is None or self.run_dir is None):
            return
        with self.final_weights():
            whole = (
                self.model.state_dict() if self._sharding is None else self._sharding.whole_model(self.model)
            )
            if self._run is None:
                return
            write_tensors(self._run.path / MODEL_FILE, whole, {"steps": self.done})
        warnings = () if self._warn is None else tuple(self._warn(measured or {}))
        write_certificate(self._run.path, not_covered=self._start_with.not_covered, warnings=warnings)

    def close(self) -> None:
        """Release the lock on the run directory."""
        with suppress(ModelError):  # of a table that a step has left halfway: it stays without numbers
            self.settle()
        if self._run is not None:
            self._run.ledger.close()
        if self.run_dir is not None and self._course.name is not None:
            self._charged = tuple(self._course.ledger.charges)
            self._course.name, self._course.ledger, self._run = None, MemoryLedger(), None

    def charge_together(self) -> None:
        """Let short steps be charged several at a time, ahead of the first: for a loop that takes all of them."""
        # A table whose rows are chosen in every step releases as many numbers as it likes; ranks would have to agree.
        if not self._tables and self.ranks.size == 1:
            self._course.together = Together(self.total)

    # Reading --------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        """How many steps have been taken."""
        return self._course.done

    @property
    def total(self) -> int:
        """How many steps there are: those of the plan, without those that a crash has lost."""
        return self._course.total

    @property
    def selections(self) -> dict[str, str]:
        """For each phase that was entered, why its coordinates were chosen."""
        return self._course.selections

    @property
    def ahead(self) -> int:
        """How many steps are charged already and not taken yet."""
        return self._course.ledger.ahead

    @property
    def epsilon(self) -> float:
        """ε of everything that has been charged so far, at the plan's δ."""
        charges = self._charged if self._course.name is None else self._course.ledger.charges
        plan = self.plan
        return epsilon_of_charges(charges, plan.gaussian_delta, plan.accountant, plan.relation)

    @property
    def support(self) -> Support:
        """The coordinates that are active now."""
        return self._state.support

    @property
    def run(self) -> Run | None:
        """The run directory, once training has started in one; on the first rank only."""
        return self._run

    @property
    def lazy(self) -> bool:
        """Whether embedding tables have lazy noise."""
        return any(isinstance(table, LazyTable) for table in self._tables.values())

    @property
    def secure(self) -> bool:
        """Whether noise and sampling are cryptographic."""
        return self._mechanism.secure

    def evaluate(self, dataset: Dataset[Any] | None = None) -> dict[str, float]:
        """Loss and metrics on public or held-out data, with averaged weights where there are any."""
        dataset = self.held_out if dataset is None else dataset
        if dataset is None:
            raise ArgumentError("There is no held-out data; give evaluate() a data set.")
        check_held_out(dataset)
        if dataset is not self._looked_through:
            refuse_training_rows(self._dataset, dataset)
        with self.final_weights(), self._lent():
            return evaluation.evaluate(self.model, self.loss, dataset, self.metrics, collate=self._collate)

    def predict(self, inputs: Any) -> Tensor:
        """The model's outputs for stacked inputs, with averaged weights where there are any."""
        with self.final_weights(), self._lent():
            return evaluation.predict(self.model, inputs)

    def measure(self) -> dict[str, float]:
        """The figures on held-out data, if there is any; all ranks call this, and the first measures."""
        if self.held_out is None:
            return {}
        if self._sharding is None:
            return self.ranks.lead(self.evaluate)
        with self.final_weights(), self._lent():  # the first rank finds whole parameters there
            return self.ranks.lead(self.evaluate)

    def final_weights(self) -> AbstractContextManager[None]:
        """A context in which the model has its averaged weights, where there are any."""
        self.settle()
        return self._state.averaged()

    # The run --------------------------------------------------------------------------------------

    def _start(self) -> None:
        warn_of_evaluation_mode(self.model)
        self.ranks.together(self._rehearse)
        if self._begun is None and self.plan.counts:
            raise ArgumentError(
                "This plan begins with counts of a table's columns, which only tacit train can release; train the "
                "table with it, or make a plan without counting."
            )
        held = self._begun or start_run(self.ranks, self.run_dir, self.plan, self.model, self._start_with)
        self._begun = None
        self._hold(held)
        self._course.done = self.plan.counts
        self.save()

    def _hold(self, held: OpenRun) -> None:
        self._course.name, self._course.ledger, self._run = held.name, held.ledger, held.run

    def _rehearse(self) -> None:
        """Refuse a model, loss or data set that cannot be trained before anything is written."""
        with self._lent():  # once, since a rank that fails inside leaves no other waiting for it
            with self._generators.keyed(0, self.ranks.rank):
                few = self._examples.rehearse(self._clipper, self.loss, self._autocast)
            if self._state.candidates is not None:
                batch, weights = self._examples.pipeline.batch(few), self._state.candidates.origin
                try:
                    self._clipper.loss_sum([batch], [weights] * 2, 1.0)
                except TacitError:
                    raise
                except (RuntimeError, TypeError, ValueError, AttributeError) as error:
                    why = " ".join(str(error).split())[:200]
                    raise ModelError(
                        f"The losses of single examples cannot be compared, which tuning needs: {why} Leave tuning out."
                    ) from error
            if self.held_out is not None:
                evaluation.rehearse(self.model, self.loss, self.held_out, self.metrics, collate=self._collate)
        factors = [self._schedule(step, self.plan.steps) for step in (0, self.plan.steps - 1)]
        if not all(math.isfinite(factor) for factor in factors):
            raise ArgumentError(f"The schedule must give finite factors on the learning rate, got {factors}.")

    def _write_checkpoint(self) -> None:
        about = {
            "step": self.done,
            "selections": self.selections,
            "coordinates": coordinates_of(self.model),
        }
        parts, support = self._state.parts, self._state.update.support
        if self._sharding is not None and self.run_dir is not None:
            self._sharding.save(self.run_dir, self._run, self.model, parts(), support, about)
        elif self._run is not None:
            save_parts(self._run, parts(), about)

    def _last_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        assert self._run is not None
        return last_checkpoint(self._run, self.plan.counts)

    def _restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        self._state.check_sharded(numbers, self.run_dir)
        with refuse_misfits(self.run_dir, "trainer"):
            self._state.restore(tensors, numbers, self.run_dir)
            self._course.go_on(numbers)
