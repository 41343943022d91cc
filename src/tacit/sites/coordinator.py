"""The coordinator: asks every site, adds up what they release, and moves the model. It sees nothing but paid answers.

Everything here is post-processing: sums of released sums, momentum, schedules and checkpoints cost no site anything.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.data.schema import write_schema
from tacit.errors import ArgumentError, FileError, LedgerError, TacitError, check_count, is_number
from tacit.files import read_json, write_json
from tacit.jobs.defaults import additive_training
from tacit.jobs.inputs import inputs_of, write_inputs
from tacit.jobs.settings import TrainingConfig
from tacit.jobs.setup import SCHEDULES, optimizer_of
from tacit.plan import Spend, epsilon_of
from tacit.release.noise import lattice
from tacit.release.shares import sum_of_shares
from tacit.runs.layout import CHECKPOINT_FILE, MODEL_FILE, RESULT_FILE, SCHEMA_FILE
from tacit.sites.choosing import Choice
from tacit.sites.messages import MessageError, Shapes, read_message, weights_digest, write_message
from tacit.sites.supports import bits_of, compact_shapes, gathered, spread, support_of
from tacit.sites.terms import TERMS_FILE, Terms, read_terms
from tacit.support import Support
from tacit.tensors import read_tensors, write_tensors

SITES_FILE = "sites.json"
FORMAT = "tacit-sites-1"
TRIES = 3

Exchange = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
"""Sends each site a question and gives the replies that come, by the name of the site."""

log = logging.getLogger("tacit.sites")


class RoundError(TacitError):
    """A round did not get enough answers, however often it was asked."""


@dataclass(frozen=True)
class Facts:
    """What a site says of itself: public numbers of its plan."""

    training: str
    member: str
    count: int
    counted: str
    batch_size: int
    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    epsilon: float
    delta: float
    answers: int
    charged: int

    def spent(self, answers: int) -> float:
        """ε of so many answers of this site, from the public numbers of its plan."""
        if not answers:
            return 0.0
        return epsilon_of([Spend(self.sampling_rate, self.noise_multiplier, answers)], self.delta, "pld")


@dataclass(frozen=True)
class Progress:
    """One round that counts: which it was, how many sites answered, and what each has charged so far."""

    round: int
    rounds: int
    answered: int
    sites: int
    charged: Mapping[str, int]


class OtherQuestionError(MessageError):
    """A site has answered the round already, for other weights or for a sum over other sites."""


class VoidError(TacitError):
    """A round of a secure sum is void: not all have answered whose sum was asked for."""


class Coordinator:
    """A training in ``folder``, which holds its terms. ``exchange`` carries questions to ``sites`` and replies back.

    A round counts once ``quorum`` sites have answered; with fewer it is asked again, up to `TRIES` times, and a site
    that has paid for the round repeats its answer free of charge. The model moves by the sum of the released sums over
    the sum of the planned batch sizes of those who answered. After every round there is a checkpoint, from which
    another coordinator of the same folder continues.

    Where the terms have a secure sum, a round counts once all have answered whose sum was asked for: masks cancel in
    the sum of all, and nothing can be read from fewer. If a site is missing and the terms allow sums over fewer, the
    round is void and the next one is asked without it; a coordinator that starts anew asks everybody again.
    """

    def __init__(
        self,
        folder: Path,
        sites: list[str],
        exchange: Exchange,
        *,
        quorum: int | None = None,
        learning_rate: float | None = None,
        momentum: float | None = None,
    ) -> None:
        self.folder, self._exchange = folder, exchange
        self.terms = read_terms(folder / TERMS_FILE)
        if not sites or len(set(sites)) < len(sites):
            raise ArgumentError("Name every site once, and at least one.")
        self.sites = sorted(sites)
        self.quorum = len(sites) if quorum is None else check_count("quorum", quorum)
        if self.quorum > len(sites):
            raise ArgumentError(f"A quorum of {quorum} cannot come from {len(sites)} sites.")
        if self.terms.sum is not None:
            if set(sites) != set(self.terms.members):
                raise ArgumentError(
                    f"The secure sum is over {', '.join(self.terms.members)}: name these sites."
                )
            if self.quorum != len(sites):
                raise ArgumentError("A secure sum needs the answers of all sites; leave the quorum out.")
        self.model = self.terms.build_model()
        self.shapes: Shapes = {
            name: tuple(p.shape) for name, p in self.model.named_parameters() if p.requires_grad
        }
        self._present = set(self.sites)
        self._reached = set(self.sites)
        self.facts = self._meet()
        self.config = self._settings(learning_rate, momentum)
        self._optimizer = optimizer_of(self.config)(_trainable(self.model))
        self.done = self.used = self.void = 0
        self._deviations: dict[str, float] = {}
        self.support: Support | None = None
        training = self.terms.training
        self._choice = None if training.method == "dp-sgd" else Choice(training, self.model)
        self.charged = {name: facts.charged for name, facts in self.facts.items()}
        self._continue()

    def run(self, on_round: Callable[[Progress], None] = lambda _: None) -> None:
        """Run the rounds that are left; write model and result. Raise if a round stays without quorum."""
        rounds = self.terms.training.rounds
        with result_written(self.folder, self._refresh_charged, self.summary):
            while self.done < rounds:
                answers: Mapping[str, Mapping[str, Tensor]] = {}
                try:
                    answers = self._ask_round(self.done + 1)
                except VoidError as error:
                    log.warning("round %d: %s", self.done + 1, error)
                    self.void += 1
                else:
                    self._take(self._mean(answers), self._noise(answers))
                self.used += len(answers)
                self._choose_if_due()
                self.done += 1
                self._save()
                on_round(Progress(self.done, rounds, len(answers), len(self.sites), dict(self.charged)))
            if not self.used:
                raise RoundError("Every round was void; there is no model.")
            # Before the result, which tells whoever waits for it that everything is there.
            write_model(self.folder, self.terms, self.model, self.done)

    def summary(self, reason: str = "") -> dict[str, Any]:
        """What the training came to; ``reason`` says why it stopped early."""
        rounds = self.terms.training.rounds
        finished = self.done == rounds and self.used > 0 and not reason
        return {
            "training": self.terms.training.name,
            "terms": self.terms.digest,
            "finished": finished,
            **({} if finished else {"stopped because": reason or "no answer was used"}),
            "rounds": self.done,
            "rounds planned": rounds,
            **({"rounds void": self.void} if self.void else {}),
            "quorum": self.quorum,
            "answers used": self.used,
            "answers paid": sum(self.charged.values()),
            "learning rate": self.config.learning_rate,
            **({} if self.support is None else {"active coordinates": self.support.size}),
            "sites": {
                name: {
                    **vars(facts),
                    "charged": self.charged[name],
                    "epsilon spent": facts.spent(self.charged[name]),
                    **({} if name in self._reached else {"left": True}),
                }
                for name, facts in self.facts.items()
            },
        }

    # Sites ----------------------------------------------------------------------------------------

    def _meet(self) -> dict[str, Facts]:
        """The facts of every site; the same as before where this training has begun.

        A training that has begun goes on without a site that does not answer, as long as enough others do.
        """
        replies = self._exchange(dict.fromkeys(self.sites, write_message({"kind": "facts"})))
        path = self.folder / SITES_FILE
        if not path.exists():
            found = {name: self._facts(name, replies.get(name)) for name in self.sites}
            write_json(
                path, {"format": FORMAT, "sites": {name: vars(facts) for name, facts in found.items()}}
            )
            return found
        before = read_json(path)
        if before.get("format") != FORMAT or set(before["sites"]) != set(self.sites):
            raise FileError(
                f"{self.folder} was begun with the sites {', '.join(sorted(before['sites']))}; continue with them."
            )
        found = {name: Facts(**before["sites"][name]) for name in self.sites}
        away = [name for name in self.sites if name not in replies]
        if len(self.sites) - len(away) < self._needed:
            raise RoundError(
                f"The site {away[0]!r} does not answer."
                if len(away) == 1
                else f"The sites {', '.join(away)} do not answer."
            )
        for name in replies:
            facts = self._facts(name, replies[name])
            if replace(found[name], charged=0) != replace(facts, charged=0):
                raise FileError(f"The site {name!r} is not the one that {self.folder} was begun with.")
            found[name] = facts
        if away:
            log.warning("the training goes on without %s", ", ".join(away))
        if self.terms.sum is not None:
            self._present -= set(away)
        return found

    def _facts(self, name: str, payload: bytes | None) -> Facts:
        if payload is None:
            raise RoundError(f"The site {name!r} does not answer.")
        content, _ = read_message(payload, {})
        if content.get("kind") == "refusal":
            raise RoundError(f"The site {name!r} refuses: {content.get('reason')}")
        facts = _facts_of(content, name)
        if facts.training != self.terms.digest:
            raise RoundError(f"The site {name!r} has agreed to other terms than {self.folder / TERMS_FILE}.")
        if self.terms.sum is not None and facts.member != name:
            raise RoundError(f"The site {name!r} takes part with the key of {facts.member!r}.")
        return facts

    @property
    def _needed(self) -> int:
        """How many answers a round needs."""
        return self.quorum if self.terms.sum is None else self.terms.sum.needed

    def _refresh_charged(self) -> None:
        try:
            replies = self._exchange(dict.fromkeys(sorted(self._present), write_message({"kind": "facts"})))
            self._reached = set(replies)
            self.charged.update({name: self._facts(name, reply).charged for name, reply in replies.items()})
        except TacitError as error:
            log.warning("the sites cannot be asked what they have charged: %s", error)

    # Rounds ---------------------------------------------------------------------------------------

    def _ask_round(self, number: int) -> dict[str, dict[str, Tensor]]:
        """The answers of a round; raise if there are too few, and `VoidError` if the next round may have enough."""
        weights = {name: self.model.get_parameter(name).detach().contiguous() for name in self.shapes}
        question: dict[str, Any] = {"kind": "round", "training": self.terms.digest, "round": number}
        bits = None
        if self.support is not None:
            bits = question["support"] = bits_of(self.support)
            weights = gathered(self.support, weights)
        among = None
        if len(self._present) < len(self.sites):
            among = question["among"] = sorted(self._present)
        wanted = self.quorum if self.terms.sum is None else len(self._present)
        digest = weights_digest(weights, bits, among)
        payload = write_message(question, weights)
        answers: dict[str, dict[str, Tensor]] = {}
        elsewhere: set[str] = set()
        for attempt in range(1, TRIES + 1):
            missing = sorted(self._present - answers.keys() - elsewhere)
            for name, reply in self._exchange(dict.fromkeys(missing, payload)).items():
                try:
                    answers[name] = self._values(name, reply, number, digest)
                except OtherQuestionError as error:
                    log.warning("round %d: the reply of %s is not used: %s", number, name, error)
                    if self.terms.sum is not None and self.terms.sum.fewest is not None:
                        elsewhere.add(name)
                except MessageError as error:
                    log.warning("round %d: the reply of %s is not used: %s", number, name, error)
            if len(answers) >= wanted:
                return answers
            if len(answers) + len(elsewhere) == len(self._present):
                break
            log.warning("round %d: %d answers, too few; asked %d of %d", number, len(answers), attempt, TRIES)
        left = answers.keys() | elsewhere
        if self.terms.sum is not None and self.terms.sum.fewest is not None and len(left) >= self._needed:
            gone = sorted(self._present - left)
            self._present = set(left)
            raise VoidError(
                f"void, without {', '.join(gone) or 'the same sites as before'}; the next goes on."
            )
        raise RoundError(
            f"Round {number} got {len(answers)} answers where {wanted} are needed, asked {TRIES} times. Start "
            "again with the same folder: answers that were paid for are repeated free of charge."
        )

    def _values(self, name: str, payload: bytes, number: int, digest: str) -> dict[str, Tensor]:
        """The released values of a reply; raise unless it is the answer of this site to this round at these weights."""
        shapes = self.shapes if self.support is None else compact_shapes(self.support)
        content, values = read_message(payload, shapes, "F32" if self.terms.sum is None else "I64")
        if content.get("kind") == "refusal":
            raise MessageError(f"it refuses: {content.get('reason')}")
        if content.get("kind") != "answer" or not values or content.get("round") != number:
            raise MessageError("it is no answer to this round")
        if content.get("weights") != digest:
            raise OtherQuestionError("it has answered this round for other weights")
        if content.get("batch_size") != self.facts[name].batch_size:
            raise MessageError("it divides by another number than its plan")
        charged = content.get("charged")
        if type(charged) is not int or not 0 < charged <= self.facts[name].answers:
            raise MessageError("it does not say what it has charged")
        if not all(bool(torch.isfinite(value).all()) for value in values.values()):
            raise MessageError("it holds numbers that are none")
        if not is_number(content.get("noise_std")) or not 0 < content["noise_std"] < math.inf:
            raise MessageError("it does not say what noise it has added")
        self._deviations[name] = float(content["noise_std"])
        self.charged[name] = charged
        return values

    def _mean(self, answers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The mean over all sites that answered, each weighed by its planned batch size, in double precision."""
        total = sum(self.facts[name].batch_size for name in answers)
        names = next(iter(answers.values()))
        if self.terms.sum is None:
            return {
                name: sum(
                    (
                        values[name].double() * (self.facts[site].batch_size / total)
                        for site, values in sorted(answers.items())
                    ),
                    torch.zeros(names[name].shape, dtype=torch.float64),
                )
                for name in names
            }
        deviation = max(self._deviations[name] for name in answers)
        if min(self._deviations[name] for name in answers) != deviation:
            raise RoundError("The sites add shares of different noise: they run different versions of Tacit.")
        summed = sum_of_shares(answers, lattice(deviation))
        records = sum(facts.count for facts in self.facts.values())
        most = 2 * self.terms.training.clip_norm * records + 40 * deviation * math.sqrt(len(answers))
        if any(bool((value.abs() > most).any()) for value in summed.values()):
            raise RoundError(
                f"The sum of round {self.done + 1} is larger than any sum of gradients: masks did not cancel, or a "
                "site sent something else. Its answers are void; find the site whose folder or key is not the one that "
                "the terms name."
            )
        return {name: value / total for name, value in summed.items()}

    def _noise(self, answers: Mapping[str, Mapping[str, Tensor]]) -> float:
        """The deviation of the noise of their mean."""
        sizes = {name: self.facts[name].batch_size for name in answers}
        if self.terms.sum is None:
            parts = [sizes[name] * self._deviations[name] for name in answers]
        else:
            parts = [self._deviations[name] for name in answers]
        return math.sqrt(sum(part**2 for part in parts)) / sum(sizes.values())

    def _take(self, mean: Mapping[str, Tensor], noise_std: float) -> None:
        """Move the model by the mean of a round; during a warm-up score coordinates by it."""
        training = self.terms.training
        if self.support is not None or training.method == "dp-sgd" or training.method == "tp-topk":
            self._step(mean)
        if self._choice is None or self.support is not None:
            return
        batch = sum(facts.batch_size for facts in self.facts.values())
        self._choice.add(mean, noise_std, batch)

    def _choose_if_due(self) -> None:
        """At the end of a warm-up choose what the other rounds are about."""
        if self._choice is None or self.done + 1 != self.terms.training.scoring:
            return
        if not self.used:
            raise RoundError("All rounds of the warm-up were void, so no coordinates can be chosen.")
        self.support = self._choice.support()
        self._return_silent()

    def _return_silent(self) -> None:
        """Silent coordinates go back to the public start, so that questions need not name them."""
        assert self.support is not None
        start = dict(self.terms.build_model().named_parameters())
        for name in self.shapes:
            parameter, active = self.model.get_parameter(name), self.support[name].mask()
            with torch.no_grad():
                parameter.copy_(torch.where(active, parameter, start[name]))
            momentum = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                momentum.mul_(active)

    def _step(self, mean: Mapping[str, Tensor]) -> None:
        """Move the model by a mean gradient, on all coordinates or on those of the support."""
        if self.support is not None:
            mean = spread(
                self.support, mean, {name: torch.zeros(shape) for name, shape in self.shapes.items()}
            )
        for name in self.shapes:
            self.model.get_parameter(name).grad = mean[name].float()
        assert self.config.learning_rate is not None
        factor = SCHEDULES[self.config.schedule or "constant"](self.done, self.terms.training.rounds)
        for group in self._optimizer.param_groups:
            group["lr"] = self.config.learning_rate * factor
        self._optimizer.step()

    def _settings(self, rate: float | None, momentum: float | None) -> TrainingConfig:
        """Learning rate, momentum and schedule, from public numbers where they were not given.

        The noise of several sites adds up: K sites at ε have that of one training on all their records at ε / √K. Of a
        secure sum it is that of one training on all records, times √(K / honest).
        """
        config = TrainingConfig(learning_rate=rate, momentum=momentum)
        records = sum(facts.count for facts in self.facts.values())
        batch = sum(facts.batch_size for facts in self.facts.values())
        epsilon = 1 / math.sqrt(sum(1 / facts.epsilon**2 for facts in self.facts.values()))
        if self.terms.sum is not None:  # the noise of all is that of those who count, and a little more
            share = self.terms.sum.honest / len(self.facts)
            epsilon = math.sqrt(share) * min(facts.epsilon for facts in self.facts.values())
        if self.terms.training.model == "additive":
            planned = replace(config, batch_size=batch, epochs=self.terms.training.rounds * batch / records)
            task = self.terms.task
            return additive_training(planned, task.kind, records, max(1, task.columns), epsilon)
        return replace(
            config, learning_rate=1.0 if rate is None else rate, momentum=momentum or 0.0, schedule="linear"
        )

    # Checkpoints ----------------------------------------------------------------------------------

    def _save(self) -> None:
        state = self._optimizer.state_dict()
        tensors = {f"model:{name}": value for name, value in self.model.state_dict().items()}
        for index, entry in state["state"].items():
            if entry.get("momentum_buffer") is not None:
                tensors[f"momentum:{index}"] = entry["momentum_buffer"]
        numbers: dict[str, Any] = {"round": self.done, "used": self.used, "terms": self.terms.digest}
        if self.void:
            numbers["void"] = self.void
        if self.support is not None:
            numbers["support"] = bits_of(self.support)
        elif self._choice is not None:
            scores, numbers["scores"] = self._choice.state()
            tensors |= {f"score:{name}": value for name, value in scores.items()}
        write_tensors(self.folder / CHECKPOINT_FILE, tensors, numbers)

    def _continue(self) -> None:
        path = self.folder / CHECKPOINT_FILE
        if not path.exists():
            return
        tensors, numbers = read_tensors(path)
        if numbers.get("terms") != self.terms.digest:
            raise LedgerError(f"{path} belongs to a training with other terms.")
        model = {name.removeprefix("model:"): t for name, t in tensors.items() if name.startswith("model:")}
        self.model.load_state_dict(model)
        for index, parameter in enumerate(p for _, p in _trainable(self.model)):
            if f"momentum:{index}" in tensors:
                self._optimizer.state[parameter]["momentum_buffer"] = tensors[f"momentum:{index}"]
        self.done, self.used = int(numbers["round"]), int(numbers["used"])
        self.void = int(numbers.get("void", 0))
        if "support" in numbers:
            self.support = support_of(numbers["support"], self.shapes)
        elif self._choice is not None:
            scores = {
                name.removeprefix("score:"): t for name, t in tensors.items() if name.startswith("score:")
            }
            self._choice.restore(scores, numbers["scores"])


@contextmanager
def result_written(
    folder: Path, refresh: Callable[[], None], summary: Callable[[str], dict[str, Any]]
) -> Iterator[None]:
    """Write the result of a training however it ends, with the reason if it stopped early."""
    reason = ""
    try:
        yield
    except BaseException as error:
        reason = str(error) if isinstance(error, TacitError) else f"It failed with {type(error).__name__}."
        raise
    finally:
        refresh()
        write_json(folder / RESULT_FILE, summary(reason))


def write_model(folder: Path, terms: Terms, model: nn.Module, done: int) -> None:
    """Write a model that was trained, with what ``tacit predict`` needs."""
    write_schema(terms.schema, folder / SCHEMA_FILE)
    write_inputs(folder, inputs_of(terms.experiment, terms.problem))
    write_tensors(folder / MODEL_FILE, model.state_dict(), {"steps": done})


def _trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def _facts_of(content: Mapping[str, Any], name: str) -> Facts:
    kinds = {"int": int, "str": str, "float": float}
    wanted = {key: kinds[str(kind)] for key, kind in Facts.__annotations__.items()}
    if content.get("kind") != "facts" or set(content) != {"kind", *wanted}:
        raise MessageError(f"The site {name!r} does not say what it is.")
    found = {}
    for key, kind in wanted.items():
        value = content[key]
        if not (is_number(value) if kind is float else type(value) is kind):
            raise MessageError(f"The site {name!r} gives {key} as {value!r}.")
        found[key] = kind(value)
    facts = Facts(**found)
    positive = (facts.count, facts.batch_size, facts.answers, facts.epsilon, facts.noise_multiplier)
    if min(positive) <= 0 or not 0 < facts.sampling_rate <= 1 or not 0 < facts.delta < 1 or facts.charged < 0:
        raise MessageError(f"The site {name!r} says of itself what no site can be.")
    return facts
