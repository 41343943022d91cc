"""The door: the one place where something computed from examples becomes public.

Clip, charge, add noise, release: whoever trains, by a plan or in a custom loop, asks a ``GaussianMechanism``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from tacit.distributed.ranks import ALONE, Ranks
from tacit.errors import LedgerError, check_count, check_non_negative
from tacit.plan.phase import ClipOrder
from tacit.plan.sources import Statistic
from tacit.raw.clipping import PER_ROW, ClippedSum, Clipper
from tacit.raw.generators import Generators
from tacit.raw.mishaps import told_apart
from tacit.release.adaptive_rows import AdaptiveTable, multipliers
from tacit.release.lazy_noise import LazyTable
from tacit.release.ledger import Ledger
from tacit.release.ledger_file import Charge
from tacit.release.noise import Noise
from tacit.release.shares import Mask, Masked, release_share
from tacit.support import Kind, Support


@dataclass(frozen=True)
class Released:
    """A noisy mean gradient on the active coordinates: public, free to be scored, stored and shown.

    ``values`` holds the compact tensor of each parameter with an active coordinate, or one number per row where the
    ``statistic`` is that of row norms. Of a sharded model they are this process's part, and ``support`` is that of the
    part. Each element carries independent Gaussian noise of standard deviation ``noise_std``. ``moved`` are tables with
    lazy noise, which the release has moved already: no value of theirs is public before the noise that it is owed is
    drawn. Tables whose rows a step chooses are moved too; ``chosen`` are the rows.
    """

    values: dict[str, Tensor]
    support: Support
    noise_std: float
    batch_size: int
    statistic: Statistic = "gradient"
    moved: tuple[str, ...] = ()
    chosen: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def signal_to_noise(self) -> float:
        """Estimated energy of the mean over the energy of its noise, from released values only."""
        noise = sum(v.numel() for v in self.values.values()) * self.noise_std**2
        energy = sum(float(v.square().sum()) for v in self.values.values())
        return max(0.0, energy - noise) / noise if noise else float("inf")


@dataclass(frozen=True)
class Query:
    """What one step asks of the examples. Every number in it is public.

    ``batch_size`` is the planned size: the divisor of the sum, however many examples come. ``phase`` and ``step``
    are words for the ledger.
    """

    phase: str
    step: int
    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    batch_size: int
    statistic: Statistic = "gradient"
    clip_order: ClipOrder = "mask-then-clip"
    votes: int | None = None


Tables = Mapping[str, LazyTable] | Mapping[str, AdaptiveTable]
"""Embedding tables that a release moves itself, by name."""

Rows = Mapping[str, Sequence[int]]
"""Of every parameter of a sharded model, the rows at which the shards of the ranks begin, and their number."""


class GaussianMechanism:
    """Answers queries about examples: clipped per example, charged to a ledger, noised, then released.

    ``generators`` keeps everything random that touches examples secret. Without it, dropout follows the generators
    that the caller has seeded, as in runs that are not for release. ``tables`` have lazy noise, or rows that every step
    chooses: then ``selection_share`` says how noise is divided. ``shards`` says which rows of a sharded model's
    parameters each rank holds; passes are made while the model is ``lent``, with whole parameters.
    """

    def __init__(
        self,
        clipper: Clipper,
        noise: Noise,
        generators: Generators | None = None,
        ranks: Ranks = ALONE,
        tables: Tables | None = None,
        selection_share: float | None = None,
        shards: Rows | None = None,
        lent: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._share, self._shards, self._lent = selection_share, shards, lent
        self._clipper, self._noise, self._generators, self._ranks = clipper, noise, generators, ranks
        self._tables = tables or {}

    @property
    def secure(self) -> bool:
        """Whether the noise is cryptographic."""
        return self._noise.secure

    def answer(
        self,
        query: Query,
        chunks: Iterable[Any],
        support: Support,
        ledger: Ledger,
        following: Sequence[Query] = (),
    ) -> Released:
        """The noisy mean over one logical batch, which comes in chunks. No chunk is an empty batch.

        ``following`` are queries that are sure to come next, on the same support, and may be charged together with this
        one.
        """
        return self._release(query, self._clip(query, chunks, support, ledger), ledger, following)

    def share(
        self,
        query: Query,
        chunks: Iterable[Any],
        support: Support,
        ledger: Ledger,
        *,
        honest: int,
        mask: Mask,
    ) -> Masked:
        """A masked share of a sum over several sites, whose noise any ``honest`` of them make up together."""
        clipped = self._clip(query, chunks, support, ledger)
        charge = self._charge(query, clipped, len(ledger))
        return release_share(clipped, charge, ledger, self._noise, honest=honest, mask=mask)

    def _clip(self, query: Query, chunks: Iterable[Any], support: Support, ledger: Ledger) -> ClippedSum:
        place = len(ledger)
        keyed = nullcontext() if self._generators is None else self._generators.keyed(place, self._ranks.rank)

        def clip() -> ClippedSum:
            with told_apart(self._clipper.model, charged=place > 0), keyed, self._lent():
                return self._clipper.clipped_sum(
                    chunks,
                    support,
                    query.clip_norm,
                    statistic=query.statistic,
                    clip_order=query.clip_order,
                    votes=query.votes,
                )

        return self._ranks.together(clip)

    def compare(
        self, query: Query, chunks: Iterable[Any], candidates: Sequence[Mapping[str, Tensor]], ledger: Ledger
    ) -> Released:
        """The noisy sums over all examples of their losses with each candidate for the weights, clipped together."""
        keyed = nullcontext() if self._generators is None else self._generators.keyed(len(ledger), 0)
        with told_apart(self._clipper.model, charged=len(ledger) > 0), keyed:
            clipped = self._clipper.loss_sum(chunks, candidates, query.clip_norm)
        return self._release(query, clipped, ledger)

    def _charge(self, query: Query, clipped: ClippedSum, index: int) -> Charge:
        return Charge(
            index=index,
            step=query.step,
            phase=query.phase,
            sampling_rate=query.sampling_rate,
            noise_multiplier=query.noise_multiplier,
            clip_norm=query.clip_norm,
            batch_size=query.batch_size,
            active=clipped.size,
            secure_noise=self._noise.secure,
        )

    def _release(
        self, query: Query, clipped: ClippedSum, ledger: Ledger, following: Sequence[Query] = ()
    ) -> Released:
        charges = [
            self._charge(each, clipped, index)
            for index, each in enumerate((query, *following), start=len(ledger))
        ]
        if following:
            self._ranks.together(lambda: ledger.charge_ahead(charges))
        return release(
            clipped,
            charges[0],
            ledger,
            self._noise,
            batch_size=query.batch_size,
            ranks=self._ranks,
            tables=self._tables,
            selection_share=self._share,
            shards=self._shards,
        )


def release(
    clipped: ClippedSum,
    charge: Charge,
    ledger: Ledger,
    noise: Noise,
    *,
    batch_size: int,
    ranks: Ranks = ALONE,
    tables: Tables | None = None,
    selection_share: float | None = None,
    shards: Rows | None = None,
) -> Released:
    """Charge the ledger, add N(0, (σS)²) to every number of the sum, divide by the planned batch size.

    σ is the charge's noise multiplier and S ≥ C the sum's sensitivity, so the result is one (subsampled) Gaussian
    mechanism of noise multiplier σ. The charge is durable before the first noise is drawn. The raw sum is used up.

    With several ``ranks``, each over examples of its own, what is released is the sum over all of them, whose
    sensitivity is that of one. It is formed on the first rank, noised there once, and leaves it only then. Where the
    model is sharded, ``shards`` says how: each rank forms the sum of its own rows, and noises it once. Ranks share no
    row, so every number is noised by exactly one of them, after the charge.

    The sum of a table of ``tables`` never leaves: the table is moved by it, and what can be read of the table has the
    same noise. Where rows are chosen by counts, counts and gradients get more noise each, so that both together are one
    Gaussian mechanism of noise multiplier σ.
    """
    tables = tables or {}
    sigma = check_non_negative("noise_multiplier", charge.noise_multiplier)
    check_count("batch_size", batch_size)
    written = (charge.clip_norm, charge.active, charge.batch_size, charge.secure_noise)
    actual = (clipped.clip_norm, clipped.size, batch_size, noise.secure)
    if written != actual:
        raise LedgerError(
            "The charge does not describe the release: it says (clip norm, released numbers, batch size, secure "
            f"noise) = {written}, but they are {actual}."
        )
    if set(tables) != set(clipped.rows) or (tables and (ranks.size > 1 or shards is not None)):
        raise LedgerError("Every table with lazy noise needs its sum, in one process.")
    of_counts, of_gradients = (0.0, sigma) if selection_share is None else multipliers(sigma, selection_share)
    if bool(clipped.counts) != (selection_share is not None):
        raise LedgerError(
            "Rows are chosen by counts where their share of the noise is known, and nowhere else."
        )
    scale = of_gradients * clipped.sensitivity
    ranks.check_same(
        "the release", lambda: f"{charge} {scale!r} {clipped.support.digest()} {clipped.statistic}"
    )
    if shards is not None:
        return _release_shards(clipped, charge, ledger, noise, scale, ranks, shards)
    if ranks.size > 1:  # sums are added up in double precision, or their rounding would add up as well
        clipped.values.update({name: value.double() for name, value in clipped.values.items()})
    ranks.add_up(clipped.values)
    ranks.together(lambda: ledger.charge(charge))
    chosen: dict[str, Tensor] = {}
    if ranks.rank == 0:
        noise.begin(charge.index)
        for value in clipped.values.values():
            noise.add(value, scale, 1 / batch_size)
        for name, table in tables.items():
            total = clipped.rows.pop(name)
            if isinstance(table, AdaptiveTable):
                # A count has the sensitivity 1, and the slack of the gradients.
                counted = of_counts * clipped.sensitivity / clipped.clip_norm
                chosen[name] = table.choose(clipped.counts.pop(name), counted)
                table.move(total, chosen[name], scale, batch_size)
            else:
                table.move(total, scale, batch_size)
    values = {name: value.to(clipped.dtypes[name]) for name, value in clipped.values.items()}
    ranks.spread(values)
    deviation = scale / batch_size
    return Released(values, clipped.support, deviation, batch_size, clipped.statistic, tuple(tables), chosen)


def _release_shards(
    clipped: ClippedSum,
    charge: Charge,
    ledger: Ledger,
    noise: Noise,
    scale: float,
    ranks: Ranks,
    shards: Rows,
) -> Released:
    """The release of this rank's rows: summed over all ranks, charged on the first one's disk, noised here."""
    support, by_row = clipped.support, clipped.statistic in PER_ROW
    cuts = {
        name: list(shards[name]) if by_row else support[name].cuts(shards[name]) for name in clipped.values
    }
    own = ranks.add_up_parts(clipped.values, cuts)
    clipped.values.clear()
    ranks.together(partial(ledger.charge, charge))  # no rank draws before it is on disk
    noise.begin(charge.index)
    for name, value in own.items():
        first, rows = cuts[name][ranks.rank], cuts[name][-1]
        noise.add_part(value, first, rows, scale, 1 / charge.batch_size)
    part = support.part(shards, ranks.rank)
    values = {
        name: (value if by_row else value.reshape(part[name].compact_shape)).to(clipped.dtypes[name])
        for name, value in own.items()
        if part[name].kind is not Kind.SILENT
    }
    return Released(values, part, scale / charge.batch_size, charge.batch_size, clipped.statistic)
