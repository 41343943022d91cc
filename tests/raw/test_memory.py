"""Memory that runs out inside a chunk: the same sum, the same noise, once."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raw.models import Attention, Network, Positions, Recurrent, Token
from tacit import PrivateStep, SeededNoise, Support, TacitError
from tacit.losses import cross_entropy
from tacit.raw import agreement, clipping, inspector
from tacit.raw.clipping import Clipper
from tacit.raw.gradients import scratch
from tacit.raw.gradients.linear import Linear
from tacit.raw.inspector import Inspections
from tacit.raw.memory import is_out_of_memory
from tacit.raw.recorder import _over_positions
from tacit.support import Block
from training.small import data, flat, network, sgd

Batch = tuple[Tensor, Tensor]
EXHAUSTED: list[Exception] = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to ..."
    ),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8000 bytes."),
]


@pytest.fixture
def batch() -> Batch:
    images, targets = data().tensors
    return images[:24], targets[:24]


def limited(most: int, error: Exception) -> Callable[[nn.Module, Batch], Tensor]:
    """A loss for which memory suffices with at most so many rows at once."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        if len(batch[0]) > most:
            raise error
        return cross_entropy(model, batch)

    return loss


def summed(clipper: Clipper, batch: Batch, support: Support) -> dict[str, Tensor]:
    return clipper.clipped_sum([batch], support, 0.3).values


@pytest.mark.parametrize("error", EXHAUSTED, ids=lambda e: type(e).__name__)
def test_the_clipped_sum_is_the_same(batch: Batch, error: Exception) -> None:
    model = network()
    support = Support.random(model, ratio=0.4, seed=1)
    expected = summed(Clipper(model, cross_entropy), batch, support)
    clipper = Clipper(model, limited(7, error))
    with pytest.warns(UserWarning, match="Memory ran out") as told:
        found = summed(clipper, batch, support)
    # How many examples there were is nobody's business: it may be the size of the batch that was drawn.
    assert not any(character.isdigit() for warning in told for character in str(warning.message))
    assert all(torch.allclose(found[name], expected[name], atol=1e-12) for name in expected)
    # What fitted is remembered: no second attempt with too many.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = summed(clipper, batch, support)
    assert all(torch.allclose(again[name], expected[name], atol=1e-12) for name in expected)


def test_views_of_an_example_stay_together(batch: Batch) -> None:
    model = network()
    support = Support.all(model)
    expected = summed(Clipper(model, cross_entropy, views=3), batch, support)
    clipper = Clipper(model, limited(10, MemoryError()), views=3)
    with pytest.warns(UserWarning, match="Memory ran out"):
        found = summed(clipper, batch, support)
    assert all(torch.allclose(found[name], expected[name], atol=1e-12) for name in expected)


def test_memory_that_runs_out_between_two_parameters_leaves_nothing_half_added(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last layers' sums are formed before the first one's; the failure comes between them."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    support = Support.all(model)
    clipper = Clipper(model, cross_entropy)
    expected = summed(clipper, batch, support)
    weighted_sum, calls = Linear.weighted_sum, iter(range(100))

    def second_fails(self: Linear, *args: Any) -> Tensor:
        if next(calls) == 1:
            raise MemoryError
        return weighted_sum(self, *args)

    monkeypatch.setattr(Linear, "weighted_sum", second_fails)
    monkeypatch.setattr(Inspections, "due", lambda self, changed=False: False)
    with pytest.warns(UserWarning, match="Memory ran out"):
        found = summed(clipper, batch, support)
    assert all(torch.allclose(found[name], expected[name], atol=1e-12) for name in expected)


def test_noise_is_added_once(batch: Batch) -> None:
    def stepped(loss: Callable[[nn.Module, Batch], Tensor]) -> tuple[Tensor, int]:
        model = network()
        step = PrivateStep(
            model,
            loss,
            support=Support.all(model),
            clip_norm=0.3,
            noise_multiplier=2.0,
            batch_size=24,
            optimizer=sgd,
            noise=SeededNoise(5),
        )
        step.step(batch)
        return flat(model), len(step.ledger)

    expected, _ = stepped(cross_entropy)
    with pytest.warns(UserWarning, match="Memory ran out"):
        found, charges = stepped(limited(5, MemoryError()))
    assert charges == 1
    assert torch.allclose(found, expected, atol=1e-12)


def test_one_example_that_does_not_fit_is_refused(batch: Batch) -> None:
    model = network()

    def loss(model: nn.Module, given: Batch) -> Tensor:
        if len(given[0]) in (1, 3, 6, 12, 24) and torch.is_grad_enabled():
            raise MemoryError("no memory at all")
        return cross_entropy(model, given)

    with pytest.raises(TacitError, match="gradient of a single example"):
        summed(Clipper(model, loss), batch, Support.all(model))


def test_a_probe_that_does_not_fit_is_refused_in_a_sentence(batch: Batch) -> None:
    clipper = Clipper(network(), limited(2, MemoryError("no memory for three")))
    with pytest.raises(TacitError, match="gradient of a single example"):
        clipper.norms(batch, Support.all(clipper.model))


def test_other_errors_are_not_mistaken(batch: Batch) -> None:
    model = network()
    with pytest.raises(RuntimeError, match="broken"):
        summed(Clipper(model, limited(0, RuntimeError("broken"))), batch, Support.all(model))
    assert not is_out_of_memory(ValueError("out of memory"))


SIZES: list[int] = []
LARGEST_OUTPUT = 4 * 3 * 3 * 8  # the first convolution's, for one example, in bytes


def counted(model: nn.Module, batch: Batch) -> Tensor:
    SIZES.append(len(batch[0]))
    return cross_entropy(model, batch)


def test_a_chunk_is_cut_so_that_layer_outputs_stay_small_and_the_sum_is_the_same(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(1, nn.Dropout(0.3))
    support = Support.all(model)
    torch.manual_seed(3)
    whole = summed(Clipper(model, cross_entropy), batch, support)
    monkeypatch.setattr(clipping, "LARGEST", 10 * LARGEST_OUTPUT)
    clipper = Clipper(model.eval(), counted, inspections=Inspections(0))  # looks at steps that are known
    cut = summed(clipper, batch, support)
    del SIZES[:]
    again = summed(clipper, batch, support)
    assert SIZES == [8, 8, 8]
    expected = summed(Clipper(model, cross_entropy), batch, support)
    assert all(torch.equal(cut[name], again[name]) for name in cut)
    assert all(torch.allclose(cut[name], expected[name], atol=1e-12) for name in cut)
    # Finding the size draws nothing: with pieces as large as the batch, dropout is as before.
    monkeypatch.setattr(clipping, "LARGEST", 24 * LARGEST_OUTPUT)
    torch.manual_seed(3)
    drawn = summed(Clipper(model.train(), cross_entropy), batch, support)
    assert all(torch.equal(drawn[name], whole[name]) for name in whole)


def test_frozen_layers_with_large_outputs_decide_the_pieces_too(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(1)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(f"{len(model) - 1}."))
    monkeypatch.setattr(clipping, "LARGEST", 10 * LARGEST_OUTPUT)
    clipper = Clipper(model, counted, inspections=Inspections(0))
    summed(clipper, batch, Support.all(model))
    del SIZES[:]
    summed(clipper, batch, Support.all(model))
    assert SIZES == [8, 8, 8]


@pytest.mark.parametrize(
    ("widest", "coordinates", "expected"),
    [
        (1 << 20, 1_000, 13),
        (1 << 20, 1_900_000, 14),
        (1 << 20, 1_000_000_000, 16),
        (1 << 17, 1_000_000_000, 104),
        (8 << 20, 1_000_000_000, 7),
        (1 << 30, 1_000, 1),
        (1 << 14, 10_000, 128),
        (1 << 10, 10_000, 2048),
        (1 << 14, 100_000, 832),
        (1, 1_000, 1 << 13),
    ],
)
def test_pieces_grow_with_the_sum_that_they_add_to(widest: int, coordinates: int, expected: int) -> None:
    assert clipping._most_of(widest, Support({"weight": Block.all((coordinates,))})) == expected


def test_a_later_look_without_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 2)
    batch = torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)
    clipper = Clipper(model, cross_entropy, inspections=Inspections(0))
    clipper.clipped_sum([batch], Support.all(model), 1.0)

    def probe(*args: object, **options: object) -> None:
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 80000000 bytes."
        )

    monkeypatch.setattr(inspector, "probe", probe)

    def steps() -> None:
        for _ in range(10):
            clipper.clipped_sum([batch], Support.all(model), 1.0)

    with pytest.raises(TacitError, match="Memory does not suffice for another look"):
        steps()


REALLY = """
import resource, warnings, torch
from torch import nn
from tacit import Support
from tacit.losses import cross_entropy
from tacit.raw import agreement, clipping, inspector
from tacit.raw.clipping import Clipper
from tacit.raw.inspector import Inspections

clipping.LARGEST = clipping.ENOUGH_BYTES = 1 << 40  # pieces as large as the chunk, so that memory does run out
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 200), nn.Tanh(), nn.Linear(200, 50_000), nn.Tanh(), nn.Linear(50_000, 2))
support = Support.of_rows(model, {"0.weight": torch.arange(200)})
batch = torch.randn(1024, 16), torch.randint(0, 2, (1024,))
clipper = Clipper(model, cross_entropy, inspections=Inspections(later=False))  # a look needs more than is left
small = [tuple(t[start : start + 64] for t in batch) for start in range(0, 1024, 64)]
expected = clipper.clipped_sum(small, support, 1.0).values["0.weight"]
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 300_000_000,) * 2)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found = clipper.clipped_sum([batch], support, 1.0).values["0.weight"]
assert torch.allclose(found, expected, atol=1e-4), (found - expected).abs().max()
print(len(said), said[0].message if said else "")
"""


def test_memory_that_really_runs_out() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REALLY],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 1
    assert "Memory ran out" in done.stdout


def test_a_look_leaves_no_scratch_memory_in_double_precision_behind() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 3))
    batch = torch.randn(24, 2, 8, 8), torch.randint(0, 3, (24,))
    scratch.forget()
    Clipper(model, cross_entropy).clipped_sum([batch], Support.all(model), 1.0)
    assert not [key for key in scratch._buffers.flat if key[1] is torch.float64]


def test_a_bias_of_single_positions_shares_the_memory_of_its_output_gradient() -> None:
    b = torch.randn(5, 1, 7)
    assert _over_positions(b).data_ptr() == b.data_ptr()
    assert torch.equal(_over_positions(b), b.sum(1))
    assert torch.equal(_over_positions(b.view(1, 5, 7)), b.view(1, 5, 7).sum(1))


def test_a_large_difference_is_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = torch.randn(2, 37, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = float((one - other).norm())
    for at_once in (1, 7, 60, 1000):
        monkeypatch.setattr(agreement, "AT_ONCE", at_once)
        assert agreement._distance(one, other) == pytest.approx(expected, rel=1e-12)
    other[3, 2] = float("nan")
    assert not agreement._distance(one, other) <= 1e300


def _layers() -> list[tuple[nn.Module, tuple[int, ...]]]:
    """One of every kind that has its own way to be watched, with the shape of its input."""
    return [
        (nn.Linear(4, 4), (4,)),
        (nn.LayerNorm(4), (4,)),
        (nn.RMSNorm(4), (4,)),
        (nn.BatchNorm1d(4).eval(), (4,)),
        (nn.GRUCell(4, 4), (4,)),
        (Recurrent(nn.LSTM(4, 4)), (3, 4)),
        (Attention(4, 2, cross=True, batch_first=True), (3, 4)),
        (nn.TransformerEncoderLayer(4, 2, 3, dropout=0.0, batch_first=True), (3, 4)),
        (Token(4, 3), (3, 4)),
        (Positions(4, 3), (3, 4)),
        (nn.Conv2d(4, 4, 3), (4, 5, 5)),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", groups=4), (4, 5, 5)),
        (nn.ConvTranspose2d(4, 4, 3), (4, 5, 5)),
        (nn.GroupNorm(2, 4), (4, 5, 5)),
        (nn.InstanceNorm2d(4, affine=True), (4, 5, 5)),
    ]


@pytest.mark.filterwarnings("ignore:layers.1 .Token. has no rule")
@pytest.mark.parametrize("which", range(len(_layers())), ids=[type(layer).__name__ for layer, _ in _layers()])
def test_steps_and_looks_leave_nothing_behind(which: int) -> None:
    """A tensor that the graph of a pass keeps, and that keeps the graph, is garbage which Python does not see."""
    layer, shape = _layers()[which]
    first = nn.Conv2d(4, 4, 1) if len(shape) == 3 else nn.Linear(4, 4)
    model = Network([first, layer], [0, 1], 4, len(shape) if len(shape) < 3 else 1)
    batch = torch.randn(4, *shape), torch.randint(3, (4,))
    clipper = Clipper(model, cross_entropy, inspections=Inspections(0))

    def living(steps: int) -> int:
        for _ in range(steps):
            clipper.clipped_sum([batch], Support.all(model), 1.0)
        gc.collect()
        return sum(issubclass(type(found), Tensor) for found in gc.get_objects())

    assert living(3) == living(36)
