"""Evolution: the papers' baseline for finding better architectures of a population.

A child has each gene from either of two parents, and is then mutated. In PerFedSDE-NAS (Liao et
al., section 4.5) two parents are "sampled from the population to generate two offspring", whatever
they scored: `AS_PUBLISHED`. Here parents win tournaments of two unless told otherwise, which is the
habit of evolution and the stronger baseline, and each child has parents of its own.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from annotated_types import Ge, Interval

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search import genes

TRIES = 20  # per architecture, before chance is given up


@dataclass(frozen=True)
class Population:
    """Architectures, oldest first, and what each scored; more is better."""

    archs: tuple[Arch, ...] = ()
    scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.archs) != len(self.scores) or any(math.isnan(s) for s in self.scores):
            raise ValueError("every architecture of a population needs a score that is a number")

    def __len__(self) -> int:
        return len(self.archs)

    def __add__(self, younger: "Population") -> "Population":
        return Population(self.archs + younger.archs, self.scores + younger.scores)

    def cut(self, at: int) -> tuple["Population", "Population"]:
        """Return the oldest ones, so many, and the others."""
        older = Population(self.archs[:at], self.scores[:at])
        return older, Population(self.archs[at:], self.scores[at:])


@dataclass(frozen=True)
class Rates:
    """How children are made."""

    crossover: Annotated[float, Interval(ge=0, le=1)] = 0.9  # the chance of having two parents
    mutation: Annotated[float, Interval(ge=0, le=1)] = 0.9  # the chance of being mutated
    gene: Annotated[float, Interval(ge=0, le=1)] | None = (
        None  # the chance of each gene to change then; none: one does, on average
    )
    tournament: Annotated[int, Ge(1)] = 2  # how many compete to be a parent; 1: any may be one
    pairs: bool = False  # whether two parents have two children, each with the other's other half


USUAL = Rates()
AS_PUBLISHED = Rates(tournament=1, pairs=True)


def offspring(
    space: SearchSpace,
    population: Population,
    number: int,
    rng: torch.Generator,
    rates: Rates = USUAL,
) -> list[Arch]:
    """Return children of a population, none of which it knows and no two of which are equal.

    Where there are no more such, strangers and at last repeats make up the number (`distinct`).
    Without a population all are drawn at random.
    """
    children = _children(space, population, rng, rates)
    return distinct(space, lambda: next(children), number, population.archs, rng)


def tournament(population: Population, size: int, rng: torch.Generator) -> Arch:
    """Return the best of some that are drawn with replacement; of equals the first drawn."""
    drawn = torch.randint(len(population), (size,), generator=rng).tolist()
    return population.archs[max(drawn, key=population.scores.__getitem__)]


def survivors(population: Population, number: int) -> Population:
    """Return the best, oldest first as before; of equal scores the younger ones stay.

    On a plateau, which accuracies on few images often are, the search moves on. An architecture
    that was scored again is as old as it was, and has its newest score.
    """
    newest = dict(zip(population.archs, population.scores, strict=True))
    archs, scores = list(newest), list(newest.values())
    best = sorted(range(len(archs)), key=lambda at: (scores[at], at), reverse=True)[:number]
    best.sort()
    return Population(tuple(archs[at] for at in best), tuple(scores[at] for at in best))


def distinct(
    space: SearchSpace,
    draw: Callable[[], Arch],
    number: int,
    known: Iterable[Arch],
    rng: torch.Generator,
) -> list[Arch]:
    """Draw architectures that differ from those known and from each other.

    Where that finds no more, they are drawn from the whole space, and where chance finds no more,
    what is left of a small space is taken. Only then are there repeats, last in the list: the
    number asked for is always returned.
    """
    seen, found = set(known), []
    for source in (draw, partial(genes.sample, space, rng)):
        for _ in range(TRIES * (number - len(found))):
            if len(found) == number:
                return found
            arch = source()
            if arch not in seen:
                seen.add(arch)
                found.append(arch)
    if len(found) < number and genes.combinations(space) <= genes.MOST:
        left = [arch for arch in genes.enumerate_all(space) if arch not in seen]
        order = torch.randperm(len(left), generator=rng).tolist()
        found += [left[at] for at in order[: number - len(found)]]
    return found + [draw() for _ in range(number - len(found))]


def _children(
    space: SearchSpace, population: Population, rng: torch.Generator, rates: Rates
) -> Iterator[Arch]:
    """Draw children without end."""
    while True:
        if not len(population):
            yield genes.sample(space, rng)
            continue
        crossed, *chances = torch.rand(2 + rates.pairs, generator=rng, dtype=torch.float64).tolist()
        both = crossed < rates.crossover
        parents = [_parent(space, population, rng, rates) for _ in range(1 + (both or rates.pairs))]
        family = genes.crossed_pair(space, *parents, rng=rng) if both else parents
        for child, chance in zip(family, chances, strict=False):  # one or two, as chances are
            mutated = chance < rates.mutation
            yield genes.mutate(space, child, rng, rates.gene) if mutated else space.repair(child)


def _parent(space: SearchSpace, population: Population, rng: torch.Generator, rates: Rates) -> Arch:
    return _loose(space, tournament(population, rates.tournament, rng), rng)


def _loose(space: SearchSpace, arch: Arch, rng: torch.Generator) -> Arch:
    """Draw the genes that make no difference, such as those of absent layers.

    A layer that a child has and a parent had not would else be of the first options, and layers
    would shrink from generation to generation, whatever the scores.
    """
    counts = torch.tensor(genes.option_counts(space), dtype=torch.float64)
    drawn = (torch.rand(len(counts), generator=rng, dtype=torch.float64) * counts).long().tolist()
    loose = tuple(
        option if space.repair(genes.with_gene(arch, gene, option)) == arch else arch[gene]
        for gene, option in enumerate(drawn)
    )
    return loose if space.repair(loose) == arch else arch
