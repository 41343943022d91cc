from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tacit.data import Kind, Task
from tacit.data.task import NumberFeature
from tacit.errors import ArgumentError, FileError, ModelError
from tacit.models import MODELS, MobileNetV2, build, read_weights, suggest

EMPTY = TensorDataset(torch.zeros(0, 1))


def make_task(shape: tuple[int, ...], classes: int = 10, vocabulary: int | None = None) -> Task:
    kind: Kind = "multiclass" if classes > 2 else "binary"
    names = tuple(map(str, range(classes)))
    return Task("t", EMPTY, EMPTY, kind, shape, classes=names, vocabulary=vocabulary)


VECTOR, GREY, COLOUR = make_task((12,), 2), make_task((1, 28, 28)), make_task((3, 32, 32))
TEXT = make_task((9,), 2, vocabulary=50)
TABLE = replace(
    VECTOR, numbers=(NumberFeature(0, 1, (-0.5, 0.0, 0.5)), NumberFeature(4, None, (0.0,))), columns=5
)
SUITS = [
    # 10 other features, 2 + 4 and 2 parts, 2 lines and the intercept
    ("additive", TABLE, 10 + 6 + 2 + 2 + 1),
    ("logistic", VECTOR, 13),
    ("logistic", GREY, 7850),
    ("unit-linear", VECTOR, 13),
    ("centred-linear", VECTOR, 12 + 13),
    ("mlp", VECTOR, 12 * 64 + 64 + 65),
    ("tanh-cnn", GREY, 26_010),
    ("tanh-cnn-deep", COLOUR, 550_570),
    ("wrn-16-4", COLOUR, 2_748_890),
    ("mobilenet-v2", COLOUR, 2_236_682),
    ("text-linear", TEXT, 50 + 1),
    ("sparse-linear", TEXT, 50 + 1),
    ("text-embedding", TEXT, 50 * 16 + 16 + 16),
    ("text-mean", TEXT, 50 * 32 + 32 * 33 + 33),
    (
        "text-transformer",
        TEXT,
        50 * 32 + 9 * 32 + 2 * (4 * 32 * 33 + 4 * 32 + 32 * 128 + 128 + 128 * 32 + 32) + 64 + 33,
    ),
]


def inputs(task: Task, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if task.vocabulary is not None:
        ids = torch.randint(1, task.vocabulary, (count, *task.input_shape), generator=generator)
        ids[:, 6:] = 0
        return ids
    return torch.rand(count, *task.input_shape, generator=generator) * 2 - 1


def test_every_model_is_tried() -> None:
    assert {name for name, _, _ in SUITS} == set(MODELS)


@pytest.mark.parametrize(("name", "task", "coordinates"), SUITS)
def test_coordinates_and_no_mixing_of_examples(name: str, task: Task, coordinates: int) -> None:
    torch.manual_seed(0)
    model = build(name, task).train()
    assert sum(p.numel() for p in model.parameters()) == coordinates
    x = inputs(task, 3)
    together = model(x)
    assert together.shape == (3, task.outputs)
    for i in range(3):
        torch.testing.assert_close(model(x[i : i + 1]), together[i : i + 1], rtol=1e-4, atol=1e-5)
    together.sum().backward()
    trainable = [p for p in model.parameters() if p.requires_grad]
    assert trainable
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trainable)


@pytest.mark.parametrize("name", ["text-mean", "text-transformer"])
def test_padding_does_not_count_and_no_words_are_no_trouble(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, TEXT)
    ids = inputs(TEXT, 2)
    with torch.no_grad():
        before = model(ids)
        embedding = next(m for m in model.modules() if isinstance(m, nn.Embedding))
        embedding.weight[0] += 5
        torch.testing.assert_close(model(ids), before)
        ids[:, 0] += 1
        assert not torch.allclose(model(ids), before)
        assert torch.isfinite(model(torch.zeros_like(ids))).all()


def test_logistic_regression_starts_at_zero_and_options_reach_the_model() -> None:
    assert not build("logistic", VECTOR)(inputs(VECTOR, 2)).any()
    deep = build("mlp", VECTOR, width=5, depth=3)
    assert [m.out_features for m in deep.modules() if isinstance(m, nn.Linear)] == [5, 5, 5, 1]


def test_suggestions_can_be_built() -> None:
    tasks = [VECTOR, GREY, COLOUR, TEXT, make_task((1, 8, 8))]
    assert [suggest(task) for task in tasks] == ["mlp", "tanh-cnn", "tanh-cnn-deep", "text-mean", "mlp"]
    for task in tasks:
        assert build(suggest(task), task)(inputs(task, 2)).shape == (2, task.outputs)


@pytest.mark.parametrize(
    ("name", "task", "sentence"),
    [
        ("resnet", VECTOR, "no model 'resnet'; there are 'additive'"),
        ("tanh-cnn", VECTOR, "no images"),
        ("tanh-cnn", make_task((1, 8, 8)), "too small"),
        ("mlp", TEXT, "token ids"),
        ("text-mean", VECTOR, "no token ids"),
        ("mobilenet-v2", GREY, "at least 32 x 32"),
    ],
)
def test_models_that_do_not_suit(name: str, task: Task, sentence: str) -> None:
    with pytest.raises((ArgumentError, ModelError), match=sentence):
        build(name, task)


def test_options_that_do_not_suit() -> None:
    with pytest.raises(ArgumentError, match="does not take these options: 'width'"):
        build("logistic", VECTOR, width=3)
    with pytest.raises(ArgumentError, match="width"):
        build("mlp", VECTOR, width=0)
    with pytest.raises(ModelError, match="multiple of the number of heads"):
        build("text-transformer", TEXT, width=30)


def test_mobilenet_keeps_its_statistics_and_takes_public_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    public = MobileNetV2(7)
    for buffer in public.buffers():
        if buffer.is_floating_point() and buffer.ndim == 1:
            buffer.uniform_(0.5, 1.5)
    path = tmp_path / "w.safetensors"
    save_file(public.state_dict(), path)
    own = MobileNetV2(2).train()
    own.load_public(read_weights(path))
    x = torch.rand(4, 1, 32, 32) * 2 - 1
    before = {key: value.clone() for key, value in own.state_dict().items()}
    own(x)
    assert all((before[key] == value).all() for key, value in own.state_dict().items())
    torch.testing.assert_close(
        own.features(x.expand(-1, 3, -1, -1)), public.eval().features(x.expand(-1, 3, -1, -1))
    )
    assert own.classifier[1].out_features == 2
    with pytest.raises(ModelError, match="do not fit MobileNetV2"):
        own.load_public({"a": torch.zeros(1)})


def test_pickled_and_broken_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="pickled file"):
        read_weights(tmp_path / "w.pth")
    with pytest.raises(FileError, match="no file"):
        read_weights(tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"no tensors here")
    with pytest.raises(FileError, match="not a readable safetensors"):
        read_weights(tmp_path / "w.safetensors")


def test_torchvisions_public_weights_load() -> None:
    root = Path(os.environ.get("TACIT_DATA", ""))
    if "TACIT_DATA" not in os.environ or not (root / "read.py").is_file() or not (root / "weights").is_dir():
        pytest.skip("no public weights: set TACIT_DATA to the directory that holds them")
    spec = importlib.util.spec_from_file_location("data_reader", root / "read.py")
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    state = reader.mobilenet_v2_state()
    model = MobileNetV2(1000)
    assert {key: v.shape for key, v in state.items()} == {
        key: v.shape for key, v in model.state_dict().items()
    }
    model.load_public(state)
    torch.testing.assert_close(model.classifier[1].weight, state["classifier.1.weight"])
    assert sum(p.numel() for p in model.parameters()) == 3_504_872
