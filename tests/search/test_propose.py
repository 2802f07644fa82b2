"""One interface for whatever proposes architectures, and the choice among what was proposed."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search import genes
from fedtailor.search.diffusion.generator import DiffusionProposer, Sampling
from fedtailor.search.evolution import Population, Rates, offspring
from fedtailor.search.propose import (
    PROPOSERS,
    EvolutionProposer,
    Proposer,
    RandomProposer,
    choose,
    proposer,
)
from fedtailor.search.surrogate import fit
from tests.helpers import tiny_generator
from tests.helpers.made_up import NAMES, SMALL, Coin, Fixed, Free, cpu, generator

SPACE = cpu("mobilenetv3")


def drawn(space: SearchSpace, number: int, seed: int = 0) -> Population:
    """Return random architectures, the more options of high number the better."""
    archs = genes.sample_many(space, number, generator(seed))
    return Population(tuple(archs), tuple(float(sum(arch)) for arch in archs))


@functools.cache
def options(name: str, space: SearchSpace) -> dict[str, Any]:
    """Return what a proposer needs."""
    if name != "diffusion":
        return {}
    return {"generator": tiny_generator.generator(space), "how": Sampling(steps=1)}


@settings(max_examples=60)
@given(
    st.sampled_from(list(PROPOSERS)),
    st.sampled_from([*SMALL.values(), Fixed(), Coin(), Free(), *map(cpu, NAMES)]),
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(0, 2**32),
)
def test_proposals_are_legal_and_new_as_far_as_there_are(
    name: str, space: SearchSpace, members: int, number: int, seed: int
):
    if name == "diffusion" and not space.choices:
        return  # there is no such generator
    population, how = drawn(space, members, seed), proposer(name, **options(name, space))
    found = how.propose(space, population, number, generator(seed))
    assert found == how.propose(space, population, number, generator(seed))
    assert len(found) == number and all(genes.is_legal(space, arch) for arch in found)
    left = number
    if genes.combinations(space) <= genes.MOST:
        left = len(set(genes.enumerate_all(space)) - set(population.archs))
    assert len(set(found) - set(population.archs)) == min(number, left)


def test_random_proposals_ignore_scores_and_cover_the_space():
    archs = RandomProposer().propose(SPACE, drawn(SPACE, 50), 500, generator())
    kernels = genes.integers(SPACE, archs)[:, 1]
    assert np.abs(np.bincount(kernels) / 500 - 1 / 3).max() < 0.08
    worst = Population(((0, 0, 0),), (1e9,))
    found = RandomProposer().propose(Free(), worst, 17, generator())
    assert len(set(found)) == 17 and (0, 0, 0) not in found


def test_evolution_proposes_better_ones_than_chance():
    space = cpu("nasvit")
    evolved, random = (
        np.mean([sum(arch) for arch in proposer(name).propose(*asked)])
        for name in ("evolution", "random")
        for asked in [(space, drawn(space, 69), 100, generator())]
    )
    assert evolved > random + 1


def test_options_are_fields():
    assert proposer("random") == RandomProposer()
    found = proposer("evolution", crossover=0.5, tournament=5)
    assert found == EvolutionProposer(crossover=0.5, tournament=5)
    children = found.propose(SPACE, drawn(SPACE, 20), 10, generator())
    rates = Rates(crossover=0.5, tournament=5)
    assert children == offspring(SPACE, drawn(SPACE, 20), 10, generator(), rates)
    made = tiny_generator.generator(Free())
    found = proposer("diffusion", generator=made, how=Sampling(steps=2))
    assert isinstance(found, DiffusionProposer) and found.generator is made
    assert found.how == Sampling(steps=2) and found.embedding is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("evolutoin", "did you mean evolution?"),
        ("Random", "did you mean random?"),
        ("difusion", "did you mean diffusion?"),
        ("x", "there are: random, evolution, effects, diffusion"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, hint: str):
    with pytest.raises(UserError) as error:
        proposer(name)
    expected = f"algorithm.proposer: no proposer is called {name!r}; {hint}"
    assert str(error.value) == expected


def test_any_object_that_proposes_is_a_proposer():
    class Largest:
        def propose(
            self, space: SearchSpace, population: Population, number: int, rng: Any
        ) -> list[Arch]:
            return [space.largest()] * number

    own: Proposer = Largest()
    assert own.propose(Free(), Population(), 2, generator()) == [(2, 1, 2), (2, 1, 2)]


def test_the_best_predicted_are_chosen_once_each():
    archs = genes.sample_many(SPACE, 135, generator())
    model = fit(SPACE, archs, [sum(arch) + sum(arch[7:]) ** 0.5 for arch in archs])
    candidates = genes.sample_many(SPACE, 500, generator(5))
    found = choose(model, candidates + candidates[::-1], 50)
    predicted = dict(zip(candidates, model.predict(candidates), strict=True))
    assert found == sorted(predicted, key=lambda arch: predicted[arch], reverse=True)[:50]
    assert np.mean([sum(arch) for arch in found]) > np.mean([sum(a) for a in candidates]) + 3


def test_choosing_from_few_and_from_equals():
    flat = fit(Free(), [(0, 0, 0)], [1.0])
    candidates: list[Arch] = [(2, 1, 0), (0, 0, 0), (2, 1, 0), (1, 1, 1)]
    assert choose(flat, candidates, 2) == [(2, 1, 0), (0, 0, 0)], "of equals the earlier"
    assert choose(flat, candidates, 9) == [(2, 1, 0), (0, 0, 0), (1, 1, 1)]
    every = list(genes.enumerate_all(Free()))
    assert choose(flat, every, 18) == every
    assert choose(flat, candidates, 0) == choose(flat, [], 3) == []
