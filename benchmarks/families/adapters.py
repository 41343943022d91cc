"""Families of peft: adapters on Hugging Face models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.families.family import Family, Instance, tokens
from benchmarks.families.hugging_face import SMALL, causal, causal_loss, class_loss, gpt2
from tacit.models import freeze_in_int8


def _adapted(model: Callable[[], nn.Module], kind: str, **options: Any) -> Callable[[], Instance]:
    """A causal model with an adapter of peft; one that starts at zero is moved away from it."""

    def build() -> Instance:
        import peft

        config = getattr(peft, f"{kind}Config")(task_type="CAUSAL_LM", **options)
        adapted = peft.get_peft_model(model(), config)
        return causal(_moved(adapted))

    return build


def _moved(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def _llama() -> nn.Module:
    import transformers as hf

    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=1))


def _bert_classes() -> Instance:
    import peft
    import transformers as hf

    model = hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=3))
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    return Instance(_moved(peft.get_peft_model(model, config)).double().train(), class_loss, tokens())


def _checkpointed() -> Instance:
    import peft

    model = gpt2()
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    model.enable_input_require_grads()  # type: ignore[operator]
    return causal(_moved(peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=2))))


def _mixed_base() -> Instance:
    """A frozen base in bfloat16 under an adapter in single precision."""
    import peft

    model = gpt2().bfloat16()
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=2))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return Instance(_moved(adapted).train(), causal_loss, tokens())


def _int8_base(model: Callable[[], nn.Module], **options: Any) -> Callable[[], Instance]:
    """A frozen base in eight bits under an adapter."""

    def build() -> Instance:
        import peft

        adapted = peft.get_peft_model(model(), peft.LoraConfig(task_type="CAUSAL_LM", r=2, **options))
        return causal(_moved(freeze_in_int8(adapted)))

    return build


def _t5_lora() -> Instance:
    import peft

    from benchmarks.families.hugging_face import _t5

    built = _t5(0.1)
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q", "v"])
    return Instance(
        _moved(peft.get_peft_model(built.model, config)).double().train(), built.loss, built.batch
    )


_LORA = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}

FAMILIES = [
    Family("peft LoRA GPT-2 (c_attn)", _adapted(gpt2, "Lora", **_LORA)),
    Family(
        "peft LoRA GPT-2, lora_dropout 0.1, model dropout 0.1",
        _adapted(lambda: gpt2(0.1), "Lora", lora_dropout=0.1, **_LORA),
    ),
    Family("peft LoRA BERT (query,value), SEQ_CLS head", _bert_classes),
    Family("peft DoRA GPT-2", _adapted(gpt2, "Lora", use_dora=True, **_LORA)),
    Family(
        "peft DoRA LLaMA, dropout",
        _adapted(_llama, "Lora", r=2, use_dora=True, lora_dropout=0.1, target_modules="all-linear"),
    ),
    Family(
        "peft rsLoRA LLaMA all-linear",
        _adapted(_llama, "Lora", r=2, use_rslora=True, target_modules="all-linear"),
    ),
    Family("peft LoRA on embedding", _adapted(gpt2, "Lora", r=2, target_modules=["wte"])),
    Family(
        "peft IA3 GPT-2",
        _adapted(gpt2, "IA3", target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"]),
    ),
    Family("peft prompt tuning GPT-2", _adapted(gpt2, "PromptTuning", num_virtual_tokens=3)),
    Family(
        "peft P-tuning GPT-2", _adapted(gpt2, "PromptEncoder", num_virtual_tokens=3, encoder_hidden_size=4)
    ),
    Family("peft prefix tuning GPT-2", _adapted(gpt2, "PrefixTuning", num_virtual_tokens=3)),
    Family(
        "peft LoRA + modules_to_save lm_head", _adapted(gpt2, "Lora", modules_to_save=["lm_head"], **_LORA)
    ),
    Family("peft LoRA T5, dropout", _t5_lora),
    Family("bf16 frozen base + fp32 LoRA (peft)", _mixed_base, tolerance=1e-5),
    Family("int8 frozen base + LoRA GPT-2 (peft)", _int8_base(gpt2)),
    Family("int8 frozen base + LoRA LLaMA (peft)", _int8_base(_llama, target_modules="all-linear")),
    Family(
        "bf16 trainable weights",
        lambda: Instance(gpt2().bfloat16().train(), causal_loss, tokens()),
        refused="bfloat16",
    ),
    Family(
        "fp32 weights with autocast=bfloat16",
        lambda: Instance(gpt2().float().train(), causal_loss, tokens()),
        tolerance=3e-2,
        autocast=torch.bfloat16,
    ),
    Family("peft LoRA GPT-2 + gradient checkpointing", _checkpointed),
]
