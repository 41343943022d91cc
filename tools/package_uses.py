"""What the installed package is tried with: the core as a user meets it, and a small use of every extra.

Everything runs in an empty directory, with the interpreter of the environment that is tried.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Use:
    """A script in Python, then lines for ``tacit``; and the line or script that asks for the extra without it."""

    script: str
    commands: tuple[str, ...] = ()
    asks: str = ""
    asks_script: str = ""


TEN_LINES = """
import torch, tacit
from tacit.losses import cross_entropy
from tacit.plan import make_plan
from torch.utils.data import TensorDataset
x = torch.randn(1000, 20)
data = TensorDataset(x, (x[:, 0] > 0).long())
plan = make_plan("tp-topk", epsilon=3, delta=1e-5, examples=1000, batch_size=200, epochs=4, active_ratio="auto")
sgd = lambda named: torch.optim.SGD(named, lr=1.0)
trainer = tacit.Trainer(torch.nn.Linear(20, 2), data, cross_entropy, plan, optimizer=sgd, run_dir="ten-lines")
assert trainer.fit(progress=False).finished
"""

CORE = Use(
    TEN_LINES,
    (
        "--help",
        "plan --method tp-topk --epsilon 3 --delta 1e-5 --examples 5000 --batch-size 500 --epochs 4 --active-ratio 0.4",
        "verify ten-lines",
        "demo --pairs 2 --quiet --out demo",
        "verify demo/run",
    ),
)

EXTRAS = {
    "figures": Use(
        "",
        (
            "plan --method dp-sgd --epsilon 8 --delta 1e-5 --examples 600 --batch-size 200 --epochs 1 --out plan.json",
            "audit plan.json --canaries 64 --releases 4 --runs 1 --quiet --out found",
            "fed simulate syn-L-0.1-0.6 --folds 2 --repeats 1 --figure rates.png",
        ),
        asks="fed simulate syn-L-0.1-0.6 --figure rates.png",
    ),
    "data": Use(
        """
import pathlib, numpy, PIL.Image, pyarrow, pyarrow.parquet
table = {"age": list(range(200)), "renewed": ["yes", "no"] * 100}
pyarrow.parquet.write_table(pyarrow.table(table), "t.parquet")
for kind in ("cat", "dog"):
    pathlib.Path("photos", kind).mkdir(parents=True)
    for number in range(10):
        image = PIL.Image.fromarray(numpy.full((8, 8, 3), 20 * number, dtype="uint8"))
        image.save(f"photos/{kind}/{number}.png")
""",
        ("data show digits", "data show t.parquet --target renewed", "data show photos"),
        asks="data show digits",
    ),
    "onnx": Use(
        """
rows = "".join(f"{age},{'yes' if age % 3 else 'no'}\\n" for age in range(200))
open("people.csv", "w").write("age,ill\\n" + rows)
""",
        (
            "train people.csv --target ill --epsilon 8 --epochs 2 --quiet --out run",
            "export run --format onnx --out model.onnx",
        ),
        asks_script="from tacit.jobs.export import _export_onnx; _export_onnx(None, None)",
    ),
    "federated": Use(
        "",
        ("fed run syn-L-0.1-0.6 --folder fed --nodes 2 --rounds 2 --simulation",),
        asks="fed run syn-L-0.1-0.6 --folder fed",
    ),
    "text": Use(
        """
rows = [f"a {word} film number {n},{mark}" for n in range(30) for word, mark in (("fine", "good"), ("dull", "bad"))]
open("reviews.csv", "w").write("review,verdict\\n" + "\\n".join(rows) + "\\n")
""",
        (
            "finetune reviews.csv --text review --target verdict --model minilm --method last-layer --epsilon 8 "
            "--batch-size 20 --epochs 1 --quiet --out run",
        ),
        asks_script="from tacit.models.encoder import load_tokenizer; load_tokenizer('minilm')",
    ),
    "integrations": Use(
        """
import torch, tacit
from lightning.pytorch import Trainer
from tacit.integrations.hugging_face import PrivateTrainer
from tacit.integrations.lightning import PrivateModule
from tacit.losses import cross_entropy
from tacit.plan import make_plan
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

plan = make_plan("dp-sgd", epsilon=3, delta=1e-3, examples=100, batch_size=20, epochs=1)
x = torch.randn(100, 4)
data = TensorDataset(x, (x[:, 0] > 0).long())
sgd = lambda named: torch.optim.SGD(named, lr=0.5)
module = PrivateModule(torch.nn.Linear(4, 2), data, cross_entropy, plan, optimizer=sgd, run_dir="lightning")
Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False).fit(module)

small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
model = BertForSequenceClassification(BertConfig(vocab_size=20, **small))
rows = [{"input_ids": torch.randint(20, (5,)), "labels": torch.tensor(i % 2)} for i in range(100)]
arguments = TrainingArguments("hf", max_steps=plan.steps, save_strategy="no", report_to=[], use_cpu=True)
options = {"run_dir": "hugging-face"}
PrivateTrainer(model, arguments, plan, train_dataset=rows, tacit_options=options).train()
""",
        ("verify lightning", "verify hugging-face"),
        asks_script="import tacit.integrations.lightning",
    ),
}
