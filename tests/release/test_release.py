"""The door: charge first, noise once on every active coordinate, divide by the planned size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from release.statistics import looks_like, uncorrelated
from tacit.errors import ArgumentError, LedgerError
from tacit.raw.clipping import ClippedSum
from tacit.release import noise as noise_module
from tacit.release.ledger import MemoryLedger
from tacit.release.ledger_file import Charge
from tacit.release.mechanism import Released, release
from tacit.release.noise import Noise, SecureNoise, SeededNoise
from tacit.support import Support
from tacit.training.step import PrivateStep

SIGMA, CLIP, PLANNED = 1.5, 0.8, 20


def clipped(support: Support, value: float = 0.0) -> ClippedSum:
    values = {name: torch.full(b.compact_shape, value) for name, b in support.items() if b.size}
    dtypes = {name: value.dtype for name, value in values.items()}
    return ClippedSum(values, support, CLIP, CLIP * 1.0001, dtypes)


def charge_for(support: Support, index: int = 0, **changes: Any) -> Charge:
    charge = Charge(index, index, "train", 0.1, SIGMA, CLIP, PLANNED, support.size, True)
    return replace(charge, **changes)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))


def silent_loss(model: nn.Module, batch: Any) -> Tensor:
    """A loss without gradient: what is released is noise alone."""
    return model(batch[0]).sum(1) * 0.0


def private_step(model: nn.Module, support: Support, **changes: Any) -> PrivateStep:
    settings: dict[str, Any] = {
        "support": support,
        "clip_norm": CLIP,
        "noise_multiplier": SIGMA,
        "batch_size": PLANNED,
        "optimizer": lambda named: torch.optim.SGD(named, lr=1.0),
    }
    loss = changes.pop("loss", silent_loss)
    return PrivateStep(model, loss, **{**settings, **changes})


def everything(released: Released) -> Tensor:
    return torch.cat([value.flatten() for value in released.values.values()])


def batch(rows: int = 8) -> tuple[Tensor]:
    return (torch.randn(rows, 100, generator=torch.Generator().manual_seed(0)),)


SOURCES: dict[str, Callable[[], Noise]] = {"secure": SecureNoise, "seeded": lambda: SeededNoise(3)}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("native", [True, False])
def test_released_noise_has_the_planned_deviation_and_no_other(
    source: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(noise_module, "_native", None)
    support = Support.random(network(), ratio=0.6, seed=0)
    noise = SOURCES[source]()
    charge = charge_for(support, secure_noise=noise.secure)
    released = release(clipped(support), charge, MemoryLedger(), noise, batch_size=PLANNED)
    planned = SIGMA * CLIP / PLANNED
    assert released.noise_std == pytest.approx(planned, rel=2e-4)
    assert looks_like(everything(released), planned)
    assert not looks_like(everything(released), planned * 2 / 3)
    assert not looks_like(everything(released), planned * 3 / 2)


def test_every_active_coordinate_is_noised_and_no_other_exists() -> None:
    model = network()
    support = Support.random(model, ratio=0.01, seed=0) | Support.matching(model, ["0.bias"])
    released = release(
        clipped(support), charge_for(support), MemoryLedger(), SecureNoise(), batch_size=PLANNED
    )
    assert everything(released).numel() == support.size
    assert (everything(released) != 0).all()
    assert {n: v.shape for n, v in released.values.items()} == {
        n: torch.Size(b.compact_shape) for n, b in support.items() if b.size
    }


def test_the_divisor_is_the_planned_size() -> None:
    support = Support.all(network())
    charge = charge_for(support, noise_multiplier=0.0)
    released = release(clipped(support, 5.0), charge, MemoryLedger(), SecureNoise(), batch_size=PLANNED)
    assert set(everything(released).tolist()) == {torch.tensor(5.0 / PLANNED).item()}


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_the_divisor_does_not_follow_the_batch(rows: int) -> None:
    model = nn.Linear(3, 1, bias=False)
    step = PrivateStep(
        model,
        lambda m, b: m(b[0])[:, 0],
        support=Support.all(model),
        clip_norm=100.0,
        noise_multiplier=0.0,
        batch_size=10,
        optimizer=lambda named: torch.optim.SGD(named, lr=1.0),
    )
    released = step.step((torch.ones(rows, 3),))
    torch.testing.assert_close(released.values["weight"], torch.full((1, 3), rows / 10))


@pytest.mark.parametrize("chunks", [1, 2, 25])
def test_noise_comes_once_however_many_chunks(chunks: int) -> None:
    model = network()
    released = private_step(model, Support.all(model)).step_over([batch(2)] * chunks)
    assert looks_like(everything(released), SIGMA * CLIP / PLANNED)


def test_an_empty_batch_releases_noise_all_the_same() -> None:
    model = network()
    step = private_step(model, Support.all(model))
    for nothing in (step.step(None), step.step_over([]), step.step_over([batch(0)])):
        assert looks_like(everything(nothing), SIGMA * CLIP / PLANNED)
    assert len(step.ledger.charges) == 3


@pytest.mark.parametrize("source", SOURCES)
def test_noise_is_fresh_in_every_step_and_every_parameter(source: str) -> None:
    model = network()
    step = private_step(model, Support.all(model), noise=SOURCES[source]())
    seen: list[Tensor] = []
    for _ in range(3):
        released = step.step(batch())
        seen += [released.values["0.weight"].clone(), released.values["1.weight"].clone()]
    for i, one in enumerate(seen):
        for other in seen[:i]:
            assert uncorrelated(one, other)


class Recorder:
    """A ledger and a noise source that write down what happens to them, in order."""

    secure = True

    def __init__(self, broken: bool = False) -> None:
        self.events: list[str] = []
        self.broken = broken
        self.charges: tuple[Charge, ...] = ()

    def __len__(self) -> int:
        return len(self.charges)

    def charge(self, charge: Charge) -> None:
        self.events.append("charge")
        if self.broken:
            raise LedgerError("the disk is full")
        self.charges = (*self.charges, charge)

    def begin(self, index: int) -> None:
        self.events.append(f"begin {index}")

    def add(self, values: Tensor, scale: float, factor: float) -> None:
        self.events.append("noise")
        values.mul_(factor)


def test_the_charge_comes_before_the_noise() -> None:
    recorder = Recorder()
    support = Support.all(network())
    release(clipped(support), charge_for(support), recorder, recorder, batch_size=PLANNED)
    assert recorder.events == ["charge", "begin 0", *["noise"] * 4]


def test_nothing_is_released_and_nothing_moves_if_the_charge_fails() -> None:
    support = Support.all(network())
    recorder = Recorder(broken=True)
    total = clipped(support, 5.0)
    with pytest.raises(LedgerError, match="the disk is full"):
        release(total, charge_for(support), recorder, recorder, batch_size=PLANNED)
    assert recorder.events == ["charge"]
    assert all((value == 5.0).all() for value in total.values.values())

    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = private_step(model, support, ledger=recorder, noise=recorder)
    with pytest.raises(LedgerError, match="the disk is full"):
        step.step(batch())
    assert "noise" not in recorder.events
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not step.optimizer.state


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": 0.4}, {"active": 3}, {"batch_size": 21}, {"secure_noise": False}]
)
def test_a_charge_that_does_not_describe_the_release_is_refused(wrong: dict[str, Any]) -> None:
    support = Support.all(network())
    recorder = Recorder()
    with pytest.raises(LedgerError, match="does not describe the release"):
        release(clipped(support), charge_for(support, **wrong), recorder, recorder, batch_size=PLANNED)
    assert recorder.events == []


@pytest.mark.parametrize("size", [0, -3, 2.5])
def test_a_planned_size_that_is_none_is_refused(size: Any) -> None:
    support = Support.all(network())
    with pytest.raises(ArgumentError, match="batch_size must be a whole number"):
        release(clipped(support), charge_for(support), MemoryLedger(), SecureNoise(), batch_size=size)


def test_signal_to_noise_is_zero_for_noise_and_counts_signal() -> None:
    support = Support.all(network())
    deviation = SIGMA * CLIP * 1.0001
    for value, expected in ((0.0, 0.0), (10 * deviation, 100.0)):
        released = release(
            clipped(support, value), charge_for(support), MemoryLedger(), SecureNoise(), batch_size=PLANNED
        )
        assert released.signal_to_noise == pytest.approx(expected, abs=0.1, rel=0.02)


def test_what_a_step_charges_is_what_it_did() -> None:
    model = network()
    support = Support.random(model, ratio=0.1, seed=0)
    step = private_step(model, support, sampling_rate=0.25)
    step.step(batch())
    step.step_over([batch(), batch()], phase="again")
    assert list(step.ledger.charges) == [
        Charge(0, 0, "train", 0.25, SIGMA, CLIP, PLANNED, support.size, True),
        Charge(1, 1, "again", 0.25, SIGMA, CLIP, PLANNED, support.size, True),
    ]
