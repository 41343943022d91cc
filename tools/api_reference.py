"""Write docs/reference/api.md from the docstrings: python -m tools.api_reference. A test keeps the page true.

Public is what the modules of MODULES list in ``__all__`` (or define, where they list nothing). Every public name needs
words, and so does every parameter: under ``Args:`` in its docstring, at its field (``tacit.option_fields.option``), as
``name`` in the text, as a line ``name: ...``, or in COMMON, for names that mean the same everywhere.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"
MODULES = (
    "tacit",
    "tacit.losses",
    "tacit.training.schedules",
    "tacit.plan",
    "tacit.support",
    "tacit.distributed",
    "tacit.runs",
    "tacit.audit",
    "tacit.release.ledger",
    "tacit.raw.rules.registry",
    "tacit.theory",
    "tacit.data",
    "tacit.data.features",
    "tacit.jobs.settings",
    "tacit.jobs.resolving",
    "tacit.jobs.run",
    "tacit.jobs.recipes",
    "tacit.models",
    "tacit.models.config",
    "tacit.federated",
    "tacit.errors",
)
INTRODUCTION = """# Python API

Generated from the docstrings by `python -m tools.api_reference`; a test keeps it up to date. `tacit` and
`tacit.plan` are what most programs need. A parameter without a default must be given.
"""

COMMON: Mapping[str, str] = {
    "about": "One sentence on the features.",
    "accountant": "The name of an accountant: `pld`, `rdp` or `theorem-4.1`.",
    "active": "k, the number of active coordinates.",
    "active_ratio": "The share of coordinates, or rows, that is active.",
    "agrees": "Whether no contradiction was found.",
    "always": "Whether the rule applies whatever the layer's settings are.",
    "always_active": "Patterns of the parameters that belong to every support.",
    "audit": "The audit.",
    "autocast": "The lower precision in which the model runs, if any.",
    "average": "The decay of the average of the weights.",
    "batch": "A batch: what the loader gives.",
    "batch_size": "B, the expected number of examples in a step and the divisor of every step.",
    "blocks": "The active coordinates of each parameter, by name.",
    "capture": "The share of the gradient's energy on the support.",
    "captured": "Energy of the gradient on the best coordinates, by count.",
    "captured_variance": "Variance of the estimate `captured`.",
    "certificate": "The certificate.",
    "channels": "The number of channels of the images.",
    "charged_releases": "How many were charged.",
    "charges": "What was charged, in order.",
    "checkpoint_seconds": "The least time between two checkpoints.",
    "chunk_size": "The number of examples in memory at once; changes no result.",
    "claimed_curve": "Claimed δ by ε.",
    "clip_norm": "C, the bound on the norm of each example's gradient.",
    "clip_order": "Whether a gradient is masked and then clipped, or clipped and then masked.",
    "clipping_bias": "The term of the bias of clipping.",
    "collate": "What makes a batch of examples.",
    "columns": "The columns by name.",
    "command": "The command that asks.",
    "confidence": "The confidence of the bound, such as 0.999.",
    "constant": "The constant of the bound.",
    "coordinates": "d, the number of trainable coordinates.",
    "counts": "Numbers, by what they count.",
    "created": "When it was written.",
    "curvature": "The curvature of the loss along each coordinate.",
    "cutoff": "How alike two names must be.",
    "d": "The number of coordinates.",
    "data": "What to train on.",
    "data_dir": "The folder that holds the data; by default TACIT_DATA.",
    "dataset": "The training data: a map-style dataset.",
    "delta": "The promised δ.",
    "deltas": "δ on a grid of ε.",
    "dense": "The noise energy on all coordinates.",
    "descriptor": "The descriptor of the open file.",
    "dimension": "d, the number of trainable coordinates.",
    "directory": "The folder to write to.",
    "done": "Called with the name of each part that is finished.",
    "download": "Whether files that are missing may be fetched from where they are published.",
    "effort": "How many trials to spend.",
    "epoch_steps": "The number of steps of each epoch.",
    "epochs": "Expected passes over the examples.",
    "epsilon": "The promised ε, or the one spent.",
    "epsilon1": "The ε of the selection.",
    "epsilon2": "The ε of the value.",
    "epsilon_claimed": "The ε that is claimed.",
    "epsilon_exact": "The exact ε.",
    "epsilon_lower": "The lower bound on ε from samples.",
    "estimate": "The estimate of captured energy.",
    "estimates": "Estimates of the same quantity, one per fold.",
    "examples": "n, the number of training examples, which counts as public.",
    "experiment": "The description of the run.",
    "features": "The fixed image features.",
    "findings": "What the audit of each part found.",
    "finetune": "Whether the method is a way to fine-tune a pretrained network.",
    "folds": "The parts of the warm-up.",
    "forward": "The forward pass that keeps examples apart.",
    "gradient": "The gradient.",
    "gradient_norms": "The norms of per-example gradients.",
    "gradient_sum": "The sum of the released gradients of the fold.",
    "gradients": "Per-example gradients, one per row.",
    "grey": "Whether images are read in grey.",
    "group": "The process group.",
    "guesses": "The guesses, or how many were made.",
    "held_out": "The held-out data, or the share of rows to hold out.",
    "k": "How many coordinates count as large.",
    "kind": "binary, multiclass or regression.",
    "known": "The names that there are.",
    "layer": "The layer.",
    "layers": "The classes of layers.",
    "learning_rate": "η, the learning rate.",
    "ledger": "Where every release is charged.",
    "ledger_head": "The last hash of the ledger.",
    "ledger_torn_lines": "Lines of the ledger that a crash cut off.",
    "left": "The first plan, or its value.",
    "local": "What the audit of each local mechanism found.",
    "lower_curve": "Lower bound on δ by ε.",
    "make": "What makes the transform.",
    "mean_squared_bias": "The mean squared bias of clipping.",
    "measured": "Measures on held-out data by name.",
    "measured_curve": "Measured δ by ε.",
    "mechanism": "What is released.",
    "method": "The name of the training method.",
    "metrics": "Measures on held-out data by name.",
    "minibatch_variance": "The term of the variance of batches.",
    "missing": "Whether values may be missing.",
    "model": "The model.",
    "module": "The module.",
    "momentum": "The momentum of sgd.",
    "most": "How many at most.",
    "name": "A name, for messages and reports.",
    "noise": "Where the noise comes from.",
    "noise_multiplier": "σ, the deviation of the noise over the clip norm.",
    "noise_variance": "ν², the variance of the noise on one coordinate of the averaged gradient.",
    "not_covered": "Sentences: what ε does not cover.",
    "number": "The number of the step, from 1.",
    "one_allowed": "Whether 1 is allowed.",
    "optimization_progress": "The term of the progress of optimisation.",
    "optimizer": "What makes the optimizer, given the named parameters.",
    "options": "Further options.",
    "outcome": "What came out of the job.",
    "outputs": "The number of outputs.",
    "owns_children": "Whether the rule covers the layers inside as well.",
    "path": "The file.",
    "perturbation": "The perturbation of the value.",
    "phase": "A phase of the plan, or its name.",
    "phases": "The phases of the run, in order.",
    "plan": "The plan.",
    "plan_digest": "SHA-256 of the plan.",
    "planned_noise_multiplier": "σ as planned.",
    "planned_releases": "How many releases the plan has.",
    "planned_steps": "How many steps the plan has for the phase.",
    "positive": "The value of the positive class.",
    "present": "Which canaries took part.",
    "prevalence": "The publicly known share of positives.",
    "privacy": "The promise.",
    "problem": "The data, ready to train on.",
    "problems": "Sentences: every contradiction.",
    "projected": "The bound on the projected gradient.",
    "public": "Whether it is publicly known; false if it was read off the private rows.",
    "ratio": "The share that is active, in (0, 1].",
    "reason": "One sentence on why.",
    "record": "The JSON form.",
    "relation": "The neighbouring relation.",
    "released": "What the step released.",
    "releases": "How many releases the phase made.",
    "reset": "Whether inactive coordinates return to their initial value when the phase starts.",
    "result": "What training gave.",
    "right": "The second plan, or its value.",
    "run": "The identifier of the run.",
    "run_dir": "The run directory.",
    "sampler": "How examples are sampled.",
    "samples": "The number of samples.",
    "sampling_rate": "q, the probability with which an example enters a step.",
    "scale": "linear or log.",
    "schedule": "The learning rate over the run, as a factor by step.",
    "schema": "The schema of a table.",
    "score": "What ranks coordinates or rows.",
    "scores": "The score of each trial.",
    "seconds": "The time taken.",
    "seed": "Makes the noise reproducible, for experiments only.",
    "selection": "How the support was chosen.",
    "selections": "Per phase, one sentence on why its support is what it is.",
    "separator": "The separator of a CSV file.",
    "shape": "The shape of the parameter.",
    "sigma": "σ, the noise multiplier.",
    "size": "The side of the images.",
    "smoothness": "L, the smoothness of the loss.",
    "software": "Versions of the software.",
    "source": "What was audited.",
    "sparse": "The noise energy on the active ones.",
    "spends": "What is paid for.",
    "squared_signal": "The squared mean gradient of each coordinate.",
    "step": "The number of the step, from 0.",
    "steps": "The number of steps.",
    "stronger": "The signal of the stronger coordinate.",
    "sum_of_squares": "The sum of squared released gradients.",
    "support": "The active coordinates, or where they come from.",
    "target": "The column to predict.",
    "then": "The schedule after the warm-up.",
    "total_energy": "The energy of the whole gradient.",
    "tradeoff": "The trade-off curve of the claim.",
    "training": "How to train.",
    "trajectory": "Gradients along a run.",
    "trials": "How many trials were made.",
    "uncaptured": "Energy off them, by count.",
    "uncaptured_variance": "Variance of the estimate `uncaptured`.",
    "unit": "What one example stands for.",
    "updates": "Whether the phase moves weights.",
    "values": "The values.",
    "views": "How many views of each example are averaged before clipping.",
    "weaker": "The signal of the weaker coordinate.",
    "where": "Where it stands, for messages.",
    "witness": "A file outside the run directory that also notes every release.",
    "workers": "The number of processes.",
}


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name in MODULES:
        module = importlib.import_module(name)
        entries = [_entry(public, member) for public, member in members(module)]
        if entries:
            parts += [f"\n## `{name}`\n\n{_text(module)}\n", *entries]
    return "".join(parts)


def lacking() -> Iterator[str]:
    """Every public name, and every parameter of one, that has no words."""
    seen = set()
    for name in MODULES:
        for public, member in members(importlib.import_module(name)):
            if id(member) in seen:
                continue
            seen.add(id(member))
            if not _text(member):
                yield f"{name}.{public}"
            for parameter in parameters(member):
                if not _words(member, parameter.name):
                    yield f"{name}.{public}({parameter.name})"


def members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public functions and classes of a module, by name."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [n for n, m in vars(module).items() if getattr(m, "__module__", None) == module.__name__]
    for name in sorted(names):
        member = getattr(module, name)
        if not name.startswith("_") and (inspect.isclass(member) or inspect.isfunction(member)):
            yield name, member


def parameters(member: Any) -> list[inspect.Parameter]:
    """What can be given when ``member`` is called."""
    if inspect.isclass(member) and issubclass(member, enum.Enum | BaseException):
        return []
    try:
        found = inspect.signature(member).parameters.values()
    except (TypeError, ValueError):
        return []
    protocol = getattr(member, "_is_protocol", False)
    return [] if protocol else [parameter for parameter in found if parameter.name != "self"]


def _entry(name: str, member: Any) -> str:
    text, sections = _parts(member)
    lines = [f"\n### `{name}`\n\n```text\n{name}{_signature(member)}\n```\n\n{text}\n"]
    if given := parameters(member):
        lines.append("\n| parameter | default | |\n|---|---|---|\n")
        lines += [_row(member, parameter) for parameter in given]
    for title in ("Returns", "Raises"):
        if title in sections:
            lines.append(f"\n**{title}** {_one_line(sections[title])}\n")
    if inspect.isclass(member):
        lines += _methods(member)
    return "".join(lines)


def _methods(member: type[Any]) -> Iterator[str]:
    found = False
    for method, function in vars(member).items():
        plain = function.__func__ if isinstance(function, classmethod | staticmethod) else function
        if method.startswith("_"):
            continue
        if inspect.isfunction(plain):
            found = True
            yield f"\n- `{method}{_signature(plain)}`: {_first(plain)}"
        elif isinstance(function, property) and function.fget is not None:
            found = True
            yield f"\n- `{method}`: {_first(function.fget)}"
    if found:
        yield "\n"


def _row(member: Any, parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is inspect.Parameter.empty else f"`{_plain(repr(parameter.default))}`"
    name = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(
        parameter.kind, ""
    ) + parameter.name
    words = (_words(member, parameter.name) or "").replace("|", "\\|")
    return f"| `{name}` | {default.replace('|', chr(92) + '|')} | {words} |\n"


def _words(member: Any, parameter: str) -> str | None:
    """What is said about a parameter, or nothing."""
    text, sections = _parts(member)
    stated = dict(_arguments(sections.get("Args", "")))
    if parameter in stated:
        return stated[parameter]
    if dataclasses.is_dataclass(member):
        for field in dataclasses.fields(member):
            if field.name == parameter and field.metadata.get("help"):
                return str(field.metadata["help"])
    line = re.search(rf"^{parameter}:\s+(.+?)$", text, re.MULTILINE)
    if line:
        return line[1]
    told = [s for s in re.split(r"(?<=[.:;])\s+", _one_line(text)) if _mentions(s, parameter)]
    return told[0] if told else COMMON.get(parameter)


def _mentions(sentence: str, parameter: str) -> bool:
    return any(re.search(rf"\b{parameter}\b", code) for code in re.findall(r"``([^`]+)``", sentence))


def _parts(member: Any) -> tuple[str, dict[str, str]]:
    """The text of a docstring without its sections, and the sections by title."""
    pieces = re.split(r"^(Args|Returns|Raises):\n", _text(member), flags=re.MULTILINE)
    return pieces[0].strip(), dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _arguments(section: str) -> Iterator[tuple[str, str]]:
    for found in re.finditer(r"^    (\w+): (.*?)(?=^    \w|\Z)", section, re.MULTILINE | re.DOTALL):
        yield found[1], _one_line(found[2])


class _Plain:
    """An annotation that prints as it is written, without quotes; the defaults keep theirs."""

    def __init__(self, annotation: Any) -> None:
        self.text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self.text


def _signature(member: Any) -> str:
    try:
        found = inspect.signature(member)
    except (TypeError, ValueError):
        return ""
    plain = [
        one if one.annotation is one.empty else one.replace(annotation=_Plain(one.annotation))
        for one in found.parameters.values()
    ]
    found = found.replace(parameters=plain)
    if found.return_annotation is not found.empty:
        found = found.replace(return_annotation=_Plain(found.return_annotation))
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", str(found))


def _plain(text: str) -> str:
    return re.sub(r"<(?:function|class) '?([\w.]+)'?(?: at 0x[0-9a-f]+)?>", r"\1", text)


def _text(member: Any) -> str:
    return inspect.cleandoc(member.__doc__ or "")


def _first(member: Any) -> str:
    return _one_line(_text(member).split("\n\n")[0])


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(reference())
