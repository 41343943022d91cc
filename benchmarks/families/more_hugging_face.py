"""More families of transformers: shared layers, sparse attention, speech, layer drop, segmentation, image patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.families.family import Family, Instance, labelled, tokens
from benchmarks.families.hugging_face import SMALL, _of, class_loss


def _classes(name: str, **options: Any) -> Callable[[], Instance]:
    """A classifier of sequences by the name of its configuration and model class."""

    def build() -> Instance:
        import transformers as hf

        config = getattr(hf, f"{name}Config")(**{**SMALL, "num_labels": 3, **options})
        model = getattr(hf, f"{name}ForSequenceClassification")(config)
        return Instance(model.double().train(), class_loss, tokens())

    return build


def _images(name: str, kind: str, size: int, channels: int = 3, **options: Any) -> Callable[[], Instance]:
    """A classifier of images, or a network that labels every pixel."""

    def build() -> Instance:
        import transformers as hf

        config = getattr(hf, f"{name}Config")(num_labels=3, **options)
        model = getattr(hf, f"{name}For{kind}")(config)

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            logits = model(pixel_values=batch[0]).logits
            return F.cross_entropy(
                logits.flatten(2).mean(2) if logits.dim() > 2 else logits, batch[1], reduction="none"
            )

        return Instance(model.double().train(), loss, labelled(channels, size, size))

    return build


def _speech(*, drop: float) -> Callable[[], Instance]:
    def build() -> Instance:
        import transformers as hf

        config = hf.Wav2Vec2Config(
            hidden_size=8,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=12,
            conv_dim=(4, 4),
            conv_stride=(2, 2),
            conv_kernel=(3, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=8,
            num_labels=3,
            layerdrop=drop,
            apply_spec_augment=False,
            feat_extract_norm="layer",
            do_stable_layer_norm=True,
        )

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return F.cross_entropy(model(batch[0]).logits, batch[1], reduction="none")

        model = hf.Wav2Vec2ForSequenceClassification(config)
        return Instance(model.double().train(), loss, labelled(64))

    return build


def _whisper() -> Instance:
    import transformers as hf

    config = hf.WhisperConfig(
        vocab_size=17,
        num_mel_bins=4,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        max_source_positions=6,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )

    def batch(rows: int, seed: int) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(1000 + seed)
        return {
            "input_features": torch.randn(rows, 4, 12, generator=draw, dtype=torch.float64),
            "decoder_input_ids": torch.randint(3, 17, (rows, 5), generator=draw),
        }

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(**batch).logits[:, :-1]
        targets = batch["decoder_input_ids"][:, 1:]
        return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)

    return Instance(hf.WhisperForConditionalGeneration(config).double().train(), loss, batch)


def _bart(name: str, **options: Any) -> Callable[[], Instance]:
    def build() -> Instance:
        import transformers as hf

        config = getattr(hf, f"{name}Config")(
            vocab_size=17,
            d_model=8,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=12,
            decoder_ffn_dim=12,
            max_position_embeddings=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
            **options,
        )

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            ids = batch["input_ids"]
            logits = model(
                input_ids=ids, attention_mask=batch["attention_mask"], decoder_input_ids=ids
            ).logits[:, :-1]
            return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)

        model = getattr(hf, f"{name}ForConditionalGeneration")(config)
        return Instance(model.double().train(), loss, tokens())

    return build


_MOBILE: dict[str, Any] = {
    "image_size": 32,
    "hidden_sizes": [8, 8, 8],
    "neck_hidden_sizes": [4, 4, 4, 8, 8, 8, 8],
    "num_attention_heads": 2,
}
_SEGMENTS: dict[str, Any] = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "hidden_sizes": [4, 8],
    "num_attention_heads": [1, 2],
    "sr_ratios": [2, 1],
    "patch_sizes": [3, 3],
    "strides": [2, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 8,
}

FAMILIES = [
    Family("HF ALBERT (shared layers)", _classes("Albert", embedding_size=4)),
    Family(
        "HF DeBERTa-v2 (disentangled attention)",
        _classes(
            "DebertaV2",
            relative_attention=True,
            pos_att_type=["c2p", "p2c"],
            position_buckets=4,
            max_relative_positions=8,
        ),
    ),
    Family(
        "HF Longformer (windows)",
        _classes("Longformer", attention_window=[4, 4], max_position_embeddings=32),
        refused="construction",
    ),
    Family("HF ELECTRA", _classes("Electra", embedding_size=4)),
    Family("HF RoBERTa", _classes("Roberta")),
    Family("HF FNet (Fourier mixing)", _classes("FNet")),
    Family("HF Falcon", _of("Falcon", num_kv_heads=1, ffn_hidden_size=12)),
    Family("HF Phi", _of("Phi")),
    Family("HF StableLM", _of("StableLm", num_key_value_heads=1)),
    Family(
        "HF GPT-Neo",
        _of("GPTNeo", num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]], window_size=4),
    ),
    Family(
        "HF Gemma 2 (soft caps)",
        _of("Gemma2", num_key_value_heads=1, head_dim=4, sliding_window=4),
        tolerance=1e-5,
    ),
    Family("HF RWKV", _of("Rwkv", attention_hidden_size=8, context_length=8)),
    Family("HF Wav2Vec2", _speech(drop=0.0)),
    Family("HF Wav2Vec2 with LayerDrop", _speech(drop=0.5)),
    Family("HF Whisper", _whisper),
    Family("HF BART", _bart("Bart", dropout=0.1)),
    Family("HF Pegasus", _bart("Pegasus", dropout=0.0)),
    Family(
        "HF MobileViT, BatchNorm train",
        _images("MobileViT", "ImageClassification", 32, **_MOBILE),
        refused="BatchNorm",
    ),
    Family(
        "HF SegFormer, BatchNorm train",
        _images("Segformer", "SemanticSegmentation", 16, **_SEGMENTS),
        refused="BatchNorm",
    ),
    Family(
        "HF SegFormer classifier, drop path",
        _images(
            "Segformer",
            "ImageClassification",
            16,
            **{k: v for k, v in _SEGMENTS.items() if k != "decoder_hidden_size"},
        ),
    ),
    Family(
        "HF ConvNeXt V2",
        _images("ConvNextV2", "ImageClassification", 32, hidden_sizes=[4, 4, 8, 8], depths=[1, 1, 1, 1]),
    ),
    Family(
        "HF DINOv2 (layer scale)",
        _images(
            "Dinov2",
            "ImageClassification",
            8,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=8,
            patch_size=4,
            drop_path_rate=0.1,
        ),
    ),
    Family(
        "HF BEiT (relative bias)",
        _images(
            "Beit",
            "ImageClassification",
            8,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=12,
            image_size=8,
            patch_size=4,
            use_relative_position_bias=True,
        ),
    ),
    Family(
        "HF PoolFormer",
        _images(
            "PoolFormer",
            "ImageClassification",
            16,
            hidden_sizes=[4, 8],
            depths=[1, 1],
            num_encoder_blocks=2,
            patch_sizes=[3, 3],
            strides=[2, 2],
            padding=[1, 1],
        ),
    ),
]
