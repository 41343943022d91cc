"""A linear model of bags of words: every text has norm 1, whatever it holds, and gradients are exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.losses import binary_cross_entropy, cross_entropy
from tacit.models.networks import EmbeddedWords, LinearWords
from tacit.raw.clipping import Clipper
from tacit.support import Support

WORDS = 40
IDS = torch.tensor([[3, 7, 9, 0, 0], [5, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 2, 3, 4, 39]], dtype=torch.int32)


def gradients(model: LinearWords, row: int, outputs: int) -> list[Tensor]:
    target = torch.tensor([[1.0]]) if outputs == 1 else torch.tensor([1])
    loss = binary_cross_entropy if outputs == 1 else cross_entropy
    return list(
        torch.autograd.grad(loss(model, (IDS[row : row + 1], target)).sum(), list(model.parameters()))
    )


def norm(parts: list[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def test_no_gradient_is_longer_than_the_slope_of_the_loss() -> None:
    model = LinearWords(WORDS, 1)
    for row in range(4):
        found = norm(gradients(model, row, 1))
        assert found == pytest.approx(0.5 if row != 2 else 0.5 * model.CONSTANT)  # the slope at 0 is a half


@pytest.mark.parametrize("outputs", [1, 3])
def test_clipped_sums_are_those_of_plain_autograd(outputs: int) -> None:
    torch.manual_seed(0)
    model = LinearWords(WORDS, outputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    targets = torch.ones(4, 1) if outputs == 1 else torch.ones(4, dtype=torch.int64)
    loss = binary_cross_entropy if outputs == 1 else cross_entropy
    found = Clipper(model, loss).clipped_sum([(IDS, targets)], Support.all(model), 0.2)
    expected = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]
    for row in range(4):
        own = gradients(model, row, outputs)
        for total, part in zip(expected, own, strict=True):
            total += part.double() * min(1.0, 0.2 / norm(own))
    assert torch.allclose(found.values["words.weight"].double(), expected[0], atol=1e-6)
    assert torch.allclose(found.values["intercept.weight"].double(), expected[1], atol=1e-6)
    assert not found.values["words.weight"][0].any()  # what fills up never learns


def test_order_and_filling_up_do_not_matter_and_a_text_without_words_is_the_intercept() -> None:
    torch.manual_seed(0)
    model = LinearWords(WORDS, 1)
    with torch.no_grad():
        model.words.weight.normal_()
    model.start_at(0.7)
    answers = model(IDS)
    assert answers[2].item() == pytest.approx(0.7)
    assert torch.allclose(model(IDS.flip(1)), answers)
    assert torch.allclose(model(IDS[:, :3])[:3], answers[:3])


def test_a_table_larger_than_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(ModelError, match="--buckets"):
        LinearWords(1 << 30, 1 << 20)


@pytest.mark.parametrize("outputs", [1, 3])
def test_embeddings_begin_with_the_gradients_of_the_linear_model_and_are_clipped_exactly(
    outputs: int,
) -> None:
    torch.manual_seed(0)
    model = EmbeddedWords(WORDS, outputs, width=4)
    targets = torch.ones(4, 1) if outputs == 1 else torch.ones(4, dtype=torch.int64)
    loss = binary_cross_entropy if outputs == 1 else cross_entropy
    for row in range(4):
        plain, own = (
            torch.autograd.grad(loss(one, (IDS[row : row + 1], targets[:1])).sum(), list(one.parameters()))
            for one in (LinearWords(WORDS, outputs), model)
        )
        assert norm(list(own)) == pytest.approx(norm(list(plain)), rel=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    found = Clipper(model, loss).clipped_sum([(IDS, targets)], Support.all(model), 0.2)
    expected = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]
    for row in range(4):
        own = torch.autograd.grad(
            loss(model, (IDS[row : row + 1], targets[:1])).sum(), list(model.parameters())
        )
        for total, part in zip(expected, own, strict=True):
            total += part.double() * min(1.0, 0.2 / norm(list(own)))
    for (name, _), total in zip(model.named_parameters(), expected, strict=True):
        assert torch.allclose(found.values[name].double(), total, atol=1e-6)


def test_embeddings_start_at_known_answers() -> None:
    for outputs, answers in ((1, (0.7,)), (3, (0.1, -0.4, 2.0))):
        model = EmbeddedWords(WORDS, outputs)
        model.start_at(*answers)
        assert torch.allclose(model(IDS), torch.tensor(answers).expand(4, -1), atol=1e-6)
