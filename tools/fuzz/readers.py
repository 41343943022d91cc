"""Every reader of a file that may come from outside, with a valid record or file to start from."""

from __future__ import annotations

import base64
import gzip
import io
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import torch
from PIL import Image
from torch import nn

from tacit.data import read_schema, read_table
from tacit.data.images import _read_image
from tacit.data.records import Records
from tacit.data.table_file import read_idx, read_mosaics
from tacit.data.text import parse_sst2
from tacit.errors import TacitError
from tacit.federated.client import read_records, write_records
from tacit.federated.data import FederatedData
from tacit.federated.local_ledger import LocalCharge, LocalLedger
from tacit.federated.perturbation import LEAST_EPSILON2, MOST_EPSILON2
from tacit.federated.protocol import Question, Reply, read_question, read_reply
from tacit.federated.selection import MOST_EPSILON1
from tacit.files import read_json
from tacit.jobs.inputs import read_inputs
from tacit.jobs.settings import Experiment, from_record, read_experiment, to_record, to_toml
from tacit.plan import load_plan, make_plan, plan_digest, plan_to_record
from tacit.plan.accountants import Spend
from tacit.plan.budgets import Cost
from tacit.release.budget import FORMAT as BUDGET_FORMAT
from tacit.release.budget import VERSION as BUDGET_VERSION
from tacit.release.budget import read_budget
from tacit.release.ledger_file import FORMAT, VERSION, Charge, read_ledger
from tacit.release.witness import Witness
from tacit.runs import certify, load_certificate, make_key, verify
from tacit.runs.bundle import verify_bundle, write_bundle
from tacit.runs.certificate_file import certificate_to_record
from tacit.runs.description import FORMAT as RUN_FORMAT
from tacit.runs.description import Description, load_description
from tacit.runs.metrics import read_metrics
from tacit.runs.run_directory import support_from_state
from tacit.runs.signing import FORMAT as SIGNATURE_FORMAT
from tacit.runs.signing import VERSION as SIGNATURE_VERSION
from tacit.runs.signing import load_public_key, load_signature
from tacit.runs.tensor_file import read_tensor_file
from tacit.sites.messages import read_message, write_message
from tacit.sites.records import load_records
from tacit.sites.records import write_records as write_site_records
from tacit.sites.terms import read_terms
from tacit.support import Support
from tacit.tensors import read_tensors
from tools.fuzz.packing import as_checkpoint, as_json, as_ledger, as_tensors


@dataclass(frozen=True)
class Reader:
    """``read`` a file called ``name``; ``seed`` is a file it accepts.

    Where ``record`` is given, ``pack`` makes a file from it, and changed records make files that are wrong inside.
    """

    name: str
    read: Callable[[Path], object]
    seed: bytes
    record: Any = None
    pack: Callable[[Any], bytes] = as_json


def attempt(reader: Reader, content: bytes, folder: Path) -> bool:
    """Read ``content`` as a file; whether it was accepted. Any exception that is not Tacit's own is a bug."""
    path = folder / reader.name
    path.write_bytes(content)
    try:
        reader.read(path)
    except TacitError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


TERMS = b"""[training]
name = "t"
rounds = 3
[target]
name = "y"
kind = "binary"
classes = ["a", "b"]
[columns.x]
type = "number"
low = 0
high = 1
"""

PLAN = make_plan(
    "tp-topk",
    epsilon=3,
    delta=1e-5,
    examples=100,
    batch_size=10,
    epochs=1,
    active_ratio=0.5,
    accountant="theorem-4.1",
    always_active=["*.bias"],
)


def _structured(name: str, read: Callable[[Path], object], record: Any, pack: Any = as_json) -> Reader:
    # Through JSON, so that the record is what the file says: lists for tuples.
    record = json.loads(json.dumps(record))
    return Reader(name, read, pack(record), record, pack)


def _charges() -> list[dict[str, Any]]:
    noise = PLAN.phases[0].noise_multiplier
    return [
        {"charge": asdict(Charge(index, index, "warmup", 0.1, noise, 1.0, 10, 9, True))} for index in range(3)
    ]


def _ledger() -> list[dict[str, Any]]:
    header = {"format": FORMAT, "version": VERSION, "run": "r", "plan": plan_digest(PLAN)}
    sent = {"round": 1, "answer": "0" * 64}
    return [{"header": header}, *_charges(), {"sent": sent}, {"torn": {"bytes": 3, "start": "00"}}]


def _certificate(folder: Path) -> dict[str, Any]:
    path = folder / "seed.jsonl"
    path.write_bytes(as_ledger(_ledger()))
    return certificate_to_record(certify(PLAN, read_ledger(path)))


def _run() -> dict[str, Any]:
    about = Description("r", None, "0" * 64, "one example", ("the rest",), "/somewhere/witness")
    return {"format": RUN_FORMAT, **vars(about)}


def _signature(folder: Path) -> dict[str, Any]:
    key = base64.b64encode(bytes(32)).decode()
    signature = base64.b64encode(bytes(64)).decode()
    parts = {"certificate.json": "0" * 64, "ledger.jsonl": "1" * 64}
    return {
        "format": SIGNATURE_FORMAT,
        "version": SIGNATURE_VERSION,
        "signed": parts,
        "key": key,
        "signature": signature,
    }


def _public_key(folder: Path) -> bytes:
    (folder / "seed.key").unlink(missing_ok=True)
    (folder / "seed.key.pub").unlink(missing_ok=True)
    return make_key(folder / "seed.key").read_bytes()


def _verifying(files: dict[str, bytes]) -> Callable[[Path], None]:
    """Verification of a run directory that holds ``files`` and any other says what is wrong and raises nothing."""

    def read(path: Path) -> None:
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            for file, content in files.items():
                Path(name, file).write_bytes(content)
            shutil.copy(path, name)
            verify(name)

    return read


def _bundle(folder: Path, certificate: dict[str, Any]) -> bytes:
    """A bundle whose parts contradict each other, which verification says, in an archive that is sound."""
    path = folder / "seed.tacit"
    path.unlink(missing_ok=True)
    parts = {
        "model.safetensors": as_checkpoint(_checkpoint()),
        "inputs.json": as_json(INPUTS),
        "certificate.json": as_json(certificate),
        "certificate.txt": b"a page",
        "model_card.md": b"# a model",
        "plan.json": as_json(plan_to_record(PLAN)),
        "ledger.jsonl": as_ledger(_ledger()),
    }
    write_bundle(path, parts, about={"run": "r"})
    return path.read_bytes()


def _budget() -> list[dict[str, Any]]:
    place = {"source": "/data/p.csv", "digest": "0" * 64, "key": "k"}
    header = {
        "format": BUDGET_FORMAT,
        "version": BUDGET_VERSION,
        "name": "p",
        "epsilon": 3.0,
        "delta": 1e-6,
        "unit": None,
        "place": place,
    }
    run = {"number": "1", "what": "train", "place": "run", "spends": [[0.1, 2.0, 30]], "aside": 0.0}
    return [
        {"header": header},
        {"reserve": run},
        {"cover": place},
        {"settle": {"number": "1", "spends": [[0.1, 2.0, 20]], "aside": 0.0}},
        {"reserve": {**run, "number": "2", "spends": [], "pure": [0.5]}},
    ]


def _read_budget(path: Path) -> None:
    """A budget that is accepted states a share, and lets nothing in once that is above one."""
    record = read_budget(path)
    assert record.used >= 0
    if record.used > 1 and len(record.costs) > 1:
        assert not record.admits(Cost((Spend(0.5, 1.0, 1000),)))


def _excel() -> bytes:
    out = io.BytesIO()
    book = openpyxl.Workbook()
    for row in TABLE.splitlines():
        book.active.append(row.split(","))
    book.save(out)
    return out.getvalue()


def _tensors(read: Callable[[Path], object], content: bytes) -> Reader:
    """A changed record has zeros for all tensors; what its digest or its values tell against it is found last."""
    return Reader("t.safetensors", read, content, _tensor_record(content), as_tensors)


def _support(folder: Path) -> bytes:
    path = folder / "seed.safetensors"
    Support.random(nn.Linear(4, 3), ratio=0.5, seed=0).save(path)
    return path.read_bytes()


def _records(folder: Path) -> bytes:
    path = folder / "seed.safetensors"
    write_records(path, FederatedData("seed", np.ones((2, 3), np.float32), np.array([1, -1], np.float32)))
    return path.read_bytes()


def _site_records(folder: Path) -> bytes:
    path = folder / "seed.safetensors"
    write_site_records(path, Records(torch.ones(3, 2), torch.zeros(3, 1), np.array([0, 0, 1])))
    return path.read_bytes()


def _read_site_message(path: Path) -> None:
    """A message that is accepted has the tensors that were asked for, or none."""
    _, tensors = read_message(path.read_bytes(), {"w": (2, 3)})
    assert not tensors or tensors["w"].shape == (2, 3)


def _tensor_record(content: bytes) -> dict[str, Any]:
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    for key, value in metadata.items():
        if value.startswith(("{", "[")):
            metadata[key] = json.loads(value)
    return {"tensors": header, "metadata": metadata}


def _checkpoint() -> dict[str, Any]:
    entry = {"dtype": "F32", "shape": [3, 4]}
    layout = {"weight": [[3, 4], "rows"], "bias": [[3], "all"]}
    numbers = {
        "step": 1,
        "ledger": "0" * 64,
        "selections": {"warmup": "All."},
        "parts": {"support": layout, "model": {}, "optimizer": {}},
    }
    tensors = {"model:weight": entry, "support:weight": {"dtype": "I64", "shape": [1]}}
    return {"tensors": tensors, "metadata": {"numbers": numbers}}


def _read_checkpoint(path: Path) -> None:
    tensors, numbers = read_tensors(path)
    if isinstance(numbers, dict) and isinstance(numbers.get("parts"), dict):
        part = {key[8:]: t for key, t in tensors.items() if key.startswith("support:")}
        support_from_state(part, numbers["parts"].get("support"))


def _read_message(read: Callable[[Any], object]) -> Callable[[Path], object]:
    def read_file(path: Path) -> None:
        content = read_json(path)
        if isinstance(content, dict):
            read(content)

    return read_file


def _read_local_ledger(path: Path) -> None:
    # The note that the writer of the last line would have left, so that the ledger itself is judged.
    note = path.with_suffix(".head")
    note.write_bytes(path.read_bytes().rstrip(b"\n").rpartition(b"\n")[2][11:75] + b"\n")
    try:
        with LocalLedger(path) as ledger:
            assert ledger.spent >= 0
    finally:
        note.unlink(missing_ok=True)


def _read_question(content: dict[str, Any]) -> None:
    """A question that is accepted can be answered, at an ε within the stated ranges."""
    question = read_question(content)
    if question.d <= 1_000:  # a client first compares d with the weights that came along
        plan = question.plan()
        assert LEAST_EPSILON2 / 2 < plan.answer_epsilon() < 2 * (MOST_EPSILON1 + MOST_EPSILON2)
        assert plan.value_perturbation().bound < 401


def _read_table(path: Path) -> None:
    read_table(path, "y")


def _png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (5, 4), (9, 8, 7)).save(out, "PNG")
    return out.getvalue()


def _mosaic() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), (9, 8, 7)).save(out, "WEBP", lossless=True)
    return out.getvalue()


INPUTS = {
    "format": "tacit-inputs-1",
    "name": "p.csv",
    "kind": "binary",
    "classes": ["no", "yes"],
    "shape": [4],
    "model": {"name": "additive"},
    "image": {"shape": [3, 8, 8], "low": -1.0, "high": 1.0},
    "vocabulary": 9,
    "prevalence": 0.2,
    "features": "scattering",
    "tokenizer": "minilm",
    "text": "t",
    "length": 8,
}
SCHEMA = {
    "target": {"name": "y", "kind": "binary", "classes": ["no", "yes"]},
    "columns": {
        "age": {"type": "number", "low": 0, "high": 120, "typical": 40, "missing_values": ["999"]},
        "town": {"type": "category", "values": ["a", "b", "c"], "ordered": True},
        "note": {"type": "text", "buckets": 4},
        "day": {"type": "date", "low": "2000-01-01", "high": "2020-12-31"},
    },
}
TABLE = "y,age,day,note\n" + "".join(
    f"{'yes' if i % 3 else 'no'},{i * 1.5},2001-{i % 12 + 1:02d}-03,word {i}\n" for i in range(30)
)


def make_readers(folder: Path) -> dict[str, Reader]:
    """All readers; ``folder`` is for files that have to be made on the way."""
    question = Question("t", 1, 2, 10, "logistic", 1e-4, "ps", "pm", 2.0, 0.1, 0.1, 0.0)
    answer, second = ({"answer": asdict(LocalCharge("t", "p", n, 0.5, 3, 7))} for n in (1, 2))
    header = {"header": {"format": "tacit-local-ledger", "version": 2}}
    idx = b"\0\0\x08\x02" + struct.pack(">II", 2, 3) + bytes(6)
    experiment = to_record(Experiment())
    certificate = _certificate(folder)
    verifying = _verifying(
        {
            "plan.json": as_json(plan_to_record(PLAN)),
            "ledger.jsonl": as_ledger(_ledger()),
            "certificate.json": as_json(certificate),
        }
    )
    readers = {
        "plan": _structured("plan.json", load_plan, plan_to_record(PLAN)),
        "certificate": _structured("certificate.json", load_certificate, certificate),
        "ledger": _structured("ledger.jsonl", read_ledger, _ledger(), as_ledger),
        "run": _structured("run.json", load_description, _run()),
        "signature": _structured("certificate.sig", load_signature, _signature(folder)),
        "witness": Reader(
            "witness", lambda path: Witness(path).last("r"), b"\nr 0 " + b"0" * 64 + b"\nr 1 " + b"1" * 64
        ),
        "checkpoint without PyTorch": _structured(
            "p.safetensors", read_tensor_file, _checkpoint(), as_checkpoint
        ),
        "public key": Reader("key.pub", load_public_key, _public_key(folder)),
        "verified certificate": _structured("certificate.json", verifying, certificate),
        "verified run": _structured("run.json", verifying, _run()),
        "verified checkpoint": _structured("checkpoint.safetensors", verifying, _checkpoint(), as_checkpoint),
        "verified model": _structured("model.safetensors", verifying, _checkpoint(), as_checkpoint),
        "verified result": _structured("result.json", verifying, {"steps": 3, "epsilon": 1.0, "delta": 1e-5}),
        "verified experiment": _structured("experiment.json", verifying, {"experiment": experiment}),
        "verified figures": Reader("metrics.jsonl", verifying, b'{"step": 1}\n'),
        "bundle": Reader("m.tacit", verify_bundle, _bundle(folder, certificate)),
        "budget": _structured("p.jsonl", _read_budget, _budget(), as_ledger),
        "inputs": _structured("inputs.json", read_inputs, INPUTS),
        "local ledger": _structured("ledger.jsonl", _read_local_ledger, [answer, header, second], as_ledger),
        "support": _tensors(Support.load, _support(folder)),
        "checkpoint": _structured("c.safetensors", _read_checkpoint, _checkpoint(), as_checkpoint),
        "records": _tensors(read_records, _records(folder)),
        "records of a site": _tensors(load_records, _site_records(folder)),
        "message to a site": _tensors(
            _read_site_message, write_message({"kind": "round"}, {"w": torch.ones(2, 3)})
        ),
        "terms": Reader("training.toml", read_terms, TERMS),
        "experiment": _structured(
            "experiment.json", lambda path: from_record(read_json(path), path), experiment
        ),
        "configuration": Reader("c.toml", read_experiment, to_toml(Experiment()).encode()),
        "schema": _structured("schema.json", read_schema, SCHEMA),
        "schema in TOML": Reader(
            "schema.toml", read_schema, b'[target]\nname = "y"\nkind = "binary"\nclasses = ["a", "b"]\n'
        ),
        "question": _structured("question.json", _read_message(_read_question), asdict(question)),
        "reply": _structured("reply.json", _read_message(read_reply), asdict(Reply("t", 1, 3, 5))),
        "metrics": Reader("metrics.jsonl", lambda path: read_metrics(path.parent), b'{"step": 1}\n{"step"'),
        "table": Reader("t.csv", _read_table, TABLE.encode()),
        "table, gzipped": Reader("t.csv.gz", _read_table, gzip.compress(TABLE.encode(), mtime=0)),
        "table, Excel": Reader("t.xlsx", _read_table, _excel()),
        "idx": Reader("images-idx", read_idx, idx),
        "idx, gzipped": Reader("images-idx.gz", read_idx, gzip.compress(idx, mtime=0)),
        "sentences": Reader(
            "s.tsv", lambda path: parse_sst2(path, path.read_bytes()), b"sentence\tlabel\na b\t1\nc\t0\n"
        ),
        "image": Reader("i.png", lambda path: _read_image(path, 4, False), _png()),
        "mosaic": Reader("m.webps", lambda path: read_mosaics(path, 2, 2, 2), _mosaic()),
    }
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    return readers
