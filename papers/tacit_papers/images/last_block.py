"""Does private training of the network's last convolution help? python -m tacit_papers.images.last_block --out FILE.

On a part of CIFAR-10's training data, the test data is never read. A head, one linear layer on the features `network`,
is trained privately. Then the head and the last convolution in front of it are trained together: all of its weights, a
tenth of its rows, or a correction of low rank. The head alone for the same number of steps is what they must beat.

DP-SGD is simulated: Poisson batches, exact clipping of every example's whole gradient, Gaussian noise with the
multiplier of a plan, all steps of all phases under one epsilon. The gradient of the convolution is scaled down before
clipping, so that it takes little of the clip norm. The frozen layers are computed once.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.data import load
from tacit.data.features.network import NetworkMaps, network_constants, network_weights
from tacit.data.features.synthetic import Whitening, close_ups
from tacit.plan import make_plan
from tacit_papers.engine.setting import commit

NAME = "images-last-block.json"
TRAINED, MEASURED, CLASSES = 10_000, 5_000, 10
EPSILON, DELTA, BATCH, CLIP = 3.0, 1e-5, 1_000, 0.1
HEAD_STEPS, BLOCK_STEPS, SCORED_STEPS = 160, 20, 4
HEAD_RATES = (200.0, 400.0, 800.0, 1600.0)
REACHES = (0.3, 1.0, 3.0)
"""How far the steps move the convolution at most, relative to the length of its weights: its learning rate."""
SHARE = 0.5
"""Length of the convolution's gradient, once scaled, relative to the head's."""
ACTIVE, RANK = 0.1, 4
TUNED_ON, SEEDS = 0, (3, 4, 5)
WAYS = {
    "dense": "all weights",
    "lora": f"a correction of rank {RANK}",
    "sparta": "a tenth of the rows, by SPARTA",
    "random": "a tenth of the rows, at random",
    "magnitude": "a tenth of the rows, the largest",
}
_TUNED_LIKE = {"random": "sparta", "magnitude": "sparta"}
_BIAS = 0.1
_CHUNK = 250


@dataclass(frozen=True)
class Frozen:
    """What the frozen layers make of images: maps in front of the last convolution, and the other shown layer."""

    maps: Tensor
    beside: Tensor
    labels: Tensor

    def chunks(self, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Patches that the convolution sees (n, places, inputs), the other layer, and labels."""
        for part in torch.split(chosen, _CHUNK):
            patches = F.unfold(self.maps[part].flatten(0, 1), 3, padding=1, stride=2).transpose(1, 2)
            yield patches.reshape(len(part), -1, patches.shape[2]), self.beside[part], self.labels[part]


def frozen(images: Tensor, labels: Tensor) -> Frozen:
    """Run the frozen layers on images (values in 0 .. 1) and their mirror images."""
    network = NetworkMaps(network_weights())
    maps, beside = [], []
    for part in torch.split(images, _CHUNK):
        both = [list(network.layers(view)) for view in (part, part.flip(3))]
        maps.append(torch.stack([layers[4] for layers in both], 1).contiguous())
        pooled = sum(F.adaptive_avg_pool2d(layers[3], 4) for layers in both)
        assert isinstance(pooled, Tensor)
        beside.append(F.normalize(pooled.flatten(1), dim=1))
    return Frozen(torch.cat(maps), torch.cat(beside), labels)


class Model:
    """The last convolution as a matrix on patches, fixed whitening, and a head with a light bias."""

    def __init__(self, whitening: Whitening, way: str | None, generator: torch.Generator) -> None:
        weights = network_weights()
        self.base, self.conv_bias = weights["5.weight"].flatten(1), weights["5.bias"]
        self.whitening, self.way = whitening, way
        self.head = torch.zeros(CLASSES, whitening.constants["scaled"].shape[1] + 1)
        outputs, inputs = self.base.shape
        self.rows = torch.arange(outputs)
        if way == "random":
            self.rows = torch.randperm(outputs, generator=generator)[: round(ACTIVE * outputs)]
        elif way == "magnitude":
            self.rows = self.base.abs().sum(1).topk(round(ACTIVE * outputs)).indices
        self.up = torch.zeros(outputs, RANK)
        self.down = torch.randn(RANK, inputs, generator=generator) / math.sqrt(inputs)
        self.moved = torch.zeros_like(self.base)

    def responses(self, patches: Tensor) -> Tensor:
        """What the convolution answers, before its rectifier."""
        change = self.up @ self.down if self.way == "lora" else self.moved
        return patches @ (self.base + change).T + self.conv_bias

    def features(self, responses: Tensor, beside: Tensor) -> Tensor:
        """Features with a last column for the bias."""
        here, there = F.relu(responses).chunk(2, dim=1)
        shown = F.normalize((here + there).transpose(1, 2).flatten(1), dim=1)
        vectors = self.whitening(torch.cat([beside, shown], 1))
        return torch.cat([vectors, torch.full((len(vectors), 1), _BIAS)], 1)

    def parameters(self) -> list[Tensor]:
        """What is trained of the convolution."""
        return [self.up, self.down] if self.way == "lora" else [self.moved]

    def gradients(self, patches: Tensor, of_responses: Tensor) -> tuple[Tensor, Any]:
        """Squared length of every example's gradient, and the function that sums gradients times factors."""
        if self.way == "lora":
            up = of_responses.transpose(1, 2) @ (patches @ self.down.T)
            down = (of_responses @ self.up).transpose(1, 2) @ patches
            squares = up.square().sum((1, 2)) + down.square().sum((1, 2))
            return squares, lambda by: [torch.einsum("n,nij->ij", by, each) for each in (up, down)]
        active = of_responses[..., self.rows]
        squares = ((active @ active.mT) * (patches @ patches.mT)).sum((1, 2))

        def summed(by: Tensor) -> list[Tensor]:
            total = torch.zeros_like(self.base)
            total[self.rows] = (active * by[:, None, None]).flatten(0, 1).T @ patches.flatten(0, 1)
            return [total]

        return squares, summed


@dataclass
class Course:
    """One run: the head first, then the head and the convolution, by steps of the same noise."""

    data: Frozen
    held: Frozen
    known: Tensor
    """Features of ``data`` by the network as it came."""
    whitening: Whitening
    noise: float

    def run(self, way: str | None, head_rate: float, reach: float, seed: int) -> Tensor:
        """Which of the held-out images are told rightly."""
        generator = torch.Generator().manual_seed(seed)
        model = Model(self.whitening, way, torch.Generator().manual_seed(100 + seed))
        steps, alone = HEAD_STEPS + BLOCK_STEPS, HEAD_STEPS if way else HEAD_STEPS + BLOCK_STEPS
        scale, scored, scores = 0.0, SCORED_STEPS if way == "sparta" else 0, torch.zeros(len(model.base))
        for step in range(steps):
            chosen = (torch.rand(len(self.data.labels), generator=generator) < BATCH / TRAINED).nonzero()[
                :, 0
            ]
            rate = head_rate * (1 - step / steps)
            if step < alone:
                model.head -= (
                    rate
                    / BATCH
                    * self._noised(_head_sum(model, self.known[chosen], self.data, chosen), generator)
                )
                continue
            scale = scale or SHARE / self._ratio(model, chosen)
            scoring = step < alone + scored
            head, block = self._sums(model, chosen, scale, with_head=not scoring)
            block = [self._noised(each, generator) for each in block]
            if scoring:
                scores += block[0].abs().sum(1)
                if step == alone + scored - 1:
                    model.rows, scale = scores.topk(round(ACTIVE * len(scores))).indices, 0.0
                continue
            model.head -= rate / BATCH * self._noised(head, generator)
            left = (steps - step) / (steps - alone)
            pace = 2 * reach * float(model.base.norm()) / (CLIP * (steps - alone - scored)) * left
            for place, (parameter, change) in enumerate(zip(model.parameters(), block, strict=True)):
                if way != "lora" and place == 0:
                    silent = torch.ones(len(change), dtype=torch.bool)
                    silent[model.rows] = False
                    change[silent] = 0
                parameter -= pace / BATCH * change
        return self._right(model)

    def _noised(self, total: Tensor, generator: torch.Generator) -> Tensor:
        return total + self.noise * CLIP * torch.randn(total.shape, generator=generator)

    def _sums(
        self, model: Model, chosen: Tensor, scale: float, *, with_head: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Sums of clipped gradients of the head and, scaled, of the convolution."""
        head = torch.zeros_like(model.head)
        block = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for patches, errors, vectors, of_responses in self._backward(model, chosen):
            squares, summed = model.gradients(patches, of_responses)
            squares = scale**2 * squares
            if with_head:
                squares = squares + errors.square().sum(1) * vectors.square().sum(1)
            by = (CLIP / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
            head += (errors * by[:, None]).T @ vectors
            for total, part in zip(block, summed(scale * by), strict=True):
                total += part
        return head, block

    def _ratio(self, model: Model, chosen: Tensor) -> float:
        """Median length of the convolution's gradients relative to the head's."""
        patches, errors, vectors, of_responses = next(self._backward(model, chosen[:_CHUNK]))
        squares, _ = model.gradients(patches, of_responses)
        return float((squares / (errors.square().sum(1) * vectors.square().sum(1))).sqrt().median())

    def _backward(self, model: Model, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Patches, errors of the answers, features, and gradients of the convolution's answers."""
        for patches, beside, labels in self.data.chunks(chosen):
            responses = model.responses(patches).requires_grad_()
            with torch.enable_grad():
                vectors = model.features(responses, beside)
                answers = vectors @ model.head.T
                (of_responses,) = torch.autograd.grad(
                    F.cross_entropy(answers, labels, reduction="sum"), responses
                )
            yield patches, _errors(answers.detach(), labels), vectors.detach(), of_responses

    def _right(self, model: Model) -> Tensor:
        parts = self.held.chunks(torch.arange(len(self.held.labels)))
        answers = [
            (model.features(model.responses(patches), beside) @ model.head.T, labels)
            for patches, beside, labels in parts
        ]
        return torch.cat([torch.eq(found.argmax(1), labels) for found, labels in answers])


def _errors(answers: Tensor, labels: Tensor) -> Tensor:
    return answers.softmax(1) - F.one_hot(labels, CLASSES)


def _head_sum(model: Model, vectors: Tensor, data: Frozen, chosen: Tensor) -> Tensor:
    """The sum of clipped gradients of the head alone."""
    errors = _errors(vectors @ model.head.T, data.labels[chosen])
    lengths = errors.norm(dim=1) * vectors.norm(dim=1)
    total: Tensor = (errors * (CLIP / lengths.clamp(min=1e-12)).clamp(max=1.0)[:, None]).T @ vectors
    return total


def prepared() -> Course:
    """Data, constants and noise."""
    pairs = load("cifar10").train
    images, labels = pairs.tensors  # type: ignore[attr-defined]
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: TRAINED + MEASURED]
    parts = chosen[:TRAINED], chosen[TRAINED:]
    data, held = (frozen((images[part] + 1) / 2, labels[part]) for part in parts)
    whitening = Whitening(network_constants(close_ups(6_000, 32, 3, seed=3), 2_048))
    plain = Model(whitening, None, torch.Generator())
    known = torch.cat(
        [
            plain.features(plain.responses(patches), beside)
            for patches, beside, _ in data.chunks(torch.arange(TRAINED))
        ]
    )
    epochs = (HEAD_STEPS + BLOCK_STEPS) * BATCH / TRAINED
    plan = make_plan(
        "dp-sgd",
        epsilon=EPSILON,
        delta=DELTA,
        examples=TRAINED,
        batch_size=BATCH,
        epochs=epochs,
        clip_norm=CLIP,
    )
    return Course(data, held, known, whitening, plan.phases[0].noise_multiplier)


def measured() -> dict[str, Any]:
    """Tune on one seed, measure on others; every way beside the head alone."""
    started, course = time.monotonic(), prepared()
    tried = {rate: course.run(None, rate, 0.0, TUNED_ON).float().mean().item() for rate in HEAD_RATES}
    rate = max(tried, key=lambda each: tried[each])
    print(f"head: {tried}", flush=True)
    heads = [course.run(None, rate, 0.0, seed).float() for seed in SEEDS]
    rows: list[dict[str, Any]] = [{"way": "head", "tried": tried, "accuracy": _means(heads)}]
    reaches: dict[str, float] = {}
    for way in WAYS:
        tried = {}
        if way not in _TUNED_LIKE:
            for reach in REACHES:
                tried[reach] = course.run(way, rate, reach, TUNED_ON).float().mean().item()
                print(
                    f"{way} at {reach:g}: {tried[reach]:.4f}, {time.monotonic() - started:.0f} s", flush=True
                )
            reaches[way] = max(tried, key=lambda each: tried[each])
        reach = reaches[_TUNED_LIKE.get(way, way)]
        found = [course.run(way, rate, reach, seed).float() for seed in SEEDS]
        gain = (torch.stack(found) - torch.stack(heads)).mean(0)
        error = float(gain.std()) / math.sqrt(len(gain))
        rows.append(
            {
                "way": way,
                "tried": tried,
                "reach": reach,
                "accuracy": _means(found),
                "gain": {"mean": gain.mean().item(), "error": error},
            }
        )
        print(json.dumps(rows[-1]), f"{time.monotonic() - started:.0f} s", flush=True)
    return {
        "command": "python -m tacit_papers.images.last_block",
        "commit": commit(),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "head_rate": rate,
        "noise_multiplier": course.noise,
        "rows": rows,
    }


def _means(found: list[Tensor]) -> list[float]:
    return [each.mean().item() for each in found]


def paragraph(record: Mapping[str, Any]) -> str:
    """What was found, with a table, for the page on images."""
    head, *others = record["rows"]
    lines = [
        f"**Training the network's last convolution privately** (`{record['command']}` at commit",
        f"{record['commit']}, [{NAME}]({NAME})). {TRAINED:,} of CIFAR-10's training images to train on, {MEASURED:,}",
        f"others to measure on, ε = {EPSILON:g}, simulated DP-SGD with exact clipping, features `network` without",
        f"patches, {len(SEEDS)} seeds. The head is trained alone for {HEAD_STEPS} steps, then together with the",
        f"convolution for {BLOCK_STEPS}; the head alone has all {HEAD_STEPS + BLOCK_STEPS}. The convolution's",
        f"gradients are scaled to {SHARE:g} of the length of the head's before clipping. Its learning rate was the",
        "best of three on another seed (SPARTA's for all choices of rows).",
        "",
        "| trained | accuracy | beside the head alone, 95 % interval |",
        "|---|---|---|",
        f"| the head alone | {_percent(head)} | |",
    ]
    for row in others:
        gain, error = 100 * row["gain"]["mean"], 196 * row["gain"]["error"]
        lines.append(f"| also {WAYS[row['way']]} | {_percent(row)} | {gain:+.2f} ± {error:.2f} |")
    better = [row for row in others if row["gain"]["mean"] > 1.96 * row["gain"]["error"]]
    verdict = (
        "Nothing gains clearly."
        if not better
        else f"Clear gains: {', '.join(WAYS[r['way']] for r in better)}."
    )
    lines += [
        "",
        f"{verdict} The interval is over the images measured on, not over draws of the training data.",
    ]
    return "\n".join(lines) + "\n"


def _percent(row: Mapping[str, Any]) -> str:
    return f"{100 * sum(row['accuracy']) / len(row['accuracy']):.2f}"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="File for the result.")
    out = parser.parse_args().out
    with torch.no_grad():
        out.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
