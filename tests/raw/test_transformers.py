"""Unmodified Hugging Face models, built from small configurations, against brute force."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle import assert_close, clipped_sum, per_example_gradients
from raw.comparison import assert_exact, traces
from tacit import Trainer
from tacit.errors import ModelError
from tacit.plan import make_plan
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


def test_mamba_as_shipped_gets_the_gradients_of_weights_used_outside_their_module() -> None:
    """Biases start where nothing of them shows; ``dt_proj`` is multiplied by hand."""
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        vocab_size=13,
        hidden_size=4,
        state_size=3,
        num_hidden_layers=1,
        intermediate_size=6,
        time_step_rank=2,
        use_cache=False,
    )
    model = transformers.MambaForCausalLM(config).double()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        found = Clipper(model, _language_loss).clipped_sum(
            [_tokens(padded=False)], Support.matching(model, ["*.dt_proj.*"]), 0.1
        )
    assert all(value.any() for value in found.values.values())
    assert_exact(model, _tokens(padded=False), _language_loss)


def _masked_language_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Of a head on all tokens, or on the labelled ones of all examples in one row each."""
    labels = batch["labels"]
    logits = model(**batch).logits
    if logits.dim() == 3:
        return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(1)
    chosen = labels != -100
    losses = F.cross_entropy(logits, labels[chosen], reduction="none")
    owner = torch.arange(len(labels))[:, None].expand_as(labels)[chosen]
    return torch.zeros(len(labels), dtype=losses.dtype).index_add(0, owner, losses)


def _modernbert(sparse: bool) -> nn.Module:
    config = transformers.ModernBertConfig(
        **{
            **_SMALL,
            "hidden_size": 4,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 6,
        },
        max_position_embeddings=LENGTH,
        bos_token_id=1,
        eos_token_id=1,
        cls_token_id=1,
        sep_token_id=1,
        sparse_prediction=sparse,
        attn_implementation="eager",
    )
    return transformers.ModernBertForMaskedLM(config).double()


@pytest.mark.parametrize("counts", [(2, 2, 2, 2, 2), (2, 2, 2, 1, 3)])
def test_modernbert_with_sparse_prediction_is_refused_and_without_it_exact(counts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    batch = _tokens(padded=False)
    labels = torch.full_like(batch["input_ids"], -100)
    for row, count in enumerate(counts):
        labels[row, :count] = batch["input_ids"][row, :count]
    batch["labels"] = labels
    assert_exact(_modernbert(sparse=False), batch, _masked_language_loss)
    model = _modernbert(sparse=True)
    with pytest.raises(ModelError, match='isolation="construction"'):
        Clipper(model, _masked_language_loss).clipped_sum([batch], Support.all(model), 1.0)
    clipper = Clipper(model, _masked_language_loss, isolation="construction")
    expected, _ = clipped_sum(
        per_example_gradients(model, _masked_language_loss, batch), Support.all(model), 0.1
    )
    assert_close(clipper.clipped_sum([batch], Support.all(model), 0.1).values, expected, 1e-10)


def test_tokens_padded_by_a_collator_are_trained() -> None:
    """Unequal lengths, padded to the longest of each batch and masked, through the whole pipeline."""
    generator = torch.Generator().manual_seed(3)
    rows = [
        {
            "input_ids": torch.randint(2, 13, (2 + place % 4,), generator=generator).tolist(),
            "labels": place % 3,
        }
        for place in range(16)
    ]

    def collate(items: list[dict[str, Any]]) -> dict[str, Tensor]:
        longest = max(len(item["input_ids"]) for item in items)
        ids = torch.tensor([item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in items])
        labels = torch.tensor([item["labels"] for item in items])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    plan = make_plan("dp-sgd", epsilon=3.0, delta=1e-3, examples=16, batch_size=4, epochs=2, accountant="rdp")
    for isolation in ("probed", "construction"):
        trainer = Trainer(
            _bert(),
            rows,  # type: ignore[arg-type]
            _logits_loss,
            plan,
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
            collate=collate,
            isolation=isolation,
        )
        assert trainer.fit(progress=False).finished


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
        if losses.requires_grad:  # not in every pass of a look, which any step but the first may bring
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
