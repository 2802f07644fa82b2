"""Variances and gains of made-up tables, of which all is known."""

import numpy as np
import pytest

from examples.variance_parts import (
    budget_gain,
    interval,
    parts_of,
    perfect_gain,
    personal_gain,
    shrunk_gain,
)


def table(arch: float, client: float, both: float, chance: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    archs, clients = 150, 40
    true = (
        50
        + rng.normal(0, arch, (archs, 1))
        + rng.normal(0, client, (1, clients))
        + rng.normal(0, both, (archs, clients))
    )
    return true + rng.normal(0, chance, (2, archs, clients))


@pytest.mark.parametrize(("arch", "client", "both", "chance"), [(2, 5, 1, 3), (1, 8, 0, 2)])
def test_variances_are_those_that_the_table_was_made_of(
    arch: float, client: float, both: float, chance: float
):
    tables = [parts_of(table(arch, client, both, chance, seed)) for seed in range(10)]

    def mean(name: str) -> float:
        return float(np.sqrt(np.mean([getattr(found, name) ** 2 for found in tables])))

    assert mean("architecture") == pytest.approx(arch, rel=0.1)
    assert mean("client") == pytest.approx(client, rel=0.15)
    assert mean("both") == pytest.approx(both, abs=0.25 if not both else 0.1)
    assert mean("chance") == pytest.approx(chance, rel=0.03)


def test_the_interval_of_nothing_covers_nothing():
    covered = [parts_of(table(2, 5, 0, 3, seed)).both_low == 0 for seed in range(40)]
    assert np.mean(covered) >= 0.9


def test_the_interval_is_students():
    gain = interval(np.array([1.0, 2.0, 3.0, 6.0]))
    half = 3.182446 * np.sqrt(14 / 3) / 2  # t of 3 degrees of freedom, the standard error
    assert gain.mean == 3
    assert gain.high - 3 == pytest.approx(half)
    assert gain.half == pytest.approx(half)


def test_a_choice_on_one_half_is_judged_by_the_other():
    """Chance alone gains nothing by being chosen; two kinds of clients gain what they differ by."""
    nothing = personal_gain(table(0, 5, 0, 3))
    assert nothing.low < 0 < nothing.high
    kinds = np.zeros((2, 2, 10))
    kinds[:, 0, :6], kinds[:, 1, 6:] = 4.0, 3.0  # the first is best for all: 2.4 against 1.2
    assert personal_gain(kinds).mean == pytest.approx(4 * 3 / 10)  # for four clients of ten


def test_budgets_hold_for_everyone():
    accuracy = np.broadcast_to(np.array([1.0, 2.0, 5.0])[:, None], (2, 3, 4)).copy()
    allowed = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]], bool)
    assert budget_gain(accuracy, allowed).mean == pytest.approx((4 + 1 + 1 + 0) / 4)
    assert personal_gain(accuracy, allowed).mean == 0
    accuracy[:, 0, 2:] = 9.0  # now the first is the best on average, 5 against 2 and 4,
    accuracy[:, 2] = 4.0  # though not for the first two clients, who lose 3 and 1 by it
    assert personal_gain(accuracy, allowed).mean == pytest.approx((3 + 1 + 0 + 0) / 4)


def test_shrinking_follows_chance_less_and_truth_no_less():
    noisy, clear = table(2, 5, 0.3, 6), table(2, 5, 3, 0.1)
    assert shrunk_gain(noisy).mean > personal_gain(noisy).mean
    assert shrunk_gain(clear).mean == pytest.approx(personal_gain(clear).mean, rel=0.05)


def test_a_perfect_choice_gains_the_expected_maximum():
    """Of 150 normal deviations of 1 the largest is 2.6 on average; nothing gains nothing."""
    assert perfect_gain(table(0, 5, 1, 0.01)) == pytest.approx(2.6 - 0.4, abs=0.15)
    assert perfect_gain(table(2, 5, 0, 0.01)) == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(("chance", "error"), [(0.1, 0.05), (0.5, 0.2), (1.0, 0.5)])
def test_a_perfect_choice_is_one_of_good_networks(chance: float, error: float):
    """Half of the networks are 10 points worse and deviate by 3; the others by 0.5."""
    rng = np.random.default_rng(1)
    bad = np.arange(150) < 75
    true = 50 - 10.0 * bad[:, None] + rng.normal(0, np.where(bad, 3, 0.5)[:, None], (150, 40))
    best = true.max(0).mean() - true.mean(1).max()
    measured = true + rng.normal(0, chance, (2, 150, 40))
    assert perfect_gain(measured) == pytest.approx(best, abs=error)
