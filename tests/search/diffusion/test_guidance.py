"""Guidance: its formula row by row, what does not move it, and what it does to a known truth."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from fedtailor.core.space import Choice
from fedtailor.networks.initial import initialise
from fedtailor.search import genes
from fedtailor.search.diffusion import sde
from fedtailor.search.diffusion.guidance import guided
from fedtailor.search.diffusion.predictor import LIGHT, Predictor
from fedtailor.search.diffusion.sde import VE, Score
from fedtailor.search.diffusion.tokens import encode, encoding, one_hot, project
from tests.helpers.made_up import Free, generator

EQUATION = VE()
TOKENS, VALUES = 8, 4


@dataclass(frozen=True)
class Eight(Free):
    """Eight choices of four, all of them legal and alike: the score is known."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(f"gene{number}", (0, 1, 2, 3)) for number in range(TOKENS))


SPACE = Eight()


def exact(x: Tensor, t: Tensor) -> Tensor:
    """Return the score of architectures of which all are as likely, by Tweedie's formula.

    Rows of value v are N(2 e_v - 1/2, std^2), so the chances of values are softmax(2 x / std^2).
    """
    std = EQUATION.marginal(t)[1][:, None, None]
    chances = (2 * x / std**2).softmax(2)
    return (2 * chances - 2 / VALUES - x) / std**2


def drawn(seed: int = 0) -> Predictor:
    predictor = Predictor(encoding(SPACE), EQUATION, 6, replace(LIGHT, layers=2, width=32))
    initialise(predictor, generator(seed))
    return predictor


def noised(number: int = 6, std: float = 1.5) -> tuple[Tensor, Tensor]:
    x = std * torch.randn(number, TOKENS, VALUES, generator=generator(1))
    return x, torch.linspace(0.45, 0.95, number)


def samples(score: Score, number: int = 100) -> Tensor:
    return sde.heun(EQUATION, score, (number, TOKENS, VALUES), generator(2), steps=10)


def effects() -> Tensor:
    """Return what every value of every token is worth."""
    return torch.randn(TOKENS, VALUES, generator=generator(3))


def worth(tables: Tensor) -> Tensor:
    """Return the true values of samples, as architectures."""
    values = encode(SPACE, project(SPACE, (tables + 2 / VALUES) / 2))
    return effects()[torch.arange(TOKENS), values].sum(1)


@pytest.fixture(scope="module")
def taught() -> Predictor:
    """Return a predictor that has learned the sums of the effects from 500 architectures."""
    rng, predictor = generator(4), drawn()
    table = one_hot(SPACE, genes.sample_many(SPACE, 500, rng))
    values = (table * effects()).sum((1, 2))
    targets, x0 = (values - values.mean()) / values.std(), 2 * (table - predictor.shares)
    adam = torch.optim.Adam(predictor.parameters(), lr=1e-2)
    for _ in range(200):
        rows, t = torch.randint(500, (128,), generator=rng), torch.rand(128, generator=rng)
        adam.zero_grad()
        predictor.loss(x0[rows], t, targets[rows], None, rng).backward()
        adam.step()
    predictor.zero_grad()
    return predictor


def test_strength_0_is_the_score_itself():
    assert guided(exact, drawn(), None, 0.0) is exact
    for strength in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="strength"):
            guided(exact, drawn(), None, strength)


def test_the_gradient_is_that_of_the_prediction():
    """Central differences of what is predicted, entry by entry."""
    predictor = drawn().double()
    x, t = (each.double() for each in noised(3))
    data = torch.randn(LIGHT.set_width, generator=generator(5), dtype=torch.float64)

    def at(x: Tensor) -> Tensor:
        return predictor(x, t, data)

    slopes, step = torch.zeros_like(x), 1e-6
    with torch.no_grad():
        for token in range(TOKENS):
            for entry in range(VALUES):
                move = torch.zeros_like(x)
                move[:, token, entry] = step
                slopes[:, token, entry] = (at(x + move) - at(x - move)) / (2 * step)
        found = guided(exact, predictor, data, 0.7)(x, t)
    for row in range(3):
        score, slope = exact(x, t)[row], slopes[row]
        wanted = score + 0.7 * score.norm() / slope.norm() * slope
        torch.testing.assert_close(found[row], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_the_scale_of_predictions_does_not_matter(taught: Predictor, factor: float):
    other = drawn()
    other.load_state_dict(taught.state_dict())
    assert other.effects is not None
    with torch.no_grad():
        for parameter in (*other.answer.parameters(), other.effects.values):
            parameter.mul_(factor)
    x, t = noised()
    torch.testing.assert_close(other(x, t), factor * taught(x, t))
    first, second = (samples(guided(exact, each, None, 1.0), 30) for each in (taught, other))
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-3)


class Odd(nn.Module):
    """Of the rows by number: no slope, NaN, infinite slope, and tiny and huge but good ones."""

    sde = EQUATION

    def forward(self, x: Tensor, t: Tensor, embedding: Tensor | None) -> Tensor:
        factors = torch.tensor([0.0, torch.nan, torch.inf, 1e-30, 1e30, 1.0])
        return x[:, 0, 0] * factors


def test_rows_without_a_usable_gradient_are_not_guided():
    x, t = noised(6)
    found = guided(exact, Odd(), None, 1.0)(x, t)  # pyright: ignore[reportArgumentType]
    score = exact(x, t)
    assert found.isfinite().all()
    assert torch.equal(found[:3], score[:3])
    added = (found - score)[3:]
    torch.testing.assert_close(added[:, 0, 0], score[3:].flatten(1).norm(dim=1))
    assert (added.flatten(1)[:, 1:] == 0).all()


def test_guidance_ends_when_noise_no_longer_hides_values():
    """The noise of VE, of 0.1 to 5, is 0.5 at t = 0.41; its signal is 1."""
    predictor, (x, _) = drawn(), noised(5)
    t = torch.tensor([0.1, 0.4, 0.42, 0.8, 0.9])
    whole = guided(exact, predictor, None, 1.0, until=0.0)(x, t)
    usual = guided(exact, predictor, None, 1.0)(x, t)
    inside = t > 0.41
    assert torch.equal(usual[inside], whole[inside])
    assert torch.equal(usual[~inside], exact(x, t)[~inside])
    assert not torch.allclose(whole[~inside], exact(x, t)[~inside])
    never = guided(exact, predictor, None, 1.0, until=10.0)(x, t)
    assert torch.equal(never, exact(x, t))


def test_samplers_without_gradients_leave_none(taught: Predictor):
    with torch.no_grad():
        found = samples(guided(exact, taught, None, 1.0), 5)
    assert found.isfinite().all() and not found.requires_grad
    assert all(parameter.grad is None for parameter in taught.parameters())


def test_an_embedding_bends_the_way_it_does_in_predictions():
    predictor, (x, t) = drawn(), noised()
    data = torch.randn(LIGHT.set_width, generator=generator(6))
    with_data, without = (guided(exact, predictor, each, 1.0)(x, t) for each in (data, None))
    assert not torch.allclose(with_data, without)


def test_guidance_raises_what_is_predicted_and_what_is_true(taught: Predictor):
    """By more with more strength: the mean of the truth by over 1 and 2 deviations of chance."""
    spread = float(worth(samples(exact, 1000)).std())
    means, predicted = [], []
    for strength in (0.0, 0.5, 1.0, 2.0):
        found = samples(guided(exact, taught, None, strength))
        archs = one_hot(SPACE, project(SPACE, (found + 2 / VALUES) / 2))
        with torch.no_grad():
            clean = 2 * (archs - taught.shares)
            predicted.append(float(taught(clean, torch.full((100,), 1e-3)).mean()))
        means.append(float(worth(found).mean()) / spread)
    assert means == sorted(means) and predicted == sorted(predicted)
    assert means[2] > means[0] + 1 and means[3] > means[0] + 2
    assert predicted[3] > predicted[0] + 1.5
