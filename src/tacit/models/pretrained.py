"""Pretrained networks with a fresh head, as the description of a model says."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from torch import nn

from tacit.data import resolve_as
from tacit.data.sources import default_data_dir
from tacit.errors import ArgumentError
from tacit.models import MobileNetV2, mobilenet_v2_weights, read_weights
from tacit.models.config import ModelConfig
from tacit.models.encoder import MINILM, load_encoder
from tacit.models.low_rank import add_low_rank
from tacit.models.mobilenet import load_state
from tacit.models.patterns import check_head, freeze

MOBILENET = "mobilenet-v2"
PUBLIC = "public"
IMAGE_SIZE = 64
LORA_RANK = 8
NOTHING = "none"


@dataclass(frozen=True)
class Anatomy:
    """The parts of a network: patterns of its head, of what is frozen by default, and of layers for adapters."""

    head: tuple[str, ...]
    frozen: tuple[str, ...]
    adapted: tuple[str, ...]


VISION = Anatomy(("classifier.1.*",), (), ("features.*",))
# Noise on every word's embedding would drown the few words that a text has.
TEXT = Anatomy(
    ("head.*",), ("encoder.embeddings.*",), ("*.query", "*.value", "*.q_lin", "*.v_lin", "*.c_attn")
)


def is_text(name: str | None) -> bool:
    """Whether a model reads token ids: minilm, or a ``transformers`` directory."""
    return name == MINILM or (name is not None and (Path(name) / "config.json").is_file())


def anatomy(config: ModelConfig) -> Anatomy:
    """The parts of the network; the head of a user's own model must be named."""
    known = VISION if config.name == MOBILENET else TEXT if is_text(config.name) else Anatomy((), (), ())
    head = config.head or known.head
    if not head and ":" not in (config.name or ""):
        raise ArgumentError(
            f"There is no pretrained model {config.name!r}; there are {MOBILENET}, {MINILM}, a transformers directory, "
            "or module:object with --weights."
        )
    if not head:
        raise ArgumentError(f"Name the head of {config.name!r}: say --head with a pattern such as 'fc.*'.")
    return Anatomy(head, known.frozen, config.lora_layers or known.adapted)


def build_network(
    config: ModelConfig, outputs: int, data_dir: str | None, *, public: bool = True
) -> nn.Module:
    """The network with its public weights and a fresh head; what is not to be trained requires no gradient.

    Without ``public`` the public weights are not read: others will be loaded.
    """
    parts = anatomy(config)
    model = _loaded(config, outputs, data_dir, parts, public)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    frozen = parts.frozen if config.freeze is None else config.freeze
    freeze(model, [] if frozen == (NOTHING,) else [*frozen, *_beginning(config)])
    if config.lora_rank is not None:
        _adapt(model, config.lora_rank, parts, explicit=config.lora_layers is not None)
    check_head(model, parts.head)
    return model


def _loaded(
    config: ModelConfig, outputs: int, data_dir: str | None, parts: Anatomy, public: bool
) -> nn.Module:
    name, weights, blocks = config.name or "", config.weights or PUBLIC, config.frozen_blocks or 0
    if name == MOBILENET:
        network = MobileNetV2(outputs, image_size=config.image_size or IMAGE_SIZE, first_block=blocks)
        if public:
            where = Path(data_dir) if data_dir else default_data_dir()
            state = mobilenet_v2_weights(where) if weights == PUBLIC else read_weights(weights)
            network.load_public(state)
        return network
    if is_text(name):
        encoder = load_encoder(name, outputs, first_block=blocks)
        if weights != PUBLIC and public:
            load_state(encoder, read_weights(weights), name, head=parts.head)
        return encoder
    if ":" not in name:
        raise ArgumentError(
            f"There is no pretrained model {name!r}; there are {MOBILENET}, {MINILM}, a transformers directory, or "
            "module:object with --weights."
        )
    if weights == PUBLIC:
        raise ArgumentError(f"Name the safetensors file with the public weights of {name!r}: say --weights.")
    if blocks:
        raise ArgumentError(
            f"frozen_blocks is for {MOBILENET} and text encoders; freeze {name!r} by patterns."
        )
    own = resolve_as(name, nn.Module)
    if not public:
        return own
    load_state(own, read_weights(weights), name, head=parts.head)
    return own


def _beginning(config: ModelConfig) -> list[str]:
    """Patterns of the blocks that are frozen as a beginning, with what lies below them."""
    count = config.frozen_blocks or 0
    if config.name == MOBILENET:
        return [f"features.{block}.*" for block in range(count)]
    layers = [f"encoder.encoder.layer.{block}.*" for block in range(count)]
    return ["encoder.embeddings.*", *layers] if count else []


def _adapt(model: nn.Module, rank: int, parts: Anatomy, *, explicit: bool) -> None:
    """Low-rank corrections and the head are trained, and nothing else; what is frozen gets no correction."""
    kept = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    frozen = [name for name, _ in model.named_modules() if name and f"{name}.weight" not in kept]
    head = [name for name in kept if any(fnmatchcase(name, pattern) for pattern in parts.head)]
    adapted = add_low_rank(
        model,
        rank,
        parts.adapted,
        spared=[*frozen, *(n.rpartition(".")[0] for n in head)],
        all_needed=explicit,
    )
    for name, parameter in model.named_parameters():
        fresh = name.endswith((".down.weight", ".up.weight")) and name.rsplit(".", 2)[0] in adapted
        parameter.requires_grad_(name in head or fresh)
