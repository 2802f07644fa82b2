"""What surrogates and proposers are worth where the truth is known: noisy scores that add up."""

from functools import cache

import numpy as np
import torch

from fedtailor.core.space import Arch
from fedtailor.search import genes
from fedtailor.search.effects import EffectsProposer
from fedtailor.search.evolution import AS_PUBLISHED, Population, offspring, survivors
from fedtailor.search.propose import choose
from fedtailor.search.surrogate import fit
from tests.helpers.made_up import Additive, generator

SPACE, SIZE, CANDIDATES, GENERATIONS, NOISE = Additive(), 60, 240, 3, 2.0
SEEDS = range(6)


@cache
def found(seed: int) -> dict[str, float]:
    """Return the mean worth of each kind of candidates, after some generations of evolution."""
    rng = generator(seed)

    def scored(archs: list[Arch]) -> Population:
        noise = NOISE * torch.randn(len(archs), generator=rng, dtype=torch.float64)
        return Population(tuple(archs), tuple((SPACE.worth(archs, seed) + noise).tolist()))

    everything = now = scored(genes.sample_many(SPACE, SIZE, rng))
    for _ in range(GENERATIONS):
        new = scored(offspring(SPACE, now, SIZE, rng))
        everything, now = everything + new, survivors(now + new, SIZE)
    bred = offspring(SPACE, now, CANDIDATES, rng)
    learned = {
        "rbf": fit(SPACE, now.archs, now.scores),
        "rbf of all": fit(SPACE, everything.archs, everything.scores),
        "rbf of all, hardly smoothed": fit(
            SPACE, everything.archs, everything.scores, smoothing=1e-6
        ),
        "ridge": fit(SPACE, now.archs, now.scores, "ridge"),
        "ridge of all": fit(SPACE, everything.archs, everything.scores, "ridge"),
        "none": fit(SPACE, everything.archs, everything.scores, "none"),
    }
    archs = {name: choose(each, bred, SIZE) for name, each in learned.items()}
    archs["published"] = offspring(SPACE, now, CANDIDATES, rng, AS_PUBLISHED)
    archs["effects"] = EffectsProposer().propose(SPACE, now, SIZE, rng)
    archs["effects of all"] = EffectsProposer(survival=False).propose(SPACE, everything, SIZE, rng)
    archs["bred"] = bred
    return {name: float(SPACE.worth(each, seed).mean()) for name, each in archs.items()}


def gain(name: str, over: str) -> float:
    """Return how much better some candidates are than others, in deviations, over all seeds."""
    return float(np.mean([found(seed)[name] - found(seed)[over] for seed in SEEDS]))


def test_a_ridge_chooses_better_than_radial_bases():
    assert gain("ridge", "rbf") > 0.1
    assert gain("ridge of all", "rbf of all") > 0.1
    assert gain("ridge of all", "rbf") > 0.4


def test_everything_that_was_scored_says_more_than_survivors():
    assert gain("ridge of all", "ridge") > 0.2
    assert gain("rbf of all", "rbf") > 0.2


def test_smoothing_that_is_chosen_chooses_better():
    assert gain("rbf of all", "rbf of all, hardly smoothed") > 0.1


def test_a_surrogate_chooses_better_than_none():
    assert abs(gain("none", "bred")) < 0.1
    assert gain("rbf", "none") > 0.05


def test_effects_draw_better_ones_than_breeding_does():
    assert gain("effects", "bred") > 0.3
    assert gain("effects of all", "bred") > 0.7


def test_tournaments_are_the_stronger_baseline():
    assert gain("bred", "published") > 0.05
