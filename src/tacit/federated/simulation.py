"""Simulated federated training, and its repeated cross-validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from tacit.errors import ArgumentError, check_count, check_share
from tacit.federated.data import FederatedData, load
from tacit.federated.local import flat_answers, sum_answers, two_stage_answers
from tacit.federated.models import Model, linear_model, predict
from tacit.federated.plan import LocalPlan, certificate, hyper_parameters_free
from tacit.federated.sampling import Uniforms
from tacit.federated.scores import Judgement, judge

Floats = NDArray[np.float32]
Round = Callable[[NDArray[np.int64], Floats], NDArray[np.float64]]
Observer = Callable[[int, Floats], None]


@dataclass(frozen=True, eq=False)
class Simulated:
    """Weights after a simulated run, and the rounds and answers it took. Seeded noise: not for release."""

    weights: Floats
    rounds: int
    answers: int


def simulate(
    plan: LocalPlan,
    model: Model,
    clients: FederatedData,
    rng: np.random.Generator,
    observe: Observer | None = None,
) -> Simulated:
    """Train ``model``: each epoch visits all clients in a fresh random order, ``plan.batch`` at a time.

    The sum of a batch is divided by ``plan.batch``, a public number, also where the last batch is shorter.
    ``observe`` is called with the number of the round and the weights after it.
    """
    if model.d != plan.d:
        raise ArgumentError(f"The plan is for {plan.d} coordinates, the model has {model.d}.")
    weights = model.initial()
    update = _round(plan, len(clients), rng)
    rounds = 0
    for _ in range(plan.epochs):
        order = rng.permutation(len(clients))
        for start in range(0, len(order), plan.batch):
            batch = order[start : start + plan.batch]
            step = update(batch, model.gradients(weights, clients.x[batch], clients.y[batch]))
            weights = weights - (step / plan.batch).astype(np.float32)
            rounds += 1
            if observe is not None:
                observe(rounds, weights)
    return Simulated(weights, rounds, plan.epochs * len(clients))


def _round(plan: LocalPlan, clients: int, rng: Uniforms) -> Round:
    """Return the function from a batch and its gradients to batch size × the server's update."""
    rate = plan.learning_rate
    match plan.solution:
        case "two-stage":
            return _two_stage_round(plan, clients, rng)
        case "vector":
            return _vector_round(plan, rng)
        case "flat":
            count, value = plan.coordinates_sent, plan.value_perturbation()

            def flat(batch: NDArray[np.int64], gradients: Floats) -> NDArray[np.float64]:
                answers = flat_answers(value, gradients, count, rng)
                total = np.sum([sum_answers(a, plan.d) for a in answers], axis=0, dtype=np.float64)
                return np.asarray(rate * plan.d / count * total)

            return flat
        case "compressed":
            return _compressed_round(plan, rng)
    return lambda batch, gradients: rate * gradients.sum(axis=0, dtype=np.float64)


def _two_stage_round(plan: LocalPlan, clients: int, rng: Uniforms) -> Round:
    law, value = plan.selection(), plan.value_perturbation()
    # A client that answers once never looks at its residual again. Pages of zeros cost nothing until they
    # are written.
    kept = np.zeros((clients, plan.d), np.float32) if plan.epochs > 1 else None
    inside, outside = (plan.learning_rate, 1.0) if plan.scaled_accumulation else (1.0, plan.learning_rate)

    def two_stage(batch: NDArray[np.int64], gradients: Floats) -> NDArray[np.float64]:
        scaled = gradients if inside == 1.0 else np.float32(inside) * gradients
        residual = None if kept is None else kept[batch]
        answers, left = two_stage_answers(law, value, scaled, residual, plan.momentum, rng)
        if kept is not None:
            kept[batch] = left
        return outside * sum_answers(answers, plan.d)

    return two_stage


def _vector_round(plan: LocalPlan, rng: Uniforms) -> Round:
    replies = plan.vector_replies()

    def vector(batch: NDArray[np.int64], gradients: Floats) -> NDArray[np.float64]:
        total = np.zeros(plan.d)
        for seed, index in zip(*replies.sample(gradients, rng), strict=True):
            total += replies.value(int(seed), int(index))
        return plan.learning_rate * total

    return vector


def _compressed_round(plan: LocalPlan, rng: Uniforms) -> Round:
    q, value = plan.projected, plan.value_perturbation()
    seed = int(rng.integers(0, 2**62, 1)[0])
    projection = np.random.default_rng(seed).standard_normal((plan.d, q), dtype=np.float32) / np.sqrt(
        np.float32(q)
    )
    recovery = np.linalg.pinv(projection)

    def compressed(batch: NDArray[np.int64], gradients: Floats) -> NDArray[np.float64]:
        (answers,) = flat_answers(value, gradients @ projection, 1, rng)
        return plan.learning_rate * (q * sum_answers(answers, q) @ recovery)

    return compressed


CURVE_POINTS = 25


@dataclass(frozen=True)
class Experiment:
    """A data set, a model and a plan, to be judged by ``repeats`` × ``folds`` cross-validation.

    ``plan.d`` and ``plan.batch`` are filled in from the data: the batch is ``batch_share`` of the training
    clients. With ``rounds`` only as many clients take part as that many rounds need. Equal seeds give equal
    splits and client orders, so that two experiments can be compared in pairs.
    """

    data: str
    plan: dict[str, Any]
    model: str = "logistic"
    folds: int = 5
    repeats: int = 10
    batch_share: float = 0.01
    seed: int = 0
    data_dir: str | None = None
    curve: bool = False
    rounds: int | None = None
    schema: str | None = None

    def __post_init__(self) -> None:
        check_count("folds", self.folds, least=2)
        check_count("repeats", self.repeats)
        check_share("batch share", self.batch_share)
        check_count("seed", self.seed, least=0)

    def records(self) -> FederatedData:
        """The data set; with ``schema`` it is a table in a file."""
        return load_cached(self.data, self.data_dir, self.seed, self.schema)

    def plan_for(self, data: FederatedData) -> LocalPlan:
        """Return the plan for the size of ``data``; where ``mu`` is None, by the paper's rule."""
        clients = len(data) - len(data) // self.folds
        batch = max(1, round(self.batch_share * clients))
        options = {name: value for name, value in self.plan.items() if value is not None}
        plan = LocalPlan(d=data.d, batch=batch, **options)
        if len(options) < len(self.plan):
            plan = replace(plan, mu=hyper_parameters_free(plan.epsilon_per_epoch, plan.d, plan.batch))
        return plan


@dataclass(frozen=True, eq=False)
class Scores:
    """Test accuracies, ``repeats`` × ``folds``, and the accuracy by round where it was asked for.

    ``auc``, ``balanced`` (accuracy) and ``constant`` (the accuracy of always naming the larger class) have the
    same shape.
    """

    accuracy: NDArray[np.float64]
    auc: NDArray[np.float64]
    balanced: NDArray[np.float64]
    constant: NDArray[np.float64]
    rounds: list[int] = field(default_factory=list)
    curve: NDArray[np.float64] | None = None

    @property
    def mean(self) -> float:
        """The mean accuracy."""
        return float(self.accuracy.mean())

    @property
    def deviation(self) -> float:
        """The standard deviation over all folds of all repeats."""
        return float(self.accuracy.std(ddof=1))

    @property
    def half_width(self) -> float:
        """Half of the 95 % confidence interval of the mean."""
        return half_width(self.accuracy)


def half_width(values: NDArray[np.float64], confidence: float = 0.95) -> float:
    """Return half a Student confidence interval of the mean of ``values`` (repeats × folds).

    Folds of one repeat share training data, so the repeats are the units; below five of them, the folds are,
    whose noise is independent.
    """
    units = values.mean(axis=1) if len(values) >= 5 else values.ravel()
    spread = float(units.std(ddof=1)) / math.sqrt(len(units))
    return float(student.ppf((1 + confidence) / 2, len(units) - 1)) * spread


def cross_validate(
    experiment: Experiment, workers: int = 1, progress: Callable[[], None] = lambda: None
) -> Scores:
    """Run the experiment; ``progress`` is called after every fold (one process) or repeat (several)."""
    check_count("workers", workers)
    results = sorted(_repeats(experiment, workers, progress), key=lambda result: result[0])
    figures = np.array([[astuple(fold) for fold in folds] for _, folds, _ in results])
    scores = Scores(*np.moveaxis(figures, -1, 0))
    if not experiment.curve:
        return scores
    rounds = [number for number, _ in results[0][2][0]]
    curve = np.array([[value for _, value in fold] for _, _, folds in results for fold in folds])
    return replace(scores, rounds=rounds, curve=curve)


def report(experiment: Experiment, scores: Scores, seconds: float) -> dict[str, Any]:
    """Return the machine-readable result: what was run, the scores, and the certificate."""
    plan = experiment.plan_for(experiment.records())
    result = {
        "experiment": {**asdict(replace(experiment, plan={})), "plan": asdict(plan)},
        "accuracy": scores.accuracy.tolist(),
        "mean": scores.mean,
        "standard deviation": scores.deviation,
        "half width of 95 % interval": scores.half_width,
        "AUC": float(scores.auc.mean()),
        "balanced accuracy": float(scores.balanced.mean()),
        "accuracy of a constant": float(scores.constant.mean()),
        "seconds": seconds,
        "certificate": certificate(plan, "seeded"),
    }
    if scores.curve is not None:
        result["curve"] = {"round": scores.rounds, "accuracy": scores.curve.mean(axis=0).tolist()}
    return result


_Curve = list[tuple[int, float]]
_Repeat = tuple[int, list[Judgement], list[_Curve]]


def _repeats(experiment: Experiment, workers: int, progress: Callable[[], None]) -> Iterator[_Repeat]:
    if workers == 1 or experiment.repeats == 1:
        for repeat in range(experiment.repeats):
            yield _run_repeat(experiment, repeat, progress)
        return
    with ProcessPoolExecutor(min(workers, experiment.repeats), mp_context=get_context("spawn")) as pool:
        pending = [pool.submit(_run_repeat, experiment, repeat) for repeat in range(experiment.repeats)]
        for done in as_completed(pending):
            for _ in range(experiment.folds):
                progress()
            yield done.result()


def _run_repeat(experiment: Experiment, repeat: int, progress: Callable[[], None] = lambda: None) -> _Repeat:
    data = experiment.records()
    order = np.random.default_rng([experiment.seed, repeat]).permutation(len(data))
    tests = np.array_split(order, experiment.folds)
    scores, curves = [], []
    for fold, test in enumerate(tests):
        train = np.concatenate([part for other, part in enumerate(tests) if other != fold])
        score, curve = _run_fold(experiment, data, train, test, [experiment.seed, repeat, fold])
        scores.append(score)
        curves.append(curve)
        progress()
    return repeat, scores, curves


def _run_fold(
    experiment: Experiment,
    data: FederatedData,
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    seed: list[int],
) -> tuple[Judgement, _Curve]:
    plan = experiment.plan_for(data)
    if experiment.rounds is not None:
        train = train[: experiment.rounds * plan.batch]
    model = linear_model(experiment.model, data.d)
    clients = FederatedData(data.name, data.x[train], data.y[train])
    x, y = data.x[test], data.y[test]
    rounds = plan.epochs * math.ceil(len(clients) / plan.batch)
    curve: _Curve = []

    def observe(number: int, weights: NDArray[np.float32]) -> None:
        if experiment.curve and (number % max(1, rounds // CURVE_POINTS) == 0 or number == rounds):
            curve.append((number, float(np.mean(predict(model, weights, x) == y))))

    weights = simulate(plan, model, clients, np.random.default_rng(seed), observe).weights
    return judge(model.margins(weights, x), y), curve


def split_off_test(data: FederatedData, seed: int, share: float = 0.2) -> tuple[FederatedData, FederatedData]:
    """Return clients and a test set of ``share`` of the records, split at random."""
    check_count("seed", seed, least=0)
    order = np.random.default_rng(seed).permutation(len(data))
    cut = max(1, round(share * len(data)))
    test, train = order[:cut], order[cut:]
    return (
        FederatedData(data.name, data.x[train], data.y[train]),
        FederatedData(data.name, data.x[test], data.y[test]),
    )


@lru_cache(maxsize=2)
def load_cached(name: str, data_dir: str | None, seed: int, schema: str | None = None) -> FederatedData:
    """Return the data set, kept for the next call; refuse one that is too small to split.

    With the file of a public ``schema``, ``name`` is a user's own table.
    """
    if schema is None:
        data = load(name, data_dir, seed)
    else:
        from tacit.federated.own_records import read_client_schema, read_own_records  # imports PyTorch

        data = read_own_records(name, read_client_schema(schema))
    if len(data) < 10:
        raise ArgumentError(f"{name} has {len(data)} records; cross-validation needs at least 10.")
    return data
