"""A surrogate: what architectures will score, guessed from those of a population by radial bases.

A population that converges makes the plain interpolation singular, or silently wrong: genes that no
longer vary, architectures that were scored twice, fewer architectures than genes. So what was
scored twice counts once, with its newest score; constant genes are dropped; and where the linear
tail is not determined, a form that needs less is taken. `Surrogate.kind` says which.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
from scipy.interpolate import RBFInterpolator

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search import genes

Coding: TypeAlias = Literal["integers", "options", "raw"]
Kind: TypeAlias = Literal["raw", "cubic", "linear", "nearest", "mean"]
KINDS: dict[Coding, tuple[Kind, ...]] = {  # in the order in which they are tried
    "integers": ("cubic", "linear", "nearest"),
    "options": ("linear", "nearest"),  # a gene's columns add up to 1: no linear tail is determined
    "raw": ("raw", "cubic", "linear", "nearest"),
}
SPARE = 1.5  # points per coefficient of the tail; with fewer it follows the noise
NEIGHBOURS = 5
Columns: TypeAlias = Callable[[Sequence[Arch]], np.ndarray]
Form: TypeAlias = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Surrogate:
    """Predicted scores, of one of these kinds.

    `cubic`: cubic radial bases and a linear tail. `raw`: the same on genes as they are, without
    smoothing. `linear`: linear bases and a constant. `nearest`: the mean of the nearest.
    `mean`: the mean of all, for every architecture.
    """

    kind: Kind
    columns: Columns
    form: Form
    scale: float  # of the scores

    def predict(self, archs: Sequence[Arch]) -> np.ndarray:
        """Return a score for each architecture, always finite."""
        with np.errstate(over="ignore"):  # beyond the largest float is the largest float
            return np.nan_to_num(self.scale * self.form(self.columns(archs)))


def fit(
    space: SearchSpace,
    archs: Sequence[Arch],
    scores: Sequence[float],
    coding: Coding | None = None,
    smoothing: float = 1e-6,
) -> Surrogate:
    """Learn scores from a population; no population makes it raise.

    Args:
        space: whose architectures they are.
        archs: oldest first; of equal ones the last counts.
        scores: one each; what is not finite counts as not scored. Of none at all 0 is learned.
        coding: `integers` counts a gene's options, 0 to 1 over those of the population; `options`
            has a column for each option, for genes whose options have no order; `raw` is the habit
            of surrogate-assisted search (NSGANetV2): options' numbers as they are, as long as that
            can be solved. None: `options` where some are words, such as operations.
        smoothing: of cubic and linear bases, not of `raw`.
    """
    coding = coding or _usual(space)
    every = zip(archs, scores, strict=True)
    newest = {arch: float(score) for arch, score in every if math.isfinite(score)}
    values = np.array([*newest.values()] or [0.0])
    scale = float(abs(values).max()) or 1.0
    values /= scale
    if len(newest) > 2 and values.min() < values.max():
        for kind in KINDS[coding]:
            columns = _columns(space, list(newest), coding, kind)
            form = _solved(kind, columns(list(newest)), values, smoothing)
            if form is not None:
                return Surrogate(kind, columns, form, scale)
    mean = float(values.mean())
    return Surrogate("mean", partial(genes.integers, space), lambda x: np.full(len(x), mean), scale)


def _usual(space: SearchSpace) -> Coding:
    """Return the coding for a space: words have no order."""
    words = any(isinstance(each, str) for choice in space.choices for each in choice.options)
    return "options" if words else "integers"


def _columns(space: SearchSpace, known: list[Arch], coding: Coding, kind: Kind) -> Columns:
    """Return how architectures are written as rows of numbers."""
    if coding == "options":
        return lambda archs: genes.one_hot(space, archs).double().numpy()
    if kind == "raw":
        return lambda archs: genes.integers(space, archs).astype(np.float64)
    rows = genes.integers(space, known)
    low, high = rows.min(0), rows.max(0)
    vary = low < high
    low, span = low[vary], (high - low)[vary]
    return lambda archs: (genes.integers(space, archs)[:, vary] - low) / span


def _solved(kind: Kind, points: np.ndarray, values: np.ndarray, smoothing: float) -> Form | None:
    """Return the function of a kind through some points, or none where they do not determine it."""
    if kind == "nearest":
        return partial(_nearest_mean, points, values)
    if kind != "linear" and not _determine_tail(points, SPARE if kind == "cubic" else 1):
        return None
    kernel, degree = ("linear", 0) if kind == "linear" else ("cubic", 1)
    smoothing = 0.0 if kind == "raw" else smoothing
    try:
        form = RBFInterpolator(points, values, kernel=kernel, degree=degree, smoothing=smoothing)
    except np.linalg.LinAlgError:
        return None
    return form if np.isfinite(form(points)).all() else None


def _determine_tail(points: np.ndarray, spare: float) -> bool:
    """Say whether a linear function has one best fit; scipy only sometimes notices."""
    terms = np.column_stack([np.ones(len(points)), points])
    number = terms.shape[1]
    return len(points) >= spare * number and np.linalg.matrix_rank(terms) == number


def _nearest_mean(points: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    distances = ((at[:, None] - points) ** 2).sum(2)
    nearest = distances.argsort(1, kind="stable")[:, :NEIGHBOURS]
    return values[nearest].mean(1)
