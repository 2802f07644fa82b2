"""Policies against autograd, finite differences and brute force."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search import genes, policy
from fedtailor.spaces.darts import DARTS
from fedtailor.spaces.mobilenetv3 import GENES, LAYERS, MobileNetV3
from tests.helpers.made_up import (
    NAMES,
    SMALL,
    TASK,
    Edges,
    Layers,
    chance,
    cpu,
    drawn_alphas,
    every_draw,
    generator,
    length,
    log_probability,
    slope,
)

temperatures = pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
small = pytest.mark.parametrize("space", SMALL.values(), ids=SMALL)


def autograd(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    function(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


@small
@temperatures
def test_probabilities_are_those_of_a_softmax(space: SearchSpace, temperature: float):
    alphas = drawn_alphas(space)
    chances = policy.probabilities(space, alphas, temperature)
    for drawn in every_draw(space):
        product = math.prod(float(p[g]) for p, g in zip(chances, drawn, strict=True))
        assert product == pytest.approx(chance(space, alphas, drawn, temperature), rel=1e-12)
        log = log_probability(space, alphas / temperature, drawn)
        assert float(log.exp()) == pytest.approx(product, rel=1e-12)
    undecided = policy.probabilities(space, torch.zeros(length(space), dtype=torch.float64))
    assert all(p.tolist() == pytest.approx([1 / len(p)] * len(p)) for p in undecided)


@small
@temperatures
def test_score_is_the_gradient_of_the_log_probability(space: SearchSpace, temperature: float):
    alphas = drawn_alphas(space, seed=1)
    for drawn in every_draw(space):
        found = policy.score(space, alphas, drawn, temperature)

        def log(at: Tensor, drawn: Arch = drawn) -> Tensor:
            return log_probability(space, at / temperature, drawn)

        assert torch.allclose(found, autograd(log, alphas), atol=1e-12)
        numeric = slope(lambda at: math.log(chance(space, at, drawn, temperature)), alphas)  # noqa: B023
        assert torch.allclose(found, numeric, atol=1e-8)


@temperatures
@pytest.mark.parametrize("name", NAMES)
def test_score_on_real_spaces(name: str, temperature: float):
    space = cpu(name)
    alphas = drawn_alphas(space, seed=2)
    drawn = policy.draw(space, alphas, generator(), temperature)
    log = autograd(lambda at: log_probability(space, at / temperature, drawn), alphas)
    assert torch.allclose(policy.score(space, alphas, drawn, temperature), log, atol=1e-12)


@small
@temperatures
def test_entropy_gradient_is_that_of_the_entropies(space: SearchSpace, temperature: float):
    alphas = drawn_alphas(space, seed=3)

    def total(at: Tensor) -> Tensor:
        parts = (at / temperature).split(genes.option_counts(space))
        return -sum((p.softmax(0) * p.log_softmax(0)).sum() for p in parts)  # pyright: ignore

    found = policy.entropy_gradient(space, alphas, temperature)
    assert torch.allclose(found, autograd(total, alphas), atol=1e-12)
    assert torch.allclose(found, slope(lambda at: float(total(at)), alphas), atol=1e-8)
    shares = policy.entropies(space, alphas, temperature)
    nats = [s * math.log(n) for s, n in zip(shares, genes.option_counts(space), strict=True)]
    assert sum(nats) == pytest.approx(float(total(alphas)), rel=1e-12)


def test_entropies_are_shares():
    undecided = policy.entropies(Edges(), torch.zeros(8, dtype=torch.float64))
    assert undecided == pytest.approx([1, 1, 1, 0], abs=1e-12)
    certain = torch.tensor([1e4, 0, 0, 0, 1e4, 0, 1e4, 0], dtype=torch.float64)
    assert policy.entropies(Edges(), certain) == [0, 0, 0, 0], "a certain gene is no nan"
    assert not policy.entropy_gradient(Edges(), certain).isnan().any()


@small
@temperatures
def test_draws_are_as_frequent_as_probable(space: SearchSpace, temperature: float):
    alphas, rng, total = drawn_alphas(space, seed=4), generator(5), 2500
    often = Counter(policy.draw(space, alphas, rng, temperature) for _ in range(total))
    every = every_draw(space)
    assert set(often) <= set(every), "genes, not yet repaired"
    expected = [total * chance(space, alphas, drawn, temperature) for drawn in every]
    assert stats.chisquare([often[drawn] for drawn in every], expected).pvalue > 1e-3


def test_what_is_impossible_is_never_drawn():
    alphas = torch.tensor([-1e4, 0, -1e4, 0, -1e4, -1e4, -1e4, 0], dtype=torch.float64)
    assert {policy.draw(Layers(), alphas, generator(seed)) for seed in range(50)} == {(1, 0, 1)}


# The heart of it: what is climbed is the expected reward.


@small
@temperatures
def test_the_masked_gradient_is_unbiased(space: SearchSpace, temperature: float):
    """The exact mean over all draws, against differences of the expected reward."""
    alphas = drawn_alphas(space, seed=6)
    rng = generator(7)
    worth = {arch: float(torch.randn((), generator=rng)) for arch in genes.enumerate_all(space)}

    def expected(at: Tensor) -> float:
        chances = ((chance(space, at, d, temperature), space.repair(d)) for d in every_draw(space))
        return sum(p * worth[arch] for p, arch in chances)

    mean = torch.zeros_like(alphas)
    noise = {True: 0.0, False: 0.0}
    for drawn in every_draw(space):
        p = chance(space, alphas, drawn, temperature)
        full = worth[space.repair(drawn)] * policy.score(space, alphas, drawn, temperature)
        masked = full * policy.acting(space, drawn)
        mean += p * masked
        noise[True] += p * float(masked.square().sum())
        noise[False] += p * float(full.square().sum())
    assert torch.allclose(mean, slope(expected, alphas), atol=1e-8)
    assert mean.abs().max() > 0.01
    assert noise[True] < noise[False], "what is left out was noise"


# Which genes act.


def by_rebuilding(space: SearchSpace, drawn: Arch, network: Callable[[Arch], Any]) -> list[bool]:
    """Say for every alpha whether its gene's options, the others as drawn, make two networks."""
    found = []
    for gene, count in enumerate(genes.option_counts(space)):
        made = [network(space.repair(genes.with_gene(drawn, gene, o))) for o in range(count)]
        found += [any(one != made[0] for one in made)] * count
    return found


@small
def test_acting_by_brute_force(space: SearchSpace):
    for drawn in every_draw(space):
        assert policy.acting(space, drawn).tolist() == by_rebuilding(space, drawn, lambda a: a)


@pytest.mark.parametrize("name", ["mobilenetv3_plato", "mobilenetv3", "nasvit"])
def test_acting_is_what_changes_the_network(name: str):
    space = cpu(name)
    zeros = torch.zeros(length(space), dtype=torch.float64)
    for seed in range(4):
        drawn = policy.draw(space, zeros, generator(seed))
        slow = by_rebuilding(space, drawn, lambda arch: space.pieces(arch, TASK))  # pyright: ignore
        assert policy.acting(space, drawn).tolist() == slow


def test_genes_of_absent_layers_do_not_act():
    space = MobileNetV3(width=0.25)  # without a resolution, at which some kernels are the same
    depths = (0, 2, 1, 2, 0)  # two layers, four, three, four, two
    drawn = tuple(itertools.chain(*((depth, *[1] * (GENES - 1)) for depth in depths)))
    there = policy.acting(space, drawn).split(genes.option_counts(space))
    for stage, depth in enumerate(depths):
        of_stage = [bool(t.all()) for t in there[stage * GENES : (stage + 1) * GENES]]
        layers = [True] * (2 + depth) + [False] * (LAYERS - 2 - depth)
        assert of_stage == [True, *layers, *layers]


def test_acting_in_darts():
    """An edge that repair holds fast does not act: whatever is drawn, a node must be fed."""
    space, acting = DARTS(**DARTS.presets["cpu"]), 0
    for seed in range(6):
        mostly_none = torch.zeros(length(space), dtype=torch.float64)
        mostly_none[::8] = 3.0
        drawn = policy.draw(space, mostly_none, generator(seed))
        slow = by_rebuilding(space, drawn, space.drawing)
        assert policy.acting(space, drawn).tolist() == slow
        acting += sum(slow)
    assert acting > 0
