"""A Hugging Face ``Trainer`` whose steps are private."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tacit.errors import ArgumentError
from tacit.integrations.guest import Bystander, check_step_number, refuse, step_numbers
from tacit.losses import Loss
from tacit.plan import Plan
from tacit.training import schedules
from tacit.training.arguments import check_no_gradients, refuse_training_rows
from tacit.training.course import Step
from tacit.training.trainer import Trainer as TacitTrainer
from tacit.training.update import OptimizerFactory

try:
    from transformers import PreTrainedModel, Trainer, TrainingArguments, get_scheduler
except ImportError as error:
    raise ArgumentError(
        "tacit.integrations.hugging_face needs transformers and accelerate: run pip install "
        "'tacit-dp[integrations]'."
    ) from error


def classification_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of each example of a ``...ForSequenceClassification`` model or one like it."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs).logits
    return F.cross_entropy(logits, batch["labels"], reduction="none")


class PrivateTrainer(Trainer):
    """A ``transformers.Trainer`` that trains by a plan.

    Evaluation, prediction, callbacks, logging and saving are those of ``transformers``. Training data, batches,
    clipping, noise and the optimizer's step are Tacit's: ``transformers`` sees a number per step and an optimizer
    that moves nothing. The optimizer of ``args.optim`` (one of ``torch.optim``), its settings, weight decay without
    biases and norms, and the schedule of ``args`` with its warm-up work on the active coordinates. Settings that would
    break the guarantee are refused. A run that a callback stops early is certified for what it spent.

    ``loss(model, batch)`` gives one loss per example. ``options`` are those of ``tacit.Trainer``: ``run_dir``,
    ``chunk_size``, ``seed``, ... Logged is ε so far in place of the training loss, which would not be private, and for
    which ``train`` gives NaN. Epochs and samples are those of the plan: how many were drawn is private.
    """

    def __init__(
        self,
        model: PreTrainedModel | nn.Module,
        args: TrainingArguments,
        plan: Plan,
        *,
        train_dataset: Any,
        loss: Loss = classification_loss,
        tacit_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _check_arguments(args, plan)
        refuse(
            [
                (
                    kwargs.get("eval_dataset") is train_dataset,
                    "eval_dataset is the training data, so figures on it would give it away without protection; give "
                    "other data, or none.",
                )
            ]
        )
        given = kwargs.get("eval_dataset")
        for measured in given.values() if isinstance(given, dict) else (given,):
            refuse_training_rows(train_dataset, measured)
        refuse(
            (kwargs.get(name) not in (None, (None, None)), sentence)
            for name, sentence in (
                (
                    "optimizers",
                    "Leave optimizers out: the optimizer works inside the private step, with the args.",
                ),
                (
                    "optimizer_cls_and_kwargs",
                    "Leave optimizer_cls_and_kwargs out: the private step has its own.",
                ),
                ("compute_loss_func", "Give loss=, one value per example, in place of compute_loss_func."),
                ("model_init", "Give the model itself in place of model_init: one plan trains one model."),
            )
        )
        super().__init__(model, args, train_dataset=train_dataset, **kwargs)
        self.plan = plan
        self._private_loss = loss
        self._options = dict(tacit_options or {})
        self._private: TacitTrainer | None = None
        self._steps: Iterator[Step] | None = None

    @property
    def private(self) -> TacitTrainer:
        """The trainer that takes the private steps; made when it is first needed, once the model has its place."""
        if self._private is None:
            args = self.args
            assert isinstance(self.model, nn.Module)
            self._private = TacitTrainer(
                self.model,
                self.train_dataset,  # type: ignore[arg-type]
                self._private_loss,
                self.plan,
                optimizer=self._factory(self.model),
                schedule=_schedule(args, self.plan.steps),
                collate=self.data_collator,
                **self._options,
            )
        return self._private

    def _factory(self, model: nn.Module) -> OptimizerFactory:
        """The optimizer that ``args.optim`` names, with weight decay where ``transformers`` applies it."""
        kind, settings = Trainer.get_optimizer_cls_and_kwargs(self.args, model)  # type: ignore[arg-type]
        refuse(
            [
                (
                    not kind.__module__.startswith("torch.optim") or kind is torch.optim.LBFGS,
                    f"optim={_word(self.args.optim)!r} is not supported: its optimizer ({kind.__module__}."
                    f"{kind.__name__}) is not one of torch.optim that works on single coordinates; use adamw_torch, "
                    "sgd, adagrad or rmsprop.",
                )
            ]
        )
        decayed = set(self.get_decay_parameter_names(model))

        def make(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
            groups = [
                {"params": [p for n, p in named if (n in decayed) is with_decay], "weight_decay": decay}
                for with_decay, decay in ((True, self.args.weight_decay), (False, 0.0))
            ]
            return kind(groups, **settings)  # type: ignore[no-any-return]

        return make

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any
    ) -> Any:
        """Take the steps of the plan; write model, ledger and certificate where there is a run directory.

        With ``resume_from_checkpoint=True`` continue from the run directory. Checkpoints of ``transformers`` are not
        resumed from: they know nothing of the ledger.
        """
        if isinstance(resume_from_checkpoint, str | Path):
            raise ArgumentError(
                "A checkpoint of transformers knows nothing of the ledger; give resume_from_checkpoint=True to go "
                "on from the run directory."
            )
        if resume_from_checkpoint:
            self.private.load()
            self.args.max_steps = self.private.total - self.private.done
        try:
            result = super().train(**kwargs)
            self.private.save()
            self.private.finish()
        finally:
            if self._private is not None:
                self._private.close()
        return result._replace(training_loss=math.nan, metrics=self._planned(result.metrics))

    def _planned(self, metrics: dict[str, float]) -> dict[str, float]:
        """What ``transformers`` measured of training, with the planned number of samples in place of step numbers."""
        steps_each_second = metrics.get("train_steps_per_second", 0.0)
        kept = {name: value for name, value in metrics.items() if name not in _NOT_LOGGED}
        return {
            **kept,
            "train_samples_per_second": round(steps_each_second * self.plan.batch_size, 3),
            "epoch": self._epoch,
            "epsilon": self.private.epsilon,
        }

    @property
    def _epoch(self) -> float:
        """How often an example was drawn by now, on average."""
        return 0.0 if self._private is None else round(self._private.done * self.plan.sampling_rate, 4)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A number per step; the examples are drawn behind the wall."""
        left = self.plan.steps if self._private is None else self._private.total - self._private.done
        return step_numbers(left)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """One private step. The value that ``transformers`` asks for is 0: a training loss would not be private."""
        check_step_number(inputs)
        if model is not self.model:
            raise ArgumentError(
                "transformers has wrapped the model for several devices; train on one, or with tacit.distributed."
            )
        model.train()
        if self._steps is None:
            self._steps = self.private.steps()
        next(self._steps)
        check_no_gradients(model)
        return torch.zeros((), device=self.args.device)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """An optimizer that moves nothing: the real one works inside the private step."""
        if self.optimizer is None:
            assert isinstance(self.model, nn.Module)
            self.optimizer = Bystander(self.model, self.args.learning_rate)
        return self.optimizer

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        """The next step number; there are no items to count."""
        return list(islice(epoch_iterator, num_batches)), None

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: it would depend on the size of the sampled batch."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log ε so far, and neither a training loss nor a gradient norm."""
        private = {name: value for name, value in logs.items() if name not in _NOT_LOGGED}
        if self._private is not None and "loss" in logs:
            private["epsilon"] = self._private.epsilon
        if "train_steps_per_second" in logs:
            private = self._planned(private)
        self.state.epoch = self._epoch
        super().log(private, start_time)


_NOT_LOGGED = (
    "loss",
    "grad_norm",
    "train_loss",
    "num_input_tokens_seen",
    "train_samples_per_second",
    "total_flos",
)


_WATCHING = ("reduce_lr_on_plateau", "greedy")
"""Schedules that follow a loss."""


def _schedule(args: TrainingArguments, steps: int) -> schedules.Schedule:
    """The schedule that ``transformers`` makes of the arguments, with its warm-up."""
    return schedules.from_torch(
        lambda optimizer: get_scheduler(
            args.lr_scheduler_type,
            optimizer,
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(args.lr_scheduler_kwargs or {}),  # type: ignore[arg-type]
        ),
        rate=args.learning_rate,
    )


def _word(setting: Any) -> str:
    """A setting that is a word or a member of an enumeration of words."""
    return str(getattr(setting, "value", setting))


def _check_arguments(args: TrainingArguments, plan: Plan) -> None:
    refuse(
        [
            (
                args.gradient_accumulation_steps != 1,
                "gradient_accumulation_steps must be 1: a step of the plan is one release; give chunk_size in "
                "tacit_options to save memory.",
            ),
            (
                args.fp16 or args.bf16,
                "fp16 and bf16 must be off: a loss scaler or half-precision sums would void the clip norm; give "
                "autocast=torch.bfloat16 in tacit_options.",
            ),
            (
                args.world_size > 1 or args.n_gpu > 1 or bool(args.fsdp) or bool(args.deepspeed),
                "Train on one device: data-parallel wrappers average gradients before they are clipped; for many "
                "processes use tacit.distributed.",
            ),
            (
                args.torch_compile,
                "torch_compile must be off: the private step watches the layers of the model.",
            ),
            (
                args.auto_find_batch_size,
                "auto_find_batch_size must be off: the batch size is fixed by the plan.",
            ),
            (
                _word(args.train_sampling_strategy) != "random",
                "train_sampling_strategy must stay as it is: examples are sampled by Poisson, as the accountant "
                "assumes.",
            ),
            (
                bool(args.label_smoothing_factor) or args.neftune_noise_alpha is not None,
                "label_smoothing_factor and neftune_noise_alpha must be off: put them into loss= if you need them.",
            ),
            (
                args.max_steps != plan.steps,
                f"max_steps must be {plan.steps}, the steps of the plan, got {args.max_steps}.",
            ),
            (
                _word(args.lr_scheduler_type) in _WATCHING,
                "lr_scheduler_type must follow from the number of steps alone, which this one does not; use linear or "
                "cosine.",
            ),
            (
                args.load_best_model_at_end,
                "load_best_model_at_end must be off: it would swap weights behind the ledger's back.",
            ),
        ]
    )
