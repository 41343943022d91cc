from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

from tacit.errors import FileError
from tacit_papers.sparta import efficientnet


def test_missing_weights_are_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    efficientnet.public_weights.cache_clear()
    with pytest.raises(
        FileError, match=r"^The weights of EfficientNet-Lite0 are missing; install them with [^.]+\.$"
    ):
        efficientnet.public_weights()


def _made_up() -> dict[str, Tensor]:
    torch.manual_seed(0)
    state = efficientnet.EfficientNetLite0().state_dict()
    return {key: value for key, value in state.items() if key.startswith("features.")}


def test_the_two_parts_are_the_whole_network(monkeypatch: pytest.MonkeyPatch) -> None:
    state = _made_up()
    monkeypatch.setattr(efficientnet, "public_weights", lambda: state)
    whole, rest = efficientnet.with_public_weights(), efficientnet.last_blocks()
    whole.classifier.load_state_dict(rest.classifier.state_dict())
    size = efficientnet.IMAGE_SIZE
    grey = torch.rand(3, 1, size, size) * 2 - 1
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    expected = whole(((grey.expand(-1, 3, -1, -1) + 1) / 2 - mean) / std)
    torch.testing.assert_close(rest(efficientnet.first_blocks(grey)), expected)
    assert all(parameter.requires_grad for parameter in rest.parameters())


def test_an_example_is_answered_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    state = _made_up()
    monkeypatch.setattr(efficientnet, "public_weights", lambda: state)
    network = efficientnet.last_blocks().train()
    inputs = torch.randn(4, 192, 1, 1)
    torch.testing.assert_close(network(inputs)[:1], network(inputs[:1]))


def test_the_public_weights_fit() -> None:
    pytest.importorskip(efficientnet.PACKAGE)
    efficientnet.public_weights.cache_clear()
    whole = {key for key in efficientnet.EfficientNetLite0().state_dict() if key.startswith("features.")}
    assert set(efficientnet.public_weights()) == whole
    assert efficientnet.last_blocks().first_block == efficientnet.FROZEN_BLOCKS
