"""Hugging Face: a small transformer, made at random here, trained privately by a Trainer of theirs."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import tacit
from tacit.integrations.hugging_face import PrivateTrainer

WORDS, LENGTH = 60, 8


def sentences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Sentences of word ids; the label says whether a word below 15 is more frequent than one from 15 to 29."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        label = rng.randrange(2)
        ids = [rng.randrange(15) + 15 * (1 - label) for _ in range(3)] + rng.choices(
            range(30, WORDS), k=LENGTH - 3
        )
        rng.shuffle(ids)
        made.append({"input_ids": torch.tensor(ids), "labels": torch.tensor(label)})
    return made


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float(np.mean(prediction.predictions.argmax(1) == prediction.label_ids))}


def main() -> float:
    torch.manual_seed(0)
    train, held_out = sentences(2000, 1), sentences(500, 2)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    plan = tacit.make_plan("dp-sgd", epsilon=8, delta=1e-5, examples=len(train), batch_size=250, epochs=10)
    with tempfile.TemporaryDirectory() as place:
        trainer = PrivateTrainer(
            model,
            TrainingArguments(
                output_dir=str(Path(place, "transformers")),
                max_steps=plan.steps,
                learning_rate=0.02,
                lr_scheduler_type="cosine",
                logging_steps=40,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
            ),
            plan,
            train_dataset=train,
            eval_dataset=held_out,
            compute_metrics=accuracy,
            tacit_options={"run_dir": Path(place, "run")},
        )
        trainer.train()
        figures = trainer.evaluate()
        print((Path(place, "run") / "certificate.txt").read_text().splitlines()[3])
    print(f"accuracy {figures['eval_accuracy']:.3f} at epsilon {trainer.private.epsilon:.3f}")
    return float(figures["eval_accuracy"])


if __name__ == "__main__":
    main()
