"""Guidance: the score of architectures bent towards those that a predictor expects to do well.

PerFedSDE-NAS (Liao et al.), Eq. 4, after DiffusionNAG (An et al. 2024): to the score is added the
gradient of the predicted accuracy on a client's data. Differs from the papers, whose strengths of
10,000 and more depend on the space and on the scale of accuracies: the gradient of every
architecture is scaled to its score's length, so that one strength does for all; and it ends when
the values of tokens are decided.
"""

import math
from typing import Protocol

import torch
from torch import Tensor

from fedtailor.search.diffusion.sde import SDE, Score

DECIDED = 0.5  # noise over signal below which a token's value is no longer hidden


class Expectation(Protocol):
    """What expects scores of noised architectures, as a predictor does."""

    @property
    def sde(self) -> SDE:
        """The equation that adds the noise."""
        ...

    def __call__(self, x: Tensor, t: Tensor, embedding: Tensor | None = None, /) -> Tensor:
        """Return the expected scores of noised tables at times, for a data set's embedding."""
        ...


def guided(
    score: Score,
    predictor: Expectation,
    embedding: Tensor | None,
    strength: float,
    until: float = DECIDED,
) -> Score:
    """Return score + strength |score| / |gradient| gradient, row by row.

    A row whose gradient is 0 or not finite is not guided.

    Args:
        score: of noised tables.
        predictor: of what is to be high.
        embedding: of the client's data (`Predictor.embed_features`); none: of no data.
        strength: 0 for the score itself; up to 2 is usual.
        until: the noise over signal at which guidance ends; samplers go from much noise to little.
    """
    if not (math.isfinite(strength) and strength >= 0):
        raise ValueError("the strength of guidance must be a number of at least 0")
    if strength == 0:
        return score
    data = None if embedding is None else embedding.detach()

    def total(x: Tensor, t: Tensor) -> Tensor:
        plain, (scale, std) = score(x, t), predictor.sde.marginal(t)
        now = std > until * scale
        if not now.any():
            return plain
        with torch.enable_grad():  # samplers turn it off
            at = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(predictor(at, t, data).sum(), at)
        length = strength * now * plain.flatten(1).norm(dim=1)
        return plain + length[:, None, None] * _directions(slope)

    return total


def _directions(slope: Tensor) -> Tensor:
    """Return rows of length 1, or of zeros where a row is 0 or not finite.

    They are divided by their largest entries first: squares of small ones would be 0.
    """
    largest = slope.abs().flatten(1).amax(1)[:, None, None]
    known = largest.isfinite() & (largest > 0)
    even = torch.where(known, slope / largest, 0.0)
    lengths = even.flatten(1).norm(dim=1)[:, None, None]
    return even / lengths.clamp(min=1.0)
