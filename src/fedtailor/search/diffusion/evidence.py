"""What a population's scores add to a predictor: the generator learns from what was tested.

A predictor knows what architectures did elsewhere. The scores of a population say how they do here,
with this client's data and this supernet's weights, but are few and noisy. Bayes' rule for linear
effects joins both: a score is the prediction, as far as that is to be believed, and an effect of
every token's value, which is 0 unless the scores say otherwise. How much they say is decided by
their leave-one-out error (`search/ridge.py`). Effects of having survived are added to them
(`search/effects.py`). Not in the papers, where only crossover, mutation and the choice among
candidates learn from the population.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.space import SearchSpace
from fedtailor.search import genes
from fedtailor.search.diffusion.guidance import Expectation
from fedtailor.search.diffusion.predictor import Predictor
from fedtailor.search.diffusion.sde import EPSILON, SDE
from fedtailor.search.diffusion.tokens import one_hot
from fedtailor.search.effects import standardised, surviving
from fedtailor.search.evolution import Population
from fedtailor.search.ridge import ridge

SLOPE = 0.25  # of scores over predictions, both of deviation 1: expected, and how far from that


@dataclass(frozen=True, eq=False)
class Informed:
    """A predictor, and what a population says beside it."""

    predictor: Predictor
    slope: float  # of the predictions
    effects: Tensor  # (tokens, values)

    @property
    def sde(self) -> SDE:
        """The equation that adds the noise."""
        return self.predictor.sde

    def __call__(self, x: Tensor, t: Tensor, embedding: Tensor | None = None, /) -> Tensor:
        """Return the expected scores, of mean and scale that mean nothing."""
        chances = self.predictor.posterior(x.to(self.effects.device), t.to(self.effects.device))
        own = (chances * self.effects).sum((1, 2)).to(x.device)
        return self.slope * self.predictor(x, t, embedding) + own


def informed(
    predictor: Predictor,
    space: SearchSpace,
    population: Population,
    embedding: Tensor | None,
    rng: torch.Generator,
    trust: float = SLOPE,
) -> Expectation:
    """Learn from a population's scores; from too few, or equal ones, nothing.

    Args:
        predictor: of the space.
        space: the search space.
        population: of equal architectures the last counts; scores that are not finite do not.
        embedding: of the client's data.
        rng: of strangers.
        trust: the slope of scores over predictions that is expected; 0 leaves the predictor out.
    """
    archs, scores = standardised(population)
    if not archs:
        return predictor if trust else Informed(predictor, 0.0, torch.zeros_like(predictor.shares))
    tables = one_hot(space, archs)
    guesses, spread = _predictions(predictor, tables, embedding)
    believed, rows = trust * guesses[:, None], _rows(tables)
    weights = ridge(np.concatenate([believed, rows], 1), scores - believed[:, 0]).weights
    others = one_hot(space, genes.sample_many(space, len(archs), rng))
    effects = torch.from_numpy(weights[1:] + surviving(rows, _rows(others)))
    effects = (effects / tables.shape[1] ** 0.5).view(tables.shape[1:])
    slope = trust * (1 + float(weights[0])) / spread
    return Informed(predictor, slope, effects.float().to(predictor.shares.device))


def _rows(tables: Tensor) -> np.ndarray:
    """Return the features of tables, of length 1."""
    return tables.double().flatten(1).numpy() / tables.shape[1] ** 0.5


def _predictions(
    predictor: Predictor, tables: Tensor, embedding: Tensor | None
) -> tuple[np.ndarray, float]:
    """Return predictions of mean 0 and deviation 1, and the deviation they had."""
    x = 2 * (tables - predictor.shares.cpu())
    with torch.no_grad():
        found = predictor(x, torch.full((len(x),), EPSILON), embedding).double()
    spread = max(float(found.std()), 1e-9)
    return ((found - found.mean()) / spread).cpu().numpy(), spread
