"""What users of other libraries give by habit: one sentence before anything is spent, or it works."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, StepLR
from torch.utils.data import Dataset

from tacit import PrivateStep, Support, TacitError, Trainer
from tacit.errors import ArgumentError
from tacit.losses import cross_entropy
from tacit.models import without_batch_norm
from tacit.plan import Spend, epsilon_of
from tacit.training import schedules
from training.small import EXAMPLES, data, momentum, network, plan, sgd, trainer


class Named(Dataset[dict[str, Tensor]]):
    """Examples as dictionaries."""

    def __init__(self, seed: int = 0) -> None:
        self._x, self._y = (t.clone() for t in data().tensors)
        self._x += seed

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"x": self._x[place], "y": self._y[place]}


def named_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def built(**changed: Any) -> Trainer:
    settings: dict[str, Any] = {
        "model": network(),
        "dataset": data(),
        "loss": cross_entropy,
        "optimizer": sgd,
        **changed,
    }
    return Trainer(
        settings.pop("model"),
        settings.pop("dataset"),
        settings.pop("loss"),
        plan("dp-sgd"),
        seed=1,
        **settings,
    )


def step(**changed: Any) -> PrivateStep:
    model = network()
    settings: dict[str, Any] = {
        "loss": cross_entropy,
        "optimizer": sgd,
        "support": Support.all(model),
        **changed,
    }
    return PrivateStep(
        model, settings.pop("loss"), clip_norm=1.0, noise_multiplier=1.0, batch_size=8, **settings
    )


@pytest.mark.parametrize("make", [built, step])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy, F.mse_loss, 3, lambda out, y: out])
def test_a_loss_of_outputs_and_targets_is_refused_with_the_right_form(make: Any, loss: Any) -> None:
    with pytest.raises(ArgumentError, match="loss= takes a function of the model and a batch"):
        make(loss=loss)


@pytest.mark.parametrize("make", [built, step])
def test_an_optimizer_in_place_of_a_factory_is_refused_with_the_right_form(make: Any) -> None:
    optimizer = torch.optim.AdamW(network().parameters())
    with pytest.raises(ArgumentError, match=r"not AdamW; write lambda named: torch\.optim\.AdamW"):
        make(optimizer=optimizer)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_an_optimizer_that_released_gradients_do_not_suffice_for_is_refused(
    kind: Any, tmp_path: Path
) -> None:
    def factory(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        return kind([parameter for _, parameter in named])

    with pytest.raises(TacitError, match=f"{kind.__name__} cannot train on released gradients"):
        Trainer(network(), data(), cross_entropy, plan("dp-sgd"), optimizer=factory, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["model.parameters", "nothing"])
def test_a_factory_that_uses_the_models_parameters_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    model = network()
    factory = {
        "model.parameters": lambda named: torch.optim.SGD(model.parameters(), lr=0.1),
        "nothing": lambda named: None,
    }[kind]
    with pytest.raises(TacitError, match="The optimizer factory must"):
        Trainer(model, data(), cross_entropy, plan("tp-topk"), optimizer=factory, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "schedule",
    [
        StepLR,
        StepLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), 3),
        0.5,
        lambda optimizer: StepLR(optimizer, 3),
    ],
    ids=["class", "instance", "number", "factory"],
)
def test_a_scheduler_of_pytorch_is_refused_with_the_right_form(schedule: Any) -> None:
    with pytest.raises(ArgumentError, match="schedule= takes a function of the step and the number of steps"):
        built(schedule=schedule)


def test_a_scheduler_of_pytorch_becomes_a_schedule() -> None:
    schedule = schedules.from_torch(lambda optimizer: CosineAnnealingLR(optimizer, T_max=20))
    assert [schedule(t, 20) for t in (0, 5, 19)] == pytest.approx(
        [schedules.cosine(t, 20) for t in (0, 5, 19)]
    )
    with pytest.raises(ArgumentError, match="ReduceLROnPlateau"):
        schedules.from_torch(ReduceLROnPlateau)(0, 3)  # type: ignore[arg-type]


def test_a_run_by_a_scheduler_of_pytorch_is_that_by_the_same_schedule() -> None:
    ends = []
    for schedule in (
        schedules.cosine,
        schedules.from_torch(lambda o: CosineAnnealingLR(o, T_max=plan("dp-sgd").steps)),
    ):
        model = network()
        trainer(plan("dp-sgd"), model, schedule=schedule).fit(progress=False)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(ends[0], ends[1], rtol=1e-9)


def test_a_scheduler_goes_on_to_steer_after_the_support_has_changed() -> None:
    private = step(optimizer=momentum)
    scheduler = StepLR(private.optimizer, 1, gamma=0.5)
    batch = data()[:8]
    private.step(batch)
    scheduler.step()
    private.support = Support.random(private._update._model, ratio=0.3, seed=0)
    private.step(batch)
    scheduler.step()
    assert private.optimizer is scheduler.optimizer
    assert [group["lr"] for group in private.optimizer.param_groups] == [0.05]
    known = {id(p) for p in private._update._compact.values()}
    assert {id(p) for group in private.optimizer.param_groups for p in group["params"]} == known


def test_held_out_examples_as_dictionaries_are_measured_by_their_loss(tmp_path: Path) -> None:
    given = built(dataset=Named(), loss=named_loss, held_out=Named(5), run_dir=tmp_path / "run")
    assert set(given.fit(progress=False).measured) == {"loss"}


@pytest.mark.parametrize("metrics", [{"accuracy": lambda outputs, targets: 1.0}], ids=["metric"])
def test_metrics_that_cannot_be_measured_are_refused_before_anything_is_spent(
    metrics: Any, tmp_path: Path
) -> None:
    given = built(
        dataset=Named(), loss=named_loss, held_out=Named(5), metrics=metrics, run_dir=tmp_path / "run"
    )
    with pytest.raises(ArgumentError, match=r"batches of \(inputs, targets\)"):
        given.fit(progress=False)
    assert not (tmp_path / "run").exists()


def test_held_out_data_of_another_form_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    given = built(held_out=Named(5), run_dir=tmp_path / "run")
    with pytest.raises(ArgumentError, match="The held-out data cannot be measured"):
        given.fit(progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["torch", "python"])
def test_layers_that_are_left_out_at_random_train_to_the_end(how: str) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
            self.head = nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            for layer in self.layers:
                if (torch.rand([]) if how == "torch" else random.random()) > 0.5:
                    x = x + torch.tanh(layer(x))
            logits: Tensor = self.head(x)
            return logits

    torch.manual_seed(0)
    assert built(model=Dropped().double()).fit(progress=False).finished


def test_evaluation_mode_is_said_before_training() -> None:
    with pytest.warns(UserWarning, match=r"in evaluation mode.*model\.train"):
        built(model=network().eval()).fit(progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built().fit(progress=False)


def test_a_custom_loop_knows_what_it_has_spent() -> None:
    private = step(sampling_rate=0.125)
    assert private.epsilon(1e-5) == 0
    for _ in range(3):
        private.step(data()[:8])
    assert private.epsilon(1e-5) == epsilon_of([Spend(0.125, 1.0, 3)], 1e-5)


def test_a_model_with_batch_norms_trains_without_them() -> None:
    model = network(1, nn.BatchNorm2d(4).double())
    with pytest.raises(TacitError, match="BatchNorm2d"):
        built(model=model).fit(progress=False)
    replaced = without_batch_norm(model)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in replaced.modules())
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert set(replaced.state_dict()) == {
        name for name in model.state_dict() if "running" not in name and "tracked" not in name
    }
    assert built(model=replaced).fit(progress=False).finished
