"""A Lightning module whose training is private, and the callback that guards it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Dataset

from tacit.errors import ArgumentError
from tacit.integrations.guest import Bystander, check_step_number, refuse, step_numbers
from tacit.losses import Loss
from tacit.plan import Plan
from tacit.training.arguments import check_no_gradients
from tacit.training.course import Step
from tacit.training.trainer import Trainer as TacitTrainer
from tacit.training.update import OptimizerFactory

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError as error:
    raise ArgumentError(
        "tacit.integrations.lightning needs lightning: run pip install 'tacit-dp[integrations]'."
    ) from error

_REPORTS = 20


class PrivateModule(LightningModule):
    """A ``LightningModule`` that trains ``model`` on ``dataset`` by a plan, for ``Trainer(max_epochs=1)``.

    Give ``fit`` no training data: sampling, clipping, noise and the optimizer's step are Tacit's, and Lightning sees
    a number per step. Loggers, callbacks, checkpoints of the weights and validation are Lightning's; define
    ``validation_step`` in a subclass, on public or held-out data. ``options`` are those of ``tacit.Trainer``:
    ``run_dir``, ``schedule``, ``chunk_size``, ``seed``, ... ``resume`` continues the run in ``run_dir``.
    Logged is ``epsilon``, what has been spent so far.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset[Any],
        loss: Loss,
        plan: Plan,
        *,
        optimizer: OptimizerFactory,
        resume: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.plan = plan
        self._make = partial(TacitTrainer, model, dataset, loss, plan, optimizer=optimizer, **options)
        self._resume = resume
        self._private: TacitTrainer | None = None
        self._steps: Iterator[Step] | None = None

    @property
    def private(self) -> TacitTrainer:
        """The trainer that takes the private steps; made when it is first needed, once the model has its place."""
        if self._private is None:
            self._private = self._make()
            if self._resume:
                self._private.load()
        return self._private

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives."""
        return self.model(*args, **kwargs)

    def configure_callbacks(self) -> list[Callback]:
        """The guard is always there."""
        return [PrivacyGuard()]

    def configure_optimizers(self) -> Bystander:
        """For Lightning one that moves nothing and counts steps: the real one works inside the private step."""
        return Bystander(self.model, 0.0)

    def train_dataloader(self) -> DataLoader[Any]:
        """A number per step; the examples are drawn behind the wall."""
        return step_numbers(self.private.total - self.private.done)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One private step."""
        check_step_number(batch)
        if self._steps is None:
            self._steps = self.private.steps()
        step = next(self._steps)
        self.optimizers().step()  # type: ignore[union-attr]
        if step.number % max(1, self.plan.steps // _REPORTS) == 0 or step.number == self.private.total:
            self.log("epsilon", self.private.epsilon, prog_bar=True, batch_size=1)


def _suffice(steps: int, module: LightningModule) -> bool:
    """Whether all steps of the plan are taken."""
    return isinstance(module, PrivateModule) and steps >= module.plan.steps


class PrivacyGuard(Callback):
    """Refuses settings of a Lightning ``Trainer`` that would break the guarantee, and ends the run in order."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before anything runs: refuse what cannot be.

        Accumulated gradients and clipping by Lightning it refuses itself, as for every manual optimization.
        """
        if stage != "fit":
            return
        refuse(
            [
                (
                    not isinstance(pl_module, PrivateModule),
                    "The guard is for a PrivateModule; make one of your model and loss.",
                ),
                (
                    pl_module.automatic_optimization,
                    "automatic_optimization must stay off: Lightning's own backward pass is neither clipped nor "
                    "noised.",
                ),
                (
                    str(trainer.precision) not in ("32-true", "64-true"),
                    "precision must be 32-true: a loss scaler or half-precision sums would void the clip norm; "
                    "give autocast=torch.bfloat16 to the PrivateModule.",
                ),
                (
                    not isinstance(trainer.strategy, SingleDeviceStrategy) or trainer.world_size > 1,
                    "Train on one device: data-parallel strategies average gradients before they are clipped; for "
                    "many processes use tacit.distributed.",
                ),
                (
                    bool(trainer.overfit_batches),  # type: ignore[attr-defined]
                    "overfit_batches must be off: examples are sampled by Poisson.",
                ),
                (
                    bool(trainer.fast_dev_run),  # type: ignore[attr-defined]
                    "fast_dev_run must be off: its steps would spend ε on the real data; to try the code, give the "
                    "PrivateModule a plan of few steps and data that is made up.",
                ),
                (
                    trainer.limit_train_batches != 1.0,
                    "limit_train_batches must be left out: the plan says how many steps there are; make a plan for "
                    "fewer epochs or steps.",
                ),
                (
                    trainer.max_steps not in (-1, None) and not _suffice(trainer.max_steps, pl_module),
                    "max_steps must be left out, or be the steps of the plan: noise was planned for all of them, and "
                    "fewer would spend it for less; make a plan for fewer epochs.",
                ),
                (
                    trainer.max_epochs != 1,
                    f"max_epochs must be 1: one pass takes the {pl_module.plan.steps} steps of the plan."
                    if isinstance(pl_module, PrivateModule)
                    else "",
                ),
            ]
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse an optimizer that could move weights besides the private step."""
        refuse(
            [
                (
                    not all(isinstance(optimizer, Bystander) for optimizer in trainer.optimizers),
                    "configure_optimizers must stay as it is: give the optimizer to the PrivateModule, where it "
                    "sees released gradients only.",
                )
            ]
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Refuse to continue once a gradient has been computed besides the private step."""
        check_no_gradients(pl_module)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse a checkpoint of Lightning as a place to resume from."""
        raise ArgumentError(
            "A checkpoint of Lightning knows nothing of the ledger; continue from the run directory with "
            "PrivateModule(..., resume=True)."
        )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write checkpoint, model and certificate; a run that was stopped early is certified for what it spent."""
        assert isinstance(pl_module, PrivateModule)
        if pl_module._steps is None and pl_module.private.done < pl_module.private.total:
            raise ArgumentError(
                "training_step took no private step, so nothing was trained; leave it as it is, or call "
                "super().training_step(batch, batch_idx) in it."
            )
        pl_module.private.save()
        pl_module.private.finish()
        pl_module.private.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Release the lock on the run directory, so that it can be resumed."""
        if isinstance(pl_module, PrivateModule) and pl_module._private is not None:
            pl_module._private.close()
