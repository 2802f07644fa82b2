"""Proposers: where the next architectures to try come from, one interface for all searches.

`random` and `evolution` are here; `effects`, which draws options by what they add to the scores,
has a file of its own; `diffusion`, which draws from a trained generator and needs one as its
option, is in `generator`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fedtailor.core.errors import UserError, nearest
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search import genes
from fedtailor.search.diffusion.generator import DiffusionProposer
from fedtailor.search.effects import EffectsProposer
from fedtailor.search.evolution import Population, Rates, distinct, offspring
from fedtailor.search.surrogate import Surrogate


class Proposer(Protocol):
    """Finds architectures to try beside those of a population."""

    def propose(
        self, space: SearchSpace, population: Population, number: int, rng: torch.Generator
    ) -> list[Arch]:
        """Return `number` legal architectures: as far as there are, new and distinct ones."""
        ...


@dataclass(frozen=True)
class RandomProposer:
    """Draws from the whole space, whatever the scores."""

    def propose(
        self, space: SearchSpace, population: Population, number: int, rng: torch.Generator
    ) -> list[Arch]:
        """Draw architectures, every option as likely as the others of its gene."""
        return distinct(space, lambda: genes.sample(space, rng), number, population.archs, rng)


@dataclass(frozen=True)
class EvolutionProposer(Rates):
    """Crosses and mutates the better ones of the population."""

    def propose(
        self, space: SearchSpace, population: Population, number: int, rng: torch.Generator
    ) -> list[Arch]:
        """Return children of the population."""
        return offspring(space, population, number, rng, self)


PROPOSERS: dict[str, type[Proposer]] = {
    "random": RandomProposer,
    "evolution": EvolutionProposer,
    "effects": EffectsProposer,
    "diffusion": DiffusionProposer,
}


def proposer(name: str, **options: Any) -> Proposer:
    """Return the proposer of a name, with its fields as options."""
    if name not in PROPOSERS:
        near = nearest(name, list(PROPOSERS))
        raise UserError(f"algorithm.proposer: no proposer is called {name!r}{near}")
    return PROPOSERS[name](**options)


def choose(surrogate: Surrogate, candidates: Sequence[Arch], number: int) -> list[Arch]:
    """Return the distinct candidates of the highest predictions, best first; of equals the earlier.

    They are fewer where there are no more.
    """
    archs = list(dict.fromkeys(candidates))
    best = (-surrogate.predict(archs)).argsort(kind="stable")[:number]
    return [archs[at] for at in best.tolist()]
