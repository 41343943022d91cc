"""Private answers about weights that somebody else chooses: what leaves, what it costs, what no weights change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from oracle import clipped_sum, per_example_gradients
from tacit import PoissonLoader, make_plan, verify
from tacit.errors import ArgumentError, FileError, LedgerError
from tacit.losses import binary_cross_entropy
from tacit.models.networks import mlp
from tacit.plan import Plan
from tacit.raw.inspector import Inspector
from tacit.release.ledger_file import read_ledger
from tacit.release.noise import SecureNoise
from tacit.runs import load_certificate
from tacit.runs.run_directory import Run
from tacit.support import Support
from tacit.training.answering import MOST_WEIGHT, Answer, PrivateAnswers

ROWS, FEATURES = 60, 12


def table(rows: int = ROWS) -> TensorDataset:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(rows, FEATURES, generator=draw)
    return TensorDataset(x, (x[:, :1] + x[:, 1:2] > 0).float())


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return mlp(FEATURES, 1, width=32, depth=1)


def plan(*, epsilon: float = math.inf, examples: int = ROWS, batch: int = ROWS, steps: int = 5) -> Plan:
    return make_plan(
        "dp-sgd",
        epsilon=epsilon,
        delta=1e-5,
        examples=examples,
        batch_size=batch,
        epochs=steps * batch / examples,
        clip_norm=0.5,
        accountant="rdp",
    )


def answers(
    folder: Path, data: TensorDataset | None = None, *, units: Any = None, **changed: Any
) -> PrivateAnswers:
    data = table() if data is None else data
    counted = len(data) if units is None else len(set(units))
    settings = {"examples": counted, "batch": counted, **changed}
    made = plan(**settings)
    if units is not None:
        made = make_plan(
            "dp-sgd", epsilon=math.inf, delta=1e-5, units=counted, batch_size=counted, epochs=5, clip_norm=0.5
        )
    loader = PoissonLoader(data, batch_size=settings["batch"], units=units)
    return PrivateAnswers(network(), loader, binary_cross_entropy, made, folder, unit="one row")


def opened(folder: Path, data: TensorDataset | None = None, **changed: Any) -> PrivateAnswers:
    made = answers(folder, data, **changed)
    made.create()
    return made


def weights(scale: float = 1.0) -> dict[str, Tensor]:
    return {name: scale * p.detach().clone() for name, p in network().named_parameters()}


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([values[name].flatten().double() for name in sorted(values)])


def true_mean(at: dict[str, Tensor], data: TensorDataset) -> Tensor:
    model = network()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(at[name])
    model = model.double()
    x, y = data.tensors
    gradients = per_example_gradients(model, binary_cross_entropy, (x.double(), y.double()))
    total, _ = clipped_sum(gradients, Support.all(model), 0.5)
    return flat({name: value / len(x) for name, value in total.items()})


def test_without_noise_an_answer_is_the_mean_of_clipped_gradients_at_the_weights_that_were_sent(
    tmp_path: Path,
) -> None:
    made = opened(tmp_path)
    for number, scale in enumerate((1.0, 3.0, -2.0), start=1):
        at = weights(scale)
        found = flat(made.answer({"round": number}, at).values)
        assert torch.allclose(found, true_mean(at, table()), atol=1e-6)


def test_an_answer_has_the_noise_of_the_plan_in_every_coordinate(tmp_path: Path) -> None:
    made = opened(tmp_path, epsilon=2.0)
    expected = made.plan.phases[0].noise_multiplier * 0.5 * (1 + 2**-8) / ROWS
    residuals = []
    for number in range(4):
        answer = made.answer({"round": number + 1}, weights())
        assert answer.noise_std == pytest.approx(expected)
        residuals.append((flat(answer.values) - true_mean(weights(), table())) / expected)
    joined = torch.cat(residuals)
    assert stats.kstest(joined.numpy(), "norm").pvalue > 1e-4
    assert len(torch.unique(joined)) == len(joined)


def test_every_answer_draws_its_own_sample_at_the_planned_rate(tmp_path: Path) -> None:
    """Without noise, an answer tells who was drawn: rows with one feature each have a gradient of their own."""
    rows = 200
    x = torch.eye(rows)
    data = TensorDataset(x, torch.ones(rows, 1))
    made = make_plan(
        "dp-sgd", epsilon=math.inf, delta=1e-5, examples=rows, batch_size=50, epochs=10, accountant="rdp"
    )
    loader = PoissonLoader(data, batch_size=50)
    model = nn.Sequential(nn.Linear(rows, 1))
    private = PrivateAnswers(model, loader, binary_cross_entropy, made, tmp_path, unit="one row")
    private.create()
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    drawn = torch.stack(
        [private.answer({"round": n + 1}, zeros).values["0.weight"][0] != 0 for n in range(40)]
    )
    assert stats.binomtest(int(drawn.sum()), drawn.numel(), 0.25).pvalue > 1e-4
    assert len({tuple(row.tolist()) for row in drawn}) == 40
    assert int(drawn.sum(0).min()) > 0
    assert int(drawn.sum(0).max()) < 30


HOSTILE = ("as trained", "enormous", "one enormous", "cancelling", "tiny", "zero")


def hostile(kind: str) -> dict[str, Tensor]:
    at = weights()
    match kind:
        case "enormous":
            return {name: torch.full_like(value, MOST_WEIGHT) for name, value in at.items()}
        case "one enormous":
            at["0.weight" if "0.weight" in at else next(iter(at))].flatten()[0] = MOST_WEIGHT
            return at
        case "cancelling":
            return {
                name: MOST_WEIGHT
                * torch.where(torch.arange(value.numel()) % 2 == 0, 1.0, -1.0).view(value.shape)
                for name, value in at.items()
            }
        case "tiny":
            return {name: value * 1e-38 for name, value in at.items()}
        case "zero":
            return {name: torch.zeros_like(value) for name, value in at.items()}
    return at


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_weights_let_one_row_move_an_answer_by_more_than_the_clip_norm(tmp_path: Path, kind: str) -> None:
    """Whatever is sent: the answers with and without an extreme row differ by what the noise covers."""
    x, y = table().tensors
    for number, odd in enumerate((torch.full((1, FEATURES), 1e4), x[:1], torch.zeros(1, FEATURES))):
        more = TensorDataset(torch.cat([x, odd]), torch.cat([y, 1 - y[:1]]))
        one = opened(tmp_path / f"{number}a").answer({"round": 1}, hostile(kind))
        two = opened(tmp_path / f"{number}b", more).answer({"round": 1}, hostile(kind))
        moved = flat(two.values) * two.batch_size - flat(one.values) * one.batch_size
        assert bool(torch.isfinite(moved).all())
        assert (
            float(moved.norm()) <= 0.5 * (1 + 2**-8) + 1e-4
        )  # what is left is single precision of the means


def test_all_rows_of_a_unit_together_move_an_answer_by_no_more_than_the_clip_norm(tmp_path: Path) -> None:
    data = table()
    x, y = data.tensors
    ids = [number // 3 for number in range(ROWS)]
    more = TensorDataset(torch.cat([x, 50 * torch.randn(20, FEATURES)]), torch.cat([y, torch.ones(20, 1)]))
    one = opened(tmp_path / "a", data, units=ids).answer({"round": 1}, weights(4))
    two = opened(tmp_path / "b", more, units=[*ids, *[99] * 20]).answer({"round": 1}, weights(4))
    moved = flat(two.values) * two.batch_size - flat(one.values) * one.batch_size
    assert 0 < float(moved.norm()) <= 0.5 * (1 + 2**-8) + 1e-4


BAD = {
    "not a number": {"bias": math.nan},
    "infinite": {"bias": math.inf},
    "minus infinite": {"bias": -math.inf},
    "too large": {"bias": 2 * MOST_WEIGHT},
}


@pytest.mark.parametrize("what", [*BAD, "another shape", "a name too few", "a name too many"])
def test_weights_that_are_none_are_refused_before_anything_is_charged(tmp_path: Path, what: str) -> None:
    made = opened(tmp_path)
    at = weights()
    last = sorted(at)[-1]
    if what in BAD:
        at[last].flatten()[-1] = BAD[what]["bias"]
    elif what == "another shape":
        at[last] = torch.zeros(7, 7)
    elif what == "a name too few":
        del at[last]
    else:
        at["other"] = torch.zeros(1)
    with pytest.raises(ArgumentError, match="weight"):
        made.answer({"round": 1}, at)
    assert made.charged == 0
    assert made.done == 0


def test_a_plan_allows_its_answers_and_no_more(tmp_path: Path) -> None:
    made = opened(tmp_path, steps=2)
    for number in range(2):
        made.answer({"round": number + 1}, weights())
    assert made.left == 0
    with pytest.raises(LedgerError, match="All answers"):
        made.answer({"round": 4}, weights())
    assert len(read_ledger(tmp_path / "ledger.jsonl").charges) == 2


def test_the_last_answer_survives_a_restart_bit_for_bit(tmp_path: Path) -> None:
    made = opened(tmp_path, epsilon=2.0)
    made.answer({"round": 1}, weights())
    given = made.answer({"round": 2}, weights())
    made.close()
    again = answers(tmp_path, epsilon=2.0)
    again.open()
    assert isinstance(again.last, Answer)
    assert again.last.question == {"round": 2}
    assert (again.last.charged, again.last.noise_std) == (2, given.noise_std)
    assert torch.equal(flat(again.last.values), flat(given.values))
    assert (again.done, again.charged, again.left) == (2, 2, 3)


def test_an_answer_is_charged_before_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened(tmp_path, epsilon=2.0)
    seen = []

    def fail(*_: object, **__: object) -> None:
        seen.append(len(read_ledger(tmp_path / "ledger.jsonl").charges))
        raise RuntimeError("the power is gone")

    monkeypatch.setattr(SecureNoise, "add", fail)
    with pytest.raises(RuntimeError):
        made.answer({"round": 1}, weights())
    assert seen == [1]


def test_an_answer_that_a_crash_has_lost_stays_charged_and_shortens_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = opened(tmp_path, epsilon=2.0, steps=3)
    made.answer({"round": 1}, weights())
    with monkeypatch.context() as patched:
        patched.setattr(Run, "save", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
        with pytest.raises(OSError):
            made.answer({"round": 2}, weights())
    made.close()
    again = answers(tmp_path, epsilon=2.0, steps=3)
    again.open()
    assert again.last is not None
    assert again.last.question == {"round": 1}
    assert (again.charged, again.left) == (2, 1)
    again.answer({"round": 2}, weights())
    assert again.left == 0
    again.certify()
    verdict = verify(tmp_path)
    assert verdict.agrees, verdict
    assert verdict.for_release


def test_the_run_verifies_and_its_certificate_says_what_is_not_covered(tmp_path: Path) -> None:
    made = opened(tmp_path, epsilon=2.0)
    for number in range(3):
        made.answer({"round": number + 1}, weights())
    spent = made.epsilon
    made.certify()
    made.close()
    verdict = verify(tmp_path)
    assert verdict.agrees, verdict
    assert verdict.for_release
    certificate = load_certificate(tmp_path / "certificate.json")
    assert certificate.epsilon_spent == spent < 2.0
    assert certificate.charged_releases == 3
    assert any("how long it takes" in sentence for sentence in certificate.not_covered)
    assert any("whoever asks chooses the weights" in sentence for sentence in certificate.not_covered)
    (tmp_path / "ledger.jsonl").write_text(
        "".join((tmp_path / "ledger.jsonl").read_text().splitlines(True)[:-1])
    )
    assert not verify(tmp_path).agrees


def test_no_look_is_taken_at_weights_that_somebody_else_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a look finds something may depend on examples, and an answer that fails tells so."""
    made = opened(tmp_path, steps=60)
    looked = []
    monkeypatch.setattr(Inspector, "meet", lambda *_: looked.append("meet"))
    monkeypatch.setattr(Inspector, "_probe", lambda *_: looked.append("probe"))
    for number in range(40):
        made.answer({"round": number + 1}, weights())
    assert looked == []


def test_two_processes_cannot_answer_from_one_folder(tmp_path: Path) -> None:
    made = opened(tmp_path)
    with pytest.raises(LedgerError):
        answers(tmp_path).open()
    with pytest.raises(FileError):
        answers(tmp_path).create()
    made.close()


def test_seeds_and_plans_of_other_methods_are_refused(tmp_path: Path) -> None:
    seeded = PoissonLoader(table(), batch_size=ROWS, seed=1)
    with pytest.raises(ArgumentError, match="not trusted"):
        PrivateAnswers(network(), seeded, binary_cross_entropy, plan(), tmp_path, unit="one row")
    loader = PoissonLoader(table(), batch_size=30)
    with pytest.raises(ArgumentError, match="in batches of"):
        PrivateAnswers(network(), loader, binary_cross_entropy, plan(), tmp_path, unit="one row")
