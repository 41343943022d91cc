"""The vault: records, ledger and mechanism of one site. It takes bytes and gives bytes: a paid answer, or a refusal.

Its folder is a run directory: plan, ledger, checkpoint and certificate are those of every run, and ``tacit verify``
checks them. Sampling rate, clip norm, noise and the number of answers were fixed when the folder was made; a question
can change none of them.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from tacit.data.records import Records
from tacit.data.task import COUNT_NOT_COVERED
from tacit.data.units import count_words, unit_words
from tacit.errors import ArgumentError, FileError
from tacit.files import file_digest, read_json, write_bytes, write_json
from tacit.jobs.budget import cost_of_plan, give_back, reserve_for
from tacit.jobs.defaults import default_delta
from tacit.jobs.settings import DataConfig, Experiment
from tacit.plan import Phase, Plan, Spend, epsilon_of, load_plan, make_plan
from tacit.plan.calibrate import least_noise, noise_start
from tacit.plan.methods import OwnLoop
from tacit.plan.sources import All, Own
from tacit.runs import DEFAULT_UNIT
from tacit.runs.layout import PLAN_FILE
from tacit.sites.masks import KEY_FILE, Masks, read_key
from tacit.sites.messages import (
    MessageError,
    RefusalError,
    Shapes,
    longest,
    read_message,
    refusal,
    weights_digest,
    write_message,
)
from tacit.sites.options import SecureSum, Training
from tacit.sites.records import RECORDS_FILE, load_records, write_records
from tacit.sites.supports import compact_shapes, spread, support_of
from tacit.sites.terms import TERMS_FILE, Terms, read_terms
from tacit.training.answering import Answer, PrivateAnswers
from tacit.training.loader import PoissonLoader
from tacit.units import ROWS_PER_UNIT

SITE_FILE = "site.json"
FORMAT = "tacit-site-2"

_COORDINATOR = "what the coordinator does with the answers, and what it says about the model"
OTHERS = (
    "records of the same unit at other sites: each site's promise is about its own records, and they add up",
    _COORDINATOR,
)
"""What the certificate of a site does not cover, besides what is said of every run."""
OTHERS_OF_A_SUM = (
    "records of the same unit at other sites: one that has records at several counts as that many units together",
    _COORDINATOR,
)
"""The same where only the sum over sites can be read: there is one noise for all of them."""

FAILED = "The site failed; nothing was sent."

log = logging.getLogger("tacit.sites")


@dataclass(frozen=True)
class Site:
    """What a site has decided for itself: the column that says whose row it is, and a second note of its ledger."""

    unit: str | None = None
    rows_per_unit: int = ROWS_PER_UNIT
    witness: str | None = None


def create_site(
    folder: Path,
    terms: Terms,
    records: Records,
    site: Site,
    *,
    epsilon: float,
    delta: float | None = None,
    source: str | None = None,
    key: Path | None = None,
) -> Plan:
    """Make the folder of a site: terms, records, plan, description and an empty ledger; only its owner can enter it.

    ``epsilon`` is all that the site will ever spend from this folder, on an answer a round and a few spare ones.
    Where the data that ``source`` names has a budget of its own (``tacit budget``), all of it is reserved there. If
    something fails, nothing is left behind. Where only the sum over all sites can be read, ``key`` is the file of the
    site's private key, which moves into the folder: masks of one key may hide one training only.
    """
    if (key is None) != (terms.sum is None):
        raise ArgumentError(
            "These terms have no secure sum; leave the key out."
            if terms.sum is None
            else "These terms are for a secure sum; say which key this site takes part with."
        )
    private = None if key is None else read_key(key)
    if private is not None:
        Masks(private, terms.members, terms.digest)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(f"{folder} already exists; choose another folder.")
    plan = plan_of(terms, records, epsilon, delta)
    reserved = None
    if source is not None:
        experiment = Experiment(data=DataConfig(source=source, unit=site.unit))
        reserved = reserve_for(experiment, [cost_of_plan(plan)], "site", str(folder.absolute()))
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        terms.write(folder / TERMS_FILE)
        write_records(folder / RECORDS_FILE, records)
        if key is not None:
            write_bytes(folder / KEY_FILE, key.read_bytes(), mode=0o600)
        answers = _answers(folder, terms, records, site, plan)
        answers.create()
        answers.close()
        write_site(folder, terms, site)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if reserved is not None:
            give_back(reserved)
        raise
    if key is not None:
        key.unlink()
    return plan


def write_site(folder: Path, terms: Terms, site: Site) -> None:
    """Write the description of a site, which is there from then on."""
    record = {**vars(site), "terms": terms.digest, "records": file_digest(folder / RECORDS_FILE)}
    write_json(folder / SITE_FILE, {"format": FORMAT, **record})


def plan_of(terms: Terms, records: Records, epsilon: float, delta: float | None = None) -> Plan:
    """The plan of a site: all answers of the training at its own ε, for as many records as it has."""
    count = records.count
    chosen = default_delta(count) if delta is None else delta
    grouped = records.units is not None
    if terms.sum is not None:
        return _shared(terms.training, terms.sum, count, grouped, epsilon, chosen)
    return _planned(terms.training, count, grouped, epsilon, chosen)


def secure_sum_of(
    training: Training,
    members: tuple[tuple[str, str], ...],
    epsilon: float,
    delta: float,
    honest: int | None = None,
    fewest: int | None = None,
) -> SecureSum:
    """A secure sum whose noise gives every record ε at δ, as long as ``honest`` of those whom a sum is over are honest:
    all but one if that is not said. A sum is over at least ``fewest`` members: over all if that is not said."""
    fewest = None if fewest == len(members) else fewest
    rate, answers = training.sampling_rate, training.answers
    noise = least_noise(
        lambda x: [Spend(rate, x, answers)], epsilon, delta, "pld", noise_start(rate, answers, epsilon, delta)
    )
    counted = max(1, (fewest or len(members)) - 1) if honest is None else honest
    return SecureSum(noise, counted, members, fewest)


@cache
def _planned(training: Training, count: int, grouped: bool, epsilon: float, delta: float) -> Plan:
    """Sites of one size have one plan, and finding its noise takes seconds."""
    batch = max(1, round(training.sampling_rate * count))
    made = make_plan(
        "dp-sgd" if training.method == "dp-sgd" else OwnLoop(),
        epsilon=epsilon,
        delta=delta,
        examples=None if grouped else count,
        units=count if grouped else None,
        batch_size=batch,
        epochs=training.answers * batch / count,
        clip_norm=training.clip_norm,
    )
    return replace(made, method=training.method)


@cache
def _shared(
    training: Training, sums: SecureSum, count: int, grouped: bool, epsilon: float, delta: float
) -> Plan:
    """The plan of a site whose noise is that of all honest ones: its ε follows from the terms, and may be too much."""
    batch = max(1, math.floor(training.sampling_rate * count))
    phase = Phase(
        name="train",
        steps=training.answers,
        sampling_rate=batch / count,
        clip_norm=training.clip_norm,
        noise_multiplier=sums.noise_multiplier,
        support=All() if training.method == "dp-sgd" else Own(),
    )
    spent = epsilon_of([phase.spend], delta, "pld")
    if not spent <= epsilon:
        raise ArgumentError(
            f"The noise of these terms gives the records of this site ε = {spent:.6g} at δ = {delta:g}, above the "
            f"budget of {epsilon:g}."
        )
    promised = min(epsilon, math.ceil(spent * 1e4) / 1e4)
    return Plan(
        method=training.method,
        epsilon=promised,
        delta=delta,
        examples=count,
        batch_size=batch,
        phases=(phase,),
        grouped=grouped,
        sites=len(sums.members),
        honest=sums.honest,
        fewest=sums.fewest or 0,
    )


class Vault:
    """A site that is open. ``respond`` is all that the outside world may call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.terms, self._site = read_site(folder)
        records = load_records(folder / RECORDS_FILE)
        self._masks = None
        if self.terms.sum is not None:
            self._masks = Masks(read_key(folder / KEY_FILE), self.terms.members, self.terms.digest)
        self._answers = _answers(folder, self.terms, records, self._site, load_plan(folder / PLAN_FILE))
        self._start = {
            name: p.detach() for name, p in self.terms.build_model().named_parameters() if p.requires_grad
        }
        self._answers.open()

    @property
    def longest(self) -> int:
        """Bytes of the longest question that is read."""
        return longest(self._answers.parameters)

    def respond(self, payload: bytes) -> bytes:
        """The reply to a question: an answer that was paid for, public facts, or a refusal. Never an exception.

        A refusal explains itself by the question alone; of any other failure nobody outside learns more than that.
        """
        return never_raising(self._respond, payload)

    def facts(self) -> dict[str, Any]:
        """What the site says of itself: numbers of its plan, public, and how many answers it has charged."""
        plan = self._answers.plan
        (phase,) = plan.phases
        return {
            "training": self.terms.digest,
            "member": "" if self._masks is None else self._masks.name,
            "count": plan.examples,
            "counted": plan.counted,
            "batch_size": plan.batch_size,
            "sampling_rate": phase.sampling_rate,
            "noise_multiplier": phase.noise_multiplier,
            "clip_norm": phase.clip_norm,
            "epsilon": plan.epsilon,
            "delta": plan.delta,
            "answers": plan.steps,
            "charged": self._answers.charged,
        }

    @property
    def epsilon(self) -> float:
        """ε spent so far."""
        return self._answers.epsilon

    def close(self) -> None:
        """Write the certificate of what was spent, if anything was, and let go of the folder."""
        try:
            if self._answers.charged:
                self._answers.certify()
        finally:
            self._answers.close()

    def _respond(self, payload: bytes) -> bytes:
        if len(payload) > self.longest:
            raise MessageError("The question is longer than any that this site answers.")
        content, weights = read_message(payload, self._asked)
        kind = content.get("kind")
        if kind == "facts" and set(content) == {"kind"} and not weights:
            return write_message({"kind": "facts", **self.facts()})
        if kind != "round" or set(content) - {"support", "among"} != {"kind", "training", "round"}:
            raise MessageError("A question asks for the facts of a site, or for a round of its training.")
        if content["training"] != self.terms.digest:
            raise RefusalError(
                "The question is for a training with other terms than this site has agreed to."
            )
        among = self._members(content["among"]) if "among" in content else None
        return self._round(content["round"], content.get("support"), weights, among)

    def _asked(self, content: dict[str, Any]) -> Shapes:
        """The tensors that a question brings: all weights, or those of the support that it names."""
        shapes = self._answers.parameters
        return shapes if "support" not in content else compact_shapes(support_of(content["support"], shapes))

    def _members(self, names: Any) -> list[str]:
        """The sites that a question wants the sum of, where the terms allow fewer than all: this one among them."""
        sums = self.terms.sum
        if sums is None or sums.fewest is None or self._masks is None:
            raise MessageError("The terms of this site have no sums over some of the members.")
        if (
            not isinstance(names, list)
            or not all(isinstance(name, str) for name in names)
            or names != sorted(set(names))
            or not set(names) < set(self.terms.members)
            or self._masks.name not in names
        ):
            raise MessageError(
                "The sites of a sum are some of the members, this one among them, in order and once each."
            )
        if len(names) < sums.fewest:
            raise RefusalError(f"A sum over fewer than {sums.fewest} sites is not answered.")
        return names

    def _round(
        self, number: Any, bits: Any, weights: dict[str, Tensor], among: list[str] | None = None
    ) -> bytes:
        training = self.terms.training
        if type(number) is not int or not 1 <= number <= training.rounds:
            raise MessageError(f"A round must be a whole number from 1 to {training.rounds}.")
        if training.sparse(number) != (bits is not None):
            raise MessageError(
                "A support is for rounds after the warm-up of tp-topk or sparta, and for all of them."
            )
        digest = weights_digest(weights, bits, among)
        support = None
        if bits is not None:
            if not weights:
                raise MessageError("The weights are not those of the agreed model.")
            support = support_of(bits, self._answers.parameters)
            weights = spread(support, weights, self._start)
        try:
            self._answers.check_weights(weights)
        except ArgumentError as error:
            raise MessageError(str(error)) from error
        last = self._answers.last
        if last is not None and number < last.round:
            raise RefusalError("The round is over; this site has answered a later one.")
        if last is None or number > last.round:
            if not self._answers.left:
                raise RefusalError("This site has given all answers that its budget covers.")
            mask = None if self._masks is None else self._masks.of_round(number, digest, among)
            question = {"round": number, "weights": digest}
            statistic = training.statistic_of(number)
            last = self._answers.answer(question, weights, mask, support=support, statistic=statistic)
            log.info("round %d: answered, %d left", number, self._answers.left)
        return _reply(last)


def never_raising(respond: Callable[[bytes], bytes], payload: bytes) -> bytes:
    """What ``respond`` says, or a refusal."""
    try:
        return respond(payload)
    except (MessageError, RefusalError) as error:
        log.warning("refused: %s", error)
        return refusal(str(error))
    except Exception as error:
        # The text of an exception may quote private values, so it stays here.
        log.error("failed: %s: %s", type(error).__name__, error)
        return refusal(FAILED)


def _reply(answer: Answer) -> bytes:
    """An answer as bytes: the same for the same answer, however often it is sent."""
    content = {
        "kind": "answer",
        **answer.question,
        "batch_size": answer.batch_size,
        "noise_std": answer.noise_std,
        "charged": answer.charged,
    }
    return write_message(content, answer.values)


def _answers(folder: Path, terms: Terms, records: Records, site: Site, plan: Plan) -> PrivateAnswers:
    loader = PoissonLoader(
        records.dataset,
        batch_size=plan.batch_size,
        units=records.units,
        rows_per_unit=site.rows_per_unit,
    )
    counted = COUNT_NOT_COVERED if site.unit is None else count_words(site.unit)
    return PrivateAnswers(
        # The coordinator chooses the weights under [start]. A look at records with them could tell what records hold.
        replace(terms, start=None).build_model(),
        loader,
        terms.loss,
        plan,
        folder,
        unit=DEFAULT_UNIT if site.unit is None else unit_words(site.unit),
        not_covered=(*(OTHERS if terms.sum is None else OTHERS_OF_A_SUM), counted),
        witness=site.witness,
    )


def read_site(folder: Path) -> tuple[Terms, Site]:
    """The terms that a site has agreed to, and what it has decided for itself; refuse what was edited."""
    path = folder / SITE_FILE
    if not path.is_file():
        raise FileError(f"{folder} is no folder of a site; tacit site init makes one.")
    record = read_json(path)
    terms = read_terms(folder / TERMS_FILE)
    try:
        if record["format"] != FORMAT:
            raise ValueError("it has another format")
        if record["terms"] != terms.digest:
            raise ValueError(f"{TERMS_FILE} was edited")
        if record["records"] != file_digest(folder / RECORDS_FILE):
            raise ValueError(f"{RECORDS_FILE} is not the one that the site was made with")
        if not all(record[name] is None or isinstance(record[name], str) for name in ("unit", "witness")):
            raise ValueError("its unit or witness is none")
        return terms, Site(record["unit"], record["rows_per_unit"], record["witness"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} cannot be used: {error}.") from error


def check_private(folder: Path) -> None:
    """Refuse a folder that others than its owner can enter."""
    about = folder.stat()
    if about.st_mode & 0o077 or about.st_uid != os.geteuid():
        raise FileError(
            f"{folder} can be entered by others than the user that runs the vault; chown and chmod 700 it first."
        )
