"""What is drawn while examples are worked on is a secret, and leaves no trace outside."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, get_worker_info

from tacit.errors import ModelError
from tacit.raw import generators
from tacit.raw.generators import Generators, random_state, twister_state
from tacit.raw.sampling import PoissonBatches, PoissonSampler

NAMED = np.random.default_rng(5)


def seed_all() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(4).tolist(),
    "dropout": lambda: F.dropout(torch.ones(64), 0.5).tolist(),
    "normal": lambda: torch.randn(20).tolist(),
    "exponential": lambda: torch.empty(4).exponential_().tolist(),
    "permutation": lambda: torch.randperm(50).tolist(),
    "python": lambda: random.random(),
    "numpy": lambda: np.random.rand(4).tolist(),  # noqa: NPY002
    "numpy normal": lambda: np.random.randn(),  # noqa: NPY002
}


@pytest.mark.parametrize("name", DRAWS)
def test_no_seed_reaches_what_is_drawn_inside_and_no_two_draws_agree(name: str) -> None:
    found = []
    for _ in range(3):
        seed_all()
        with Generators().keyed():
            found.append(DRAWS[name]())
    seed_all()
    assert len({repr(one) for one in [*found, DRAWS[name]()]}) == 4


def snapshot() -> list[str]:
    legacy = np.random.get_state()  # noqa: NPY002
    return [repr(torch.get_rng_state().tolist()), repr(random.getstate()), repr(list(legacy))]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_the_state_outside_is_as_before(seed: int | None, fails: bool) -> None:
    np.random.set_state(np.random.RandomState(1).get_state())  # noqa: NPY002
    np.random.randn()  # noqa: NPY002  of a pair the other is held back
    np.set_printoptions(threshold=10**6)
    before = snapshot()
    try:
        with Generators(seed=seed).keyed(1), Generators(seed=seed).keyed(2):
            for draw in DRAWS.values():
                draw()
            np.random.seed(3)  # noqa: NPY002
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert snapshot() == before


def test_an_inner_key_gives_the_outer_one_back() -> None:
    with Generators(seed=1).keyed(0):
        expected = [draw() for draw in DRAWS.values()]
    with Generators(seed=1).keyed(0):
        with Generators().keyed():
            for draw in DRAWS.values():
                draw()
        assert [draw() for draw in DRAWS.values()] == expected


def test_with_a_seed_the_place_decides() -> None:
    def drawn(seed: int, *place: int) -> list[Any]:
        random.random()
        torch.rand(1)
        with Generators(seed=seed).keyed(*place):
            return [draw() for draw in DRAWS.values()]

    assert drawn(1, 2, 0) == drawn(1, 2, 0)
    different = [drawn(1, 2, 0), drawn(1, 3, 0), drawn(1, 2, 1), drawn(2, 2, 0)]
    for column in zip(*different, strict=True):
        assert len({repr(one) for one in column}) == 4


def test_a_state_holds_all_the_bits_of_a_mersenne_twister() -> None:
    """PyTorch's generator, keyed, gives the words that NumPy's gives from the same 624 words of state."""
    words = np.random.default_rng(0).integers(0, 2**32, 624, np.uint32)
    generator = torch.Generator()
    generator.set_state(twister_state(lambda count: words.tobytes() if count > 8 else bytes(count)))
    drawn = torch.empty(2000, dtype=torch.int64).random_(0, 2**20, generator=generator)
    peer = np.random.MT19937()
    peer.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    assert drawn.tolist() == (peer.random_raw(2000) % 2**20).tolist()


def test_numpy_is_keyed_with_all_the_bits_too() -> None:
    words = bytes(range(256)) * 10
    with Generators().keyed():
        generators._key(generators._NUMPY, lambda count: words[:count])
        key = np.random.get_state()[1]  # type: ignore[index]  # noqa: NPY002
        assert np.asarray(key).tobytes() == words[: 4 * 624]


class Held(nn.Module):
    """Generators in every place where people keep them."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(0)
        self.options = {"list": [np.random.default_rng(0), random.Random(0)]}
        self.sub = nn.Identity()
        self.sub.legacy = np.random.RandomState(0)  # type: ignore[assignment]
        self.philox = np.random.Generator(np.random.Philox(0))

    def draw(self) -> list[Any]:
        first, second = self.options["list"]
        return [
            torch.rand(2, generator=self.own).tolist(),
            first.random(),
            second.random(),  # type: ignore[attr-defined]
            self.sub.legacy.rand(),  # type: ignore[operator,union-attr]
            self.philox.random(),
        ]


def test_generators_that_a_model_or_a_function_holds_are_keyed_and_given_back() -> None:
    model = Held()
    closed = np.random.default_rng(1)
    given = np.random.default_rng(2)

    def augment(chunk: Any, rng: np.random.Generator) -> list[float]:
        return [closed.random(), NAMED.random(), rng.random()]

    users = (model, partial(augment, rng=given))
    before = [generators._state(one) for one in generators.held_by(users)]
    assert len(before) == 8
    found = []
    for _ in range(2):
        with Generators(*users).keyed():
            found.append([*model.draw(), *augment(None, given)])
        assert repr([generators._state(one) for one in generators.held_by(users)]) == repr(before)
    assert not any(one == other for one, other in zip(*found, strict=True))


def test_seeding_inside_is_refused() -> None:
    with pytest.raises(ModelError, match=r"seeds PyTorch's generator itself"), Generators().keyed():
        torch.manual_seed(0)
    with Generators(seed=1).keyed(0):
        torch.manual_seed(0)


# Kernels ----------------------------------------------------------------------------------------------------


def test_kernels_that_stretch_a_short_seed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stretched(x: Tensor) -> Tensor:
        word = int(torch.randint(2**31, ()))
        return x.uniform_(generator=torch.Generator().manual_seed(word)).lt_(0.5)

    wide = dict(generators._WIDE)
    wide["bernoulli_.float"] = (wide["bernoulli_.float"][0], stretched)
    monkeypatch.setattr(generators, "_WIDE", wide)
    monkeypatch.setattr(generators, "_narrow", None)
    assert "bernoulli_.float" in generators.narrow_kernels()


def test_in_place_of_them_every_word_comes_from_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "_narrow", list(generators._WIDE))
    x = torch.ones(40_000, dtype=torch.float32, requires_grad=True)
    torch.manual_seed(0)
    outside = F.dropout(torch.ones(100), 0.5)
    with Generators().keyed():
        used = torch.get_rng_state()
        y = F.dropout(x, 0.25)
        torch.set_rng_state(used)
        assert torch.equal(F.dropout(x, 0.25), y), "a function of the generator's state, as before"
        y.sum().backward()  # type: ignore[no-untyped-call]
        exponential = torch.empty(40_000, dtype=torch.float64).exponential_(2.0)
        half = torch.empty(40_000, dtype=torch.bfloat16).bernoulli_(0.5)
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert 0.74 < float((y > 0).float().mean()) < 0.76
    assert 0.49 < float(exponential.mean()) < 0.51
    assert 0.49 < float(half.float().mean()) < 0.51
    torch.manual_seed(0)
    assert torch.equal(F.dropout(torch.ones(100), 0.5), outside), "outside, nothing has changed"


# Devices ----------------------------------------------------------------------------------------------------


def test_generators_of_devices_are_keyed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        default_generators = (torch.Generator(), torch.Generator())

        @staticmethod
        def is_initialized() -> bool:
            return True

        @staticmethod
        def init() -> None:
            pass

    monkeypatch.setattr(torch, "cuda", Device)
    seeds = []
    for generator in Device.default_generators:
        generator.manual_seed(0)
    with Generators().keyed():
        seeds += [generator.initial_seed() for generator in Device.default_generators]
    assert len({0, *seeds}) == 3
    assert [generator.initial_seed() for generator in Device.default_generators] == [0, 0]


# Data -------------------------------------------------------------------------------------------------------


class Random(Dataset[Any]):
    """Every example is what all generators give."""

    def __init__(self, examples: int) -> None:
        self._examples = examples
        self._rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, place: int) -> Tensor:
        info = get_worker_info()
        return torch.tensor(
            [
                float(torch.rand(())),
                random.random(),
                np.random.rand(),  # noqa: NPY002
                self._rng.random() if self._rng is not None else 0.0,
                float((info.seed if info is not None else place) % 2**20) / 2**20,
            ],
            dtype=torch.float64,
        )


def drawn(workers: int, seed: int | None) -> list[Tensor]:
    seed_all()
    data = Random(12)
    sampler = PoissonSampler(12, 1.0, seed=seed)
    batches = PoissonBatches(data, sampler, chunk_size=4, workers=workers, seed=seed)
    before = repr(random_state()[:2])
    found = [chunk for _, chunks in batches.steps(3, 2) for chunk in chunks]
    assert repr(random_state()[:2]) == before
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_data_set_draws_is_a_secret_in_every_process(workers: int) -> None:
    first, second = (torch.cat(drawn(workers, None)) for _ in range(2))
    columns = 5 if workers else 4
    rows = torch.cat([first, second])[:, :columns]
    for column in rows[:, :4].T:
        assert len(set(column.tolist())) == len(rows)
    assert not (first[:, :columns] == second[:, :columns]).any()


def test_with_a_seed_it_is_the_same_whoever_loads_it() -> None:
    alone, helped = (torch.cat(drawn(workers, 7)) for workers in (0, 2))
    assert torch.equal(alone[:, :3], helped[:, :3])
    assert len(set(alone[:, 0].tolist())) == len(alone)
