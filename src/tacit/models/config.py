"""A model described as data."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.option_fields import option


@dataclass(frozen=True)
class ModelConfig:
    """A model by name or import path. With ``weights`` it is pretrained and gets a fresh head."""

    name: str | None = option(
        "Model: additive, logistic, mlp, tanh-cnn, ...; to fine-tune: mobilenet-v2, minilm or a transformers "
        "directory; or module:object.",
        None,
        flag="--model",
        shown="by the data",
    )
    width: int | None = option("Units per layer of mlp and text models.", None)
    depth: int | None = option("Hidden layers of mlp, blocks of text-transformer.", None)
    heads: int | None = option("Attention heads of text-transformer.", None)
    detail: float | None = option(
        "Weight of the parts of a number in the additive model, from 1 to 0, which leaves only a line.",
        None,
        shown="ε · rows / (20 · columns²), at most 1",
    )
    weights: str | None = option(
        "Safetensors file with the public weights.", None, shown="the model's own published weights"
    )
    head: tuple[str, ...] | None = option(
        "Pattern of parameter names of the fresh head.", None, shown="the model's last layer"
    )
    freeze: tuple[str, ...] | None = option(
        "Pattern of parameter names not to train, or none.", None, shown="the embeddings of text models"
    )
    frozen_blocks: int | None = option(
        "Number of blocks at the start of the network to freeze; their outputs are computed only once.", None
    )
    lora_rank: int | None = option("lora: rank of the corrections.", None, shown="8")
    lora_layers: tuple[str, ...] | None = option("lora: pattern of the layers to correct.", None)
    base_precision: str | None = option(
        "Task generate: how the frozen base model is held: float32, bfloat16 or int8, a quarter of the memory.",
        None,
        shown="as it is stored",
    )
    image_size: int | None = option("Side to which the network resizes images.", None, shown="64")

    @property
    def options(self) -> dict[str, float]:
        """The options of named models that were given."""
        given = {"width": self.width, "depth": self.depth, "heads": self.heads, "detail": self.detail}
        return {name: value for name, value in given.items() if value is not None}
