"""What is trained, and how often sites are asked: numbers that all parties agree on. Needs no PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from tacit.errors import ArgumentError, check_count, check_positive, check_share
from tacit.option_fields import option

MOST_ROUNDS = 100_000
MOST_UNITS = 4096
LEAST_CLIP_NORM, MOST_CLIP_NORM = 1e-6, 1e6
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Training:
    """What is trained, and how often every site is asked."""

    name: str = option("Name of the training.", "training")
    model: Literal["additive", "logistic", "mlp"] = option("Model of the table.", "additive")
    width: int | None = option("Units per layer of mlp.", None, shown="64")
    depth: int | None = option("Hidden layers of mlp.", None, shown="2")
    detail: float | None = option(
        "Weight of the parts of a number in the additive model, from 1 to 0.", None, shown="1"
    )
    rounds: int = option("Rounds of the training: answers of every site.", 100)
    spare: int = option("Answers that a site may pay for a second time, after a crash has lost them.", 2)
    sampling_rate: float = option("Probability with which each record takes part in a round.", 0.25)
    clip_norm: float = option("Bound on the gradient of a record, or of a unit.", 1.0)
    method: Literal["dp-sgd", "tp-topk", "sparta"] = option(
        "Coordinates: all, the top k of a warm-up (tp-topk), or the best rows of every layer (sparta).",
        "dp-sgd",
    )
    active_ratio: float | None = option(
        "Share of coordinates, or rows, that tp-topk and sparta keep.", None, shown="0.1"
    )
    warmup: float | None = option("Share of the rounds that choose them.", None, shown="0.2")

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ArgumentError("The name of a training must be 1 to 64 letters, digits, dots, dashes.")
        if self.model not in ("additive", "logistic", "mlp"):
            raise ArgumentError(f"Sites train additive, logistic or mlp, not {self.model!r}.")
        if check_count("rounds", self.rounds) > MOST_ROUNDS:
            raise ArgumentError(f"rounds must be at most {MOST_ROUNDS:,}, got {self.rounds:,}.")
        if not 0 <= self.spare <= MOST_ROUNDS:
            raise ArgumentError(f"spare must lie between 0 and {MOST_ROUNDS:,}, got {self.spare!r}.")
        check_share("sampling_rate", self.sampling_rate)
        if not LEAST_CLIP_NORM <= check_positive("clip_norm", self.clip_norm) <= MOST_CLIP_NORM:
            raise ArgumentError(f"clip_norm must lie in [{LEAST_CLIP_NORM:g}, {MOST_CLIP_NORM:g}].")
        if self.detail is not None and not 0 <= self.detail <= 1:
            raise ArgumentError(f"detail must lie between 0 and 1, got {self.detail!r}.")
        for name in ("width", "depth"):
            if getattr(self, name) is not None and check_count(name, getattr(self, name)) > MOST_UNITS:
                raise ArgumentError(f"{name} must be at most {MOST_UNITS:,}.")
        if self.method not in ("dp-sgd", "tp-topk", "sparta"):
            raise ArgumentError(f"Sites train by dp-sgd, tp-topk or sparta, not {self.method!r}.")
        for name, default in (("active_ratio", 0.1), ("warmup", 0.2)):
            value = getattr(self, name)
            if self.method == "dp-sgd":
                if value is not None:
                    raise ArgumentError(f"{name} is for tp-topk and sparta; dp-sgd trains all coordinates.")
                continue
            object.__setattr__(self, name, default if value is None else check_share(name, value))
        if self.method != "dp-sgd" and not 0 < self.scoring < self.rounds:
            raise ArgumentError(
                f"{self.method} needs rounds before and after its choice; have more than {self.rounds}."
            )
        for name in self.options:
            if (name == "detail") != (self.model == "additive") or self.model == "logistic":
                raise ArgumentError(f"{name} is no option of the model {self.model!r}.")

    @property
    def answers(self) -> int:
        """How many answers a site can pay for: more than one a round, since a crash may lose one that was paid."""
        return self.rounds + self.spare

    @property
    def scoring(self) -> int:
        """How many rounds, at the beginning, choose the coordinates of the others; 0 where all are trained."""
        return 0 if self.warmup is None else max(1, round(self.warmup * self.rounds))

    def sparse(self, number: int) -> bool:
        """Whether a round, counted from 1, is about chosen coordinates only."""
        return self.method != "dp-sgd" and number > self.scoring

    def statistic_of(self, number: int) -> Literal["gradient", "absolute"]:
        """What a round sums over records: gradients, or their absolute values where rows are scored."""
        return "absolute" if self.method == "sparta" and number <= self.scoring else "gradient"

    @property
    def options(self) -> dict[str, Any]:
        """The options of the model that were given."""
        given = {"width": self.width, "depth": self.depth, "detail": self.detail}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class SecureSum:
    """Who takes part in a training of which only sums over all sites can be read, and the noise of such a sum.

    ``members`` are names and public keys. ``noise_multiplier`` is that of the noise of any ``honest`` sites together.
    A sum is over all members, or over at least ``fewest`` of them that a question names.
    """

    noise_multiplier: float
    honest: int
    members: tuple[tuple[str, str], ...]
    fewest: int | None = None

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier)
        names, keys = {name for name, _ in self.members}, {key for _, key in self.members}
        if not len(names) == len(keys) == len(self.members):
            raise ArgumentError("Every member of a secure sum has a name and a key of its own.")
        if len(self.members) < 2:
            raise ArgumentError("A secure sum needs two members: with one, the sum is what that one holds.")
        for name in names:
            if not _NAME.fullmatch(name):
                raise ArgumentError(f"{name!r} is no name of a site: 1 to 64 letters, digits, dots, dashes.")
        if self.fewest is not None and not 2 <= check_count("fewest", self.fewest) < len(self.members):
            raise ArgumentError(
                f"Sums over fewer than the {len(self.members)} members take 2 or more, not {self.fewest}."
            )
        if check_count("honest", self.honest) > self.needed:
            raise ArgumentError(f"Of {self.needed} sites at most all can be honest, not {self.honest}.")

    @property
    def needed(self) -> int:
        """How many sites a sum takes."""
        return self.fewest or len(self.members)


@dataclass(frozen=True)
class Local:
    """Every site is one client under local differential privacy: what it spends over all rounds, and how it replies."""

    epsilon: float
    solution: str = "vector"


def training_of(values: dict[str, Any]) -> Training:
    """A training from plain values; those that are None count as not given."""
    kinds = {
        "width": int,
        "depth": int,
        "rounds": int,
        "spare": int,
        "name": str,
        "model": str,
        "method": str,
    }
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        kind = kinds.get(name)
        fits = type(value) in (int, float) if kind is None else type(value) is kind
        if not fits:
            raise ArgumentError(f"{name} cannot be {value!r}.")
    return Training(**given)
