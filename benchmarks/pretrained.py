"""The shapes of two pretrained networks as they are fine-tuned; what a step costs does not depend on the weights."""

from __future__ import annotations

from torch import nn


def mobilenet() -> nn.Module:
    """MobileNetV2 with norms that are frozen altogether, which Opacus can train as well."""
    from tacit.models import MobileNetV2

    return MobileNetV2(10)


def mobilenet_with_norms() -> nn.Module:
    """The same with frozen statistics, but with scales and shifts that are trained."""
    model = mobilenet()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def minilm() -> nn.Module:
    """The encoder of all-MiniLM-L6-v2 under a head of two classes; embeddings are frozen, as is the default."""
    from transformers import BertConfig, BertModel

    from tacit.models.encoder import TextEncoder

    config = BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = TextEncoder(BertModel(config, add_pooling_layer=False), 2)
    for parameter in model.encoder.embeddings.parameters():  # type: ignore[union-attr]
        parameter.requires_grad_(False)
    return model
