"""Every ticket of small lattices, drawn by the code that clients run: exact output laws as fractions."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.federated.lattice import (
    MOST_TICKETS,
    STEPS_PER_UNIT,
    Plateau,
    TwoPoints,
    log_ratio,
    most_within,
    unit_tickets,
)
from tacit.federated.sampling import BOTTOM, sample_by_proposal, sample_by_rank
from tacit.federated.selection import RankLaw

EPSILONS = (1e-6, 0.01, 0.5, 1.0, math.log(2), 5.0, 16.0)


class Script:
    """A source that gives the numbers it is told to, and checks that they are asked for."""

    def __init__(self, *numbers: tuple[int, NDArray[np.int64]]) -> None:
        self._numbers = list(numbers)

    def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
        bound, given = self._numbers.pop(0)
        assert (low, high, size) == (0, bound, len(given))
        return given


@pytest.mark.parametrize(
    "lattice", [Plateau(1, 2, 1, 4), Plateau(3, 7, 2, 6), Plateau(5, 6, 0, 3), Plateau(2, 9, 3, 3)]
)
def test_a_plateau_gives_every_step_its_tickets_for_every_value(lattice: Plateau) -> None:
    tickets = np.arange(lattice.total)
    worst = Fraction(0)
    laws = []
    for center in range(lattice.half - lattice.reach, lattice.reach - lattice.half + 1):
        owners = Counter(lattice.place(tickets, np.full(lattice.total, center)).tolist())
        assert owners.keys() == set(range(-lattice.reach, lattice.reach + 1))
        for step, count in owners.items():
            assert count == (lattice.high if abs(step - center) <= lattice.half else lattice.low)
        mean = Fraction(sum(step * count for step, count in owners.items()), lattice.total)
        assert mean * lattice.shift == center
        laws.append(owners)
    for one in laws:
        for other in laws:
            worst = max(worst, *(Fraction(one[step], other[step]) for step in one))
    assert worst == (Fraction(lattice.high, lattice.low) if len(laws) > 1 else 1)


def test_two_points_have_their_tickets_for_every_value() -> None:
    lattice = TwoPoints(3, 8, 5)
    drawn = np.arange(lattice.total)
    shares = lattice.tickets(np.linspace(-1, 1, 101))
    assert (shares.min(), shares.max()) == (3, 8)
    for share in set(shares.tolist()):
        owners = Counter(lattice.place(drawn, np.full(lattice.total, share)).tolist())
        assert owners == {5: share, -5: lattice.total - share}


@pytest.mark.parametrize("epsilon", [0.01, 0.02, 0.5, 2.0, 7.0, 16.0])
def test_values_of_any_kind_stay_on_the_lattice(epsilon: float) -> None:
    plateau, points = Plateau.within(epsilon), TwoPoints.within(epsilon)
    values = np.concatenate([np.linspace(-1, 1, 1_001), np.nextafter([-1.0, 0.0, 1.0], 0), [-0.0, 5e-324]])
    assert np.abs(plateau.centers(values)).max() + plateau.half <= plateau.reach
    assert plateau.centers(np.array([1.0]))[0] == -plateau.centers(np.array([-1.0]))[0]
    assert plateau.shift * STEPS_PER_UNIT <= plateau.reach - plateau.half
    assert plateau.total <= MOST_TICKETS
    assert points.low <= points.tickets(values).min() <= points.tickets(values).max() <= points.high


@pytest.mark.parametrize("bottom", [0, 5])
def test_both_samplers_give_every_coordinate_its_tickets(bottom: int) -> None:
    law = RankLaw("small", np.array([2, 3, 3, 7]), bottom)
    row = np.array([0.5, 4.0, 0.5, 0.1])  # ranks 2, 4, 3, 1: the tie goes by position
    tickets = {0: 3, 1: 7, 2: 3, 3: 2, **({BOTTOM: bottom} if bottom else {})}
    drawn = np.arange(law.total)
    rows = np.tile(row, (law.total, 1))
    assert Counter(sample_by_rank(law, rows, Script((law.total, drawn))).tolist()) == tickets

    # One proposal of every coordinate with every ticket: accepted as often as the coordinate has tickets.
    proposals, coins = (grid.ravel() for grid in np.meshgrid(np.arange(4), np.arange(law.most)))
    rows = np.tile(row, (len(coins), 1))
    again = int(np.count_nonzero(coins >= np.array([3, 7, 3, 2])[proposals]))
    script = Script(
        (law.total, np.full(len(coins), bottom)),
        (4, proposals),
        (law.most, coins),
        (4, np.full(again, 1)),  # the largest, with the first ticket: always accepted
        (law.most, np.zeros(again, np.int64)),
    )
    accepted = Counter(sample_by_proposal(law, rows, script).tolist())
    assert accepted == {0: 3, 1: 7 + again, 2: 3, 3: 2}
    if bottom:
        silent = sample_by_proposal(law, rows[:bottom], Script((law.total, np.arange(bottom))))
        assert silent.tolist() == [BOTTOM] * bottom


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("low", [1, 1_000, 2**20, 2**37])
def test_the_ratio_is_below_e_to_the_epsilon_and_close_to_it(epsilon: float, low: int) -> None:
    high = most_within(epsilon, low)
    assert Fraction(high, low) <= series(epsilon, 120)
    assert Fraction(high + 1, low) >= series(epsilon, 120)


@pytest.mark.parametrize(("high", "low"), [(2, 1), (3, 2), (10**18 + 1, 10**18), (2**61, 3), (7, 7)])
def test_a_log_ratio_is_rounded_up(high: int, low: int) -> None:
    above = log_ratio(high, low)
    assert Fraction(high, low) <= series(above, 200)
    if high > low:
        assert Fraction(high, low) >= series(math.nextafter(above, 0.0), 200)
    assert log_ratio(high, 0) == math.inf


@pytest.mark.parametrize("outputs", [1.0, 2.5, 3.0, 1e6, 8.9e13])
def test_unit_tickets_are_many_but_not_too_many(outputs: float) -> None:
    assert MOST_TICKETS / 4 < unit_tickets(outputs) * outputs <= MOST_TICKETS


def series(epsilon: float, terms: int) -> Fraction:
    """The first terms of e^ε: below it, by less than the tests can tell."""
    total = term = Fraction(1)
    for n in range(1, terms):
        term = term * Fraction(epsilon) / n
        total += term
    return total
