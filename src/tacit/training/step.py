"""One private step, for custom training loops."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit import batches
from tacit.distributed.group import checked
from tacit.distributed.ranks import Ranks
from tacit.errors import ArgumentError, check_count, check_non_negative, check_positive, check_share
from tacit.losses import Loss
from tacit.plan.sources import AdaptiveRows
from tacit.raw.clipping import Clipper, Clipping, Isolation, check_isolation
from tacit.raw.generators import Generators
from tacit.raw.units import UnitBatch
from tacit.release.ledger import Ledger, MemoryLedger, epsilon_of_charges
from tacit.release.mechanism import GaussianMechanism, Query, Released
from tacit.release.noise import Noise, SecureNoise
from tacit.runs.run_directory import model_digest
from tacit.support import Support
from tacit.training import row_tables
from tacit.training.arguments import check_loss, check_model, check_optimizer, warn_of_evaluation_mode
from tacit.training.update import ActiveUpdate, OptimizerFactory
from tacit.units import Units


class PrivateStep:
    """Clip, sum, release, update: one step of masked DP-SGD on the active coordinates of a model.

    ``loss(model, batch)`` gives one loss per example. ``batch_size`` is the planned size, a public number,
    and the divisor of the sum however many examples come. ``sampling_rate`` is the probability with which
    each example takes part in a step; it is written to the ledger, and 1 means that no amplification by
    sampling is claimed.

    Where a unit of privacy is a group of examples, ``step`` takes an id per example too. Then read "unit" for "example"
    above: ``batch_size`` and ``sampling_rate`` are those of units, which the caller samples whole.

    With several ``ranks`` a step is over the examples of all of them. What each is given must be its own: an
    example that two ranks hold in one step counts twice, which the noise does not cover.

    ``isolation`` says how the examples of a batch are kept apart: "probed", with a look for what mixes them at the
    start and at unpredictable later steps, or by "construction", each in a separate forward and backward pass, which
    is slower. How batches are made is not seen here: no row of an example may depend on the other examples.
    ``clipping`` is "flat", "automatic" (every gradient scaled to nearly the clip norm, small ones
    too) or "per-layer" (each layer to an equal share of the clip norm); the noise is the same.

    ``PoissonLoader`` draws batches for it. ``PrivateLoop`` is the same with checkpoints and a certificate.

    ``lazy_noise`` draws the noise of an embedding table's rows when they are next read, so a step costs what its batch
    touches. It needs plain SGD. The table reads as not-a-number between steps: call ``settle`` before you read,
    evaluate or save the model. ``adaptive_rows`` lets every step choose the rows of embedding tables that it moves, by
    noisy counts of its examples; ``noise_multiplier`` is that of counts and gradients together.

    The model keeps its class and its ``state_dict``; a model with 2-d convolutions is laid out channels-last.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        support: Support,
        clip_norm: float,
        noise_multiplier: float,
        batch_size: int,
        optimizer: OptimizerFactory,
        sampling_rate: float = 1.0,
        ledger: Ledger | None = None,
        noise: Noise | None = None,
        views: int = 1,
        autocast: torch.dtype | None = None,
        isolation: Isolation = "probed",
        lazy_noise: bool = False,
        adaptive_rows: AdaptiveRows | None = None,
        clipping: Clipping = "flat",
        ranks: Ranks | None = None,
    ) -> None:
        check_model(model)
        check_loss(loss)
        check_optimizer(optimizer)
        self.ranks = checked(ranks)
        self.clip_norm = check_positive("clip_norm", clip_norm)
        self.noise_multiplier = check_non_negative("noise_multiplier", noise_multiplier)
        self.batch_size = check_count("batch_size", batch_size)
        self.sampling_rate = check_share("sampling_rate", sampling_rate)
        self._views = views
        support.check_model(model)
        noise = SecureNoise() if noise is None else noise
        if lazy_noise and adaptive_rows is not None:
            raise ArgumentError(
                "Lazy noise is for steps that move all rows; leave out adaptive_rows, or lazy_noise."
            )
        self._tables = row_tables.tables_of(
            model, noise, lambda: self._update, self.ranks, lazy=lazy_noise, adaptive=adaptive_rows
        )
        row_tables.check_support(self._tables, support)
        clipper = Clipper(
            model,
            loss,
            views=views,
            autocast=autocast,
            isolation=check_isolation(isolation),
            tables=self._tables,
            clipping=clipping,
        )
        self.ranks.check_same("the model", lambda: model_digest(model))
        with torch.no_grad():
            self.ranks.spread(model.state_dict())
        warn_of_evaluation_mode(model)
        self._update = ActiveUpdate(model, optimizer, support)
        row_tables.check_rates(self._tables, model, self.optimizer)
        # With seeded noise, a run that is not for release, dropout follows the seeds that the caller sets.
        generators = Generators(model, loss) if noise.secure else None
        share = None if adaptive_rows is None else adaptive_rows.selection_share
        self._mechanism = GaussianMechanism(clipper, noise, generators, self.ranks, self._tables, share)
        self.ledger = MemoryLedger() if ledger is None else ledger

    @property
    def support(self) -> Support:
        """The active coordinates."""
        return self._update.support

    @support.setter
    def support(self, support: Support) -> None:
        row_tables.check_support(self._tables, support)
        self._update.change_support(support)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer on the active coordinates, for schedulers and for reading its settings."""
        return self._update.optimizer

    def settle(self) -> None:
        """Draw all noise that lazy tables are owed, so that the model can be read, evaluated and saved."""
        for table in self._tables.values():
            table.settle()

    def epsilon(self, delta: float, accountant: str = "pld") -> float:
        """ε of all steps so far, provided that every example (or unit) joined each with probability ``sampling_rate``.

        How batches were drawn is not seen here; ``PoissonLoader`` draws them so.
        """
        return epsilon_of_charges(self.ledger.charges, delta, accountant)

    def step(self, batch: Any | None, units: Sequence[Hashable] | np.ndarray | None = None) -> Released:
        """One step on one batch held at once; None is the empty batch.

        ``units`` has one id per example: the gradients of examples with the same id are averaged, then clipped as one.
        """
        if batch is None:
            return self.step_over([])
        if units is not None:
            units = Units.of(units, batches.rows(batch) // self._views).codes
        return self.step_over([batch if units is None else UnitBatch(batch, units)])

    def step_over(self, chunks: Iterable[Any], *, phase: str = "train") -> Released:
        """One step on a logical batch that comes in chunks; noise is added once. No chunk: an empty batch."""
        query = Query(
            phase=phase,
            step=len(self.ledger),
            sampling_rate=self.sampling_rate,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            batch_size=self.batch_size,
        )
        released = self._mechanism.answer(query, chunks, self.support, self.ledger)
        self._update.step(released)
        return released
