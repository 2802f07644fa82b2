"""Ridge regression against leaving one out and fitting again."""

import numpy as np
import pytest

from fedtailor.search.ridge import STRENGTHS, option_rows, ridge, solve
from tests.helpers.made_up import Fixed, Free


def slow(features: np.ndarray, wanted: np.ndarray, strength: float) -> tuple[np.ndarray, float]:
    """Return weights and a constant, which is not penalised, by the normal equations."""
    terms = np.column_stack([features, np.ones(len(features))])
    penalty = strength * np.eye(terms.shape[1])
    penalty[-1, -1] = 0
    found = np.linalg.solve(terms.T @ terms + penalty, terms.T @ wanted)
    return found[:-1], float(found[-1])


def left_out(features: np.ndarray, wanted: np.ndarray, strength: float) -> float:
    """Return the mean square of what is missed at points that were not fitted."""
    missed = []
    for out in range(len(features)):
        keep = np.arange(len(features)) != out
        weights, constant = slow(features[keep], wanted[keep], strength)
        missed.append(float(features[out] @ weights + constant - wanted[out]))
    return float(np.mean(np.square(missed)))


@pytest.mark.parametrize(("points", "columns"), [(12, 5), (8, 20), (40, 6)])
@pytest.mark.parametrize("noise", [0.0, 0.3, 10.0])
def test_the_strength_is_that_of_the_least_error_when_one_is_left_out(
    points: int, columns: int, noise: float
):
    rng = np.random.default_rng(points)
    features = rng.normal(size=(points, columns)) + 1
    wanted = 7 + features @ rng.normal(size=columns) + noise * rng.normal(size=points)
    errors = {each: left_out(features, wanted, each) for each in STRENGTHS}
    found = ridge(features, wanted)
    assert found.strength == min(errors, key=lambda each: errors[each])
    assert found.error == pytest.approx(min(errors.values()), rel=1e-6)
    weights, constant = slow(features, wanted, found.strength)
    assert found.weights == pytest.approx(weights, abs=1e-7)
    assert found.constant == pytest.approx(constant, abs=1e-7)
    for each in STRENGTHS:
        assert ridge(features, wanted, [each]).error == pytest.approx(errors[each], rel=1e-6)


def test_points_that_were_scored_twice_both_count():
    features = np.repeat(np.eye(3), 2, 0)
    found = ridge(features, np.array([0.0, 2.0, 5.0, 7.0, 1.0, 3.0]), [1e-9])
    assert features @ found.weights + found.constant == pytest.approx([1, 1, 6, 6, 2, 2])


def test_a_constant_is_found_whatever_the_strength():
    features = np.random.default_rng(0).normal(size=(9, 4))
    found = ridge(features, np.full(9, 5.0), [1e6])
    assert found.constant == pytest.approx(5) and found.weights == pytest.approx(0)
    assert found.strength == 1e6 and found.error == pytest.approx(0)


def test_a_point_that_the_tail_needs_is_not_counted():
    """Only the last point says what the second term is: without it there is no fit."""
    tail = np.column_stack([np.ones(6), [0, 0, 0, 0, 0, 1.0]])
    kernel, wanted = np.diag(np.arange(1.0, 7)), np.array([1.0, 2, 3, 5, 8, 100])
    found = solve(kernel, tail, wanted, [0.5])
    without = solve(kernel[:5, :5], tail[:5, :1], wanted[:5], [0.5])
    assert found.error == pytest.approx(without.error)
    assert found.weights[:5] == pytest.approx(without.weights) and abs(found.weights[5]) < 1e-9


def test_of_equal_errors_the_first_strength_is_taken():
    assert solve(np.eye(4), np.ones((4, 1)), np.zeros(4), [3.0, 1.0]).strength == 3


def test_rows_have_a_column_per_option_and_length_one():
    rows = option_rows(Free(), [(0, 1, 2), (2, 0, 0)])
    assert np.flatnonzero(rows[0]).tolist() == [0, 4, 7]
    assert np.flatnonzero(rows[1]).tolist() == [2, 3, 5]
    assert (rows**2).sum(1) == pytest.approx(1)
    assert option_rows(Fixed(), [(), ()]).shape == (2, 0)
