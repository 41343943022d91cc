"""The workloads: a network, a batch of synthetic data and a per-example loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models import ColourCnn, GreyscaleCnn, Mlp, SmallGpt, TextClassifier, WideResNet
from benchmarks.pretrained import (
    gpt2_lora,
    llama,
    llama_lora,
    minilm,
    mobilenet,
    mobilenet_with_norms,
    only_the_head,
    with_corrections,
)

Batch = tuple[Tensor, Tensor]


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each example, shape [batch]."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, reduction="none")


def language_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy over the tokens of each example, shape [batch]."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none").mean(1)


def logits_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The same for a model of `transformers`, which gives its answer in an object."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).logits.transpose(1, 2), targets, reduction="none").mean(1)


@dataclass(frozen=True)
class Workload:
    """One benchmark case; `convolutional` says whether channels_last applies to its model and inputs.

    `pretrained` marks the networks that are fine-tuned: rows of their weights, every bias and norm, and the head.
    """

    name: str
    title: str
    batch_size: int
    convolutional: bool
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[int], Batch]
    pretrained: bool = False
    loss: Callable[[nn.Module, Batch], Tensor] = classification_loss

    def model(self) -> nn.Module:
        """The network with its initial weights, the same on every call."""
        torch.manual_seed(0)
        return self.make_model()

    def batch(self, size: int | None = None) -> Batch:
        """Synthetic examples, the same on every call."""
        torch.manual_seed(1)
        return self.make_batch(self.batch_size if size is None else size)


def _images(*shape: int) -> Callable[[int], Batch]:
    return lambda size: (torch.randn(size, *shape), torch.randint(0, 10, (size,)))


def _skewed_tokens(size: int, vocabulary: int) -> Tensor:
    """Sequences of 128 tokens in which low identifiers are common and repeat, as words do."""
    return (torch.rand(size, 128).pow(3) * vocabulary).long().clamp(max=vocabulary - 1)


def _text(size: int) -> Batch:
    return _skewed_tokens(size, 30522), torch.randint(0, 2, (size,))


def _sentences(size: int) -> Batch:
    tokens, labels = _text(size)
    return tokens[:, :32] + 1, labels


def _language(size: int) -> Batch:
    tokens = _skewed_tokens(size, 19500)
    return tokens, tokens.roll(-1, 1)


def _short_language(size: int) -> Batch:
    tokens = _skewed_tokens(size, 8192)
    return tokens, tokens.roll(-1, 1)


def _mobilenet(name: str, title: str, batch_size: int, make: Callable[[], nn.Module]) -> Workload:
    return Workload(name, title, batch_size, True, make, _images(3, 64, 64), pretrained=True)


def _minilm(name: str, title: str, batch_size: int, make: Callable[[], nn.Module] = minilm) -> Workload:
    return Workload(name, title, batch_size, False, make, _sentences, pretrained=True)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "MLP 784-1024-1024-10", 256, False, Mlp, _images(784)),
        Workload("W2", "tanh CNN, 28×28", 256, True, GreyscaleCnn, _images(1, 28, 28)),
        Workload("W3", "tanh CNN, CIFAR", 256, True, ColourCnn, _images(3, 32, 32)),
        Workload("W4", "WRN-16-4, GroupNorm", 64, True, WideResNet, _images(3, 32, 32)),
        Workload("W5", "transformer classifier", 32, False, TextClassifier, _text),
    )
}

HUNDRED_MILLION = {
    workload.name: workload
    for workload in (
        Workload("mlp", "MLP 784-9612-9612-10", 64, False, lambda: Mlp(9612), _images(784)),
        Workload("gpt", "GPT, 12 layers of width 768", 4, False, SmallGpt, _language, loss=language_loss),
    )
}

FINETUNING = {
    workload.name: workload
    for workload in (
        _mobilenet("mobilenet", "MobileNetV2, 64×64, batch 256", 256, mobilenet),
        _mobilenet("mobilenet-norms", "MobileNetV2 with its norms, batch 256", 256, mobilenet_with_norms),
        _mobilenet("mobilenet-32", "MobileNetV2, 64×64, batch 32", 32, mobilenet),
        _minilm("minilm", "MiniLM, 32 tokens, batch 64", 64),
        _minilm("minilm-16", "MiniLM, 32 tokens, batch 16", 16),
    )
}

PARTLY_FROZEN = {
    workload.name: workload
    for workload in (
        _mobilenet(
            "mobilenet-lora",
            "MobileNetV2, LoRA, batch 256",
            256,
            lambda: with_corrections(mobilenet(), "features.*"),
        ),
        _mobilenet(
            "mobilenet-last", "MobileNetV2, last layer, batch 256", 256, lambda: only_the_head(mobilenet())
        ),
        _minilm(
            "minilm-lora",
            "MiniLM, LoRA, batch 64",
            64,
            lambda: with_corrections(minilm(), "*.query", "*.value"),
        ),
        _minilm("minilm-last", "MiniLM, last layer, batch 64", 64, lambda: only_the_head(minilm())),
    )
}
"""Networks of which a part is trained, by plain SGD as well."""

LANGUAGE = {
    workload.name: workload
    for workload in (
        Workload("gpt2-lora", "GPT-2, LoRA", 8, False, gpt2_lora, _short_language, loss=logits_loss),
        Workload("llama-lora", "LLaMA, LoRA", 8, False, llama_lora, _short_language, loss=logits_loss),
        Workload("llama", "LLaMA, all coordinates", 8, False, llama, _short_language, loss=logits_loss),
    )
}


def workload_named(name: str) -> Workload:
    """The workload of this name, of any benchmark."""
    return (WORKLOADS | HUNDRED_MILLION | FINETUNING | PARTLY_FROZEN | LANGUAGE)[name]
