"""Answers about weights that somebody else chooses: one private gradient per question, and nothing else.

The steps of DP-SGD with the model in other hands. Whoever asks is not trusted: sampling, clip norm, noise and the
number of answers are those of the plan, and weights that are none are refused before anything is drawn or charged.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import ArgumentError, FileError, LedgerError
from tacit.losses import Loss
from tacit.plan import Plan
from tacit.plan.sources import All, Own, Statistic
from tacit.raw.clipping import Clipper
from tacit.raw.generators import Generators
from tacit.raw.inspector import Inspections
from tacit.raw.probe_batches import some_positions
from tacit.release.ledger import FileLedger, epsilon_of_charges
from tacit.release.mechanism import GaussianMechanism, Query, Released
from tacit.release.noise import SecureNoise
from tacit.release.shares import Mask, Masked
from tacit.runs import DEFAULT_NOT_COVERED, write_certificate
from tacit.runs.run_directory import Run, Start, coordinates_of
from tacit.support import Support
from tacit.training.arguments import check_loss
from tacit.training.loader import PoissonLoader

PROBED_ONCE = "probed before the first answer"
"""How examples are kept apart here, for ``run.json``."""

NOT_COVERED = (
    "mixing of examples that the look at the model before the first answer did not meet: whoever asks chooses the "
    "weights, so later looks, whose findings would tell about examples, are not taken",
    "when this site answers, how long it takes, and whether it runs at all",
)
"""What the certificate of such a run does not cover, besides what is said of every run."""

LOOKED_AT = 16
"""Examples that the first look is taken at: enough for some to differ."""

MOST_WEIGHT = 1e6
"""Weights beyond are refused: far from every model that was ever trained, and gradients stay finite within."""


@dataclass(frozen=True)
class Answer:
    """A noisy mean gradient that was paid for, and the ``question`` that it answers: public, free to be sent.

    ``charged`` counts what was charged up to it. ``values`` has a tensor in the shape of each parameter: a masked share
    of a sum, in whole numbers, where the plan is one of several sites.
    """

    question: Mapping[str, Any]
    charged: int
    values: dict[str, Tensor]
    noise_std: float
    batch_size: int

    @property
    def round(self) -> int:
        """The round that was asked for; rounds only grow."""
        return int(self.question["round"])

    @property
    def digest(self) -> str:
        """SHA-256 of everything in it."""
        about = [dict(self.question), self.charged, self.noise_std, self.batch_size]
        sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for name in sorted(self.values):
            value = self.values[name]
            sha.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            sha.update(value.numpy().tobytes())
        return sha.hexdigest()


class PrivateAnswers:
    """The private side of a training whose weights are elsewhere, in a run directory of its own.

    ``answer`` takes weights and gives the noisy mean gradient of a Poisson sample at them. It is charged to the ledger
    before noise is drawn, and written to the checkpoint before it is returned: ``last`` is the newest answer, also
    after a crash, and can be sent again free of charge. An answer that a crash has lost between the two stays charged.
    Before it is returned the ledger notes that it is sent, too: a checkpoint that does not hold what was sent last is
    refused, so no round is answered afresh that was answered before.

    ``model`` gives the architecture and is what a first look, before anything is spent, is taken at; its loss is
    ``loss(model, batch)``, one value per example. ``loader`` draws from the examples. ``plan`` has one phase, on all
    coordinates or on those that a question names: its steps are the answers. ``unit`` and ``not_covered`` are words for
    the certificate. Noise and sampling come from a cryptographic source always.
    """

    def __init__(
        self,
        model: nn.Module,
        loader: PoissonLoader,
        loss: Loss,
        plan: Plan,
        run_dir: str | Path,
        *,
        unit: str,
        not_covered: Sequence[str] = (),
        witness: str | Path | None = None,
    ) -> None:
        check_loss(loss)
        _check_plan(plan, loader)
        self.model, self.plan, self.run_dir = model, plan, Path(run_dir)
        self.parameters = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        self._start = Start(
            unit=unit,
            not_covered=(*DEFAULT_NOT_COVERED, *NOT_COVERED, *not_covered),
            witness=None if witness is None else Path(witness),
            isolation=PROBED_ONCE,
        )
        self._rows, self._batches = loader.rows, loader.batches()
        self._inspections = Inspections(later=False)
        self._pipeline = loader.pipeline(self._batches)
        self._clipper = Clipper(model, loss, inspections=self._inspections, pipeline=self._pipeline)
        self._generators = Generators(model, loss, loader.dataset, loader.collate)
        self._mechanism = GaussianMechanism(self._clipper, SecureNoise(), self._generators)
        self._support = Support.all(model)
        self._run: Run | None = None
        self.last: Answer | None = None
        self.done = 0

    def create(self) -> None:
        """Start the run in its directory, which must hold none: plan, description, ledger and a first checkpoint."""
        self._look()
        self._run = Run.create(self.run_dir, self.plan, self.model, self._start)
        self._save({}, {})

    def open(self) -> None:
        """Continue the run in its directory, and hold it: no other process can answer from it meanwhile."""
        self._look()
        run = Run.open(self.run_dir, self.plan, self.model, self._start)
        try:
            tensors, numbers = run.load()
            self.done = numbers["step"]
            self.last = self._answer_of(tensors, numbers)
            self._check_sent(run.ledger)
        except BaseException:
            run.ledger.close()
            raise
        self._run = run

    @property
    def charged(self) -> int:
        """How many answers were charged, those that a crash has lost among them."""
        return len(self._held.ledger)

    @property
    def left(self) -> int:
        """How many answers the plan still allows."""
        return max(0, self.plan.steps - self.charged)

    @property
    def epsilon(self) -> float:
        """ε of everything that has been charged so far, at the plan's δ."""
        plan = self.plan
        return epsilon_of_charges(
            self._held.ledger.charges, plan.gaussian_delta, plan.accountant, plan.relation
        )

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse weights of another model, and numbers that no training leads to."""
        shapes = {name: tuple(value.shape) for name, value in weights.items()}
        if shapes != self.parameters:
            raise ArgumentError("The weights are not those of the agreed model.")
        # Written so that a number that is none fails as well.
        if not all(bool((value.abs() <= MOST_WEIGHT).all()) for value in weights.values()):
            raise ArgumentError(f"Every weight must be a number within ±{MOST_WEIGHT:g}.")

    def answer(
        self,
        question: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        mask: Mask | None = None,
        *,
        support: Support | None = None,
        statistic: Statistic = "gradient",
    ) -> Answer:
        """Sample, clip, charge, add noise, write down: the answer at ``weights``, which ``question`` asks for.

        ``question`` is kept with the answer, in JSON; its ``round`` is later than that of any answer before. Where the
        noise is shared among sites, ``mask`` hides the share and must serve this answer alone. With a ``support`` the
        answer has its active numbers only, flat; whoever asks may choose it, because every support costs the same.
        ``statistic`` is what is summed.
        """
        run = self._held
        self.check_weights(weights)
        if (mask is not None) != bool(self.plan.sites):
            raise ArgumentError("An answer is masked where its plan is one of several sites, and only there.")
        if not self.left:
            raise LedgerError("All answers that the plan allows were given.")
        before = 0 if run.ledger.sent is None else run.ledger.sent.round
        if type(question.get("round")) is not int or question["round"] <= before:
            raise ArgumentError(f"A question has a round after {before}, the last that was answered.")
        chosen = self._support if support is None else support
        if support is not None and not isinstance(self.plan.phases[0].support, Own):
            raise ArgumentError(
                "The plan is for all coordinates; answers on fewer coordinates need a plan of that kind."
            )
        with torch.no_grad():
            for name, value in weights.items():
                self.model.get_parameter(name).copy_(value)
        place = len(run.ledger)
        phase = self.plan.phases[self.plan.locate(place)[0]]
        query = Query(
            phase=phase.name,
            step=self.done,
            sampling_rate=phase.sampling_rate,
            noise_multiplier=self.plan.noise_at(place),
            clip_norm=phase.clip_norm,
            batch_size=self.plan.batch_size,
            statistic=statistic,
        )
        _, chunks = next(self._batches.steps(place, 1))
        released: Released | Masked
        if mask is None:
            released = self._mechanism.answer(query, chunks, chosen, run.ledger)
        else:
            released = self._mechanism.share(
                query, chunks, chosen, run.ledger, honest=self.plan.honest, mask=mask
            )
        given = Answer(
            json.loads(json.dumps(dict(question))),
            place + 1,
            {
                name: value.reshape(self.parameters[name] if support is None else (-1,)).contiguous()
                for name, value in released.values.items()
            },
            released.noise_std,
            self.plan.batch_size,
        )
        self.done += 1
        about = {"question": given.question, "charged": given.charged, "noise_std": given.noise_std}
        self._save(given.values, about)
        run.ledger.note_sent(given.round, given.digest)
        self.last = given
        return given

    def certify(self) -> None:
        """Write the certificate of what was spent so far."""
        write_certificate(self._held.path, not_covered=self._start.not_covered)

    def close(self) -> None:
        """Let go of the run directory."""
        if self._run is not None:
            self._run.ledger.close()
            self._run = None

    @property
    def _held(self) -> Run:
        if self._run is None:
            raise ArgumentError("The run directory is not open.")
        return self._run

    def _look(self) -> None:
        """Refuse what cannot be answered from, at the public weights that the model starts with."""
        few = some_positions(self._rows, LOOKED_AT, self._inspections.generator())
        with self._generators.keyed(0, 0):
            self._clipper.rehearse(self._pipeline.batch(few))
        if not self._clipper.understood:
            raise ArgumentError("The look at the model was not conclusive; it cannot be answered from.")

    def _save(self, values: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        numbers = {
            "step": self.done,
            "selections": {},
            "coordinates": coordinates_of(self.model),
            "answer": dict(about),
        }
        self._held.save({f"answer:{name}": value for name, value in values.items()}, numbers)

    def _answer_of(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> Answer | None:
        values = {name.removeprefix("answer:"): value for name, value in tensors.items()}
        about = numbers.get("answer")
        if not isinstance(about, dict) or bool(about) != bool(self.done):
            raise FileError(f"The checkpoint in {self.run_dir} is none of a site.")
        if not about:
            return None
        question = about.get("question")
        if not isinstance(question, dict) or type(question.get("round")) is not int:
            raise FileError(f"The checkpoint in {self.run_dir} does not say which round it has answered.")
        sizes = {name: math.prod(shape) for name, shape in self.parameters.items()}
        if not values or not all(value.numel() <= sizes.get(name, 0) for name, value in values.items()):
            raise FileError(f"The checkpoint in {self.run_dir} holds an answer for another model.")
        return Answer(
            question, int(about["charged"]), values, float(about["noise_std"]), self.plan.batch_size
        )

    def _check_sent(self, ledger: FileLedger) -> None:
        """Refuse a checkpoint without the answer that was sent last; note one that a crash kept from being sent."""
        last, sent = self.last, ledger.sent
        if last is not None and sent is not None and last.digest == sent.answer:
            return
        if sent is not None and (last is None or last.round <= sent.round or last.charged <= sent.charges):
            raise FileError(
                f"The ledger says that an answer to round {sent.round} was sent, and the checkpoint in {self.run_dir} "
                "does not hold it: it was put back from a backup, or edited. A round that is answered afresh could be "
                "read, or is paid for twice, so nothing more can be answered from here."
            )
        if last is not None:
            ledger.note_sent(last.round, last.digest)


def _check_plan(plan: Plan, loader: PoissonLoader) -> None:
    if len(plan.phases) != 1 or not isinstance(plan.phases[0].support, All | Own):
        raise ArgumentError(f"The plan is for {plan.method}; make one with the method dp-sgd, or for a loop.")
    if loader.seed is not None:
        raise ArgumentError("Whoever asks is not trusted, so nothing may follow from a seed; leave it out.")
    if (plan.examples, plan.batch_size, plan.grouped) != (
        loader.examples,
        loader.batch_size,
        loader.units is not None,
    ):
        raise ArgumentError(
            f"The plan is for {plan.examples} {plan.counted} in batches of {plan.batch_size}, the loader has "
            f"{loader.examples} {'examples' if loader.units is None else 'units'} in batches of {loader.batch_size}."
        )
