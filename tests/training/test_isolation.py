"""The whole pipeline keeps examples apart, from the data set to the gradient, or the run is refused."""

from __future__ import annotations

import json
import random
import secrets
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, TensorDataset

from oracle import assert_close, clipped_sum, per_example_gradients
from tacit import PrivateStep, Support, TacitError, Trainer
from tacit.errors import ModelError
from tacit.losses import cross_entropy
from tacit.plan import make_plan
from tacit.raw.clipping import Clipper
from tacit.raw.one_at_a_time import Singles
from tacit.runs import load_certificate
from training.small import flat, sgd

EXAMPLES = 24


class Rows(Dataset[Any]):
    """Sequences of numbers with a label, of one length or of several."""

    def __init__(self, lengths: tuple[int, ...] = (5,), tokens: int = 0) -> None:
        generator = torch.Generator().manual_seed(7)
        self.items = []
        for place in range(EXAMPLES):
            length = lengths[place % len(lengths)]
            x = (
                torch.randint(1, tokens, (length,), generator=generator)
                if tokens
                else torch.randn(length, 4, generator=generator)
            )
            self.items.append((x, place % 3))

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return self.items[place]


class Centred(Rows):
    """Subtracts the mean of what is fetched together."""

    def __getitems__(self, places: list[int]) -> list[tuple[Tensor, int]]:
        mean = torch.stack([self.items[place][0] for place in places]).mean(0)
        return [(self.items[place][0] - mean, self.items[place][1]) for place in places]


class Pooled(nn.Module):
    """A mean over time, with the length of each example where it is told, then a linear head."""

    def __init__(self, *, masked: bool = False, sleeping: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.masked = masked
        if sleeping:
            nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        h = torch.tanh(self.inner(x))
        if not self.masked or lengths is None:
            return self.head(h.mean(1))
        real = torch.arange(x.shape[1]) < lengths[:, None]
        return self.head((h * real[..., None]).sum(1) / lengths[:, None])


class TimeMajor(Pooled):
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows, length, width = x.shape
        flat = torch.tanh(self.inner(x.transpose(0, 1).reshape(length * rows, width)))
        return self.head(flat.view(length, rows, -1).mean(0))


class LastState(nn.Module):
    """A recurrent model that reads on into the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def padded(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    return (
        pad_sequence([x for x, _ in items], batch_first=True),
        torch.tensor([y for _, y in items]),
        torch.tensor([len(x) for x, _ in items]),
    )


def padded_longest_first(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    return padded(sorted(items, key=lambda item: -len(item[0])))


def with_lengths(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0], *batch[2:]), batch[1], reduction="none")


def centred(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (batch[0] - batch[0].mean(0), *batch[1:])


def scaled(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (batch[0] / batch[0].abs().max(), *batch[1:])


def mixed(order: Callable[[int], Any]) -> Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]:
    return lambda batch: (0.6 * batch[0] + 0.4 * batch[0][order(len(batch[0]))], *batch[1:])


class Mixer:
    """Mixes by a generator that it holds."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return mixed(self.generator.permutation)(batch)


def flipped(draw: Callable[[int], Any]) -> Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """Each example turned around by chance."""

    def augment(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        turn = torch.as_tensor(draw(len(batch[0]))) < 0.5
        return (torch.where(turn[:, None, None], batch[0].flip(1), batch[0]), *batch[1:])

    return augment


def noisy(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (batch[0] + 0.1 * torch.randn_like(batch[0]), *batch[1:])


def trained(**changed: Any) -> Trainer:
    settings: dict[str, Any] = {
        "model": Pooled(),
        "dataset": Rows(),
        "loss": with_lengths,
        "epochs": 2,
        "optimizer": sgd,
        **changed,
    }
    plan = make_plan(
        "dp-sgd",
        epsilon=3.0,
        delta=1e-5,
        examples=EXAMPLES,
        batch_size=8,
        epochs=settings.pop("epochs"),
        accountant="rdp",
    )
    model, dataset, loss = (settings.pop(name) for name in ("model", "dataset", "loss"))
    return Trainer(model, dataset, loss, plan, **settings)


MIXING: dict[str, Callable[[], dict[str, Any]]] = {
    "augment subtracts the mean of the batch": lambda: {"augment": centred},
    "augment scales by the largest value of the batch": lambda: {"augment": scaled},
    "augment mixes by torch": lambda: {"augment": mixed(torch.randperm)},
    "augment mixes by numpy": lambda: {"augment": mixed(np.random.permutation)},
    "augment mixes by a generator it holds": lambda: {"augment": Mixer()},
    "augment mixes views": lambda: {"augment": centred, "views": 2},
    "the data set subtracts the mean of what it fetches": lambda: {"dataset": Centred()},
    "collate pads, the model takes a plain mean": lambda: {
        "dataset": Rows((2, 5, 9)),
        "collate": padded,
    },
    "collate pads, all examples that are looked at are equally long": lambda: {
        "dataset": Rows((5,)),
        "collate": padded,
        "model": LastState(),
    },
    "collate pads, the model reads padding": lambda: {
        "dataset": Rows((2, 5, 9)),
        "collate": padded,
        "model": LastState(),
    },
    "the loss is divided by the size of the batch": lambda: {
        "loss": lambda model, batch: with_lengths(model, batch) / len(batch[0])
    },
}

SOUND: dict[str, Callable[[], dict[str, Any]]] = {
    "padding that the model masks": lambda: {
        "dataset": Rows((2, 5, 9)),
        "collate": padded,
        "model": Pooled(masked=True),
    },
    "collate puts the longest first": lambda: {
        "dataset": Rows((2, 5, 9)),
        "collate": padded_longest_first,
        "model": Pooled(masked=True),
    },
    "flips by torch": lambda: {"augment": flipped(torch.rand)},
    "flips by numpy": lambda: {"augment": flipped(np.random.rand)},
    "flips by python": lambda: {"augment": flipped(lambda n: [random.random() for _ in range(n)])},
    "flips by a generator of its own": lambda: {"augment": flipped(np.random.default_rng(1).random)},
    "noise and views": lambda: {"augment": noisy, "views": 3},
    "dropout": lambda: {"model": nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(20, 3))},
    "one label only": lambda: {"dataset": [(torch.randn(5, 4), 1) for _ in range(EXAMPLES)]},
    "equal examples": lambda: {"dataset": [(torch.ones(5, 4), 1) for _ in range(EXAMPLES)]},
}


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("case", MIXING)
def test_a_pipeline_that_mixes_examples_is_refused_before_anything_is_written(
    case: str, seed: int | None, tmp_path: Path
) -> None:
    trainer = trained(**MIXING[case](), seed=seed, run_dir=tmp_path / "run")
    with pytest.raises(
        ModelError, match=r'depends on the other examples.*isolation="construction"'
    ) as caught:
        trainer.fit(progress=False)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", SOUND)
def test_a_sound_pipeline_is_trained(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(**SOUND[case](), loss=with_lengths).fit(progress=False).finished


@pytest.mark.parametrize("case", [case for case in MIXING if "size" not in case])
def test_by_construction_what_mixes_in_company_is_exact_for_each(case: str) -> None:
    """The gradient of each example is that of its own batch: one more changes the sum by no more than C."""
    settings = MIXING[case]()
    trainer = trained(**settings, isolation="construction", seed=4)
    clipper, support = trainer._clipper, Support.all(trainer.model)

    def summed(places: list[int]) -> dict[str, Tensor]:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        chunk = Singles(trainer._examples.pipeline.batch([place]) for place in places)
        return clipper.clipped_sum([chunk], support, 0.01).values

    whole = summed([0, 1, 2, 3, 4, 5])
    fewer = summed([0, 1, 2, 3, 4])
    change = sum(float((whole[name] - fewer[name]).square().sum()) for name in whole) ** 0.5
    assert change <= 0.01 * (1 + 1e-4)
    assert trainer.fit(progress=False).finished


def test_time_major_folding_behind_a_sleeping_head_is_exact_through_the_trainer() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        trainer = trained(model=TimeMajor(sleeping=True), seed=4)
        trainer.fit(progress=False)
        batch = trainer._examples.pipeline.batch([0, 1, 2, 3, 4])
        support = Support.all(trainer.model)
        found = trainer._clipper.clipped_sum([batch], support, 0.01).values
    expected, _ = clipped_sum(per_example_gradients(trainer.model, with_lengths, batch), support, 0.01)
    assert_close(found, expected, 1e-4)


def test_a_model_that_begins_to_mix_is_stopped_before_its_release(tmp_path: Path) -> None:
    class Waking(Pooled):
        def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
            h = torch.tanh(self.inner(x)).mean(1)
            moved = float((self.inner.bias.detach() - self.start).norm())
            return self.head(h - h.mean(0).detach() if moved > 2.0 else h)

    model = Waking()
    model.start = model.inner.bias.detach().clone()
    trainer = trained(
        model=model, epochs=14, seed=4, run_dir=tmp_path, optimizer=lambda n: torch.optim.SGD(n, lr=40.0)
    )
    with pytest.raises(ModelError, match=r"found at step \d+.*what was charged stays charged"):
        trainer.fit(progress=False)
    charged = (tmp_path / "ledger.jsonl").read_text().count('"index"')
    assert 1 <= charged < 42


def test_looks_change_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same model, whether or not anybody looks again."""
    found = []
    for looks in (True, False):
        if not looks:
            monkeypatch.setattr("tacit.raw.inspector.Inspections.due", lambda self, changed=False: False)
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        trainer = trained(
            augment=noisy, seed=4, epochs=4, model=nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(20, 3))
        )
        trainer.fit(progress=False)
        found.append(flat(trainer.model))
    assert torch.equal(*found)


# By construction ----------------------------------------------------------------------------------------------------


class Branching(Pooled):
    """Control flow that depends on the data: torch.func cannot follow."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(x if float(x.detach().sum()) > 0 else -x)


@pytest.mark.parametrize("model", [Pooled, Branching, TimeMajor])
@pytest.mark.parametrize("views", [1, 2])
def test_gradients_by_construction_are_those_of_each_example_alone(
    model: type[nn.Module], views: int
) -> None:
    network = model()
    x = torch.stack([Rows()[place][0] for place in range(6)])
    batch = (x, torch.arange(6) % 3)
    clipper = Clipper(network, with_lengths, views=views, isolation="construction")
    gradients = per_example_gradients(network, with_lengths, batch, views)
    for support in (Support.all(network), Support.random(network, ratio=0.4, seed=1)):
        expected, norms = clipped_sum(gradients, support, 0.05)
        assert_close(clipper.clipped_sum([batch], support, 0.05).values, expected, 1e-5)
        torch.testing.assert_close(clipper.norms(batch, support), norms.double(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("workers", [0, 1])
def test_isolated_examples_are_fetched_collated_and_augmented_by_themselves(workers: int) -> None:
    trainer = trained(dataset=Centred(), augment=scaled, isolation="construction", workers=workers)
    for _, chunks in trainer._examples.batches.steps(0, 2):
        for chunk in chunks:
            singles = trainer._examples.viewed(chunk)
            assert isinstance(singles, Singles)
            assert all(len(x) == 1 and x.isnan().all() for x, _ in singles)  # 0 / 0: each is its own mean


def test_draws_that_cannot_be_repeated_are_refused() -> None:
    def augment(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (batch[0] + secrets.randbelow(1 << 40) / (1 << 40), *batch[1:])

    with pytest.raises(ModelError, match="cannot be repeated"):
        trained(augment=augment).fit(progress=False)


class Remembering(Rows):
    """A data set that lets each example have something of the one before, or of all."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay, self.before = decay, torch.zeros(5, 4)

    def __getitem__(self, place: int) -> Any:
        x, y = super().__getitem__(place)
        before, self.before = self.before, self.decay * self.before + (1 - self.decay) * x
        return x - before, y


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_a_data_set_that_remembers_examples_is_refused(decay: float) -> None:
    with pytest.raises(ModelError, match="remembers what came"):
        trained(dataset=Remembering(decay)).fit(progress=False)


def test_a_data_set_that_remembers_for_long_is_refused() -> None:
    """What it remembers hardly changes from one look to the next, so it may look like examples that are mixed."""
    with pytest.raises(ModelError, match=r"remembers what came|depends on the other examples"):
        trained(dataset=Remembering(0.99)).fit(progress=False)


class Crowd(nn.Module):
    """Centres its inputs where there are more of them than a look at the model puts together."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more, self.body = more, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x - x.mean(0) if len(x) > self.more else x)


@pytest.mark.parametrize("more", [20, 80])
def test_what_mixes_in_large_batches_only_is_refused_before_the_first_release(more: int) -> None:
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(200, 5, generator=generator), torch.arange(200) % 3)
    size = more + 40
    plan = make_plan(
        "dp-sgd", epsilon=8, delta=1e-4, examples=200, batch_size=size, epochs=2, accountant="rdp"
    )
    made = Trainer(Crowd(more), data, cross_entropy, plan, optimizer=sgd, seed=3)
    with pytest.raises(ModelError, match="depends on the other examples"):
        made.fit(progress=False)
    assert made.epsilon == 0


def test_an_example_without_a_finite_gradient_counts_as_zero_by_construction() -> None:
    network = Pooled()
    x = torch.stack([Rows()[place][0] for place in range(4)])
    batch = (x, torch.arange(4) % 3)
    clipper = Clipper(network, with_lengths, isolation="construction")
    support = Support.all(network)
    expected = clipper.clipped_sum([(x[1:], batch[1][1:])], support, 0.05).values
    x[0] = float("nan")
    assert_close(clipper.clipped_sum([batch], support, 0.05).values, expected, 1e-6)


def test_company_does_not_change_how_an_example_rounds_by_construction() -> None:
    """Positions that cancel exactly leave rounding alone, which a shared matrix product does in another way."""
    torch.manual_seed(0)
    model = nn.Linear(17, 17, bias=False, dtype=torch.float64)
    a, b = torch.randn(1, 8, 17, dtype=torch.float64), torch.randn(1, 8, 17, dtype=torch.float64) * 1e18
    x, t = torch.cat([a, a], 1).repeat(40, 1, 1), torch.cat([b, -b], 1).repeat(40, 1, 1)
    clipper = Clipper(model, lambda m, z: (m(z[0]) * z[1]).flatten(1).sum(1), isolation="construction")
    support = Support.all(model)
    less = clipper.clipped_sum([(x, t)], support, 1.0)
    more = clipper.clipped_sum([(torch.cat([x[:1] * 0, x]), torch.cat([t[:1] * 0, t]))], support, 1.0)
    assert torch.equal(less.values["weight"], more.values["weight"])


def test_what_an_example_leaves_in_the_model_does_not_reach_the_next_by_construction() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(4, 3), torch.zeros(1, 4)

        def forward(self, x: Tensor) -> Tensor:
            seen, self.last = self.last, x
            found: Tensor = self.layer(x + seen)
            return found

    torch.manual_seed(0)
    model, x, y = Remembering(), torch.randn(5, 4), torch.arange(5) % 3
    clipper = Clipper(model, cross_entropy, isolation="construction")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together = clipper.norms((x, y), Support.all(model))
        alone = torch.cat([clipper.norms((x[i : i + 1], y[i : i + 1]), Support.all(model)) for i in range(5)])
    assert torch.equal(together, alone)


def test_dropout_by_construction_is_drawn_for_each_example() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(20, 3))
    x = torch.ones(8, 5, 4)
    clipper = Clipper(model, cross_entropy, isolation="construction")
    norms = clipper.norms((x, torch.zeros(8, dtype=torch.long)), Support.all(model))
    assert len({round(float(norm), 6) for norm in norms}) > 3


def test_a_step_of_ones_own_is_isolated_by_construction() -> None:
    model = nn.Linear(4, 3)
    x = torch.randn(6, 4)

    def mixing(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(model, (batch[0] - batch[0].mean(0) + batch[0], batch[1]))

    settings: dict[str, Any] = {
        "support": Support.all(model),
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "batch_size": 6,
        "optimizer": sgd,
    }
    with pytest.raises(ModelError, match="depends on the other examples"):
        PrivateStep(model, mixing, **settings).step((x, torch.arange(6) % 3))
    step = PrivateStep(model, mixing, **settings, isolation="construction")
    step.step((x, torch.arange(6) % 3))
    assert len(step.ledger) == 1


def test_another_isolation_is_refused() -> None:
    with pytest.raises(TacitError, match='isolation must be "probed" or "construction", not \'none\''):
        trained(isolation="none")


@pytest.mark.parametrize("isolation", ["probed", "construction"])
def test_a_buffer_that_follows_the_data_is_refused_in_both_ways(isolation: str) -> None:
    class Remembering(Pooled):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
            self.seen.add_(x.detach().mean((0, 1)))  # type: ignore[operator]
            return super().forward(x)

    with pytest.raises(ModelError, match="buffer 'seen' changes in a forward pass"):
        trained(model=Remembering(), isolation=isolation).fit(progress=False)


@pytest.mark.parametrize("isolation", ["probed", "construction"])
def test_the_certificate_says_how_examples_were_kept_apart(isolation: str, tmp_path: Path) -> None:
    trained(isolation=isolation, run_dir=tmp_path).fit(progress=False)
    certificate = load_certificate(tmp_path / "certificate.json")
    words = {
        "probed": "was probed, not proven",
        "construction": "kept apart by construction",
    }
    for way, said in words.items():
        assert any(said in line for line in certificate.not_covered) == (way == isolation)
        assert (said in " ".join((tmp_path / "certificate.txt").read_text().split())) == (way == isolation)


def test_a_run_is_resumed_with_the_isolation_it_was_started_with(tmp_path: Path) -> None:
    trained(run_dir=tmp_path, seed=4).fit(progress=False)
    assert json.loads((tmp_path / "run.json").read_text())["isolation"] == "probed"
    with pytest.raises(TacitError, match=r"was started with isolation 'probed', not 'construction'"):
        trained(run_dir=tmp_path, seed=4, isolation="construction").resume(progress=False)


@pytest.mark.parametrize("most", [3, 4])
def test_little_memory_is_no_reason_to_refuse_a_pipeline(most: int) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[0]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return cross_entropy(model, batch)

    rows = TensorDataset(torch.randn(40, 8), torch.randint(0, 2, (40,)))
    planned = make_plan("dp-sgd", epsilon=3.0, delta=1e-3, examples=40, batch_size=10, epochs=1)
    run = Trainer(
        nn.Linear(8, 2), rows, loss, planned, optimizer=lambda named: torch.optim.SGD(named, lr=0.1)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that memory ran out
        assert run.fit(progress=False).finished
