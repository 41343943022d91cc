"""What a forward pass writes does not stay: refused at the start, or taken back after every pass."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.losses import cross_entropy
from tacit.raw.clipping import Clipper
from tacit.raw.footprint import Footprint
from tacit.support import Support

RAW = 1234.5


class Model(nn.Module):
    """A linear model whose forward pass does something besides."""

    def __init__(self, besides: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.besides = besides
        self.spare = nn.Linear(4, 4)
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.plain = torch.zeros(3)
        self.number = 0.0
        self.history: list[Any] = []
        self.filled: list[Any] = [0]
        self.table: dict[str, Any] = {"nested": [torch.zeros(1)]}
        self.queue: deque[Any] = deque([1], maxlen=3)
        self.words = {"a"}
        self.array = np.zeros(3)
        self.thing = Thing()

    def forward(self, x: Tensor) -> Tensor:
        self.besides(self, x.detach())
        return self.head(self.inner(x))


class Thing:
    """Something that is no module."""

    def __init__(self) -> None:
        self.seen: Any = None


def batch(rows: int = 6, largest: float = RAW) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator)
    x[rows // 2, 0] = largest
    return x, torch.randint(3, (rows,), generator=generator)


def holds_raw(thing: Any, seen: set[int] | None = None) -> bool:
    """Whether a value near the raw one can be found anywhere below an object."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | str | bytes):
        return False
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        return bool((thing.detach().double() - RAW).abs().lt(1).any()) or holds_raw(vars(thing), seen)
    if isinstance(thing, np.ndarray):
        return bool((np.abs(thing - RAW) < 1).any())
    if isinstance(thing, int | float):
        return abs(thing - RAW) < 1
    if isinstance(thing, dict):
        return any(holds_raw(part, seen) for part in (*thing, *thing.values()))
    if isinstance(thing, list | tuple | set | deque):
        return any(holds_raw(part, seen) for part in thing)
    if isinstance(thing, partial):
        return holds_raw((thing.args, thing.keywords), seen)
    closure = getattr(thing, "__closure__", None) or ()
    return any(holds_raw(cell.cell_contents, seen) for cell in closure) or holds_raw(
        getattr(thing, "__dict__", {}), seen
    )


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def in_place(model: Any, x: Tensor) -> None:
    model.largest.copy_(torch.maximum(model.largest, x.max()))


def assigned(model: Any, x: Tensor) -> None:
    model.largest = torch.maximum(model.largest, x.max())


def through_data(model: Any, x: Tensor) -> None:
    model.largest.data.fill_(x.max())


def through_numpy(model: Any, x: Tensor) -> None:
    model.largest.numpy().fill(float(x.max()))


def swapped_data(model: Any, x: Tensor) -> None:
    model.largest.data = x.max()


def registered(model: Any, x: Tensor) -> None:
    model.register_buffer("largest", x.max())


def another(model: Any, x: Tensor) -> None:
    model.register_buffer("new", x.max())


BUFFERS = [in_place, assigned, through_data, through_numpy, swapped_data, registered]


@pytest.mark.parametrize("write", [*BUFFERS, another])
def test_a_buffer_of_the_state_that_follows_the_data_is_refused_by_name(write: Any) -> None:
    model = Model(write)
    named = "'new'" if write is another else "'largest'"
    with pytest.raises(ModelError, match=rf"buffer {named} changes in a forward pass.*\.eval\(\)"):
        Clipper(model, cross_entropy).clipped_sum([batch()], Support.all(model), 1.0)
    assert not holds_raw(model)
    assert float(model.largest) == 0


def test_a_maximum_that_stays_the_same_at_first_is_refused_all_the_same() -> None:
    model = Model(assigned)
    model.largest.fill_(1e9)
    with pytest.raises(ModelError, match="buffer 'largest' changes"):
        Clipper(model, cross_entropy).clipped_sum([batch()], Support.all(model), 1.0)


@pytest.mark.parametrize("write", BUFFERS)
@pytest.mark.usefixtures("quiet")
def test_a_buffer_that_is_written_only_later_is_put_back(write: Any) -> None:
    model = Model(lambda model, x: write(model, x) if x.max() > 1000 else None)
    clipper = Clipper(model, cross_entropy)
    clipper.clipped_sum([batch(largest=0.0)], Support.all(model), 1.0)
    for _ in range(2):
        clipper.clipped_sum([batch(largest=0.0), batch(), batch(largest=1.0)], Support.all(model), 1.0)
        assert float(model.largest) == 0
        assert not holds_raw(model)


ATTRIBUTES: dict[str, Callable[[Any, Tensor], None]] = {
    "a tensor, in place": lambda m, x: m.plain.fill_(x.max()),
    "a tensor, anew": lambda m, x: setattr(m, "plain", x.max()),
    "a tensor, through data": lambda m, x: m.plain.data.fill_(x.max()),
    "a cache that is no part of the state": lambda m, x: m.cache.fill_(x.max()),
    "a cache, anew": lambda m, x: setattr(m, "cache", x.max()),
    "a number": lambda m, x: setattr(m, "number", float(x.max())),
    "a new attribute": lambda m, x: setattr(m, "found", x.max()),
    "an attribute of a layer": lambda m, x: setattr(m.inner, "last", x),
    "an empty list": lambda m, x: m.history.append(x),
    "a list": lambda m, x: m.filled.append(float(x.max())),
    "an entry of a list": lambda m, x: m.filled.__setitem__(0, float(x.max())),
    "a nested tensor": lambda m, x: m.table["nested"][0].fill_(x.max()),
    "a dictionary": lambda m, x: m.table.__setitem__(float(x.max()), None),
    "a queue": lambda m, x: m.queue.append(float(x.max())),
    "a set": lambda m, x: m.words.add(float(x.max())),
    "an array": lambda m, x: m.array.fill(float(x.max())),
    "an object": lambda m, x: setattr(m.thing, "seen", x),
    "an attribute of a parameter": lambda m, x: setattr(m.inner.weight, "last", x),
    "a hook": lambda m, x: m.inner.register_forward_hook(lambda *_, kept=x: None) and None,
    "a submodule": lambda m, x: m.add_module("extra", _holding(x)),
}


def _holding(x: Tensor) -> nn.Module:
    module = nn.Identity()
    module.kept = x  # type: ignore[assignment]
    return module


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.usefixtures("quiet")
def test_an_attribute_is_put_back_after_every_pass(name: str) -> None:
    model = Model(ATTRIBUTES[name])
    before = set(vars(model))
    plain = model.plain
    Clipper(model, cross_entropy).clipped_sum([batch(), batch(3)], Support.all(model), 1.0)
    assert not holds_raw(model)
    assert set(vars(model)) == before
    assert model.plain is plain
    assert list(model.state_dict()) == list(Model(ATTRIBUTES[name]).state_dict())


def test_nothing_goes_from_one_chunk_to_the_next() -> None:
    class Stateful(Model):
        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = super().forward(x) * (1.0 + getattr(self, "carried", 0.0))
            self.carried = 1.0
            return output

    torch.manual_seed(0)
    model = Stateful(lambda *_: None)
    clipper = Clipper(model, cross_entropy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apart = [clipper.clipped_sum([part], Support.all(model), 1.0) for part in (batch(), batch(4)) * 8]
        both = clipper.clipped_sum([batch(), batch(4)], Support.all(model), 1.0)
    for name, value in both.values.items():
        torch.testing.assert_close(value, apart[0].values[name] + apart[1].values[name])


@pytest.mark.usefixtures("quiet")
def test_what_the_loss_keeps_for_itself_is_put_back() -> None:
    kept: list[Any] = []
    best = 0.0

    def loss(model: nn.Module, given: Any) -> Tensor:
        nonlocal best
        kept.append(given)
        best = max(best, float(given[0].max()))
        return cross_entropy(model, given)

    class Loss:
        def __init__(self) -> None:
            self.worst: Any = None

        def __call__(self, model: nn.Module, given: Any) -> Tensor:
            self.worst = given[0].max()
            return cross_entropy(model, given)

        def method(self, model: nn.Module, given: Any) -> Tensor:
            return self(model, given)

    held = Loss()
    model = Model(lambda *_: None)
    for each in (loss, held, held.method, partial(Loss.__call__, held)):
        Clipper(model, each).clipped_sum([batch()], Support.all(model), 1.0)
    assert kept == []
    assert best == 0.0
    assert held.worst is None


@pytest.mark.usefixtures("quiet")
def test_what_an_augmentation_keeps_does_not_reach_the_next_chunk() -> None:
    class Centred:
        def __init__(self) -> None:
            self.total = torch.zeros(4)

        def __call__(self, chunk: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            x = chunk[0] - self.total
            self.total += chunk[0].sum(0)
            return x, chunk[1]

    model, augment = Model(lambda *_: None), Centred()
    clipper = Clipper(model, cross_entropy)
    clipper.footprint.include(augment=augment)
    chunks = [batch(), batch(4)]
    found = clipper.clipped_sum(map(augment, chunks), Support.all(model), 1.0)
    expected = Clipper(model, cross_entropy).clipped_sum(chunks, Support.all(model), 1.0)
    for name, value in found.values.items():
        torch.testing.assert_close(value, expected.values[name])
    assert not augment.total.any()


def test_what_is_taken_back_is_said_once_and_by_name() -> None:
    model = Model(ATTRIBUTES["an attribute of a layer"])
    clipper = Clipper(model, cross_entropy)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            clipper.clipped_sum([batch(), batch()], Support.all(model), 1.0)
    assert len(told) == 1
    assert "writes to inner.last; what it wrote is taken back" in str(told[0].message)
    assert "1234" not in str(told[0].message)


@pytest.mark.parametrize(
    "write",
    [
        lambda m, x: m.spare.bias.data.fill_(x.max()),
        lambda m, x: setattr(m.spare.bias, "data", x.max().expand(4).clone()),
        lambda m, x: setattr(m.spare, "bias", nn.Parameter(x.max().expand(4).clone())),
    ],
)
def test_a_parameter_that_is_written_in_any_way_is_refused(write: Any) -> None:
    model = Model(write)
    with pytest.raises(ModelError, match=r"parameter 'spare\.bias' is changed by the forward pass"):
        Clipper(model, cross_entropy).clipped_sum([batch()], Support.all(model), 1.0)


WRITING: dict[str, bool] = {}


def test_a_parameter_that_is_written_only_later_is_refused_before_anything_is_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(model: Any, x: Tensor) -> None:
        if WRITING:
            with torch.no_grad():
                model.inner.bias.fill_(x.max())

    model = Model(write)
    clipper = Clipper(model, cross_entropy)
    clipper.clipped_sum([batch(largest=0.0)], Support.all(model), 1.0)
    monkeypatch.setitem(WRITING, "now", True)
    with pytest.raises(ModelError, match=r"parameter 'inner\.bias' is changed by the forward pass"):
        clipper.clipped_sum([batch()], Support.all(model), 1.0)


def test_what_people_change_between_steps_stays_changed() -> None:
    model = Model(lambda *_: None)
    clipper = Clipper(model, cross_entropy)
    for number in range(3):
        model.number = float(number)
        model.largest.fill_(number)
        model.history.append(number)
        model.thing.seen = torch.full((2,), float(number))
        model.eval() if number % 2 else model.train()
        clipper.clipped_sum([batch()], Support.all(model), 1.0)
        assert model.number == float(model.largest) == float(model.thing.seen[0]) == number
        assert model.history == list(range(number + 1))
        assert model.training is not bool(number % 2)


def test_a_buffer_that_holds_no_number_is_not_taken_for_changed() -> None:
    model = Model(lambda *_: None)
    model.largest.fill_(float("nan"))
    Clipper(model, cross_entropy).clipped_sum([batch()], Support.all(model), 1.0)
    assert bool(model.largest.isnan())


def test_looking_does_not_run_code_of_the_model() -> None:
    class Touchy:
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    model = Model(lambda *_: None)
    model.touchy = Touchy()  # type: ignore[assignment]
    footprint = Footprint(model)
    with footprint.kept():
        F.relu(torch.zeros(1))


@pytest.mark.usefixtures("quiet")
def test_a_failing_pass_leaves_nothing_behind() -> None:
    def fail(model: Any, x: Tensor) -> None:
        model.plain.fill_(x.max())
        model.history.append(x)
        if x.max() > 1000:
            raise ValueError("no")

    model = Model(fail)
    clipper = Clipper(model, cross_entropy)
    with pytest.raises(ValueError, match="no"):
        clipper.clipped_sum([batch()], Support.all(model), 1.0)
    assert not holds_raw(model)
