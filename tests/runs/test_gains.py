"""Gains of made-up matrices, by hand; their chance, by trying everything slowly."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.runs import gains
from fedtailor.runs.gains import Gain

HAND = [
    [0.80, 0.60, 0.70],
    [0.50, 0.40, 0.60],
    [0.30, 0.20, 0.90],
]


def gain(tuned: object) -> Gain:
    table = np.array(tuned, dtype=np.float64)
    return Gain(tuple(range(len(table))), np.zeros_like(table), table)


def test_by_hand():
    """Rows are whose data it is: g_0 = ((.8 - .6) + (.8 - .7)) / 2, and so on."""
    found = gain(HAND)
    assert found.of_clients.tolist() == pytest.approx([0.15, -0.15, 0.65])
    assert found.of_clients.mean() == pytest.approx(0.65 / 3)
    assert found.others.tolist() == pytest.approx([0.65, 0.55, 0.25])
    # own ones sum to 2.1; of the six ways (1.4, 1.4, 1.5, 1.6, 2.0, 2.1) no other does better
    assert (found.chance.p, found.chance.ways, found.chance.all) == (1 / 6, 6, True)


def test_equal_networks_gain_nothing_to_the_bit():
    rows = np.array([1 / 3, 0.1, 7 / 13, 0.7])
    found = gain(np.tile(rows[:, None], 4))
    assert found.of_clients.tolist() == [0.0] * 4
    assert found.chance.p == 1.0, "sums in another order must still be ties"


def test_two_clients_can_prove_nothing():
    assert gain([[1.0, 0.0], [0.0, 1.0]]).chance.p == 0.5
    assert gain([[0.0, 1.0], [1.0, 0.0]]).chance.p == 1.0


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 6), min_size=n, max_size=n), min_size=n, max_size=n
        )
    )
)
def test_chance_against_enumeration(counts: list[list[int]]):
    """Each way of dealing has a mean gain of its own: of exact fractions, written out as Eq. 6."""
    size = len(counts)
    p = [[Fraction(value, 7) for value in row] for row in counts]

    def mean_gain(own: tuple[int, ...]) -> Fraction:
        each = [
            sum(p[i][own[i]] - p[i][j] for j in range(size) if j != own[i]) / Fraction(size - 1)
            for i in range(size)
        ]
        return sum(each) / Fraction(size)

    ways = list(itertools.permutations(range(size)))
    observed = mean_gain(tuple(range(size)))
    found = gain([[value / 7 for value in row] for row in counts])
    assert found.of_clients.mean() == pytest.approx(float(observed), abs=1e-12)
    expected = sum(mean_gain(way) >= observed for way in ways)
    assert (found.chance.p, found.chance.ways) == (expected / len(ways), len(ways))


def test_many_clients_are_dealt_some_ways_always_the_same(monkeypatch: pytest.MonkeyPatch):
    table = np.random.default_rng(1).random((7, 7)) + 0.15 * np.eye(7)
    exact = gain(table).chance
    monkeypatch.setattr(gains, "FEW", 6)
    some = gain(table).chance
    assert exact.all and not some.all and some.ways == 9_999
    assert 0.02 < exact.p < 0.5 and some.p == pytest.approx(exact.p, abs=0.02)
    assert gain(table).chance == some
    assert gain(np.eye(7)).chance.p == pytest.approx(1 / 5040, abs=5e-4)
    assert gain(np.eye(30)).chance.p == 1 / 10_000, "never 0: one way is the one observed"
    assert gain(np.ones((30, 30))).chance.p == 1.0
