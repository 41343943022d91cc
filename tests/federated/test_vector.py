from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.errors import ArgumentError
from tacit.federated import vector as vector_module
from tacit.federated.check import check_mechanism
from tacit.federated.lattice import most_within
from tacit.federated.plan import LocalPlan, certificate
from tacit.federated.selection import RankLaw
from tacit.federated.vector import MOST_EPSILON, SEEDS, VectorReplies, directions

D = 5
SMALL = RankLaw("ps", np.array([1, 1, 1, 1, 3, 3], np.int64))


class Script:
    """Uniform numbers that were written down beforehand."""

    def __init__(self, *draws: int) -> None:
        self._draws = list(draws)

    def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
        drawn = [self._draws.pop(0) for _ in range(size)]
        assert all(low <= number < high for number in drawn)
        return np.array(drawn, np.int64)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> VectorReplies:
    """Six directions, of which the best two have three tickets and the others one."""
    monkeypatch.setattr(vector_module, "FEWEST_DIRECTIONS", 6)
    monkeypatch.setattr(vector_module, "MOST_DIRECTIONS", 6)
    replies = VectorReplies(1.0, D)
    replies.__dict__["law"] = SMALL
    return replies


def law_given_seed(replies: VectorReplies, vector: NDArray[np.floating], seed: int) -> list[Fraction]:
    """Draw every ticket and every coin that the code of a client can draw, for one list of directions."""
    counts = [Fraction(0)] * replies.directions
    for up in (True, False):
        coin = 0 if up else vector_module._COINS - 1
        for ticket in range(replies.law.total):
            _, indices = replies.sample(vector[None, :], Script(coin, seed, ticket))
            counts[int(indices[0])] += 1
    return [count / (2 * replies.law.total) for count in counts]


NASTY = [
    np.zeros(D),
    np.full(D, np.nan),
    np.array([np.inf, -np.inf, 0, 1, 2]),
    np.full(D, 5e-324),
    np.full(D, 1.7e308),
    np.array([1e-200, 1e200, 0, -1, 1]),
    np.arange(D) - 2.0,
]


def test_every_reply_is_at_most_e_to_the_epsilon_times_as_likely_for_any_other_vector(
    small: VectorReplies,
) -> None:
    for seed in (0, 1, SEEDS - 1):
        laws = [law_given_seed(small, vector, seed) for vector in NASTY]
        for one in laws:
            assert sum(one) == 1
            for other in laws:
                assert max(p / q for p, q in zip(one, other, strict=True)) <= 3


def test_a_vector_and_its_negative_attain_the_bound(small: VectorReplies) -> None:
    vector = 10 * (np.arange(D) - 1.5)
    up = [small.sample(vector[None, :], Script(0, 7, ticket))[1][0] for ticket in range(small.law.total)]
    down = [small.sample(-vector[None, :], Script(0, 7, ticket))[1][0] for ticket in range(small.law.total)]
    best = int(np.argmax(directions(7, 0, 6, D) @ vector))
    assert (up.count(best), down.count(best)) == (3, 1)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 2.0, 4.0, 8.0, MOST_EPSILON])
def test_the_tickets_of_the_real_law_are_within_e_to_the_epsilon(epsilon: float) -> None:
    replies = VectorReplies(epsilon, 100)
    tickets = replies.law.tickets
    low, high = int(tickets.min()), int(tickets.max())
    assert np.array_equal(tickets, [low] * (replies.directions - replies.top) + [high] * replies.top)
    assert high <= most_within(epsilon, low)
    assert replies.epsilon == pytest.approx(epsilon, abs=1e-9)
    assert replies.epsilon <= np.nextafter(epsilon, np.inf)


def test_the_mean_reply_is_the_clipped_vector() -> None:
    rng = np.random.default_rng(3)
    for length, expected in ((0.5, 0.5), (20.0, 2.0)):
        vector = np.array([1.0, -2, 0.5, 0, 3, 1, 1, -1])
        vector *= length / np.linalg.norm(vector)
        replies = VectorReplies(4.0, 8, clip_norm=2.0)
        seeds, indices = replies.sample(np.tile(vector, (1_500, 1)), rng)
        values = np.array([replies.value(int(s), int(i)) for s, i in zip(seeds, indices, strict=True)])
        error = values.std(axis=0) / np.sqrt(len(values))
        assert np.all(
            np.abs(values.mean(axis=0) - vector * expected / length) < 4.5 * error + 0.02 * expected
        )


def test_one_direction_is_read_without_the_others_and_the_stream_is_pinned() -> None:
    whole = directions(123, 0, 300, 33)
    np.testing.assert_array_equal(directions(123, 299, 1, 33), whole[299:])
    assert whole.mean() == pytest.approx(0, abs=0.03)
    assert whole.std() == pytest.approx(1, abs=0.03)
    # A server with another numpy must decode what a client meant.
    octets = np.rint(directions(5, 2, 1, 4)[0] * np.sqrt(2 * (256**2 - 1) / 12) + 255)
    assert octets.tolist() == PINNED


PINNED = [425.0, 261.0, 107.0, 256.0]


def test_what_a_vector_reply_cannot_be_is_refused() -> None:
    for epsilon in (0.001, 13.0, float("nan")):
        with pytest.raises(ArgumentError, match="ε of a vector reply"):
            VectorReplies(epsilon, 10)
    with pytest.raises(ArgumentError, match="too many"):
        VectorReplies(8.0, 1_000_000)
    with pytest.raises(ArgumentError, match="n × 10"):
        VectorReplies(1.0, 10).sample(np.zeros((1, 9)), np.random.default_rng(0))


def test_the_plan_and_the_certificate_state_the_exact_epsilon() -> None:
    plan = LocalPlan(d=20, batch=4, solution="vector", epsilon=3.0, epochs=3)
    assert plan.answer_epsilon() == pytest.approx(1.0, abs=1e-9)
    statement = certificate(plan, "system")
    assert statement["epsilon"] == pytest.approx(3.0, abs=1e-9)
    assert statement["for release"] is True
    assert statement["mechanism"] == {
        "solution": "vector",
        "directions": 256,
        "k": plan.vector_replies().top,
        "clip norm": 1.0,
        "d": 20,
    }


def test_samples_of_whole_replies_agree_with_the_exact_epsilon() -> None:
    report = check_mechanism("vector", 10, 1, 2.0, samples=1_000)
    assert report.holds
    assert report.sampled is not None
    assert report.sampled.lower < report.exact_epsilon < report.sampled.upper
    assert report.sampled.lower > 1.0
    with pytest.raises(ArgumentError, match="one stage"):
        check_mechanism("vector", 10, 1, 2.0, "pm", 1.0)
