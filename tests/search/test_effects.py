"""Draws by what options add to a population's scores."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedtailor.core.space import Arch
from fedtailor.search import genes
from fedtailor.search.effects import (
    FEWEST,
    EffectsProposer,
    _draws,
    option_effects,
    standardised,
    surviving,
)
from fedtailor.search.evolution import Population
from fedtailor.search.ridge import option_rows, ridge
from tests.helpers.made_up import (
    Additive,
    Fixed,
    Free,
    chance,
    cpu,
    drawn_alphas,
    every_draw,
    generator,
)

SPACE = Additive()


def scored(number: int, noise: float = 0.0, seed: int = 0) -> Population:
    archs = genes.sample_many(SPACE, number, generator(seed))
    chance = noise * np.random.default_rng(seed).normal(size=number)
    return Population(tuple(archs), tuple((SPACE.worth(archs).numpy() + chance).tolist()))


def worth(archs: list[Arch]) -> float:
    return float(SPACE.worth(archs).mean())


def test_effects_are_what_options_are_worth_over_the_scale():
    """A gene's options add up to 0; one that adds as much as all others deviates by 1."""
    effects = option_effects(SPACE, scored(700), generator(), survival=False).reshape(30, 3)
    assert effects.sum(1) == pytest.approx(0, abs=0.02)
    every = np.tile(np.arange(3)[:, None], 30)
    single = np.stack([SPACE.worth([tuple(row) for row in _changed(g, every)]) for g in range(30)])
    single -= single.mean(1, keepdims=True)
    assert effects == pytest.approx(single * 30**0.5, abs=0.15)


def _changed(gene: int, every: np.ndarray) -> list[list[int]]:
    rows = np.zeros_like(every)
    rows[:, gene] = every[:, gene]
    return rows.tolist()


def test_scores_that_are_chance_have_nearly_no_effects():
    population = scored(135)
    noise = tuple(np.random.default_rng(1).normal(size=135).tolist())
    nothing = option_effects(SPACE, replace(population, scores=noise), generator(), survival=False)
    much = option_effects(SPACE, population, generator(), survival=False)
    assert np.abs(nothing).max() < 0.2 * np.abs(much).max()


def test_survivors_say_what_is_good_where_scores_do_not():
    archs = genes.sample_many(SPACE, 1000, generator(3))
    best = SPACE.worth(archs).topk(100).indices.tolist()
    noise = tuple(np.random.default_rng(1).normal(size=100).tolist())
    population = Population(tuple(archs[at] for at in best), noise)
    told, untold = (
        worth(EffectsProposer(survival=survival).propose(SPACE, population, 100, generator()))
        for survival in (True, False)
    )
    assert told > 1 > untold + 0.5


def test_members_are_told_from_strangers():
    members, strangers = (
        option_rows(Free(), archs)
        for archs in ([(0, 0, 0), (0, 1, 1)] * 9, [(1, 0, 0), (2, 1, 1)] * 9)
    )
    found = surviving(members, strangers)
    sides = np.array([1.0] * 18 + [-1.0] * 18)
    assert found == pytest.approx(ridge(np.concatenate([members, strangers]), sides).weights)
    assert found[0] > 0.5 and found[1] < 0 and found[3:] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_what_is_drawn_is_better_than_the_population(noise: float):
    population = scored(135, noise)
    usual = worth(EffectsProposer().propose(SPACE, population, 100, generator()))
    strong = worth(EffectsProposer(6).propose(SPACE, population, 100, generator()))
    random = worth(EffectsProposer(0).propose(SPACE, population, 100, generator()))
    assert abs(random) < 0.3 and usual > random + 1 and strong > usual


@pytest.mark.parametrize("seed", [0, 1])
def test_options_are_drawn_as_often_as_they_should_be(seed: int):
    alphas = drawn_alphas(Free(), seed)
    draws = _draws(Free(), alphas, 100, generator(seed))
    found = [next(draws) for _ in range(5000)]
    every = every_draw(Free())
    expected = [5000 * chance(Free(), alphas, arch) for arch in every]
    assert stats.chisquare([found.count(arch) for arch in every], expected).pvalue > 1e-3


def test_scores_are_standardised_once_each_and_newest():
    archs = tuple((i,) for i in range(10))
    population = Population((*archs, (0,), (1,)), (*map(float, range(10)), 30.0, -np.inf))
    found, scores = standardised(population)
    assert found == [(0,), *archs[2:]] and scores.argmax() == 0
    assert scores.mean() == pytest.approx(0) and scores.std(ddof=1) == pytest.approx(1)
    huge = replace(population, scores=tuple(1e306 * score for score in population.scores))
    assert standardised(huge)[1] == pytest.approx(scores)


def test_of_few_or_equal_scores_nothing_is_learned():
    few, enough = scored(FEWEST - 1), scored(FEWEST)
    equal = Population(enough.archs, (0.3,) * FEWEST)
    none = Population(enough.archs, (0.0,) * FEWEST)
    for nothing in (Population(), few, equal, none):
        assert not option_effects(SPACE, nothing, generator()).any()
    assert option_effects(SPACE, enough, generator()).any()
    assert EffectsProposer().propose(Fixed(), Population(((),), (1.0,)), 2, generator()) == [(), ()]


def test_proposals_are_new():
    space = cpu("mobilenetv3")
    archs = genes.sample_many(space, 100, generator())
    population = Population(tuple(archs), tuple(float(sum(arch)) for arch in archs))
    found = EffectsProposer().propose(space, population, 200, generator())
    assert len(set(found)) == 200 and not set(found) & set(archs)
    assert np.mean([sum(arch) for arch in found]) > max(population.scores)
