"""Radial bases through the scores of architectures, as far as these determine them.

A population that converges makes the plain interpolation singular, or silently wrong: genes that no
longer vary, fewer architectures than genes. So constant genes are dropped, and where the linear
tail is not determined, a form that needs less is taken.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.spatial.distance import cdist

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search import genes
from fedtailor.search.ridge import solve

Coding: TypeAlias = Literal["integers", "options", "raw"]
Shape: TypeAlias = Literal["raw", "cubic", "linear", "nearest"]
SHAPES: dict[Coding, tuple[Shape, ...]] = {  # in the order in which they are tried
    "integers": ("cubic", "linear", "nearest"),
    "options": ("linear", "nearest"),  # a gene's columns add up to 1: no linear tail is determined
    "raw": ("raw", "cubic", "linear", "nearest"),
}
SPARE = 1.5  # points per coefficient of the tail; with fewer it follows the noise
NEIGHBOURS = 5
SMOOTHINGS = (1e-6, *(10.0**power for power in range(-3, 5)))  # of which one is chosen
Guess: TypeAlias = Callable[[Sequence[Arch]], np.ndarray]
Form: TypeAlias = Callable[[np.ndarray], np.ndarray]
Columns: TypeAlias = Callable[[Sequence[Arch]], np.ndarray]


def bases(
    space: SearchSpace,
    known: list[Arch],
    values: np.ndarray,
    coding: Coding | None,
    smoothing: float | None,
) -> tuple[Shape, Guess, float]:
    """Return the first shape that can be solved, what it guesses, and how much it smooths.

    Args:
        space: whose architectures they are.
        known: distinct architectures, of which not all have the same value.
        values: one each, about 1.
        coding: of the architectures; none: the space's usual one.
        smoothing: of cubic and linear bases; none: that of the least leave-one-out error.
    """
    coding = coding or _usual(space)
    for shape in SHAPES[coding]:
        columns = _columns(space, known, coding, shape)
        points = columns(known)
        if not _determined(shape, points):
            continue
        chosen = 0.0 if shape in ("raw", "nearest") else smoothing
        if chosen is None:
            chosen = _smoothing(shape, points, values)
        form = _solved(shape, points, values, chosen)
        if form is not None:
            return shape, partial(_guessed, columns, form), chosen
    raise AssertionError("the mean of the nearest can always be solved")


def _guessed(columns: Columns, form: Form, archs: Sequence[Arch]) -> np.ndarray:
    return form(columns(archs))


def _usual(space: SearchSpace) -> Coding:
    """Return the coding for a space: words have no order."""
    words = any(isinstance(each, str) for choice in space.choices for each in choice.options)
    return "options" if words else "integers"


def _columns(space: SearchSpace, known: list[Arch], coding: Coding, shape: Shape) -> Columns:
    """Return how architectures are written as rows of numbers."""
    if coding == "options":
        return lambda archs: genes.one_hot(space, archs).double().numpy()
    if shape == "raw":
        return lambda archs: genes.integers(space, archs).astype(np.float64)
    rows = genes.integers(space, known)
    low, high = rows.min(0), rows.max(0)
    vary = low < high
    low, span = low[vary], (high - low)[vary]
    return lambda archs: (genes.integers(space, archs)[:, vary] - low) / span


def _solved(shape: Shape, points: np.ndarray, values: np.ndarray, smoothing: float) -> Form | None:
    """Return the function of a shape through some points, or none where these are singular."""
    if shape == "nearest":
        return partial(_nearest_mean, points, values)
    kernel, degree = ("linear", 0) if shape == "linear" else ("cubic", 1)
    try:
        form = RBFInterpolator(points, values, kernel=kernel, degree=degree, smoothing=smoothing)
    except np.linalg.LinAlgError:
        return None
    return form if np.isfinite(form(points)).all() else None


def _smoothing(shape: Shape, points: np.ndarray, values: np.ndarray) -> float:
    """Return the smoothing with which leaving out a point misses it least."""
    distances, terms = cdist(points, points), _tail(points)
    if shape == "linear":
        return solve(-distances, terms[:, :1], values, SMOOTHINGS).strength
    return solve(distances**3, terms, values, SMOOTHINGS).strength


def _tail(points: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(points)), points])


def _determined(shape: Shape, points: np.ndarray) -> bool:
    """Say whether the tail has one best fit; scipy only sometimes notices."""
    if shape in ("linear", "nearest"):
        return True  # a constant, or none
    terms, spare = _tail(points), SPARE if shape == "cubic" else 1
    number = terms.shape[1]
    return len(points) >= spare * number and np.linalg.matrix_rank(terms) == number


def _nearest_mean(points: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    distances = ((at[:, None] - points) ** 2).sum(2)
    nearest = distances.argsort(1, kind="stable")[:, :NEIGHBOURS]
    return values[nearest].mean(1)
