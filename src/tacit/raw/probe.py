"""A look at a model: does every example have a gradient of its own, and do we find it?

The gold standard is the gradient of an example's loss computed alone, by plain autograd. A few examples are put into
batches of several sizes and orders among hostile company (``probe_batches``), with every trained weight moved away from
zero, random draws stilled and, where the model allows it, in double precision. Then:

1. An example's loss must be what it is alone. If not, the model mixes examples and is refused.
2. The gradient that the watched pass attributes to it must be what it is alone, for every parameter, judged relative
   to that parameter's own gradient. A parameter that fails is followed through the operations that use it (it is used
   outside the module that owns it, or its layer sees the examples in another order); if that fails too, ``torch.func``
   over the whole model is tried; and if that fails, the model is refused.

What such a look cannot prove: that nothing is mixed on data, weights or batch sizes that it did not meet.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit import batches
from tacit.errors import ModelError, Unseen
from tacit.raw.agreement import (
    DOUBLE,
    REDUCED,
    SINGLE,
    Doubts,
    Gradients,
    Losses,
    Precision,
    differing,
    doubts_of,
    gradients_of,
    same,
)
from tacit.raw.footprint import Footprint
from tacit.raw.generators import drawn_since, random_state, reseed, restore_random_state
from tacit.raw.instrumentation import Instrumentation, Ways
from tacit.raw.memory import is_out_of_memory
from tacit.raw.probe_batches import CHANGES, a_few, changed, chosen_examples, differ, doubled, equal, joined
from tacit.raw.recorder import Recorder
from tacit.raw.refusals import misattributed, mixing, refuse_renormalised_tables, suspects, unattributable
from tacit.raw.rehearsal import UNIFORM, Stilled, awake, untouched
from tacit.raw.rules import find
from tacit.raw.watched_layer import Layout, Shapes
from tacit.support import Support

TARGETS = 3
"""Examples that are looked at."""

SIZES = (2, 3)
"""Batch sizes from which the layout is found."""

COMPANY = (2, 3, 5, 13)
"""Batch sizes in which examples meet company; the largest has room for company of every kind."""

ROUNDS = 16
"""Random states under which company is changed."""

MOST = 64
"""Examples of a real batch that are examined at once."""

_NO_GRAPH = "does not require grad and does not have a grad_fn"

OTHER_UNIFORMS = (0.93, 0.07)
"""Where a layer is not used, what uniform draws give in further looks: it may be one that is left out at random."""


@dataclass(frozen=True)
class Findings:
    """What a probe found: the layout of every layer's input, and how parameters are served that need more than rules.

    ``conclusive`` is false where the examples could not be given company that differs from them.
    """

    layout: Layout
    ways: Ways
    conclusive: bool

    def joined(self, other: Findings) -> Findings:
        """These findings, and what others tell of layers that were not used."""
        return Findings(self.layout.joined(other.layout), other.ways, self.conclusive and other.conclusive)

    def extended(self, layout: Layout) -> Findings:
        """These findings with the layout of a pass that took another path."""
        return Findings(self.layout.joined(layout), self.ways, self.conclusive)


def probe(
    model: nn.Module,
    losses: Losses,
    batch: Any,
    views: int,
    *,
    draw: torch.Generator | None = None,
    reduced_precision: bool = False,
) -> Findings | None:
    """Look at the model through a few examples of a batch; raise ``ModelError`` if it cannot be trained privately.

    ``draw`` chooses the examples and everything else that is random about the look. None if no example of the batch
    has a finite gradient: then all of them count as zero.
    """
    draw = torch.Generator().manual_seed(0) if draw is None else draw
    refuse_renormalised_tables(model)
    with untouched(model):
        few, others = a_few(batch, views, draw, TARGETS)
        refuse_writes(
            model, losses, few if batches.rows(few) > views else chosen_examples(few, [0, 0], views)
        )
        if not all_finite(model, losses, few, views):
            finite = finite_examples(model, losses, batch, views)
            if finite is None:
                return None
            few, others = a_few(finite, views, draw, TARGETS)
        for noise, precision in _attempts(draw, reduced_precision):
            with awake(model, noise, double=precision.double):
                given = [doubled(part) if precision.double else part for part in (few, others)]
                look = _Look(model, losses, given[0], given[1], views, draw, precision)
                if not look.possible:
                    continue
                findings, unused = look.findings()
                for uniform in OTHER_UNIFORMS:
                    if unused:
                        reseed(int(torch.randint(2**31, (), generator=draw)))
                        again = _Look(model, losses, given[0], given[1], views, draw, precision, uniform)
                        if again.possible:
                            more, still = again.findings(findings.ways)
                            findings, unused = findings.joined(more), unused & still
                return findings
        raise ModelError(
            "The gradients of single examples could not be computed to compare with; the loss fails on a batch of one "
            f"or two examples: {look.why}"
        )


def examine(
    model: nn.Module,
    losses: Losses,
    batch: Any,
    views: int,
    findings: Findings,
    *,
    draw: torch.Generator,
    most: int = MOST,
    reduced_precision: bool = False,
    as_it_is: bool = False,
) -> None:
    """Check findings on ``most`` examples of a real batch, with the weights as they are; raise ``ModelError`` if wrong.

    The sum of the attributed gradients under random weights must be autograd's gradient of the sum of the losses
    under the same weights, and the losses of two of the examples must be what they are alone. ``as_it_is``: in the
    precision that the model trains in, where passes may take other paths than in double precision.
    """
    chosen = torch.randperm(batches.rows(batch) // views, generator=draw)[:most].sort().values
    batch = chosen_examples(batch, chosen.tolist(), views)
    weights = 0.5 + torch.rand(len(chosen), generator=draw, dtype=torch.float64)
    alone = torch.randperm(len(chosen), generator=draw)[:2].tolist()
    losses = steady(model, losses)
    with untouched(model), Stilled():
        coarse = REDUCED if reduced_precision else SINGLE
        for precision in (coarse,) if as_it_is else (DOUBLE, coarse):
            with awake(model, None, double=precision.double):
                given = doubled(batch) if precision.double else batch
                try:
                    plain = values_of(losses, given)
                except Exception as error:
                    if is_out_of_memory(error) or not precision.double:
                        raise
                    continue
                _examine(model, losses, given, plain, views, findings, precision, weights, alone)
                return


def examine_whole(
    model: nn.Module,
    losses: Losses,
    batch: Any,
    views: int,
    *,
    draw: torch.Generator,
    reduced_precision: bool = False,
) -> None:
    """Compare the losses of half of a real batch, ``MOST`` examples of it at most, with those in the whole.

    For what depends on how many there are. Most of them must differ: one that is all rounding is no reason to stop.
    """
    count = batches.rows(batch) // views
    chosen = torch.randperm(count, generator=draw)[: min(MOST, (count + 1) // 2)].sort().values
    losses = steady(model, losses)
    with untouched(model), Stilled():
        for precision in (DOUBLE, REDUCED if reduced_precision else SINGLE):
            with awake(model, None, double=precision.double):
                given = doubled(batch) if precision.double else batch
                try:
                    together = values_of(losses, given)[chosen]
                    apart = values_of(losses, chosen_examples(given, chosen.tolist(), views))
                except Exception as error:
                    if is_out_of_memory(error) or not precision.double:
                        raise
                    continue
                differs = ~((together - apart).abs() <= precision.loss * (together.abs() + apart.abs()))
                if int((differs & together.isfinite() & apart.isfinite()).sum()) > len(chosen) / 2:
                    raise mixing(model)
                return


def _examine(
    model: nn.Module,
    losses: Losses,
    batch: Any,
    plain: Tensor,
    views: int,
    findings: Findings,
    precision: Precision,
    weights: Tensor,
    alone: Sequence[int],
) -> None:
    names, wanted = trained(model)
    values, expected = gradients_of(losses, batch, wanted, weights)
    doubts = doubts_of(losses, batch, wanted, weights, precision, (values, expected))
    for place in alone:
        value = values_of(losses, chosen_examples(batch, [place], views))[0]
        if bool(plain[place].isfinite()) and not same(
            plain[place], value, precision.loss, doubts.losses[place]
        ):
            raise mixing(model)
    if not all(bool(gradient.isfinite().all()) for gradient in expected):
        return
    instrumentation = Instrumentation(model, Support.all(model), findings.ways)
    watched, found = _attributed(instrumentation, findings.layout, losses, batch, len(plain), views, weights)
    if not same(plain, watched, precision.loss, doubts.losses):
        raise misattributed(names)
    wrong = differing(names, expected, [found[id(p)] for p in wanted], precision, doubts)
    if wrong:
        raise misattributed(sorted(wrong))


def steady(model: nn.Module, losses: Losses) -> Losses:
    """The same losses with every pass starting from one random state, and what it leaves in the model taken back."""
    state, footprint = random_state(), Footprint(model)

    def again(batch: Any) -> Tensor:
        restore_random_state(state)
        with footprint.silently_kept():
            return losses(batch)

    return again


class _Look:
    """One probe under fixed conditions: what a few examples give alone, and what they give in company.

    ``possible`` is false if their own losses and gradients cannot be computed under these conditions.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Losses,
        few: Any,
        others: Any,
        views: int,
        draw: torch.Generator,
        precision: Precision,
        uniform: float = UNIFORM,
    ) -> None:
        self._still = partial(Stilled, uniform=uniform)
        self._model, self._losses, self._views = model, steady(model, losses), views
        self._drawing = losses
        # Not torch's: its draws are stilled while the company gathers.
        self._choice = random.Random(int(torch.randint(2**62, (), generator=draw)))
        self._precision = precision
        self._targets = batches.rows(few) // views
        self._names, self._wanted = trained(model)
        # Well apart, so that no exchange of two examples hides, and of one sign, so that nothing common cancels.
        apart = torch.tensor([0.6, 1.0, 1.5][: self._targets], dtype=torch.float64)
        self._weights = apart * (1 + 0.2 * torch.rand(self._targets, generator=draw, dtype=torch.float64))
        self.why = "it is not finite."
        with self._still():
            self.possible = self._alone(few)
            self._pool, self._conclusive = self._company(few, others) if self.possible else (few, False)

    def findings(self, ways: Ways | None = None) -> tuple[Findings, frozenset[str]]:
        """What was found, and the layers that were not used; ``ways`` are the first to try.

        Raise ``ModelError`` if examples are mixed or cannot be told apart.
        """
        if not self._conclusive and suspects(self._model):
            raise mixing(self._model)
        with self._still():
            company = list(self._gatherings())
        self._refuse_random_mixing(len(company[-1][1]))
        with self._still():
            layout, ways, unused = self._attribution(company, ways or Ways())
        return Findings(layout, ways, self._conclusive), unused

    def _attribution(
        self, company: Sequence[tuple[Any, list[int], Tensor]], ways: Ways
    ) -> tuple[Layout, Ways, frozenset[str]]:
        """The first way to serve the parameters that attributes every gradient rightly, from the cheapest on."""
        support, everything = Support.all(self._model), frozenset(self._names)
        tried: set[Ways] = set()
        why: Exception | None = None
        fewest = everything
        wrong: frozenset[str] = everything
        while ways not in tried:
            tried.add(ways)
            layout = None
            wrong = everything
            try:
                layout = self._layout(support, ways)
                instrumentation = Instrumentation(self._model, support, ways)
                wrong = self._escaped(instrumentation, layout, company)
                if not wrong:
                    return layout, ways, instrumentation.unused()
            except _Mixing:
                raise mixing(self._model) from None
            except _Unattributed:
                pass
            except Exception as error:
                # A layer is used in a way that its rule cannot follow, whatever breaks first.
                if is_out_of_memory(error):
                    raise
                why = why or (None if ways.escaped else error)
            fewest = min(fewest, wrong, key=len)
            ways = self._next(ways, layout, wrong)
        raise unattributable(self._model, sorted(fewest), why)

    def _next(self, ways: Ways, layout: Layout | None, wrong: frozenset[str]) -> Ways:
        """The next way to try: rules are given up for as few layers as may be, the whole model last."""
        everything = frozenset(self._names)
        shared = frozenset() if layout is None else _owned(self._model, layout.shared())
        if not shared <= ways.unruled | ways.escaped:
            return Ways(ways.followed, ways.unruled | shared)
        if not ways.followed:
            return Ways(everything, ways.unruled)
        if not ways.escaped and not wrong <= ways.unruled:
            return Ways(everything, ways.unruled | _with_siblings(self._model, wrong))
        if not ways.escaped and ways.unruled != everything:
            return Ways(everything, everything)
        return Ways(escaped=everything)

    # What examples give alone -------------------------------------------------------------------------------------

    def _alone(self, few: Any) -> bool:
        """The losses and the weighted sum of the gradients of examples that are in no company but their own."""
        self._values: list[Tensor] = []
        self._expected: Gradients = []
        self._doubts: list[Doubts] = []
        try:
            for place in range(self._targets):
                # Twice, for torch 2.13 has a wrong gradient of instance_norm for a batch of one.
                one = torch.tensor([float(self._weights[place]), 0.0], dtype=torch.float64)
                pair = chosen_examples(few, [place, place], self._views)
                among, found = gradients_of(self._losses, pair, self._wanted, one)
                if not all(bool(x.isfinite().all()) for x in (among, *found)):
                    return False
                self._values.append(among[0])
                self._doubts.append(
                    doubts_of(self._losses, pair, self._wanted, one, self._precision, (among, found))
                )
                # Added up in tensors of their own: two parameters may have one gradient, the same object.
                self._expected = self._expected or [torch.zeros_like(gradient) for gradient in found]
                for total, gradient in zip(self._expected, found, strict=True):
                    total.add_(gradient)
                del found
        except ModelError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return False
        try:
            single = [
                values_of(self._losses, chosen_examples(few, [place], self._views))[0]
                for place in range(self._targets)
            ]
        except (ValueError, RuntimeError, IndexError) as error:
            if is_out_of_memory(error) or isinstance(error, ModelError):
                raise
            raise mixing(self._model) from error
        if not all(self._same_loss(place, value) for place, value in enumerate(single)):
            raise mixing(self._model)
        return True

    def _same_loss(self, place: int, value: Tensor, other: Tensor | None = None) -> bool:
        """Whether a loss of an example is what it is alone, or what another is."""
        expected = self._values[place] if other is None else other
        return same(value, expected, self._precision.loss, self._doubts[place].losses[0])

    # Company --------------------------------------------------------------------------------------------------------

    def _company(self, few: Any, others: Any) -> tuple[Any, bool]:
        """The examples, others, and changed copies, as far as they have finite gradients; and whether any differs.

        An infinite input may have a finite loss, but nothing can be attributed beside it: zero times infinity is none.
        """
        pool, different = [few], differ(few, self._views)
        rows = batches.rows(few)
        whole = joined([few, others])
        for other in (
            others,
            *(batches.part(changed(whole, change), 0, rows) for change in CHANGES.values()),
        ):
            if equal(other, few):
                continue
            try:
                finite = all_finite(self._model, self._losses, other, self._views)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                continue  # not a batch that this model takes
            if finite:
                pool.append(other)
                different = True
        return joined(pool), different

    def _gatherings(self) -> Iterator[tuple[Any, list[int], Tensor]]:
        """Batches of several sizes, up to what memory suffices for."""
        for size in COMPANY:
            try:
                yield self._compose(size)
            except (MemoryError, RuntimeError) as error:
                if size <= SIZES[1] or not is_out_of_memory(error):
                    raise
                return

    def _compose(self, size: int) -> tuple[Any, list[int], Tensor]:
        """A batch of some size: examples among company in random order; whose each row is, −1 for company; weights.

        A batch that the model does not take, for its order or its contents, is replaced by one of examples alone.
        """
        kinds = batches.rows(self._pool) // self._views // self._targets
        members = list(range(min(self._targets, size if size >= self._targets else size - 1)))
        # Of every kind of company one, then again from the first; the kinds come in random order.
        order = self._choice.sample(range(1, kinds), kinds - 1) or [0]
        members += [
            order[place % len(order)] * self._targets + self._choice.randrange(self._targets)
            for place in range(size - len(members))
        ]
        self._choice.shuffle(members)
        try:
            values = values_of(self._losses, self._batch(members))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            members = self._own_kind(size)
            values = values_of(self._losses, self._batch(members))
        for value, member in zip(values, members, strict=True):
            if member < self._targets and not self._same_loss(member, value):
                raise mixing(self._model)
        # Of the weighted sum every example has its whole share, divided among its copies; company has none.
        counts = {member: members.count(member) for member in members}
        weights = [float(self._weights[m]) / counts[m] if m < self._targets else 0.0 for m in members]
        places = [member if member < self._targets else -1 for member in members]
        return self._batch(members), places, torch.tensor(weights, dtype=torch.float64)

    def _own_kind(self, size: int) -> list[int]:
        """The examples in their own order, each as often as it takes."""
        return sorted(place % self._targets for place in range(size))

    def _batch(self, members: Sequence[int]) -> Any:
        return chosen_examples(self._pool, members, self._views)

    def _refuse_random_mixing(self, size: int) -> None:
        """Change the company of each example, with random numbers as they come: its loss must not notice.

        Only dropout is stilled: how much of it is drawn may depend on the length of the others.
        """
        everyone = batches.rows(self._pool) // self._views
        base = self._own_kind(size)
        for number in range(ROUNDS):
            # Other draws in every round: those that leave an example as it is tell nothing.
            reseed(self._choice.randrange(2**31))
            losses, state = steady(self._model, self._drawing), random_state()
            with Stilled(only_dropout=True):
                among = values_of(losses, self._batch(base))
                if number and not drawn_since(state):
                    return
                target = number % self._targets
                place = base.index(target)
                strangers = [(member + everyone // 2) % everyone for member in base]
                strangers[place] = target
                for members in (strangers, [target] * size):
                    try:
                        value = values_of(losses, self._batch(members))[place]
                    except Exception as error:
                        if is_out_of_memory(error):
                            raise
                        continue
                    if not self._same_loss(target, value, among[place]):
                        raise mixing(self._model)

    # Attribution ----------------------------------------------------------------------------------------------------

    def _layout(self, support: Support, ways: Ways) -> Layout:
        instrumentation = Instrumentation(self._model, support, ways)
        seen = []
        for size in SIZES:
            # The same examples in both, so that what they contain does not decide about the path of a pass.
            members = sorted(place % min(2, self._targets) for place in range(size))
            seen.append(shapes(instrumentation, self._losses, self._batch(members), size))
        return Layout.compare(seen[0], seen[1], SIZES)

    def _escaped(
        self,
        instrumentation: Instrumentation,
        layout: Layout,
        company: Sequence[tuple[Any, list[int], Tensor]],
    ) -> frozenset[str]:
        """Names of the parameters whose gradients are attributed to examples otherwise than they are alone."""
        wrong: set[str] = set()
        for batch, places, weights in company:
            if not set(range(self._targets)) <= set(places):
                continue
            try:
                watched, found = _attributed(
                    instrumentation, layout, self._losses, batch, len(places), self._views, weights
                )
            except Unseen:  # among other examples a pass may take another path
                more = learnt(instrumentation, self._losses, batch, self._views)
                layout.__dict__.update(layout.joined(more).__dict__)
                watched, found = _attributed(
                    instrumentation, layout, self._losses, batch, len(places), self._views, weights
                )
            for value, place in zip(watched, places, strict=True):
                if place >= 0 and not self._same_loss(place, value):
                    raise _Unattributed
            attributed = [found[id(p)] for p in self._wanted]
            doubts = Doubts.added(self._doubts)
            here = differing(self._names, self._expected, attributed, self._precision, doubts)
            if here - wrong:
                _, plain = gradients_of(self._losses, batch, self._wanted, weights)
                if differing(self._names, self._expected, plain, self._precision, doubts):
                    raise _Mixing
            wrong |= here
            del found, attributed
        return frozenset(wrong)


def _with_siblings(model: nn.Module, escaped: frozenset[str]) -> frozenset[str]:
    """Names of parameters, with all that share a watched layer with one of them: a layer is served in one way."""
    names, parameters = trained(model)
    name_of = {id(p): name for name, p in zip(names, parameters, strict=True)}
    layers = []
    for module in model.modules():
        rule = find(module)
        own = module.parameters(recurse=rule is not None and rule.owns_children)
        layers.append(frozenset(name_of[id(p)] for p in own if id(p) in name_of))
    while more := frozenset().union(*(layer for layer in layers if layer & escaped)) - escaped:
        escaped |= more
    return escaped


def _owned(model: nn.Module, layers: frozenset[str]) -> frozenset[str]:
    """Names of the trained parameters that the named layers own."""
    names = {id(p): name for name, p in zip(*trained(model), strict=True)}
    found = set()
    for layer in layers & {name for name, _ in model.named_modules()}:
        module = model.get_submodule(layer)
        rule = find(module)
        own = module.parameters(recurse=rule is not None and rule.owns_children)
        found |= {names[id(p)] for p in own if id(p) in names}
    return frozenset(found)


class _Unattributed(Exception):
    """The watched pass gives other losses than the plain one."""


class _Mixing(Exception):
    """The gradient of an example's loss depends on its company, though the loss does not."""


def shapes(instrumentation: Instrumentation, losses: Losses, batch: Any, examples: int) -> Shapes:
    """The input shapes of every watched layer in one pass over a batch."""
    seen = Shapes()
    rows = batches.rows(batch)
    recorder = Recorder(instrumentation.blocks, examples, rows, _device(instrumentation.model))
    with torch.enable_grad(), instrumentation.watching(recorder, seen):
        losses(batch)
    return seen


def learnt(instrumentation: Instrumentation, losses: Losses, batch: Any, views: int) -> Layout:
    """The layout of a pass over just this batch, from it and from one with its first example twice."""
    count = batches.rows(batch) // views
    sizes = (count, count + 1)
    more = chosen_examples(batch, [0, *range(count)], views)
    small, large = (shapes(instrumentation, losses, b, n) for b, n in zip((batch, more), sizes, strict=True))
    return Layout.compare(small, large, sizes)


def _attributed(
    instrumentation: Instrumentation,
    layout: Layout,
    losses: Losses,
    batch: Any,
    examples: int,
    views: int,
    weights: Tensor,
) -> tuple[Tensor, dict[int, Tensor]]:
    """The losses of a watched pass, and for every parameter the weighted sum of the gradients it attributes."""
    recorder = Recorder(instrumentation.blocks, examples, examples * views, _device(instrumentation.model))
    with torch.enable_grad(), instrumentation.watching(recorder, layout):
        watched = losses(batch)
        if watched.requires_grad:
            watched.sum().backward()  # type: ignore[no-untyped-call]
        recorder.finish()
    parameters = {id(p): p for p in instrumentation.model.parameters()}
    found = {}
    with torch.no_grad():
        for key in instrumentation.names:
            parameter, use = parameters[key], recorder.uses.pop(key, None)
            found[key] = (
                torch.zeros_like(parameter)
                if use is None
                else use.weighted_sum(
                    weights.to(parameter.device, parameter.dtype), instrumentation.blocks[key]
                )
            )
    return watched.detach(), found


def values_of(losses: Losses, batch: Any) -> Tensor:
    """The losses of a batch, without a graph unless the model needs one."""
    try:
        with torch.no_grad():
            return losses(batch).detach()
    except RuntimeError as error:
        if _NO_GRAPH not in str(error):
            raise
    with torch.enable_grad():  # a model that differentiates something itself
        return losses(batch).detach()


def _attempts(
    draw: torch.Generator, reduced_precision: bool
) -> Iterator[tuple[torch.Generator | None, Precision]]:
    """Conditions to look under, best first: double precision and moved weights, where the model takes them."""
    coarse = REDUCED if reduced_precision else SINGLE
    yield draw, DOUBLE
    yield None, DOUBLE
    yield draw, coarse
    yield None, coarse


def trained(model: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    """The trained parameters and their names."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [name for name, _ in named], [p for _, p in named]


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def all_finite(model: nn.Module, losses: Losses, batch: Any, views: int) -> bool:
    """Whether the losses of a batch and their gradient are finite."""
    _, wanted = trained(model)
    weights = torch.ones(batches.rows(batch) // views, dtype=torch.float64)
    values, found = gradients_of(losses, batch, wanted, weights)
    return all(bool(t.isfinite().all()) for t in (values, *found))


def finite_examples(model: nn.Module, losses: Losses, batch: Any, views: int) -> Any | None:
    """The examples that have a finite gradient, tried one by one."""
    finite = [
        example
        for example in range(batches.rows(batch) // views)
        if all_finite(model, losses, chosen_examples(batch, [example] * SIZES[0], views), views)
    ]
    return chosen_examples(batch, finite, views) if finite else None


def refuse_writes(model: nn.Module, losses: Losses, batch: Any) -> None:
    """Refuse a model whose forward pass changes its buffers or parameters."""
    try:
        with Footprint(model).kept(refuse=True):
            values_of(losses, batch)
    except ModelError:
        if suspects(model):
            raise mixing(model) from None
        raise
