"""What a population's scores add to a predictor: the generator learns from what was tested.

A predictor knows what architectures did elsewhere. The scores of a population say how they do here,
with this client's data and this supernet's weights, but are few and noisy. Bayes' rule for linear
effects joins both: a score is the prediction, as far as that is to be believed, and an effect of
every token's value, which is 0 unless the scores say otherwise. How much they say is decided by
their leave-one-out error. That a population has survived says more than what differences are left
in it, so effects of surviving are added: what tells the population from strangers. Not in the
papers, where only crossover, mutation and the choice among candidates learn from the population.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.core.space import SearchSpace
from fedtailor.search import genes
from fedtailor.search.diffusion.guidance import Expectation
from fedtailor.search.diffusion.predictor import Predictor
from fedtailor.search.diffusion.sde import EPSILON, SDE
from fedtailor.search.diffusion.tokens import one_hot
from fedtailor.search.evolution import Population

SLOPE = 0.25  # of scores over predictions, both of deviation 1: expected, and how far from that
RIDGES = tuple(10.0**power for power in torch.arange(-1, 4.1, 0.5).tolist())
FEWEST = 8  # scored architectures from which anything is learned


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
) -> Expectation:
    """Learn from a population's scores; from too few, or equal ones, nothing.

    Args:
        predictor: of the space.
        space: the search space.
        population: of equal architectures the last counts; scores that are not finite do not.
        embedding: of the client's data.
        rng: of strangers.
    """
    scored = dict(zip(population.archs, population.scores, strict=True))
    archs = [arch for arch, score in scored.items() if torch.tensor(score).isfinite()]
    scores = torch.tensor([scored[arch] for arch in archs], dtype=torch.float64)
    if len(archs) < FEWEST or scores.std() <= 1e-9 * scores.abs().max():
        return predictor
    tables = one_hot(space, archs).double()
    guesses, spread = _predictions(predictor, tables, embedding)
    trust = SLOPE * guesses[:, None]
    weights = _ridge(torch.cat([trust, _rows(tables)], 1), _standardised(scores) - trust[:, 0])
    others = one_hot(space, genes.sample_many(space, len(archs), rng)).double()
    survived = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat_interleave(len(archs))
    effects = weights[1:] + _ridge(_rows(torch.cat([tables, others])), survived)
    effects = (effects / tables.shape[1] ** 0.5).view(tables.shape[1:])
    slope = SLOPE * (1 + float(weights[0])) / spread
    return Informed(predictor, slope, effects.float().to(predictor.shares.device))


def _rows(tables: Tensor) -> Tensor:
    """Return the features of tables, of length about 1."""
    return (tables - tables.mean(0)).flatten(1) / tables.shape[1] ** 0.5


def _standardised(values: Tensor) -> Tensor:
    return (values - values.mean()) / values.std()


def _predictions(
    predictor: Predictor, tables: Tensor, embedding: Tensor | None
) -> tuple[Tensor, float]:
    """Return predictions of mean 0 and deviation 1, and the deviation they had."""
    x = 2 * (tables.float() - predictor.shares.cpu())
    with torch.no_grad():
        found = predictor(x, torch.full((len(x),), EPSILON), embedding).double()
    spread = max(float(found.std()), 1e-9)
    return (found - found.mean()) / spread, spread


def _ridge(features: Tensor, wanted: Tensor) -> Tensor:
    """Return the weights of the ridge regression with the least leave-one-out error."""
    values, vectors = torch.linalg.eigh(features @ features.T)
    turned = vectors.T @ wanted

    def solved(ridge: float) -> tuple[float, Tensor]:
        inverse = 1 / (values.clamp(min=0) + ridge)
        dual = vectors @ (inverse * turned)
        errors = dual / (vectors.square() @ inverse)
        return float(errors.square().mean()), features.T @ dual

    return min((solved(ridge) for ridge in RIDGES), key=lambda found: found[0])[1]
