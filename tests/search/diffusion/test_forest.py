"""Measured dependencies: against enumeration of trees, and Bayes by brute force."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.search.diffusion import forest
from fedtailor.search.diffusion.forest import Forest
from tests.helpers.made_up import generator

MANY = 20_000


def shares_of(values: Tensor, size: int) -> Tensor:
    return F.one_hot(values, size).float().mean(0)


def chain(number: int, length: int, keep: float, seed: int = 0) -> Tensor:
    """Draw tokens of three values, each with this chance the same as the one before it."""
    drawn = torch.randint(3, (number, length), generator=generator(seed))
    same = torch.rand(number, length, generator=generator(seed + 1)) < keep
    for at in range(1, length):
        drawn[:, at] = torch.where(same[:, at], drawn[:, at - 1], drawn[:, at])
    return drawn


def links(found: Forest) -> set[frozenset[int]]:
    pairs = enumerate(found.parents.tolist())
    return {frozenset((child, parent)) for child, parent in pairs if child != parent}


def test_independent_tokens_have_no_links():
    values = torch.randint(4, (MANY, 30), generator=generator())
    found = forest.measure(values, shares_of(values, 4))
    assert not links(found) and found.ratios.eq(1).all()


def test_a_chain_is_found_and_its_ratios_measured():
    values = chain(MANY, 5, 0.4)
    found = forest.measure(values, shares_of(values, 3))
    assert links(found) == {frozenset((at, at + 1)) for at in range(4)}
    same, other = 0.4 + 0.6 / 3, 0.6 / 3  # the chances of a value, given the one before
    expected = torch.full((3, 3), 3 * other).fill_diagonal_(3 * same)
    for child, parent in enumerate(found.parents.tolist()):
        if child != parent:
            assert torch.allclose(found.ratios[child], expected, atol=0.1)


def test_what_never_occurs_together_is_finite_and_very_unlikely():
    values = torch.randint(2, (MANY, 1), generator=generator()).repeat(1, 2)
    found = forest.measure(values, shares_of(values, 3))
    assert found.ratios.isfinite().all() and found.ratios.min() > 0
    child = 1 if found.parents[1] == 0 else 0
    assert found.ratios[child, 0, 1] < 1e-4
    assert found.ratios[child, 2].eq(1).all()  # a value that is impossible


@pytest.mark.parametrize("seed", range(5))
def test_the_forest_has_the_largest_total(seed: int):
    """Against all subsets of links without circles."""
    raw = torch.rand(5, 5, generator=generator(seed), dtype=torch.float64)
    weights = (raw + raw.T) * (raw + raw.T > 0.7)
    weights.fill_diagonal_(9.0)  # of a token with itself: must not matter
    found = links(Forest(forest._spanning(weights), torch.empty(0)))
    total = sum(float(weights[tuple(link)]) for link in found)
    best, every = 0.0, [(i, j) for i, j in itertools.combinations(range(5), 2) if weights[i, j] > 0]
    for number in range(5):
        for chosen in itertools.combinations(every, number):
            if not circular(chosen):
                best = max(best, sum(float(weights[link]) for link in chosen))
    assert total == pytest.approx(best) and not circular([tuple(link) for link in found])


def circular(chosen: "list[tuple[int, ...]] | tuple[tuple[int, int], ...]") -> bool:
    group = list(range(5))
    for i, j in chosen:
        if group[i] == group[j]:
            return True
        group = [group[i] if each == group[j] else each for each in group]
    return False


def test_messages_are_bayes_rule_in_a_star():
    """Token 1 in the middle of 0 and 2: its own evidence and theirs, by enumeration."""
    values = chain(MANY, 3, 0.5)[:, [0, 1, 2]]
    shares = shares_of(values, 3).double()
    found = forest.measure(values, shares)
    assert links(found) == {frozenset((0, 1)), frozenset((1, 2))}
    found = Forest(found.parents, found.ratios.double())
    evidence = torch.rand(4, 3, 3, generator=generator(5), dtype=torch.float64)
    joint = torch.zeros(3, 3, 3, dtype=torch.float64)
    joint.index_put_(tuple(values.T), torch.ones(MANY, dtype=torch.float64), accumulate=True)
    given = joint / joint.sum((0, 2), keepdim=True)  # the ends are independent given the middle
    ends = given.sum(2)[:, :, None] * given.sum(0)[None]
    prior = ends * shares[1][None, :, None]
    each = (
        evidence[:, 0, :, None, None] * evidence[:, 1, None, :, None] * evidence[:, 2, None, None]
    )
    expected = (prior * each).sum((1, 3))
    expected /= expected.sum(1, keepdim=True)
    chances = evidence * shares
    chances = chances / chances.sum(2, keepdim=True)
    told = (chances.log() + forest.messages(found, chances)).softmax(2)
    assert torch.allclose(told[:, 1], expected, atol=2e-4)  # one architecture in 20,000 is made up
    assert not torch.allclose(chances[:, 1], expected, atol=1e-2)


def test_no_links_tell_nothing():
    chances = torch.rand(2, 3, 4, generator=generator()).softmax(2)
    assert forest.messages(forest.bare(3, 4), chances).abs().max() < 1e-6
