"""Faults of a secure sum that goes on without a site: who leaves, who comes back late, what is asked again.

``unmasked`` is the check that these faults are about: of everything that three sites have sent for a round, nothing but
the sum over a whole group that was asked for can be read.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
from safetensors.torch import load

from tacit.sites.messages import weights_digest, write_message
from tools.faults.federation import FEWEST, ROUNDS, Federation, ServerKilled, about, through

READABLE = 2.0**61
"""Words of a sum without masks are far below, and a quarter of masked ones is."""
Step = Callable[[str, bytes, int], bytes | None]


def _round(payload: bytes) -> int:
    return int(str(about(payload).get("round", 0)))


def _back(federation: Federation, name: str) -> None:
    """Start the vault of a site that was gone, so that it certifies what it has spent."""
    if name not in federation.vaults:
        federation.start(name)


def _leaving(federation: Federation, rng: random.Random, ask: Step) -> tuple[str, int, Step]:
    """A site and a round in which it is killed for good: before its answer, after it, or before anybody hears of it."""
    name, number, moment = rng.choice(federation.names), rng.randint(1, ROUNDS - 1), rng.randint(0, 2)
    gone = False

    def step(site: str, payload: bytes, count: int) -> bytes | None:
        nonlocal gone
        if site != name or (_round(payload) < number and not gone):
            return ask(site, payload, count)
        if gone:
            return None
        gone = True
        reply = ask(site, payload, count) if moment else None
        federation.kill(name)
        return reply if moment == 1 else None

    return name, number, step


def site_leaves(federation: Federation, rng: random.Random) -> str:
    """A vault is killed for good around an answer; the others finish."""
    name, _, step = _leaving(federation, rng, lambda site, payload, _: federation.ask(site, payload))
    ending = through(federation, step)
    _back(federation, name)
    return ending


def duplicates_without_a_site(federation: Federation, rng: random.Random) -> str:
    """The same, and every question arrives two to four times, every reply is one of them."""

    def often(site: str, payload: bytes, count: int) -> bytes | None:
        return rng.choice([federation.ask(site, payload) for _ in range(rng.randint(2, 4))])

    name, _, step = _leaving(federation, rng, often)
    ending = through(federation, step)
    _back(federation, name)
    return ending


def server_killed_after_void(federation: Federation, rng: random.Random) -> str:
    """A site leaves; the coordinator is killed in the void round or after it; the site may be back when it starts."""
    name, number, step = _leaving(federation, rng, lambda site, payload, _: federation.ask(site, payload))
    during, returns, killed = rng.random() < 0.5, rng.random() < 0.5, False

    def killing(site: str, payload: bytes, count: int) -> bytes | None:
        nonlocal killed
        if killed and returns and name in federation.vaults:
            return federation.ask(site, payload)
        now = name not in federation.vaults and not killed
        if now and not during and _round(payload) > number:
            killed = True
            _returning(federation, name, returns)
            raise ServerKilled
        reply = step(site, payload, count)
        if now and during and site != name:
            killed = True
            _returning(federation, name, returns)
            raise ServerKilled
        return reply

    ending = through(federation, killing)
    _back(federation, name)
    return ending


def _returning(federation: Federation, name: str, returns: bool) -> None:
    if returns:
        federation.start(name)


def returns_late(federation: Federation, rng: random.Random) -> str:
    """A site is cut off for a round or more; what it was asked arrives late, and then it takes part again."""
    name, number = rng.choice(federation.names), rng.randint(1, ROUNDS - 2)
    until, held, restarted = rng.randint(number + 1, ROUNDS), list[bytes](), False

    def step(site: str, payload: bytes, count: int) -> bytes | None:
        nonlocal restarted
        if site == name and number <= _round(payload) and not restarted:
            held.append(payload)
            return None
        if not restarted and _round(payload) >= until:
            restarted = True
            for late in rng.sample(held, len(held)):
                federation.ask(name, late)
            raise ServerKilled
        return federation.ask(site, payload)

    return through(federation, step)


def void_replayed(federation: Federation, rng: random.Random) -> str:
    """A site is cut off; what was asked in the void round comes again, as it was, for other sums, at other weights."""
    name, number = rng.choice(federation.names), rng.randint(1, ROUNDS - 1)

    def step(site: str, payload: bytes, count: int) -> bytes | None:
        cut = site == name and _round(payload) >= number
        reply = None if cut else federation.ask(site, payload)
        if _round(payload) >= number:
            void = [asked for _, asked in federation.asked if _round(asked) == number]
            for again in rng.sample(void, min(2, len(void))):
                to = rng.choice(federation.names)
                federation.ask(to, again)
                federation.ask(to, _changed(again, federation.names, rng))
        return reply

    return through(federation, step)


def _changed(payload: bytes, names: tuple[str, ...], rng: random.Random) -> bytes:
    """The same round for a sum over others, or at other weights."""
    content, weights = about(payload), load(payload)
    if rng.random() < 0.5:
        content.pop("among", None)
        content["among"] = sorted(rng.sample(names, FEWEST))
    else:
        weights = {key: value + 0.01 for key, value in weights.items()}
    return write_message(content, weights)


def unmasked(federation: Federation) -> list[str]:
    """What can be read of the answers and should not be, and what should be and cannot."""
    groups = {}
    for _, payload in federation.asked:
        if _round(payload):
            among = about(payload).get("among")
            named = tuple(map(str, among)) if isinstance(among, list) else federation.names
            digest = weights_digest(load(payload), None, list(named) if isinstance(among, list) else None)
            groups[_round(payload), digest] = frozenset(named)
    problems = []
    for number in range(1, ROUNDS + 1):
        sent = {site: next(iter(replies)) for (site, at), replies in federation.seen.items() if at == number}
        for size in range(1, len(sent) + 1):
            for some in itertools.combinations(sorted(sent), size):
                asked = {str(about(sent[site])["weights"]) for site in some}
                whole = len(asked) == 1 and groups[number, asked.pop()] == set(some)
                total = sum((_words(sent[site]) for site in some), np.zeros(1, np.uint64)).view(np.int64)
                if whole != bool(np.all(np.abs(total.astype(float)) < READABLE)):
                    problems.append(
                        f"round {number}: the sum over {', '.join(some)} can{'not' if whole else ''} be read"
                    )
    return problems


def _words(reply: bytes) -> np.ndarray:
    tensors = load(reply)
    return np.concatenate([tensors[key].numpy().view(np.uint64).ravel() for key in sorted(tensors)])
