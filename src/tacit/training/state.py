"""The state of training: everything that releases move, as it is taken from phase to phase and kept in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tacit.distributed.ranks import Ranks, is_shard
from tacit.errors import ArgumentError, FileError
from tacit.plan import Phase, Plan
from tacit.plan.sources import COORDINATE_SCORES, ROW_SCORES
from tacit.release.mechanism import Released
from tacit.runs.run_directory import support_from_state, support_state
from tacit.support import Support
from tacit.support.rows import RowScores
from tacit.support.scores import Scores
from tacit.support.selection import Evidence, Selection, judged, select
from tacit.support.support import trainable_parameters
from tacit.tensors import tensors_digest
from tacit.training.candidates import Candidates
from tacit.training.open_run import Parts, parts_of
from tacit.training.update import ActiveUpdate, OptimizerFactory, WeightAverage

if TYPE_CHECKING:
    from tacit.training.sharding import Sharding


class TrainingState:
    """The weights of a model and what moves with them: support, optimizer, average, scores. Released values only.

    ``support`` is the whole of the active coordinates. Of a sharded model everything else is this rank's part.
    ``candidates`` are the runs of a plan that chooses among several.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        optimizer: OptimizerFactory,
        average: float | None,
        sharding: Sharding | None = None,
    ) -> None:
        self._model, self._sharding = model, sharding
        # What is moved: the model, or this rank's shards of it.
        self._moved = model if sharding is None else sharding.shards.held
        self._factory, self._decay = optimizer, average
        self.candidates = Candidates(plan, self._snapshot()) if plan.choosing else None
        self.support = Support.all(model)
        self.update = ActiveUpdate(self._moved, optimizer, self._own(self.support))
        if sharding is not None:
            sharding.check_elementwise(self.update.optimizer)
        self.average = (
            WeightAverage(self._moved, average, self._own(self.support)) if average is not None else None
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
        self.scores = (
            Scores(self._moved, folds=self._folded) if gathered.intersection(COORDINATE_SCORES) else None
        )
        self._row_scores = next(
            (RowScores(self._moved, score) for score in ROW_SCORES if score in gathered), None
        )

    # From step to step ----------------------------------------------------------------------------

    def follow(self, phase: Phase, released: Released) -> None:
        """Move the weights by a release, or score coordinates by it, as its phase says."""
        if phase.updates:
            self.update.step(released)
            if self.average is not None:
                self.average.update()
        if phase.score in ROW_SCORES and self._row_scores is not None:
            self._row_scores.add(released)
        elif phase.score is not None and self.scores is not None:
            self.scores.add(released)

    def averaged(self) -> AbstractContextManager[None]:
        """A context in which the model has its averaged weights, where there are any."""
        return self.average.applied() if self.average is not None else nullcontext()

    def enter(self, phase: Phase, noise: float, seed: int) -> Selection:
        """Choose the support of a phase from what has been released, and move everything over to it.

        ``noise`` is the variance of one coordinate of a release in this phase; ``seed`` is for random supports.
        """
        with nullcontext() if self._sharding is None else self._sharding.shards.lent():
            scores, row_scores, origin = self._whole_scores()
            evidence = Evidence(scores, origin, noise, phase.steps, seed, row_scores)
            selection = select(phase.support, self._model, evidence)
        self.support = selection.support
        support = self._own(self.support)
        if phase.reset and self._origin is not None:
            self._reset_silent(self._origin, support)
        self.update.change_support(support)
        if self.average is not None:
            self.average.change_support(support)
        return selection

    def end_candidate(self, done: int) -> None:
        """Keep the weights if a run among several ends after ``done`` steps, and start the next one afresh."""
        if self.candidates is None or not self.candidates.ends_at(done):
            return
        with self.averaged():
            self.candidates.ended.append(self._snapshot())
        if not self.candidates.last:
            self.restart(self.candidates.origin)

    def restart(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from other weights, with a new optimizer and a new average."""
        with torch.no_grad():
            for name, parameter in trainable_parameters(self._moved).items():
                parameter.copy_(weights[name])
        support = self._own(self.support)
        self.update = ActiveUpdate(self._moved, self._factory, support)
        if self.average is not None and self._decay is not None:
            self.average = WeightAverage(self._moved, self._decay, support)

    def _own(self, support: Support) -> Support:
        """The support, or this rank's part of it."""
        return support if self._sharding is None else self._sharding.part(support)

    def _whole_scores(self) -> tuple[Scores | None, RowScores | None, dict[str, Tensor] | None]:
        """What supports are chosen by; of a sharded model it is brought together for that, on every rank."""
        if self._sharding is None:
            return self.scores, self._row_scores, self._origin
        scores = row_scores = None
        if self.scores is not None:
            scores = Scores(self._model, folds=self._folded)
            tensors, numbers = self.scores.state()
            scores.restore(self._sharding.whole(tensors), numbers)
        if self._row_scores is not None:
            row_scores = RowScores(self._model, self._row_scores.score)
            tensors, numbers = self._row_scores.state()
            row_scores.restore(self._sharding.whole(tensors), numbers)
        return scores, row_scores, None if self._origin is None else self._sharding.whole(self._origin)

    def _reset_silent(self, origin: Mapping[str, Tensor], support: Support) -> None:
        """Return silent coordinates to where they started, and weighted ones as far as their weights say."""
        with torch.no_grad():
            for name, parameter in trainable_parameters(self._moved).items():
                back = origin[name].clone()
                block = support[name]
                block.scatter_(back, block.between(block.gather(back), block.gather(parameter.detach())))
                parameter.copy_(back)

    def _snapshot(self) -> dict[str, Tensor]:
        return {
            name: p.detach().clone(memory_format=torch.contiguous_format)
            for name, p in trainable_parameters(self._moved).items()
        }

    # In checkpoints -------------------------------------------------------------------------------

    def digest(self) -> str:
        """Of everything that must be the same on all ranks: weights, support, optimizer, average, scores.

        Of a sharded model no rank has what another has, but for the support.
        """
        if self._sharding is not None:
            return f"{self.support.digest()} {self.update.settings()}"
        trained = {f"model:{name}": p for name, p in trainable_parameters(self._model).items()}
        others = {
            f"{part}:{name}": tensor
            for part, (tensors, _) in self.parts().items()
            for name, tensor in tensors.items()
            if part != "model"
        }
        return tensors_digest({**trained, **others})

    def parts(self) -> Parts:
        """Everything needed to continue, part by part."""
        parts: Parts = {
            "model": (dict(self._model.state_dict()), {}),
            "support": support_state(self.support),
            "optimizer": self.update.state(),
        }
        if self._sharding is not None:
            parts["model"] = (dict(self._moved.state_dict()), {})
            parts["buffers"] = (self._sharding.buffers(self._model), {})
        if self.average is not None:
            parts["average"] = self.average.state()
        if self.scores is not None:
            parts["scores"] = self.scores.state()
        if self._row_scores is not None:
            parts["row scores"] = self._row_scores.state()
        if self._origin is not None:
            parts["origin"] = (self._origin, {})
        if self.candidates is not None:
            parts["candidates"] = self.candidates.state()
        return parts

    def check_sharded(self, numbers: Mapping[str, Any], directory: Path | None) -> None:
        """Refuse the checkpoint of a sharded model for one that is not, and the other way round."""
        if ("shards" in numbers) != (self._sharding is not None):
            now, then = ("not sharded", "sharded") if "shards" in numbers else ("sharded", "not sharded")
            raise FileError(
                f"The model of the run in {directory} was {then}, and this one is {now}; resume alike."
            )

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any], directory: Path | None) -> None:
        """Go on from a checkpoint in ``directory``, within ``refuse_misfits``: what does not fit raises."""
        parts = parts_of(tensors, numbers)
        self.support = support_from_state(*parts["support"])
        support = self._own(self.support)
        if self._sharding is not None and directory is not None:
            shards = self._sharding.read(directory / numbers["shards"]["folder"], numbers)
            parts = self._sharding.join(shards, tensors, numbers, support)
            self._model.load_state_dict(parts["buffers"][0], strict=False)
        self._moved.load_state_dict(parts["model"][0])
        self.update.change_support(support)
        self.update.restore(*parts["optimizer"])
        if self.average is not None:
            self.average.change_support(support)
            self.average.restore(*parts["average"])
        if self.scores is not None:
            self.scores.restore(*parts["scores"])
        if self._row_scores is not None:
            self._row_scores.restore(*parts["row scores"])
        if self._origin is not None:
            device = {name: p.device for name, p in trainable_parameters(self._moved).items()}
            self._origin = {name: t.to(device[name]) for name, t in parts["origin"][0].items()}
        if self.candidates is not None:
            self.candidates.restore(*parts["candidates"])


def sharding_of(model: nn.Module, plan: Plan, ranks: Ranks, *, by_row: bool) -> Sharding | None:
    """How a sharded model is trained; None for any other. ``by_row``: its tables are to be read row by row."""
    if not any(map(is_shard, model.parameters())):
        return None
    if by_row or plan.choosing or plan.counts:
        what = "Tables that are read row by row" if by_row else "Tuning and counts of columns"
        raise ArgumentError(
            f"{what} are not supported for sharded models; give every process the whole model."
        )
    from tacit.training.sharding import Sharding  # which needs parts of PyTorch that take time to load

    return Sharding(model, ranks)
