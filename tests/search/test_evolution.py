"""Crossover, mutation and tournaments: whether they find what is known to be best."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedtailor.core.space import Arch, Choice, SearchSpace
from fedtailor.search import genes
from fedtailor.search.evolution import (
    AS_PUBLISHED,
    Population,
    Rates,
    _children,
    offspring,
    survivors,
    tournament,
)
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from tests.helpers.made_up import NAMES, SMALL, Coin, Fixed, Free, cpu, generator

ALL = [*SMALL.values(), Fixed(), Coin(), Free(), *map(cpu, NAMES)]
seeds = st.integers(0, 2**32)


@dataclass(frozen=True)
class Separable(Free):
    """Eight genes of four options, 65,536 architectures; every option adds what it is worth."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(f"gene{i}", (0, 1, 2, 3)) for i in range(8))

    def worth(self, arch: Arch) -> float:
        table = np.random.default_rng(0).permuted(np.tile([0.0, 1.0, 2.0, 4.0], (8, 1)), axis=1)
        return float(table[range(8), arch].sum())


def scored(archs: list[Arch], score: Callable[[Arch], float]) -> Population:
    return Population(tuple(archs), tuple(map(score, archs)))


def drawn(space: SearchSpace, number: int, seed: int = 0) -> Population:
    """Return random architectures, the more options of high number the better."""
    return scored(genes.sample_many(space, number, generator(seed)), lambda arch: float(sum(arch)))


def tries_until_best(space: Separable, seed: int, most: int) -> int:
    """Return how many architectures are scored until there is none better."""
    rng = generator(seed)
    now = scored(genes.sample_many(space, 20, rng), space.worth)
    for tried in range(20, most, 10):
        if max(now.scores) == 32:
            return tried
        new = scored(offspring(space, now, 10, rng), space.worth)
        now = survivors(Population(now.archs + new.archs, now.scores + new.scores), 20)
    return most


def test_the_best_is_found_long_before_chance_would():
    """One in 65,536: by chance it is found within 1000 tries one time in 66."""
    tries = [tries_until_best(Separable(), seed, 3000) for seed in range(10)]
    assert max(tries) < 1500 and np.median(tries) < 700
    rng = generator(1)
    random = max(map(Separable().worth, genes.sample_many(Separable(), 700, rng)))
    assert random < 32


@settings(max_examples=60)
@given(
    st.sampled_from(ALL),
    st.integers(0, 30),
    st.integers(0, 30),
    st.builds(
        Rates,
        st.floats(0, 1),
        st.floats(0, 1),
        st.none() | st.floats(0, 1),
        st.integers(1, 5),
        st.booleans(),
    ),
    seeds,
)
def test_children_are_legal_new_and_as_many_as_asked_for(
    space: SearchSpace, members: int, number: int, rates: Rates, seed: int
):
    population = drawn(space, members, seed)
    found = offspring(space, population, number, generator(seed), rates)
    assert len(found) == number and all(genes.is_legal(space, arch) for arch in found)
    assert found == offspring(space, population, number, generator(seed), rates)
    known, new = set(population.archs), set(found) - set(population.archs)
    if genes.combinations(space) > genes.MOST:
        assert len(new) == number
    else:
        left = len([*genes.enumerate_all(space)]) - len(known)
        assert len(new) == min(number, left)


def test_a_space_that_is_nearly_exhausted():
    space = Free()
    every = list(genes.enumerate_all(space))
    population = scored(every[:15], sum)
    found = offspring(space, population, 10, generator())
    assert set(every[15:]) <= set(found) and len(found) == 10
    assert set(found[:3]) == set(every[15:]), "repeats come last"
    done = offspring(space, scored(every, sum), 5, generator())
    assert len(done) == 5 and set(done) <= set(every)
    assert offspring(Fixed(), Population(((),), (1.0,)), 3, generator()) == [(), (), ()]


def test_a_seed_decides_and_another_decides_otherwise():
    space = cpu("mobilenetv3")
    first, second, third = (
        offspring(space, drawn(space, 50), 20, generator(seed)) for seed in (1, 1, 2)
    )
    assert first == second != third


def test_without_mutation_genes_come_from_the_parents():
    space = cpu("mobilenetv3")
    archs = with_depths(genes.sample_many(space, 10, generator()))
    has = [set(column) for column in zip(*archs, strict=True)]
    population = scored(archs, lambda arch: float(sum(arch)))
    for child in offspring(space, population, 50, generator(), Rates(1, 0)):
        assert all(gene in column for gene, column in zip(child, has, strict=True))
    lone = offspring(space, population, 50, generator(), Rates(0, 1, gene=1 / 45))
    apart = [min(sum(map(int.__ne__, c, a)) for a in archs) for c in lone]
    assert np.mean(apart) < 3


def with_depths(archs: list[Arch]) -> list[Arch]:
    """Give all of them all layers, so that no gene is repaired."""
    return [tuple(2 if g % 9 == 0 else o for g, o in enumerate(arch)) for arch in archs]


def test_layers_do_not_shrink_by_themselves():
    """Absent layers count as 0 in the genes, but say nothing about what a layer should be."""
    space, rng = MobileNetV3(), generator()
    archs = genes.sample_many(space, 200, rng)
    for _ in range(8):
        archs = offspring(space, scored(archs, lambda _: 0.0), 200, rng)
    stages = genes.integers(space, archs).reshape(-1, 9)
    deep = stages[stages[:, 0] == 2]
    assert stages[:, 0].mean() == pytest.approx(1, abs=0.15)
    assert deep[:, [4, 8]].mean() == pytest.approx(1, abs=0.15), "of the fourth layer"


def test_without_a_population_children_are_drawn_at_random():
    found = offspring(cpu("darts"), Population(), 20, generator())
    assert len(set(found)) == 20 and all(genes.is_legal(cpu("darts"), arch) for arch in found)


def test_two_parents_have_two_children_of_all_their_genes():
    space = cpu("mobilenetv3")
    archs = with_depths(genes.sample_many(space, 30, generator()))
    population = scored(archs, lambda arch: float(sum(arch)))
    parents = {tuple(sorted(pair)) for pair in itertools.product(archs, archs)}
    together = Counter(tuple(map(sum, zip(*pair, strict=True))) for pair in parents)
    rates = replace(AS_PUBLISHED, crossover=1, mutation=0)
    children = offspring(space, population, 20, generator(1), rates)
    for pair in zip(children[::2], children[1::2], strict=True):
        assert tuple(map(sum, zip(*pair, strict=True))) in together
        assert not set(pair) & set(archs)
    lone = offspring(space, population, 20, generator(1), replace(rates, pairs=False))
    sums = (tuple(map(sum, zip(*p, strict=True))) for p in zip(lone[::2], lone[1::2], strict=True))
    assert not any(each in together for each in sums)


def test_each_of_two_children_is_mutated_by_its_own_chance():
    space = Separable()
    population = scored([(0,) * 8], lambda _: 0.0)
    rates = replace(AS_PUBLISHED, crossover=0.5, mutation=0.5, gene=0.5)
    drawn = _children(space, population, generator(), rates)
    changed = [next(drawn) != (0,) * 8 for _ in range(4000)]
    pairs = Counter(zip(changed[::2], changed[1::2], strict=True))
    assert (
        stats.chisquare([pairs[a, b] for a in (True, False) for b in (True, False)]).pvalue > 1e-3
    )


def test_published_parents_may_be_anyone():
    """Without crossover and mutation children are parents; as often of each, whatever it scored."""
    population = drawn(Separable(), 10)
    rates = replace(AS_PUBLISHED, crossover=0, mutation=0)
    found = _children(Separable(), population, generator(), rates)
    counts = Counter(next(found) for _ in range(3000))
    assert set(counts) == set(population.archs)
    assert stats.chisquare([*counts.values()]).pvalue > 1e-3


def test_what_is_scored_later_is_added_at_the_end():
    first, second = Population(((0,), (1,)), (0.5, 0.9)), Population(((0,),), (0.1,))
    assert first + second == Population(((0,), (1,), (0,)), (0.5, 0.9, 0.1))
    assert first + Population() == first


@pytest.mark.parametrize("size", [1, 2, 4])
def test_tournaments_prefer_the_better_as_their_size_says(size: int):
    """The best of k among n: (i^k - (i-1)^k) / n^k for the i-th worst."""
    archs: list[Arch] = [(i,) for i in range(5)]
    population = Population(tuple(archs), (3.0, 1.0, 5.0, 2.0, 4.0))
    rng = generator()
    wins = Counter(tournament(population, size, rng) for _ in range(5000))
    ranked = sorted(archs, key=lambda arch: population.scores[arch[0]])
    chances = np.diff(np.arange(6.0) ** size) / 5.0**size
    assert stats.chisquare([wins[a] for a in ranked], 5000 * chances).pvalue > 1e-3


def test_the_best_survive_and_of_equals_the_younger():
    archs = tuple((i,) for i in range(6))
    population = Population(archs, (0.5, 0.9, 0.5, 0.1, 0.5, 0.7))
    for number, kept in ((1, [1]), (2, [1, 5]), (3, [1, 4, 5]), (4, [1, 2, 4, 5]), (9, range(6))):
        found = survivors(population, number)
        assert found.archs == tuple((i,) for i in kept), "the oldest is still first"
        assert found.scores == tuple(population.scores[i] for i in kept)
    assert survivors(population, 0) == survivors(Population(), 3) == Population()


def test_an_architecture_survives_once_with_its_newest_score():
    population = Population(((0,), (1,), (2,), (0,)), (0.9, 0.5, 0.4, 0.1))
    assert survivors(population, 2) == Population(((1,), (2,)), (0.5, 0.4))
    assert survivors(population, 3) == Population(((0,), (1,), (2,)), (0.1, 0.5, 0.4))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=15), st.integers(0, 9))
def test_no_one_better_is_left_behind(members: list[tuple[int, int]], number: int):
    archs, scores = tuple((arch,) for arch, _ in members), tuple(float(s) for _, s in members)
    newest = dict(members)
    found = survivors(Population(archs, scores), number)
    out = set(newest) - {arch for (arch,) in found.archs}
    assert len(found) == min(number, len(newest))
    for ((arch,), score), other in itertools.product(
        zip(found.archs, found.scores, strict=True), out
    ):
        assert score == newest[arch] >= newest[other]


@pytest.mark.parametrize("scores", [(1.0,), (1.0, float("nan"))])
def test_a_population_needs_a_score_each(scores: tuple[float, ...]):
    with pytest.raises(ValueError, match="needs a score"):
        Population(((0,), (1,)), scores)


def test_what_does_not_fit_may_score_minus_infinity():
    population = Population(((0,), (1,), (2,)), (float("-inf"), 0.2, float("-inf")))
    assert survivors(population, 1).archs == ((1,),)
    assert tournament(population, 50, generator()) == (1,)
