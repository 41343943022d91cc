"""The step: whatever the optimizer, active coordinates move, silent ones keep every bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.errors import ArgumentError, ModelError
from tacit.release.ledger import MemoryLedger
from tacit.support import Support
from tacit.training.step import PrivateStep

Named = list[tuple[str, nn.Parameter]]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def batch(rows: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 2, 4, 4, generator=generator), torch.randint(3, (rows,), generator=generator)


class SignMomentum(Optimizer):
    """A small optimizer of our own, in the manner of Lion."""

    def __init__(self, named: Named, lr: float) -> None:
        super().__init__(named, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.sub_(group["lr"] * (torch.sign(0.9 * momentum + 0.1 * p.grad) + 0.1 * p))
                momentum.mul_(0.99).add_(p.grad, alpha=0.01)


OPTIMIZERS: dict[str, Callable[[Named], Optimizer]] = {
    "SGD": lambda n: torch.optim.SGD(n, lr=0.1),
    "SGD with weight decay": lambda n: torch.optim.SGD(n, lr=0.1, weight_decay=0.1),
    "SGD with momentum": lambda n: torch.optim.SGD(n, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "SGD with Nesterov": lambda n: torch.optim.SGD(n, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda n: torch.optim.Adam(n, lr=0.1, weight_decay=0.1),
    "AMSGrad": lambda n: torch.optim.Adam(n, lr=0.1, amsgrad=True),
    "AdamW": lambda n: torch.optim.AdamW(n, lr=0.1, weight_decay=0.1),
    "RMSprop": lambda n: torch.optim.RMSprop(n, lr=0.1, momentum=0.5, centered=True, weight_decay=0.1),
    "Adagrad": lambda n: torch.optim.Adagrad(n, lr=0.1, initial_accumulator_value=0.1, weight_decay=0.1),
    "Adadelta": lambda n: torch.optim.Adadelta(n, lr=1.0, weight_decay=0.1),
    "NAdam": lambda n: torch.optim.NAdam(n, lr=0.1, weight_decay=0.1),
    "RAdam": lambda n: torch.optim.RAdam(n, lr=0.1, weight_decay=0.1),
    "Adamax": lambda n: torch.optim.Adamax(n, lr=0.1, weight_decay=0.1),
    "ASGD": lambda n: torch.optim.ASGD(n, lr=0.1, weight_decay=0.1),
    "Rprop": lambda n: torch.optim.Rprop(n, lr=0.1),
    "of one's own": lambda n: SignMomentum(n, lr=0.1),
}


def step_with(
    model: nn.Module, support: Support, optimizer: Callable[[Named], Optimizer], **changes: Any
) -> PrivateStep:
    settings: dict[str, Any] = {"clip_norm": 1.0, "noise_multiplier": 0.5, "batch_size": 6}
    return PrivateStep(model, loss, support=support, optimizer=optimizer, **{**settings, **changes})


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["coordinates", "rows"])
def test_only_active_coordinates_move_and_only_they_have_a_state(name: str, kind: str) -> None:
    model = network()
    if kind == "rows":
        support = Support.random_rows(model, ratio=0.5, seed=0)
    else:
        support = Support.random(model, ratio=0.3, seed=0) | Support.matching(model, ["1.weight"])
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    step = step_with(model, support, OPTIMIZERS[name])
    for given in (batch(), None, batch(3)):
        step.step(given)
    for n, p in model.named_parameters():
        active = support[n].mask()
        assert torch.equal(p.detach()[~active], before[n][~active]), n
        assert (p.detach()[active] == before[n][active]).sum() <= 0.1 * active.sum(), n
        assert p.grad is None
    sizes = sum(b.size for b in support.values())
    for key in {key for state in step.optimizer.state.values() for key in state}:
        held = [s[key] for s in step.optimizer.state.values() if isinstance(s.get(key), Tensor)]
        elements = sum(t.numel() for t in held)
        assert elements == sizes or all(t.numel() <= 1 for t in held), key


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "AdamW", "RMSprop"])
def test_active_coordinates_move_as_the_optimizer_says(name: str) -> None:
    """Without noise and with everything active, a step is the plain optimizer's on the mean gradient."""
    model, plain = network(), network()
    step = step_with(model, Support.all(model), OPTIMIZERS[name], noise_multiplier=0.0, clip_norm=1e6)
    reference = OPTIMIZERS[name](list(plain.named_parameters()))
    for _ in range(3):
        step.step(batch())
        reference.zero_grad()
        loss(plain, batch()).mean().backward()  # type: ignore[no-untyped-call]
        reference.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_the_model_keeps_its_class_and_its_keys() -> None:
    model = network()
    keys = list(model.state_dict())
    step_with(model, Support.all(model), OPTIMIZERS["Adam"]).step(batch())
    assert type(model) is nn.Sequential
    assert list(model.state_dict()) == keys


def test_an_empty_ledger_is_the_one_that_is_charged() -> None:
    model, ledger = network(), MemoryLedger()
    step = step_with(model, Support.all(model), OPTIMIZERS["SGD"], ledger=ledger)
    step.step(batch())
    assert len(ledger.charges) == 1


def other_model() -> Support:
    return Support.all(nn.Linear(16, 4))


BAD: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "no parameters": (ModelError, "no trainable parameters", lambda: Support.all(nn.ReLU())),
    "frozen parameters": (
        ModelError,
        "no trainable parameters",
        lambda: Support.all(nn.Linear(2, 2).requires_grad_(False)),
    ),
    "clip norm of zero": (
        ArgumentError,
        "clip_norm must be a finite number above 0, got 0",
        lambda: step_with(network(), Support.all(network()), OPTIMIZERS["SGD"], clip_norm=0),
    ),
    "negative noise": (
        ArgumentError,
        "noise_multiplier must be a finite number of at least 0, got -1",
        lambda: step_with(network(), Support.all(network()), OPTIMIZERS["SGD"], noise_multiplier=-1),
    ),
    "noise that is no number": (
        ArgumentError,
        "noise_multiplier must be a finite number",
        lambda: step_with(
            network(), Support.all(network()), OPTIMIZERS["SGD"], noise_multiplier=float("nan")
        ),
    ),
    "support of another model": (
        ArgumentError,
        "The support belongs to another model",
        lambda: step_with(network(), other_model(), OPTIMIZERS["SGD"]),
    ),
    "no active coordinate": (
        ArgumentError,
        "k = 0",
        lambda: Support.random(network(), size=0, seed=0),
    ),
    "no named coordinate": (ArgumentError, "k = 0", lambda: Support.of_rows(network(), {})),
    "no planned size": (
        ArgumentError,
        "batch_size must be a whole number of at least 1",
        lambda: step_with(network(), Support.all(network()), OPTIMIZERS["SGD"], batch_size=0),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_sentence(case: str) -> None:
    kind, message, make = BAD[case]
    with pytest.raises(kind, match=message) as caught:
        make()
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            lambda m, b: loss(m, b).mean(),
            "one value per example, in one dimension, but gave a tensor of 0 dimensions",
        ),
        (
            lambda m, b: m(b[0]),
            "one value per example.*but gave a tensor of 2 dimensions; use reduction='none'",
        ),
        (lambda m, b: 1.0, "one value per example.*but gave float"),
    ],
)
def test_a_loss_that_is_not_per_example_is_refused_and_nothing_changes(bad: Any, message: str) -> None:
    model = network()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    step = PrivateStep(
        model,
        bad,
        support=Support.all(model),
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=6,
        optimizer=OPTIMIZERS["SGD with momentum"],
    )
    with pytest.raises(ModelError, match=message):
        step.step(batch())
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert not step.ledger.charges
    assert not step.optimizer.state


def test_batch_norm_in_training_mode_is_refused_and_nothing_changes() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    before = {n: v.clone() for n, v in model.state_dict().items()}
    step = step_with(model, Support.all(model), OPTIMIZERS["SGD"])
    with pytest.raises(ModelError, match=r"1 \(BatchNorm2d\), in training mode"):
        step.step(batch())
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert not step.ledger.charges


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], "here there is no tensor"),
        (
            (torch.zeros(3, 2, 4, 4), torch.zeros(2)),
            "first dimension, the number of examples; here they differ",
        ),
    ],
)
def test_a_batch_without_a_number_of_examples_is_refused(given: Any, message: str) -> None:
    model = network()
    with pytest.raises(ModelError, match=message):
        step_with(model, Support.all(model), OPTIMIZERS["SGD"]).step(given)
