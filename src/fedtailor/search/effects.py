"""Effects: what each option adds to the scores of a population, and draws by nothing else.

The scores of a population are few and noisy, so effects are those of a ridge regression. That a
population has survived says more than what differences are left in it, so effects of surviving are
added: what tells the population from strangers. A generator learns the same (`diffusion/evidence`);
drawing each gene by its effects alone, without any diffusion, is the control for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search import genes
from fedtailor.search.evolution import Population, distinct
from fedtailor.search.ridge import option_rows, ridge

FEWEST = 8  # scored architectures from which anything is learned


@dataclass(frozen=True)
class EffectsProposer:
    """Draws every gene for itself, options that add to the scores being likelier.

    The chance of an option goes with exp(strength * effect / scale), where the scale is what a gene
    would add if all added alike: the deviation of the scores over the root of the number of genes.
    Where scores are chance, effects are nearly 0 and options nearly as likely as each other.

    Attributes:
        strength: 0 for draws at random.
        survival: whether having survived counts beside the scores; not where the population is
            everything that was scored.
    """

    strength: Annotated[float, Ge(0)] = 3.0
    survival: bool = True

    def propose(
        self, space: SearchSpace, population: Population, number: int, rng: torch.Generator
    ) -> list[Arch]:
        """Draw architectures by the effects of the population's options."""
        effects = option_effects(space, population, rng, self.survival)
        drawn = _draws(space, self.strength * torch.from_numpy(effects), max(1, number), rng)
        return distinct(space, lambda: next(drawn), number, population.archs, rng)


def option_effects(
    space: SearchSpace, population: Population, rng: torch.Generator, survival: bool = True
) -> np.ndarray:
    """Return what each option of each gene adds, over the scale; of too few scores 0.

    Args:
        space: the search space.
        population: of equal architectures the last counts.
        rng: of strangers.
        survival: whether effects of having survived are added to those of the scores.
    """
    archs, scores = standardised(population)
    if not archs:
        return np.zeros(genes.offsets(space)[-1])
    rows = option_rows(space, archs)
    found = ridge(rows, scores).weights
    if survival:
        found = found + surviving(
            rows, option_rows(space, genes.sample_many(space, len(archs), rng))
        )
    return found


def standardised(population: Population) -> tuple[list[Arch], np.ndarray]:
    """Return distinct architectures and their newest scores, of mean 0 and deviation 1.

    Scores that are not finite do not count; of too few, or equal ones, there are none.
    """
    newest = dict(zip(population.archs, population.scores, strict=True))
    archs = [arch for arch, score in newest.items() if np.isfinite(score)]
    scores = np.array([newest[arch] for arch in archs])
    if len(archs) < FEWEST or not scores.any():
        return [], np.zeros(0)
    scores = scores / abs(scores).max()  # the squares of large ones would not be finite
    if scores.std() <= 1e-9:
        return [], np.zeros(0)
    return archs, (scores - scores.mean()) / scores.std(ddof=1)


def surviving(members: np.ndarray, strangers: np.ndarray) -> np.ndarray:
    """Return the effects of being a member: 1 for those, -1 for as many strangers."""
    sides = np.repeat([1.0, -1.0], [len(members), len(strangers)])
    return ridge(np.concatenate([members, strangers]), sides).weights


def _draws(space: SearchSpace, alphas: Tensor, batch: int, rng: torch.Generator) -> Iterator[Arch]:
    """Draw architectures without end, each option's chance in its gene going with exp(alpha)."""
    while True:  # the largest of alphas with Gumbel noise is such a draw
        waits = torch.empty(batch, len(alphas), dtype=alphas.dtype).exponential_(generator=rng)
        yield from genes.from_one_hot(space, alphas - waits.log())
