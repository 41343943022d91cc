"""A trained model for others: a bundle, an ONNX graph, a program of torch.export, adapters in the form of peft."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tacit.data import read_schema
from tacit.errors import ArgumentError, FileError
from tacit.files import json_text, read_json, write_atomically
from tacit.jobs.card import model_card
from tacit.jobs.inputs import inputs_record
from tacit.jobs.prediction import Predictor, load
from tacit.jobs.quality import quality_of
from tacit.jobs.settings import from_record, to_toml
from tacit.models.low_rank import LowRank
from tacit.runs import load_certificate, verify
from tacit.runs.bundle import NEEDED, PAID, write_bundle
from tacit.runs.layout import (
    ADAPTER_DIRECTORY,
    CARD_FILE,
    CERTIFICATE_FILE,
    EXPERIMENT_FILE,
    INPUTS_FILE,
    SCHEMA_FILE,
    SETTINGS_FILE,
    SIGNATURE_FILE,
)
from tacit.version import __version__

Format = Literal["tacit", "onnx", "torch", "peft"]
FORMATS: dict[str, Format] = {".tacit": "tacit", ".onnx": "onnx", ".pt2": "torch"}
"""The format that the name of a file stands for; a folder is for peft."""


def export(
    run_dir: Path,
    out: Path,
    form: Format,
    *,
    use: str | None = None,
    key: Path | None = None,
    with_ledger: bool = False,
) -> None:
    """Write the model of a finished run to ``out``, which must not exist.

    ``use`` is a sentence for the model card, ``key`` a private key to sign a bundle with. With ``with_ledger`` plan and
    ledger go along, so that others can recount ε.
    """
    if out.exists():
        raise FileError(f"{out} already exists; choose another --out or delete it.")
    if not run_dir.is_dir():
        raise FileError(f"There is no run directory {run_dir}.")
    if form != "tacit" and (use or key or with_ledger):
        raise ArgumentError("A model card, a signature and a ledger go into a bundle (.tacit) only.")
    if form == "peft" and (run_dir / ADAPTER_DIRECTORY).is_dir():
        _copy_adapter(run_dir, out)
        return
    predictor = load(run_dir)
    if form == "tacit":
        _export_bundle(run_dir, out, predictor, use, key, with_ledger)
    elif form == "onnx":
        _export_onnx(predictor, out)
    elif form == "torch":
        _export_program(predictor, out)
    else:
        _export_adapters(predictor, out)


def _export_bundle(
    run_dir: Path, out: Path, predictor: Predictor, use: str | None, key: Path | None, with_ledger: bool
) -> None:
    if not (run_dir / CERTIFICATE_FILE).is_file():
        raise FileError(f"{run_dir} has no certificate, so there is nothing that a bundle could promise.")
    certificate = load_certificate(run_dir / CERTIFICATE_FILE)
    names = [*NEEDED, SCHEMA_FILE, SIGNATURE_FILE, *(PAID if with_ledger else ())]
    parts = {
        name: (run_dir / name).read_bytes()
        for name in names
        if name != CARD_FILE and (run_dir / name).is_file()
    }
    # Runs of earlier versions did not say it; a table's schema tells all of it.
    parts.setdefault(INPUTS_FILE, json_text(inputs_record(predictor.inputs)).encode())
    missing = [name for name in (*NEEDED, *(PAID if with_ledger else ())) if name not in (*parts, CARD_FILE)]
    if missing:
        raise FileError(f"{run_dir} lacks {', '.join(missing)}; tacit verify {run_dir} says more.")
    schema = read_schema(run_dir / SCHEMA_FILE) if SCHEMA_FILE in parts else None
    card = model_card(predictor.inputs, schema, certificate, quality_of(run_dir), use=use, name=out.name)
    parts[CARD_FILE] = card.encode()
    if (run_dir / EXPERIMENT_FILE).is_file():
        parts[SETTINGS_FILE] = _settings(run_dir).encode()
    write_bundle(out, parts, about={"tacit": __version__, "run": certificate.run}, key=key)


def _settings(run_dir: Path) -> str:
    """How the model was trained, without paths of this machine and without a seed, which could undo the noise."""
    path = run_dir / EXPERIMENT_FILE
    record = read_json(path)
    experiment = from_record(record.get("experiment") if isinstance(record, Mapping) else None, path)
    data = replace(experiment.data, source=Path(experiment.data.source).name, data_dir=None)
    data = replace(
        data,
        schema=_last(data.schema),
        tokenizer=_last(data.tokenizer),
        test=_last(data.test),
        words=_last(data.words),
        unit=_last(data.unit),
    )
    model = experiment.model
    model = replace(
        model,
        name=_last(model.name),
        weights=_last(model.weights),
    )
    return to_toml(
        replace(experiment, data=data, model=model, training=replace(experiment.training, seed=None))
    )


def _last(name: str | None) -> str | None:
    """The last part of an absolute path; any other name as it is."""
    return Path(name).name if name and Path(name).is_absolute() else name


class Graph(nn.Module):
    """What a graph computes from encoded rows: (scores, probabilities), or for regression the value in its unit."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.model, self.kind = predictor.model, predictor.kind
        self.precision = predictor.precision
        self.low, self.high = predictor.range

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """The answers for rows ``x``."""
        taken = x if x.dtype == torch.int64 else x.to(self.precision)
        scores = self.model(taken)
        if self.kind == "regression":
            return (self.low + (scores + 1) / 2 * (self.high - self.low),)
        if self.kind == "multiclass":
            return scores, scores.softmax(1)
        return scores, torch.cat([(-scores).sigmoid(), scores.sigmoid()], 1)

    @property
    def outputs(self) -> list[str]:
        """The names of what it computes."""
        return ["value"] if self.kind == "regression" else ["score", "probability"]


def _example(predictor: Predictor) -> Tensor:
    shape = predictor.inputs.shape
    if predictor.inputs.image is not None and predictor.inputs.features is None:
        shape = predictor.inputs.image.shape
    if not shape:
        raise ArgumentError(
            "What shape this model takes is not known, because it was trained on a dataset of your own."
        )
    if predictor.inputs.of_texts:
        return torch.ones(3, *shape, dtype=torch.int64)
    return torch.zeros(3, *shape)


def _export_program(predictor: Predictor, out: Path) -> None:
    program = _traced(predictor)
    write_atomically(out, lambda place: _save_program(program, place), new=True)


def _save_program(program: Any, place: Path) -> None:
    # torch.export wants the ending of its own.
    named = place.with_name(f"{place.name}.pt2")
    torch.export.save(program, named)
    named.replace(place)


def _traced(predictor: Predictor) -> Any:
    example = _example(predictor)
    with _quietly():
        try:
            return torch.export.export(
                Graph(predictor), (example,), dynamic_shapes=({0: torch.export.Dim("rows")},)
            )
        except Exception as error:  # whatever a tracer says about a network it cannot follow
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise ArgumentError(
                f"The network {predictor.inputs.model.name!r} cannot be exported as a graph: {reason}."
            ) from error


def _export_onnx(predictor: Predictor, out: Path) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise FileError(
            "ONNX needs two packages: run pip install 'tacit-dp[onnx]', or use --format torch."
        ) from error
    graph = Graph(predictor)
    program = _traced(predictor)
    with _quietly():
        try:
            made = torch.onnx.export(
                program, dynamo=True, input_names=["x"], output_names=graph.outputs, verbose=False
            )
        except Exception as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise ArgumentError(
                f"The network {predictor.inputs.model.name!r} cannot be written as ONNX: {reason}."
            ) from error
    assert made is not None
    proto = made.model_proto
    features = [] if predictor.schema is None else list(_names(predictor))
    facts = {
        "kind": predictor.kind,
        "classes": json.dumps(list(predictor.classes)),
        "features": json.dumps(features),
        "threshold": repr(predictor.threshold),
        "made by": f"tacit-dp {__version__}",
    }
    onnx.helper.set_model_props(proto, facts)
    write_atomically(out, lambda place: place.write_bytes(proto.SerializeToString()), new=True)


def _names(predictor: Predictor) -> tuple[str, ...]:
    from tacit.data.encode import empty_table, encode

    assert predictor.schema is not None
    return encode(empty_table(predictor.schema), predictor.schema).names


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what exporters say to their own authors."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _copy_adapter(run_dir: Path, out: Path) -> None:
    """The adapter of a language model, which training has written as peft reads it, if it is the certified one."""
    verdict = verify(run_dir)
    if not verdict.agrees:
        raise FileError(f"{run_dir} is not what its certificate speaks of; tacit verify {run_dir} says more.")
    adapter = run_dir / ADAPTER_DIRECTORY
    config = read_json(adapter / "adapter_config.json")
    if not isinstance(config, dict):
        raise FileError(f"{adapter} holds no adapter of peft.")
    config["base_model_name_or_path"] = Path(str(config.get("base_model_name_or_path") or "")).name
    out.mkdir(parents=True)
    name = "adapter_model.safetensors"
    write_atomically(out / name, lambda place: place.write_bytes((adapter / name).read_bytes()))
    write_atomically(out / "adapter_config.json", lambda place: place.write_text(json_text(config)))


def _export_adapters(predictor: Predictor, out: Path) -> None:
    """Low-rank corrections as peft reads them, and the head, which peft does not know, beside them."""
    model = predictor.model
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LowRank)}
    if not layers:
        raise ArgumentError("The run has no low-rank adapters; train with tacit finetune --method lora.")
    # Our text encoder wraps the network of transformers, whose own names peft wants.
    inside = "encoder." if all(name.startswith("encoder.") for name in layers) else ""
    adapters: dict[str, Tensor] = {}
    for name, layer in layers.items():
        plain = f"base_model.model.{name.removeprefix(inside)}"
        adapters[f"{plain}.lora_A.weight"] = layer.down.weight.detach().float().contiguous()
        adapters[f"{plain}.lora_B.weight"] = layer.up.weight.detach().float().contiguous()
    rank = predictor.inputs.model.lora_rank
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": Path(predictor.inputs.model.name or "").name,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(name.removeprefix(inside) for name in layers),
        "task_type": None,
    }
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    head = {
        name: model.get_parameter(name).detach().float().contiguous()
        for name in trained
        if not name.endswith((".down.weight", ".up.weight"))
    }
    out.mkdir(parents=True)
    write_atomically(out / "adapter_model.safetensors", lambda place: save_file(adapters, str(place)))
    write_atomically(out / "head.safetensors", lambda place: save_file(head, str(place)))
    write_atomically(out / "adapter_config.json", lambda place: place.write_text(json_text(config)))
