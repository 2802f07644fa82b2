"""Equations 8 and 9 on rounds computed by hand."""

import pytest

from fedtailor.search.reward import Played, Rules, rewards


def test_equation_8():
    """Accuracy over the average, less a thousandth per second over the fastest."""
    played = [Played(0, (), 0.5, 10.0), Played(1, (), 0.7, 30.0), Played(2, (), 0.6, 15.0)]
    assert rewards(played, 0.55, Rules(0.001, 0.0)) == pytest.approx([-0.05, 0.13, 0.045])
    assert rewards(played, 0.55, Rules(0.0, 0.0)) == pytest.approx([-0.05, 0.15, 0.05])


def test_memory_counts_in_equation_9_alone():
    played = [Played(0, (), 0.5, 10.0, 0.25), Played(1, (), 0.7, 10.0, 1.0)]
    assert rewards(played, 0.5, Rules(0.001, 0.0)) == pytest.approx([0.0, 0.2])
    assert rewards(played, 0.5, Rules(0.001, 1.0)) == pytest.approx([-0.25, -0.8])
    assert rewards(played, 0.5, Rules(0.001, 0.5)) == pytest.approx([-0.125, -0.3])


@pytest.mark.parametrize(("weight", "expected"), [(1.0, [-0.5, -1.62, -0.82]),
                                                  (0.0, [-0.1, -0.62, 0.08])])  # fmt: skip
def test_overflow_is_accuracy_0_full_memory_and_the_longest_time(
    weight: float, expected: list[float]
):
    """Its own 2 seconds, of a download alone, do not make it the round's fastest."""
    played = [
        Played(0, (), 0.5, 10.0, 0.4),
        Played(1, (), 0.9, 2.0, 1.7),  # whatever it says of its accuracy
        Played(2, (), 0.7, 30.0, 0.9),
    ]
    assert rewards(played, 0.6, Rules(0.001, weight)) == pytest.approx(expected)
    assert [one.overflowed for one in played] == [False, True, False]


def test_memory_that_just_fits_is_no_overflow():
    assert not Played(0, (), 0.5, 1.0, 1.0).overflowed
    assert Played(0, (), 0.5, 1.0, 1.0 + 1e-9).overflowed


def test_a_round_of_overflows_alone():
    played = [Played(0, (), 0.0, 2.0, 3.0), Played(1, (), 0.0, 5.0, 2.0)]
    assert rewards(played, 0.4, Rules(0.001, 1.0)) == pytest.approx([-1.4, -1.4])


def test_an_overflow_may_itself_have_taken_longest():
    played = [Played(0, (), 0.5, 10.0, 0.5), Played(1, (), 0.0, 50.0, 2.0)]
    assert rewards(played, 0.5, Rules(0.01, 0.0)) == pytest.approx([0.0, -0.9])


def test_nobody_played():
    assert rewards([], 0.5, Rules(0.001, 1.0)) == []


def test_graded_overflows_differ_by_their_size():
    played = [Played(0, (), 0.0, 5.0, 3.0), Played(1, (), 0.0, 5.0, 2.0)]
    assert rewards(played, 0.4, Rules(0.001, 1.0, graded=True)) == pytest.approx([-3.4, -2.4])
