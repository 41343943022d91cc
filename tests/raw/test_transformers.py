"""Unmodified Hugging Face models, built from small configurations, against brute force."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raw.comparison import assert_exact, traces
from tacit.raw.clipping import Clipper
from tacit.support import Support

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra 'peers')")

LENGTH = 5
ROWS = 5
"""As many examples as positions: shapes alone do not tell which is which."""


def _logits_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    return F.cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")


def _language_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
    return losses.mean(1)


def _tokens(rows: int = ROWS, padded: bool = True) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, 13, (rows, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        mask[1, -2:] = 0
        mask[-1, -1:] = 0
    return {
        "input_ids": ids * mask,
        "attention_mask": mask,
        "labels": torch.randint(3, (rows,), generator=generator),
    }


_SMALL: dict[str, Any] = {"vocab_size": 13, "num_labels": 3, "pad_token_id": 0}
_LAYERS: dict[str, Any] = {
    "hidden_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def _bert() -> nn.Module:
    config = transformers.BertConfig(**_SMALL, **_LAYERS, max_position_embeddings=LENGTH)
    return transformers.BertForSequenceClassification(config)


def _roberta() -> nn.Module:
    config = transformers.RobertaConfig(**_SMALL, **_LAYERS, max_position_embeddings=LENGTH + 2)
    return transformers.RobertaForSequenceClassification(config)


def _distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        **_SMALL,
        dim=4,
        hidden_dim=6,
        n_layers=1,
        n_heads=2,
        max_position_embeddings=LENGTH,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
    return transformers.DistilBertForSequenceClassification(config)


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=13,
        n_positions=LENGTH,
        n_embd=4,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=13,
        hidden_size=4,
        intermediate_size=6,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LENGTH,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


def _vit() -> nn.Module:
    config = transformers.ViTConfig(**_LAYERS, num_labels=3, image_size=4, patch_size=2, num_channels=2)
    return transformers.ViTForImageClassification(config)


def _images() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "pixel_values": torch.randn(ROWS, 2, 4, 4, generator=generator, dtype=torch.float64),
        "labels": torch.randint(3, (ROWS,), generator=generator),
    }


@pytest.mark.parametrize(
    ("build", "loss", "batch"),
    [
        pytest.param(_bert, _logits_loss, _tokens(), id="bert"),
        pytest.param(_roberta, _logits_loss, _tokens(), id="roberta"),
        pytest.param(_distilbert, _logits_loss, _tokens(), id="distilbert"),
        pytest.param(_gpt2, _language_loss, _tokens(padded=False), id="gpt2"),
        pytest.param(_llama, _language_loss, _tokens(padded=False), id="llama"),
        pytest.param(_vit, _logits_loss, _images(), id="vit"),
    ],
)
def test_unmodified_models_are_exact_and_left_as_they_were(
    build: Callable[[], nn.Module], loss: Callable[..., Tensor], batch: dict[str, Tensor]
) -> None:
    torch.manual_seed(0)
    model = build().double().train()
    with torch.no_grad():  # away from the initial state, where biases are zero and norms are one
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    before = traces(model)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    assert_exact(model, batch, loss)
    assert traces(model) == before
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_tied_head_is_one_parameter() -> None:
    support = Support.all(_gpt2())
    assert "transformer.wte.weight" in support
    assert "lm_head.weight" not in support


def test_nothing_is_left_behind_by_a_failing_step() -> None:
    torch.manual_seed(0)
    model = _bert().double()
    before = traces(model)
    batch = _tokens()
    clipper = Clipper(model, _logits_loss)
    clipper.clipped_sum([batch], Support.all(model), 1.0)

    def fails(gradient: Tensor) -> None:
        raise KeyError("on purpose")

    def failing(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        losses = _logits_loss(model, batch)
        losses.register_hook(fails)
        return losses

    clipper._loss = failing
    with pytest.raises(KeyError, match="on purpose"):
        clipper.clipped_sum([batch], Support.all(model), 1.0)
    assert traces(model) == before


def test_dropout_in_a_transformer_is_not_taken_for_mixing() -> None:
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            **_SMALL, **{**_LAYERS, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
        )
    )
    clipped = Clipper(model.train(), _logits_loss).clipped_sum([_tokens()], Support.all(model), 0.1)
    norm = sum(float(v.square().sum()) for v in clipped.values.values()) ** 0.5
    assert 0 < norm <= ROWS * 0.1 * (1 + 1e-4)
