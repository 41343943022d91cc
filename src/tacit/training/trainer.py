"""Training a model by a plan: phases one after the other, every release charged, every step resumable."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, default_collate

from tacit.distributed.joining import checked
from tacit.distributed.ranks import Ranks, is_shard
from tacit.errors import ArgumentError, FileError, check_count
from tacit.losses import Loss
from tacit.plan import Phase, Plan, steps_left
from tacit.plan.sources import COORDINATE_SCORES, ROW_SCORES, Stops
from tacit.raw.clipping import Clipper, Clipping, Isolation, check_isolation
from tacit.raw.generators import Generators
from tacit.raw.inspector import Inspections
from tacit.raw.one_at_a_time import Singles
from tacit.raw.pipeline import Pipeline
from tacit.raw.probe_batches import some_positions
from tacit.raw.sampling import PoissonBatches, PoissonSampler, check_dataset
from tacit.raw.units import UnitBatch
from tacit.release.lazy_noise import LazyTable
from tacit.release.ledger import Ledger, MemoryLedger
from tacit.release.ledger_file import Charge
from tacit.release.mechanism import GaussianMechanism, Query, Released, Tables
from tacit.release.noise import Noise, SecureNoise, SeededNoise
from tacit.runs import DEFAULT_GROUP, DEFAULT_UNIT, write_certificate
from tacit.runs.layout import CHECKPOINT_FILE, MODEL_FILE, RUN_FILE
from tacit.runs.run_directory import Run, coordinates_of, holds_charges, support_from_state, support_state
from tacit.runs.tensors import tensors_digest, write_tensors
from tacit.support import Support
from tacit.support.rows import RowScores
from tacit.support.scores import Scores
from tacit.support.selection import Evidence, Selection, judged, select
from tacit.support.support import trainable_parameters
from tacit.training import evaluation, row_tables, schedules
from tacit.training.arguments import (
    check_loss,
    check_optimizer,
    check_schedule,
    check_supports,
    refuse_training_rows,
    units_of,
    warn_of_evaluation_mode,
)
from tacit.training.candidates import Candidates
from tacit.training.charging import Together
from tacit.training.fitting import Result, fit
from tacit.training.open_run import OpenRun, check_same_start, open_run, start_of, start_run
from tacit.training.step import epsilon_of_charges
from tacit.training.update import ActiveUpdate, OptimizerFactory, WeightAverage
from tacit.units import ROWS_PER_UNIT

if TYPE_CHECKING:
    from tacit.training.sharding import Sharding


@dataclass(frozen=True)
class Step:
    """One step that has been taken: everything in it is released."""

    number: int
    phase: Phase
    released: Released
    selection: Selection


class Trainer:
    """Trains a model on private data exactly as a plan says.

    ``loss(model, batch)`` gives one loss per example; see ``tacit.losses``. ``optimizer`` makes any
    ``torch.optim`` optimizer from named parameters. With ``run_dir`` every release is charged to a ledger on
    disk before its noise is drawn, and training can be resumed after any interruption; without it nothing
    outlives the process.

    ``seed=None`` draws noise and batches from a cryptographic source, and puts every other generator (dropout,
    augmentation, random transformations) under secret keys while examples are worked on. A seed makes the run
    reproducible, whatever else was seeded, and for that reason not for release. ``augment`` is applied to a
    batch in which every example stands ``views`` times in a row; the gradient of an example is the mean over its
    views, clipped once. ``average`` is the decay of an exponential average of the weights, used for evaluation
    and for the final model.

    ``units`` makes a group of examples the unit of privacy: one id per example (a string, an integer or a tuple), equal
    for those of one person, say. Steps then sample units. The gradient of a unit is the mean over its examples in that
    step, clipped once, and the plan counts units (``make_plan(units=…)``). Of a unit with more than ``rows_per_unit``
    examples so many take part in a step, chosen anew at random each time; None means all of them.

    ``held_out`` is data to measure on during training, public or not trained on; figures from it are not
    covered by the privacy guarantee.

    ``unit`` says what one example stands for, ``not_covered`` what else ε does not cover; both are fixed at the start
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
        check_loss(loss)
        check_optimizer(optimizer)
        check_schedule(schedule)
        self._units = units_of(plan, dataset, units)
        examples = plan.examples if self._units is None else len(self._units.codes)
        check_dataset(dataset, examples)
        if unit is None:
            unit = DEFAULT_UNIT if self._units is None else DEFAULT_GROUP
        self.ranks = checked(ranks)
        if seed is not None:
            check_count("seed", seed, least=0)
        if held_out is not None and hasattr(held_out, "__len__") and not len(held_out):
            raise ArgumentError("The held-out data is empty; give some, or none.")
        refuse_training_rows(dataset, held_out)
        self._looked_through = held_out  # once is enough: it may be large, and is measured on again and again
        self.model, self.plan, self.seed = model, plan, seed
        self._dataset = dataset
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
        self.held_out, self.loss = held_out, loss
        self.metrics = None if metrics is None else dict(metrics)
        self._views, self._augment, self._collate = check_count("views", views), augment, collate
        self.isolation = check_isolation(isolation)
        self._inspections = Inspections(seed)
        self._pipeline = Pipeline(
            examples,
            lambda positions: self._batches.items(positions),
            collate or default_collate,
            self._viewed,
            owners=(dataset, collate, augment),
            in_order=self._units is not None,
        )
        self._sharding = self._divided(model, lazy_noise or adaptive is not None)
        self._lent = nullcontext if self._sharding is None else self._sharding.shards.lent
        # What is moved: the model, or this rank's shards of it.
        self._moved = model if self._sharding is None else self._sharding.shards.held
        noise: Noise = SecureNoise() if seed is None else SeededNoise(seed)
        self._tables: Tables = {}
        if lazy_noise:
            row_tables.check_lazy_plan(plan, average)
            self._tables = row_tables.lazy_tables(model, noise, lambda: self._update, self.ranks)
        elif adaptive is not None:
            self._tables = row_tables.adaptive_tables(
                model, adaptive, noise, lambda: self._update, self.ranks
            )
        with self._lent():
            self._clipper = Clipper(
                model,
                loss,
                views=views,
                autocast=autocast,
                seed=seed,
                inspections=self._inspections,
                pipeline=self._pipeline,
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
            self._units,
        )
        self._candidates = Candidates(plan, self._snapshot()) if plan.choosing else None
        if self._candidates is not None and self.ranks.size > 1:
            raise ArgumentError("Tuning trains in one process; start it without torchrun.")
        sampler = PoissonSampler(
            plan.examples,
            plan.sampling_rate,
            seed=seed,
            key=self.ranks.new_key(),
            rank=self.ranks.rank,
            size=self.ranks.size,
            units=self._units,
            rows_per_unit=rows_per_unit,
            apart=0.0 if self._candidates is None else self._candidates.stops.apart,
        )
        self._batches = PoissonBatches(
            dataset,
            sampler,
            chunk_size=chunk_size,
            workers=workers,
            collate=collate,
            seed=seed,
            isolated=isolation == "construction",
        )
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
        self._schedule, self._factory, self._decay = schedule, optimizer, average
        self._support = Support.all(model)
        self._update = ActiveUpdate(self._moved, optimizer, self._own(self._support))
        if self._sharding is not None:
            self._sharding.check_elementwise(self._update.optimizer)
        for name in self._tables:
            table = model.get_parameter(name)
            row_tables.plain_rate(self._update.optimizer, table, "A table that is read row by row")
        self._average = (
            WeightAverage(self._moved, average, self._own(self._support)) if average is not None else None
        )
        self._origin = (
            self._snapshot()
            if any(phase.reset or phase.support.needs_origin for phase in plan.phases)
            else None
        )
        gathered = {phase.score for phase in plan.phases}
        self._folded = {
            name
            for phase in plan.phases
            if phase.support.needs_folds
            for name in judged(phase.support, model)
        }
        self._scores = (
            Scores(self._moved, folds=self._folded) if gathered.intersection(COORDINATE_SCORES) else None
        )
        self._row_scores = next(
            (RowScores(self._moved, score) for score in ROW_SCORES if score in gathered), None
        )
        self._ledger: Ledger = MemoryLedger()
        self._charged: Sequence[Charge] = ()  # what was charged before the run directory was closed
        self._run: Run | None = None
        self._name: str | None = None
        self._selection: Selection | None = None
        self._together: Together | None = None
        self.selections: dict[str, str] = {}
        self.done, self.total = 0, plan.steps

    # Running --------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """Take the steps that are left, one at a time: for custom training loops.

        A step is charged, released and applied before it is yielded. Call ``save`` to write a checkpoint.
        """
        if self._name is None:
            self._start()
        while self.done < self.total:
            place, within = self.plan.locate(self.done)
            phase = self.plan.phases[place]
            if isinstance(phase.support, Stops):
                yield self._choose(phase)
                continue
            if within == 0:
                self._enter(phase, place)
            count = min(phase.steps - within, self.total - self.done)
            for place, (_, chunks) in enumerate(self._batches.steps(len(self._ledger), count)):
                yield self._step(phase, chunks, count - place)

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
                self.done = self.plan.counts
                self.save()
            else:
                self._restore(tensors, numbers)
            charges = self._ledger.charges
            left = steps_left(self.plan, charges, self.done)
            if self._candidates is not None and self.done < len(charges):
                self._skip_to(len(charges))
            self.total = self.done + left
        except BaseException:
            self.close()
            raise

    def save(self) -> None:
        """Write a checkpoint, whole or not at all, once all ranks are found to stand at the same place."""
        self.settle()
        self.ranks.check_same("the state of training", self._state_digest)
        self.ranks.together(self._write_checkpoint)

    def _write_checkpoint(self) -> None:
        if self._sharding is not None and self.run_dir is not None:
            self._write_shards(self._sharding, self.run_dir)
            return
        if self._run is None:
            return
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {
            "step": self.done,
            "selections": self.selections,
            "coordinates": coordinates_of(self.model),
            "parts": {},
        }
        for name, (part, plain) in self._parts().items():
            tensors |= {f"{name}:{key}": tensor for key, tensor in part.items()}
            numbers["parts"][name] = plain
        self._run.save(tensors, numbers)

    def _write_shards(self, sharding: Sharding, directory: Path) -> None:
        """Every rank writes its shards; then the first writes what all share, and with it makes them count."""
        folder = sharding.new_folder()
        shards, shared, numbers = sharding.split(self._parts(), self._update.support)
        numbers["shards"] |= {
            "folder": folder,
            "digests": sharding.write(directory / folder, shards),
            "entries": sharding.entries(self.model),
        }
        if self._run is not None:
            about = {
                "step": self.done,
                "selections": self.selections,
                "coordinates": coordinates_of(self.model),
            }
            self._run.save(shared, about | numbers)
        sharding.forget(directory, kept=folder)

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
        self.settle()
        if self._run is not None:
            self._run.ledger.close()
        if self.run_dir is not None and self._name is not None:
            self._charged = tuple(self._ledger.charges)
            self._run, self._ledger, self._name = None, MemoryLedger(), None

    def charge_together(self) -> None:
        """Let short steps be charged several at a time, ahead of the first: for a loop that takes all of them."""
        self._together = Together(self.total)

    # Reading --------------------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        """How many steps are charged already and not taken yet."""
        return self._ledger.ahead

    @property
    def epsilon(self) -> float:
        """ε of everything that has been charged so far, at the plan's δ."""
        charges = self._charged if self._name is None else self._ledger.charges
        plan = self.plan
        return epsilon_of_charges(charges, plan.gaussian_delta, plan.accountant, plan.relation)

    @property
    def support(self) -> Support:
        """The coordinates that are active now."""
        return self._support

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

    def final_weights(self) -> Any:
        """A context in which the model has its averaged weights, where there are any."""
        self.settle()
        return self._average.applied() if self._average is not None else nullcontext()

    # One step -------------------------------------------------------------------------------------

    def _step(self, phase: Phase, chunks: Iterator[Any], left: int) -> Step:
        """Take a step of a phase, which has ``left`` of them, this one included."""
        following = self._following(phase, left)
        phase, query = self._query(phase)
        # Weights that training chose follow the release: before the clip they would cost weak columns their signal.
        support = self._support.unweighted()
        self._set_rates()
        released = self._mechanism.answer(query, map(self._viewed, chunks), support, self._ledger, following)
        if phase.updates:
            self._update.step(released)
            if self._average is not None:
                self._average.update()
            self._end_candidate(self.done + 1)
        if phase.score in ROW_SCORES and self._row_scores is not None:
            self._row_scores.add(released)
        elif phase.score is not None and self._scores is not None:
            self._scores.add(released)
        self.done += 1
        assert self._selection is not None
        return Step(self.done, phase, released, self._selection)

    def _following(self, phase: Phase, left: int) -> list[Query]:
        """What the next releases ask that are charged together with this one."""
        # A table whose rows are chosen in every step releases as many numbers as it likes; ranks would have to agree.
        if self._together is None or self._ledger.ahead or self._tables or self.ranks.size > 1:
            return []
        count = self._together.count(left, self._ledger.write_seconds)
        return [self._query(phase, later)[1] for later in range(1, count)]

    def _query(self, phase: Phase, later: int = 0) -> tuple[Phase, Query]:
        """The phase with the noise of its next release, and what that release asks; or one so many steps later."""
        # The noise belongs to the place in the ledger, not to the step: after a crash a step may have another place.
        noise = self.plan.noise_at(len(self._ledger) + later)
        phase = dataclasses.replace(phase, noise_multiplier=noise)
        query = Query(
            phase=phase.name,
            step=self.done + later,
            sampling_rate=phase.sampling_rate,
            noise_multiplier=phase.noise_multiplier,
            clip_norm=phase.clip_norm,
            batch_size=self.plan.batch_size,
            statistic=phase.statistic,
            clip_order=phase.clip_order,
            votes=phase.votes,
        )
        return phase, query

    def _choose(self, phase: Phase) -> Step:
        """Take the weights of the run whose losses, on examples that none was trained on, are lowest as released."""
        assert self._candidates is not None
        assert self._candidates.last
        phase, query = self._query(phase)
        chunks = self._batches.apart(len(self._ledger))
        released = self._mechanism.compare(query, chunks, self._candidates.ended, self._ledger)
        summed = released.values["losses"] * self.plan.batch_size
        self._take(*self._candidates.chosen(summed, self.plan.examples))
        self.done += 1
        assert self._selection is not None
        return Step(self.done, phase, released, self._selection)

    def _take(self, place: int, reason: str) -> None:
        """Go on with the weights of one of the runs."""
        assert self._candidates is not None
        self._restart(self._candidates.ended[place])
        self.selections[self.plan.phases[-1].name] = reason
        self._selection = Selection(self._support, reason)

    def _end_candidate(self, done: int) -> None:
        """Keep the weights if a run among several ends after ``done`` steps, and start the next one afresh."""
        if self._candidates is None or not self._candidates.ends_at(done):
            return
        with self.final_weights():
            self._candidates.ended.append(self._snapshot())
        if not self._candidates.last:
            self._restart(self._candidates.origin)

    def _restart(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in trainable_parameters(self._moved).items():
                parameter.copy_(weights[name])
        support = self._own(self._support)
        self._update = ActiveUpdate(self._moved, self._factory, support)
        if self._average is not None and self._decay is not None:
            self._average = WeightAverage(self._moved, self._decay, support)

    def _skip_to(self, charged: int) -> None:
        """Leave out the steps that a crash has lost, so that the choice at the end keeps its place in the ledger."""
        assert self._candidates is not None
        for done in range(self.done + 1, charged + 1):
            self._end_candidate(done)
        self.done = charged
        if charged == self.plan.steps:
            self._take(*self._candidates.lost())
        self.save()

    def _viewed(self, chunk: Any) -> Any:
        if isinstance(chunk, Singles):
            return Singles(self._viewed(single) for single in chunk)
        if isinstance(chunk, UnitBatch):
            return UnitBatch(self._viewed(chunk.batch), chunk.ids)
        if self._views > 1:
            chunk = pytree.tree_map(
                lambda leaf: (
                    leaf.repeat_interleave(self._views, 0)
                    if isinstance(leaf, Tensor) and leaf.dim()
                    else leaf
                ),
                chunk,
            )
        return self._augment(chunk) if self._augment is not None else chunk

    def _set_rates(self) -> None:
        if self._candidates is not None:
            factor = self._candidates.factor(self.done, self._schedule)
        else:
            lost = self.plan.steps - self.total
            factor = self._schedule(self.done + lost, self.plan.steps)
        for group, rate in zip(self._update.optimizer.param_groups, self._update.rates, strict=True):
            group["lr"] = rate * factor

    def _enter(self, phase: Phase, place: int) -> None:
        """Choose the support of a phase from what has been released, and move everything over to it."""
        self.ranks.check_same("the state of training", self._state_digest)
        noise = phase.noise_deviation(self.plan.batch_size) ** 2
        with self._lent():
            scores, row_scores, origin = self._whole_scores()
            evidence = Evidence(scores, origin, noise, phase.steps, self._support_seed(place), row_scores)
            self._selection = select(phase.support, self.model, evidence)
        self._support = self._selection.support
        support = self._own(self._support)
        if phase.reset and self._origin is not None:
            self._reset_silent(support)
        self._update.change_support(support)
        if self._average is not None:
            self._average.change_support(support)
        self.selections[phase.name] = self._selection.reason

    def _whole_scores(self) -> tuple[Scores | None, RowScores | None, dict[str, Tensor] | None]:
        """What supports are chosen by; of a sharded model it is brought together for that, on every rank."""
        if self._sharding is None:
            return self._scores, self._row_scores, self._origin
        scores = row_scores = None
        if self._scores is not None:
            scores = Scores(self.model, folds=self._folded)
            tensors, numbers = self._scores.state()
            scores.restore(self._sharding.whole(tensors), numbers)
        if self._row_scores is not None:
            row_scores = RowScores(self.model, self._row_scores.score)
            tensors, numbers = self._row_scores.state()
            row_scores.restore(self._sharding.whole(tensors), numbers)
        return scores, row_scores, None if self._origin is None else self._sharding.whole(self._origin)

    def _own(self, support: Support) -> Support:
        """The support, or this rank's part of it."""
        return support if self._sharding is None else self._sharding.part(support)

    def _divided(self, model: nn.Module, by_row: bool) -> Sharding | None:
        """How a sharded model is trained; None for any other."""
        if not any(map(is_shard, model.parameters())):
            return None
        if by_row or self.plan.choosing or self.plan.counts:
            what = "Tables that are read row by row" if by_row else "Tuning and counts of columns"
            raise ArgumentError(
                f"{what} are not supported for sharded models; give every process the whole model."
            )
        from tacit.training.sharding import Sharding  # which needs parts of PyTorch that take time to load

        return Sharding(model, self.ranks)

    def _reset_silent(self, support: Support) -> None:
        """Return silent coordinates to where they started, and weighted ones as far as their weights say."""
        assert self._origin is not None
        with torch.no_grad():
            for name, parameter in trainable_parameters(self._moved).items():
                back = self._origin[name].clone()
                block = support[name]
                block.scatter_(back, block.between(block.gather(back), block.gather(parameter.detach())))
                parameter.copy_(back)

    def _support_seed(self, place: int) -> int:
        """A public seed for random supports: fixed by the run, the same again after a resume."""
        run = self.seed if self.seed is not None else self._name
        digest = hashlib.blake2b(f"{run} {place}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def _snapshot(self) -> dict[str, Tensor]:
        return {
            name: p.detach().clone(memory_format=torch.contiguous_format)
            for name, p in trainable_parameters(self._moved).items()
        }

    # State ----------------------------------------------------------------------------------------

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
        self.done = self.plan.counts
        self.save()

    def _hold(self, held: OpenRun) -> None:
        self._name, self._ledger, self._run = held.name, held.ledger, held.run

    def _last_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        """What the run directory holds of a checkpoint: none in a run that never charged anything."""
        assert self._run is not None
        if (self._run.path / CHECKPOINT_FILE).exists():
            return self._run.load()
        if len(self._ledger) > self.plan.counts:
            raise FileError(
                f"{self.run_dir} has a ledger with charges but no checkpoint; it cannot be resumed."
            )
        return {}, None

    def _state_digest(self) -> str:
        """Of everything that must be the same on all ranks: weights, support, optimizer, average, scores.

        Of a sharded model no rank has what another has, but for the support.
        """
        if self._sharding is not None:
            return f"{self.done} {self._support.digest()} {self._update.settings()}"
        trained = {f"model:{name}": p for name, p in trainable_parameters(self.model).items()}
        others = {
            f"{part}:{name}": tensor
            for part, (tensors, _) in self._parts().items()
            for name, tensor in tensors.items()
            if part != "model"
        }
        return f"{self.done} {tensors_digest({**trained, **others})}"

    def _rehearse(self) -> None:
        """Refuse a model, loss or data set that cannot be trained before anything is written."""
        with self._lent():  # once, since a rank that fails inside leaves no other waiting for it
            self._rehearse_passes()
        factors = [self._schedule(step, self.plan.steps) for step in (0, self.plan.steps - 1)]
        if not all(math.isfinite(factor) for factor in factors):
            raise ArgumentError(f"The schedule must give finite factors on the learning rate, got {factors}.")

    def _rehearse_passes(self) -> None:
        draw = self._inspections.generator()
        examples = self.plan.examples if self._units is None else len(self._units.codes)
        few = some_positions(examples, 3, draw)
        with self._generators.keyed(0, self.ranks.rank):
            if self.isolation == "construction":
                self._clipper.rehearse(Singles(self._pipeline.batch([position]) for position in few))
            else:
                self._clipper.rehearse(self._pipeline.batch(few))
        if self._candidates is not None:
            self._clipper.loss_sum([self._pipeline.batch(few)], [self._candidates.origin] * 2, 1.0)
        if self.held_out is not None:
            evaluation.rehearse(self.model, self.loss, self.held_out, self.metrics, collate=self._collate)

    def _parts(self) -> dict[str, tuple[dict[str, Tensor], dict[str, Any]]]:
        parts = {
            "model": (dict(self.model.state_dict()), {}),
            "support": support_state(self._support),
            "optimizer": self._update.state(),
        }
        if self._sharding is not None:
            parts["model"] = (dict(self._moved.state_dict()), {})
            parts["buffers"] = (self._sharding.buffers(self.model), {})
        if self._average is not None:
            parts["average"] = self._average.state()
        if self._scores is not None:
            parts["scores"] = self._scores.state()
        if self._row_scores is not None:
            parts["row scores"] = self._row_scores.state()
        if self._origin is not None:
            parts["origin"] = (self._origin, {})
        if self._candidates is not None:
            parts["candidates"] = self._candidates.state()
        return parts

    def _restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        def part(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
            found = {key.split(":", 1)[1]: t for key, t in tensors.items() if key.startswith(f"{name}:")}
            return found, numbers["parts"][name]

        if ("shards" in numbers) != (self._sharding is not None):
            now, then = ("not sharded", "sharded") if "shards" in numbers else ("sharded", "not sharded")
            raise FileError(
                f"The model of the run in {self.run_dir} was {then}, and this one is {now}; resume alike."
            )
        try:
            self._support = support_from_state(*part("support"))
            support = self._own(self._support)
            if self._sharding is not None and self.run_dir is not None:
                shards = self._sharding.read(self.run_dir / numbers["shards"]["folder"], numbers)
                joined = self._sharding.join(shards, tensors, numbers, support)
                tensors = {
                    f"{name}:{key}": t for name, (found, _) in joined.items() for key, t in found.items()
                }
                self.model.load_state_dict(part("buffers")[0], strict=False)
            self._moved.load_state_dict(part("model")[0])
            self._update.change_support(support)
            self._update.restore(*part("optimizer"))
            if self._average is not None:
                self._average.change_support(support)
                self._average.restore(*part("average"))
            if self._scores is not None:
                self._scores.restore(*part("scores"))
            if self._row_scores is not None:
                self._row_scores.restore(*part("row scores"))
            if self._origin is not None:
                device = {name: p.device for name, p in trainable_parameters(self._moved).items()}
                self._origin = {name: t.to(device[name]) for name, t in part("origin")[0].items()}
            if self._candidates is not None:
                self._candidates.restore(*part("candidates"))
            self.done = int(numbers["step"])
            self.selections = dict(numbers["selections"])
        except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            why = " ".join(str(error).split()).rstrip(". ")
            raise FileError(f"The checkpoint in {self.run_dir} does not fit this trainer: {why}.") from error
        reason = self.selections.get(
            self.plan.phases[self.plan.locate(max(0, self.done - 1))[0]].name, "Resumed."
        )
        self._selection = Selection(self._support, reason)
