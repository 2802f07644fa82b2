"""Regression with a penalty whose strength is chosen by leaving out one point at a time.

Ridge regression and smoothed radial bases are one sum: a kernel's weights, which are penalised, and
a tail, which is not. Both are solved here, for all strengths at once. What leaving a point out and
fitting the others would miss it by is its weight over its entry on the inverse's diagonal (Rippa
1999), exactly; nothing is fitted again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search import genes

STRENGTHS = tuple((10.0 ** np.arange(-3, 4.1, 0.5)).tolist())  # for rows of length about 1
LONE = 1e-9  # the share of a point that a tail leaves to the kernel; below, it is rounding


@dataclass(frozen=True, eq=False)
class Solution:
    """The weights of points, one each, at the strength of the least error."""

    strength: float
    error: float  # mean square of what is missed when a point is left out
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Ridge:
    """A linear function: features @ weights + constant."""

    weights: np.ndarray
    constant: float
    strength: float
    error: float


def solve(
    kernel: np.ndarray, tail: np.ndarray, wanted: np.ndarray, strengths: Sequence[float]
) -> Solution:
    """Return the fit whose leave-one-out error is the least; of equals, the first strength's.

    A point without which the tail would not be determined cannot be left out, and is not counted.

    Args:
        kernel: points by points; positive where the tail is 0.
        tail: points by terms, of full rank.
        wanted: one number per point.
        strengths: added to the kernel's diagonal, each positive.
    """
    rest = np.linalg.qr(tail, mode="complete").Q[:, tail.shape[1] :]  # what no tail can fit
    values, vectors = np.linalg.eigh(rest.T @ kernel @ rest)
    vectors = rest @ vectors
    inverses = 1 / (values.clip(min=0) + np.array(strengths)[:, None])
    weights = (inverses * (wanted @ vectors)) @ vectors.T
    diagonals = inverses @ (vectors**2).T
    counted = (rest**2).sum(1) > LONE
    missed = weights[:, counted] / diagonals[:, counted]
    errors = (missed**2).sum(1) / max(1, counted.sum())
    best = int(errors.argmin())
    return Solution(strengths[best], float(errors[best]), weights[best])


def ridge(
    features: np.ndarray, wanted: np.ndarray, strengths: Sequence[float] = STRENGTHS
) -> Ridge:
    """Fit a linear function, whose constant is not penalised, at the best of some strengths."""
    constant = np.ones((len(features), 1))
    found = solve(features @ features.T, constant, wanted, strengths)
    weights = features.T @ found.weights
    level = float((wanted - features @ weights).mean())
    return Ridge(weights, level, found.strength, found.error)


def option_rows(space: SearchSpace, archs: Sequence[Arch]) -> np.ndarray:
    """Return architectures as features: a column for each option, rows of length 1."""
    return genes.one_hot(space, archs).double().numpy() / max(1, len(space.choices)) ** 0.5
