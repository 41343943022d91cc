"""Families of transformers, timm and x-transformers: unmodified models from small random configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.family import Family, Instance, classified, labelled, tokens

SMALL: dict[str, Any] = {
    "vocab_size": 17,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def causal_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The mean over the tokens of an example that are not padding."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -ids.shape[1] :][:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    kept = mask[:, 1:].to(losses.dtype)
    return (losses * kept).sum(1) / kept.sum(1)


def class_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Of a classifier of sequences."""
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    return F.cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")


def gpt2(dropout: float = 0.0, **options: Any) -> nn.Module:
    """Two layers of GPT-2."""
    import transformers as hf

    config = hf.GPT2Config(
        vocab_size=17,
        n_embd=8,
        n_layer=2,
        n_head=2,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        attn_pdrop=dropout,
        embd_pdrop=dropout,
        resid_pdrop=dropout,
        **options,
    )
    return hf.GPT2LMHeadModel(config)


def causal(model: nn.Module) -> Instance:
    """A causal language model in double precision."""
    return Instance(model.double().train(), causal_loss, tokens())


def _of(name: str, **options: Any) -> Callable[[], Instance]:
    """A causal model by the name of its configuration and model class."""

    def build() -> Instance:
        import transformers as hf

        config = getattr(hf, f"{name}Config")(**{**SMALL, **options})
        return causal(getattr(hf, f"{name}ForCausalLM")(config))

    return build


def _checkpointed(dropout: float) -> Instance:
    model = gpt2(dropout)
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    return causal(model)


def _t5(dropout: float) -> Instance:
    import transformers as hf

    config = hf.T5Config(
        vocab_size=17,
        d_model=8,
        d_kv=4,
        d_ff=12,
        num_layers=2,
        num_heads=2,
        dropout_rate=dropout,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
    )

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids).logits
        return F.cross_entropy(logits.transpose(1, 2), ids.flip(1), reduction="none").mean(1)

    return Instance(hf.T5ForConditionalGeneration(config).double().train(), loss, tokens())


def _masked_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    hidden = torch.where(torch.arange(ids.shape[1])[None] % 2 == 0, 1, ids)
    logits = model(input_ids=hidden, attention_mask=mask).logits
    return F.cross_entropy(logits.transpose(1, 2), ids, reduction="none").mean(1)


def _bert() -> Instance:
    import transformers as hf

    return Instance(hf.BertForMaskedLM(hf.BertConfig(**SMALL)).double().train(), _masked_loss, tokens())


def _modern_bert() -> Instance:
    import transformers as hf

    config = hf.ModernBertConfig(
        **SMALL,
        cls_token_id=1,
        sep_token_id=2,
        sparse_prediction=True,
        attn_implementation="eager",
        reference_compile=False,
    )
    model = hf.ModernBertForMaskedLM(config).double().train()

    def batch(rows: int, seed: int) -> dict[str, Tensor]:
        found = tokens()(rows, seed)
        number = torch.randint(1, 5, (rows, 1), generator=torch.Generator().manual_seed(seed))
        found["labels"] = torch.where(torch.arange(6)[None] < number, found["input_ids"], -100)
        return found

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        labels = batch["labels"]
        wanted = labels != -100
        logits = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels
        ).logits.view(-1, 17)
        if len(logits) != int(wanted.sum()):
            logits = logits[wanted.view(-1)]
        losses = F.cross_entropy(logits, labels[wanted], reduction="none")
        return torch.zeros(labels.shape, dtype=losses.dtype).masked_scatter(wanted, losses).sum(1)

    return Instance(model, loss, batch)


def _image_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).logits, batch[1], reduction="none")


def _vit() -> Instance:
    import transformers as hf

    config = hf.ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=3,
        num_labels=3,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    return Instance(hf.ViTForImageClassification(config).double().train(), _image_loss, labelled(3, 8, 8))


def _swin(drop_path: float) -> Instance:
    import transformers as hf

    config = hf.SwinConfig(
        image_size=16,
        patch_size=2,
        num_channels=3,
        num_labels=3,
        embed_dim=4,
        depths=[2, 2],
        num_heads=[1, 2],
        window_size=2,
        drop_path_rate=drop_path,
    )
    return Instance(hf.SwinForImageClassification(config).double().train(), _image_loss, labelled(3, 16, 16))


def _resnet() -> Instance:
    import transformers as hf

    config = hf.ResNetConfig(
        num_channels=3, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3
    )
    return Instance(
        hf.ResNetForImageClassification(config).double().train(), _image_loss, labelled(3, 16, 16)
    )


def _clip() -> Instance:
    import transformers as hf

    text = {**SMALL, "projection_dim": 8}
    vision = {
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
    }
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)

    def batch(rows: int, seed: int) -> dict[str, Tensor]:
        found = tokens()(rows, seed)
        found["pixel_values"] = labelled(3, 8, 8)(rows, seed)[0]
        return found

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(**{k: v for k, v in batch.items() if k != "labels"}).logits_per_image
        return F.cross_entropy(logits, torch.arange(len(logits)), reduction="none")

    return Instance(hf.CLIPModel(config).double().train(), loss, batch)


def _mixtral() -> Instance:
    import transformers as hf

    config = hf.MixtralConfig(**SMALL, num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2)
    return Instance(hf.MixtralForCausalLM(config).float().train(), causal_loss, tokens())


# timm and x-transformers --------------------------------------------------------------------------------------------


def _timm(name: str, size: int, **options: Any) -> Callable[[], Instance]:
    def build() -> Instance:
        import timm

        model = timm.create_model(name, num_classes=3, **options)
        return classified(model, 3, size, size)

    return build


def _evaluated(build: Callable[[], Instance]) -> Callable[[], Instance]:
    def evaluated() -> Instance:
        built = build()
        for module in built.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return built

    return evaluated


def _x_transformer() -> Instance:
    from x_transformers import Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=17,
        max_seq_len=8,
        attn_layers=Decoder(
            dim=8, depth=1, heads=2, attn_dim_head=64, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True
        ),
    )

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        ids = batch["input_ids"]
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)

    return Instance(model.double().train(), loss, tokens())


_VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 2, "num_heads": 2}

FAMILIES = [
    Family("HF GPT-2 (tied wte/lm_head, dropout off)", lambda: causal(gpt2())),
    Family("HF GPT-2 default dropout 0.1", lambda: causal(gpt2(0.1))),
    Family("HF LLaMA (GQA)", _of("Llama", num_key_value_heads=1)),
    Family("HF Mistral", _of("Mistral", num_key_value_heads=1)),
    Family("HF Gemma", _of("Gemma", num_key_value_heads=1, head_dim=4)),
    Family("HF Qwen2", _of("Qwen2", num_key_value_heads=1)),
    Family("HF Qwen3", _of("Qwen3", num_key_value_heads=1, head_dim=4)),
    Family("HF OPT", _of("OPT", ffn_dim=12, word_embed_proj_dim=8)),
    Family("HF GPT-NeoX", _of("GPTNeoX")),
    Family("HF Bloom", _of("Bloom", n_head=2, n_layer=2)),
    Family("HF Mixtral (MoE, float32)", _mixtral, refused="construction", tolerance=1e-5),
    Family("HF Mamba", _of("Mamba", state_size=4, time_step_rank=2)),
    Family("HF T5 (dropout 0)", lambda: _t5(0.0)),
    Family("HF T5 (default dropout)", lambda: _t5(0.1)),
    Family("HF BERT MLM (tied decoder, dropout)", _bert),
    Family("HF ViT dropout 0.1", _vit),
    Family("HF Swin", lambda: _swin(0.0)),
    Family("HF Swin (default drop_path)", lambda: _swin(0.1)),
    Family("HF ResNet, BatchNorm train", _resnet, refused="BatchNorm"),
    Family("HF GPT-2 gradient_checkpointing_enable()", lambda: _checkpointed(0.0)),
    Family("HF GPT-2 gradient_checkpointing + dropout", lambda: _checkpointed(0.1)),
    Family("HF CLIP contrastive", _clip, refused="depends on the other examples"),
    Family("HF ModernBERT MLM sparse_prediction", _modern_bert, refused="construction"),
    Family("timm ViT (cls token and positions at top level)", _timm("vit_tiny_patch16_224", 16, **_VIT)),
    Family("timm ViT drop_path 0.1", _timm("vit_tiny_patch16_224", 16, drop_path_rate=0.1, **_VIT)),
    Family("timm ConvNeXt", _timm("convnext_atto", 32, dims=(4, 4, 8, 8), depths=(1, 1, 1, 1))),
    Family(
        "timm NFNet (scaled weight standardisation)",
        _evaluated(_timm("nf_resnet26", 32, channels=(8, 8, 16, 16), std_conv_eps=1e-5)),
    ),
    Family("timm GN ResNet", _timm("resnet18", 32, norm_layer="groupnorm1", channels=(4, 4, 8, 8))),
    Family(
        "timm MobileNetV3, BatchNorm eval",
        _evaluated(_timm("mobilenetv3_small_050", 32)),
    ),
    Family("x-transformers decoder (rotary, RMSNorm, GLU)", _x_transformer),
]
