from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tacit.models import MobileNetV2

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "very")


@pytest.fixture
def mobilenet_weights(tmp_path: Path) -> Path:
    """Weights of a MobileNetV2 for seven classes, as a safetensors file."""
    torch.manual_seed(3)
    path = tmp_path / "mobilenet.safetensors"
    save_file(MobileNetV2(7).state_dict(), path)
    return path


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A transformers directory with a tiny BERT and its tokenizer."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra 'text')")
    torch.manual_seed(4)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
    )
    directory = tmp_path / "bert"
    transformers.BertModel(config).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return directory
