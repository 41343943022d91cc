"""A model described as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelConfig:
    """A model by name or import path. ``width``, ``depth`` and ``heads`` are options of the named ones.

    With ``weights`` it is pretrained: "public", or a safetensors file. Then ``head`` are the patterns of its fresh
    head, ``freeze`` those of parameters that are not trained, ``frozen_blocks`` the number of blocks at its beginning
    that are frozen and computed once, ``lora_rank`` the rank of corrections of the layers ``lora_layers``, and
    ``image_size`` the side to which images are resized.
    """

    name: str | None = None
    width: int | None = None
    depth: int | None = None
    heads: int | None = None
    weights: str | None = None
    head: tuple[str, ...] | None = None
    freeze: tuple[str, ...] | None = None
    frozen_blocks: int | None = None
    lora_rank: int | None = None
    lora_layers: tuple[str, ...] | None = None
    image_size: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """The options that were given."""
        given = {"width": self.width, "depth": self.depth, "heads": self.heads}
        return {name: value for name, value in given.items() if value is not None}
