"""The shapes of pretrained networks as they are fine-tuned; what a step costs does not depend on the weights."""

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


def only_the_head(model: nn.Module) -> nn.Module:
    """The network with everything but its head frozen."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("head.", "classifier.")))
    return model


def with_corrections(model: nn.Module, *layers: str) -> nn.Module:
    """The network with everything but its head frozen, and corrections of rank 8 at the layers of these patterns."""
    from tacit.models.low_rank import add_low_rank
    from tacit.models.pretrained import LORA_RANK

    add_low_rank(only_the_head(model), LORA_RANK, layers)
    return model


def gpt2_lora() -> nn.Module:
    """A small GPT-2 of `transformers`, frozen, with low-rank adapters at its attention."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=8192,
        bos_token_id=0,
        eos_token_id=0,
        n_positions=128,
        n_embd=256,
        n_layer=4,
        n_head=8,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    adapters = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(GPT2LMHeadModel(config), adapters)


def llama() -> nn.Module:
    """A small LLaMA of `transformers` with grouped queries, all of it trained."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config)


def llama_lora() -> nn.Module:
    """The same, frozen, with low-rank adapters at every linear layer."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(llama(), LoraConfig(r=8, target_modules="all-linear"))
