"""What a population's scores add to a predictor: against slow versions and a known truth."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor

from fedtailor.core.space import Arch
from fedtailor.search import genes
from fedtailor.search.diffusion.evidence import Informed, informed
from fedtailor.search.diffusion.generator import DiffusionProposer
from fedtailor.search.diffusion.predictor import Predictor
from fedtailor.search.diffusion.sde import EPSILON
from fedtailor.search.diffusion.tokens import encoding, one_hot
from fedtailor.search.effects import FEWEST
from fedtailor.search.evolution import Population
from tests.helpers import tiny_generator
from tests.helpers.made_up import cpu
from tests.helpers.made_up import generator as rng

SPACE = cpu("mobilenetv3")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return tiny_generator.generator(SPACE).predictor


def truth(archs: list[Arch]) -> Tensor:
    """Every value of every token is worth something."""
    worth = torch.randn(encoding(SPACE).allowed.shape, generator=rng(3))
    return (one_hot(SPACE, archs) * worth).sum((1, 2))


def sample(number: int, seed: int = 0) -> list[Arch]:
    return genes.sample_many(SPACE, number, rng(seed))


def population(number: int = 135, noise: float = 2.0) -> Population:
    archs = sample(number)
    scores = truth(archs) + noise * torch.randn(number, generator=rng(4))
    return Population(tuple(archs), tuple((0.5 + 0.01 * scores).tolist()))


def expected(guide: object, archs: list[Arch], predictor: Predictor) -> Tensor:
    x = 2 * (one_hot(SPACE, archs) - predictor.shares)
    with torch.no_grad():
        return guide(x, torch.full((len(x),), EPSILON), None)  # pyright: ignore[reportCallIssue]


def tau(guide: object, predictor: Predictor) -> float:
    held = sample(200, 9)
    return agreement(expected(guide, held, predictor), truth(held))


def agreement(first: Tensor, second: Tensor) -> float:
    return float(np.asarray(kendalltau(first, second))[0])


def test_it_ranks_architectures_that_were_not_tested(predictor: Predictor):
    found = informed(predictor, SPACE, population(), None, rng())
    assert abs(tau(predictor, predictor)) < 0.2, "the predictor knows nothing of this truth"
    assert tau(found, predictor) > 0.4
    clearer = informed(predictor, SPACE, population(noise=0.5), None, rng())
    assert tau(clearer, predictor) > tau(found, predictor)


def test_a_population_that_has_survived_tells_more_than_its_scores(predictor: Predictor):
    """The best of many, whose scores are now all but chance, still say what is good."""
    archs = sample(1000, 2)
    best = truth(archs).topk(100).indices.tolist()
    chance = torch.rand(100, generator=rng(4)).tolist()
    survivors = Population(tuple(archs[at] for at in best), tuple(chance))
    assert tau(informed(predictor, SPACE, survivors, None, rng(1)), predictor) > 0.4


def test_predictions_are_believed_as_far_as_scores_agree(predictor: Predictor):
    """Scores that are the predictions, that are their opposite, or chance."""
    archs = sample(135)
    guesses = expected(predictor, archs, predictor)
    chance = torch.randn(135, generator=rng(5))
    agreeing, contrary, neither = (
        informed(predictor, SPACE, Population(tuple(archs), tuple(each.tolist())), None, rng())
        for each in (guesses, -guesses, chance)
    )
    assert all(isinstance(each, Informed) for each in (agreeing, contrary, neither))
    assert agreeing.slope > neither.slope > contrary.slope  # pyright: ignore[reportAttributeAccessIssue]


def test_scores_that_are_chance_leave_the_predictor_as_it_was(predictor: Predictor):
    chance = torch.randn(135, generator=rng(6)).tolist()
    found = informed(predictor, SPACE, Population(tuple(sample(135)), tuple(chance)), None, rng())
    held = sample(200, 9)
    told = expected(found, held, predictor)
    assert agreement(told, expected(predictor, held, predictor)) > 0.6


def test_without_trust_the_predictor_does_not_count(predictor: Predictor):
    """Neither where there is a population, nor where it says nothing."""
    other = tiny_generator.generator(SPACE, seed=1).predictor
    other.shares.copy_(predictor.shares)
    held = sample(50, 9)
    first, second = (
        expected(informed(each, SPACE, population(), None, rng(), trust=0), held, predictor)
        for each in (predictor, other)
    )
    assert torch.equal(first, second) and agreement(first, truth(held)) > 0.4
    alone = informed(predictor, SPACE, Population(), None, rng(), trust=0)
    assert (expected(alone, held, predictor) == 0).all()


def test_a_proposer_without_trust_generates_by_scores_alone():
    made, other = (tiny_generator.generator(SPACE, seed=0) for _ in range(2))
    for weights in other.predictor.parameters():
        weights.neg_()
    first, second, trusting = (
        DiffusionProposer(each, trust=trust).propose(SPACE, population(), 20, rng(5))
        for each, trust in ((made, 0.0), (other, 0.0), (other, 1.0))
    )
    assert first == second != trusting


def test_of_few_or_equal_scores_nothing_is_learned(predictor: Predictor):
    few = population(FEWEST - 1)
    equal = Population(tuple(sample(20)), (0.3,) * 20)
    lost = Population(tuple(sample(20)), (-torch.inf,) * 20)
    for none in (Population(), few, equal, lost):
        assert informed(predictor, SPACE, none, None, rng()) is predictor
    assert isinstance(informed(predictor, SPACE, population(FEWEST), None, rng()), Informed)


def test_the_scale_of_scores_does_not_matter(predictor: Predictor):
    usual = population()
    other = replace(usual, scores=tuple(1e4 * score - 7 for score in usual.scores))
    held = sample(20, 9)
    first, second = (
        expected(informed(predictor, SPACE, each, None, rng()), held, predictor)
        for each in (usual, other)
    )
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


def test_what_is_generated_is_better_where_the_population_tells():
    made = tiny_generator.generator(SPACE)
    taught, plain = (
        DiffusionProposer(made, learn=learn).propose(SPACE, population(), 60, rng(5))
        for learn in (True, False)
    )
    assert truth(taught).mean() > truth(plain).mean() + 2 * truth(sample(200)).std()
