"""A surrogate: what architectures will score, guessed from what others have scored.

By radial bases, the habit of surrogate-assisted search, or by ridge regression on options, which
follows noise less. Survivors alone say little of what is bad: where everything that was scored is
at hand, it is best learned from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search.radial import Coding, Guess, Shape, bases
from fedtailor.search.ridge import STRENGTHS, option_rows, ridge

Learner: TypeAlias = Literal["rbf", "ridge", "none"]
Kind: TypeAlias = Shape | Literal["ridge", "mean"]


@dataclass(frozen=True, eq=False)
class Surrogate:
    """Predicted scores, of one of these kinds.

    `cubic`: cubic radial bases and a linear tail. `raw`: the same on genes as they are, without
    smoothing. `linear`: linear bases and a constant. `nearest`: the mean of the nearest.
    `ridge`: a constant and what each option adds. `mean`: the mean of all, for every architecture.
    """

    kind: Kind
    guess: Guess
    smoothing: float  # of radial bases, or the ridge's strength
    scale: float  # of the scores

    def predict(self, archs: Sequence[Arch]) -> np.ndarray:
        """Return a score for each architecture, always finite."""
        with np.errstate(over="ignore"):  # beyond the largest float is the largest float
            return np.nan_to_num(self.scale * self.guess(archs))


def fit(
    space: SearchSpace,
    archs: Sequence[Arch],
    scores: Sequence[float],
    kind: Learner = "rbf",
    *,
    coding: Coding | None = None,
    smoothing: float | None = None,
) -> Surrogate:
    """Learn scores from architectures; none of them makes it raise.

    Args:
        space: whose architectures they are.
        archs: oldest first. Of equal ones the last counts for radial bases, and all for the ridge.
        scores: one each; what is not finite counts as not scored. Of none at all 0 is learned.
        kind: radial bases (`rbf`), ridge regression (`ridge`), or the mean of all (`none`), by
            which candidates are chosen as they come.
        coding: of radial bases. `integers` counts a gene's options, 0 to 1 over those of the
            population; `options` has a column for each option, for genes whose options have no
            order; `raw` is the habit of surrogate-assisted search (NSGANetV2): options' numbers as
            they are, as long as that can be solved. None: `options` where some are words, such as
            operations.
        smoothing: of cubic and linear bases, not of `raw`; or the ridge's strength. None: that of
            the least leave-one-out error.
    """
    pairs = [(a, float(s)) for a, s in zip(archs, scores, strict=True) if math.isfinite(s)]
    if kind != "ridge":
        pairs = list(dict(pairs).items())
    known, values = [arch for arch, _ in pairs], np.array([s for _, s in pairs] or [0.0])
    scale = float(abs(values).max()) or 1.0
    values /= scale
    if kind == "none" or len(known) <= 2 or values.min() == values.max():
        return Surrogate("mean", partial(_constant, float(values.mean())), 0.0, scale)
    if kind == "ridge":
        return Surrogate("ridge", *_options(space, known, values, smoothing), scale)
    return Surrogate(*bases(space, known, values, coding, smoothing), scale)


def _options(
    space: SearchSpace, known: list[Arch], values: np.ndarray, strength: float | None
) -> tuple[Guess, float]:
    """Return what a ridge regression on options guesses, and its strength."""
    strengths = STRENGTHS if strength is None else (strength,)
    found = ridge(option_rows(space, known), values, strengths)

    def guess(archs: Sequence[Arch]) -> np.ndarray:
        return option_rows(space, archs) @ found.weights + found.constant

    return guess, found.strength


def _constant(level: float, archs: Sequence[Arch]) -> np.ndarray:
    return np.full(len(archs), level)
