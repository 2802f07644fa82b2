"""Equations and samplers against closed forms, brute force and data whose score is known."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.search.diffusion import sde
from fedtailor.search.diffusion.sde import SDE, VE, VP, Score
from tests.helpers.made_up import generator

MANY = 20_000
EQUATIONS: dict[str, SDE] = {"ve": VE(0.01, 50.0), "vp": VP()}  # the prior is nearly exact
SAMPLERS: dict[str, tuple[Callable[..., Tensor], int]] = {  # and the steps they get
    "euler_maruyama": (sde.euler_maruyama, 400),
    "predictor_corrector": (sde.predictor_corrector, 400),
    "heun": (sde.heun, 60),
}
equations = pytest.mark.parametrize("equation", EQUATIONS.values(), ids=EQUATIONS)
samplers = pytest.mark.parametrize("sampler", SAMPLERS)


def gaussian(equation: SDE, mean: float, variance: float) -> Score:
    """Return the score of data from a normal distribution."""

    def score(x: Tensor, t: Tensor) -> Tensor:
        scale, std = (each.reshape(-1, *[1] * (x.dim() - 1)) for each in equation.marginal(t))
        return (scale * mean - x) / (scale**2 * variance + std**2)

    return score


def two_points(equation: SDE, points: tuple[float, float], share: float) -> Score:
    """Return the score of data of which a share is at the first point, the rest at the second."""

    def score(x: Tensor, t: Tensor) -> Tensor:
        scale, std = (each.reshape(-1, *[1] * (x.dim() - 1)) for each in equation.marginal(t))
        first, second = ((scale * point - x) / std**2 for point in points)
        logit = math.log(share / (1 - share)) + (second**2 - first**2) * std**2 / 2
        return torch.lerp(second, first, logit.sigmoid())

    return score


def run(sampler: str, equation: SDE, score: Score, shape: tuple[int, ...], **how: Any) -> Tensor:
    function, steps = SAMPLERS[sampler]
    return function(equation, score, shape, generator(how.pop("seed", 0)), steps=steps, **how)


def test_marginals_by_hand():
    t = torch.tensor([0.0, 0.5, 1.0])
    scale, std = VE(0.1, 10.0).marginal(t)
    assert scale.tolist() == [1, 1, 1] and std.tolist() == pytest.approx([0.1, 1.0, 10.0])
    scale, std = VP(0.1, 20.0).marginal(t)  # beta's integral to 0.5 is 2.5375, to 1 it is 10.05
    assert scale.tolist() == pytest.approx([1.0, math.exp(-2.5375 / 2), math.exp(-10.05 / 2)])
    assert (scale**2 + std**2).tolist() == pytest.approx([1, 1, 1])
    small = VP(0.1, 20.0).marginal(torch.tensor(1e-6))[1]
    assert float(small) == pytest.approx(math.sqrt(1e-7), rel=1e-4)  # no cancellation


@equations
def test_drift_and_diffusion_are_the_derivatives_of_the_marginals(equation: SDE):
    """scale' = f of scale, (std^2)' = 2 f std^2 + g^2, where drift is f times x."""
    t = torch.linspace(0.05, 1, 20, dtype=torch.float64)
    h = 1e-6
    (scale, std), (more, wider), (less, narrower) = map(equation.marginal, (t, t + h, t - h))
    f = equation.drift(torch.ones_like(t), t)
    torch.testing.assert_close((more - less) / (2 * h), f * scale, rtol=1e-6, atol=1e-9)
    growth = 2 * f * std**2 + equation.diffusion(t) ** 2
    torch.testing.assert_close((wider**2 - narrower**2) / (2 * h), growth, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("equation", [VE(0.1, 5.0), VP()], ids=["ve", "vp"])
def test_marginals_are_those_of_a_simulation(equation: SDE):
    """20,000 paths from 0.8, in 500 small steps: mean and std within 3 %."""
    rng, steps = generator(), 500
    x = 0.8 + float(equation.marginal(torch.zeros(()))[1]) * torch.randn(MANY, generator=rng)
    for step in range(1, steps + 1):
        t = torch.full((MANY,), (step - 0.5) / steps)
        noise = torch.randn(MANY, generator=rng) / math.sqrt(steps)
        x = x + equation.drift(x, t) / steps + equation.diffusion(t) * noise
        if step % 100 == 0:
            scale, std = (float(each) for each in equation.marginal(torch.tensor(step / steps)))
            assert float(x.mean()) == pytest.approx(0.8 * scale, abs=0.03 * std)
            assert float(x.std()) == pytest.approx(std, rel=0.03)


def test_priors():
    shape = (100, 20, 10)
    for equation, std in ((VP(), 1.0), (VE(0.1, 5.0), 5.0)):
        x = equation.prior(shape, generator())
        assert x.shape == shape
        assert float(x.mean()) == pytest.approx(0, abs=0.02 * std)
        assert float(x.std()) == pytest.approx(std, rel=0.02)
    scale, std = VP().marginal(torch.ones(()))
    assert float(scale) < 0.01 and float(std) == pytest.approx(1, abs=1e-4)


@equations
@samplers
def test_a_normal_distribution_is_recovered(equation: SDE, sampler: str):
    """Mean within 0.02, standard deviation within 3 %."""
    x = run(sampler, equation, gaussian(equation, 0.7, 0.25), (MANY,))
    assert float(x.mean()) == pytest.approx(0.7, abs=0.02)
    assert float(x.std()) == pytest.approx(0.5, rel=0.03)


@equations
@samplers
def test_two_points_are_recovered(equation: SDE, sampler: str):
    """The share of the first within 0.02, and all samples near one of them."""
    x = run(sampler, equation, two_points(equation, (-1.0, 1.0), 0.3), (MANY // 4, 2))
    assert float((x < 0).float().mean()) == pytest.approx(0.3, abs=0.02)
    assert float((x.abs() - 1).abs().max()) < 0.2


@pytest.mark.parametrize("equation", [VE(0.1, 5.0), VP()], ids=["ve", "vp"])
def test_heun_is_of_second_order(equation: SDE):
    """Against the exact flow, which keeps how many standard deviations x is from the mean."""
    mean, variance, eps = 0.7, 0.25, 1e-3
    (scale, std), (last_scale, last_std) = (equation.marginal(torch.tensor(t)) for t in (1.0, eps))
    away = (equation.prior((500,), generator()) - scale * mean) / (
        (scale**2 * variance + std**2).sqrt()
    )
    exact = last_scale * mean + away * (last_scale**2 * variance + last_std**2).sqrt()
    score = gaussian(equation, mean, variance)
    errors = [
        float((sde.heun(equation, score, (500,), generator(), steps, eps) - exact).abs().max())
        for steps in (20, 40, 80)
    ]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.15)


@equations
def test_the_loss_is_least_at_the_exact_score(equation: SDE):
    """There it is the mean of the variance of z given x_t; elsewhere it is larger."""
    x0 = 0.7 + 0.5 * torch.randn(MANY, 3, generator=generator(1))
    exact = gaussian(equation, 0.7, 0.25)

    def loss(score: Score) -> float:
        return float(sde.score_loss(equation, score, x0, generator(2)))

    scale, std = equation.marginal(torch.linspace(0.001, 1, 1000))
    least = float((0.25 * scale**2 / (0.25 * scale**2 + std**2)).mean())
    assert loss(exact) == pytest.approx(least, rel=0.03)
    others: list[Score] = [
        lambda x, t: 0.9 * exact(x, t),
        lambda x, t: 1.1 * exact(x, t),
        lambda x, t: exact(x, t) + 0.1 / equation.marginal(t)[1][:, None],
        lambda x, t: exact(x, (t * 0.9)),
        gaussian(equation, 0.6, 0.25),
        gaussian(equation, 0.7, 0.2),
    ]
    assert loss(exact) < min(map(loss, others))
    assert loss(lambda x, t: 0 * x) == pytest.approx(1, rel=0.02)


def test_the_loss_trains_a_parameter():
    """Its gradient is 0 at the true mean, and points there from either side."""
    equation, x0 = VE(0.1, 5.0), torch.full((MANY, 2), 0.7)
    signs = []
    for guess in (0.5, 0.9):
        mean = torch.tensor(guess, requires_grad=True)
        score: Score = lambda x, t, m=mean: (m - x) / equation.marginal(t)[1][:, None] ** 2  # noqa: E731
        sde.score_loss(equation, score, x0, generator()).backward()
        assert mean.grad is not None
        signs.append(float(mean.grad))
    assert signs[0] < 0 < signs[1]


@samplers
def test_a_seed_decides_and_nothing_else_is_drawn(sampler: str):
    equation, shape = VE(), (6, 5, 4)
    score, before = gaussian(equation, 0.0, 1.0), torch.get_rng_state()
    first, again, other = (run(sampler, equation, score, shape, seed=s) for s in (1, 1, 2))
    assert first.shape == shape
    assert torch.equal(first, again) and not torch.equal(first, other)
    loss = [float(sde.score_loss(equation, score, first, generator(s))) for s in (1, 1, 2)]
    assert loss[0] == loss[1] != loss[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluations_and_times():
    """One, two and two a step, at times from 1 to eps; a time for every row."""
    for function, expected in (
        (sde.euler_maruyama, [1.0, 0.8, 0.6, 0.4]),
        (sde.predictor_corrector, [1.0, 1.0, 0.8, 0.8, 0.6, 0.6, 0.4, 0.4]),
        (sde.heun, [1.0, 0.8, 0.8, 0.6, 0.6, 0.4, 0.4, 0.2]),
    ):
        seen: list[Tensor] = []

        def score(x: Tensor, t: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(t)
            return -x

        function(VE(), score, (3, 2), generator(), steps=4, eps=0.2)
        assert all(t.shape == (3,) and len(set(t.tolist())) == 1 for t in seen)
        assert [float(t[0]) for t in seen] == pytest.approx(expected)


def test_one_step_by_hand():
    """From x at t = 1 by 0.9: x - (f - g^2 score) 0.9 where score is -x, without noise."""
    for equation, drift, variance in ((VE(0.1, 1.0), 0.0, 2 * math.log(10)), (VP(), -10.0, 20.0)):
        x = equation.prior((4,), generator())
        found = sde.euler_maruyama(equation, lambda x, t: -x, (4,), generator(), 1, eps=0.1)
        torch.testing.assert_close(found, x * (1 - 0.9 * (drift + variance)))


def test_one_correction_by_hand():
    """Scores of -x: a step of 2 (0.16 |z| / |x|)^2 along -x, with noise; then the last mean."""
    equation, rng = VE(0.1, 1.0), generator()
    x, z = equation.prior((4, 3), rng), torch.randn(4, 3, generator=rng)
    length = 2 * (0.16 * z.norm(dim=1).mean() / x.norm(dim=1).mean()) ** 2
    x = x - length * x + (2 * length).sqrt() * z
    score: Score = lambda x, t: -x  # noqa: E731
    found = sde.predictor_corrector(equation, score, (4, 3), generator(), 1, eps=0.1)
    torch.testing.assert_close(found, x * (1 - 0.9 * 2 * math.log(10)))


def test_times_of_the_loss():
    """Spread evenly from eps to 1."""
    seen: list[Tensor] = []
    sde.score_loss(VP(), lambda x, t: seen.append(t) or -x, torch.zeros(MANY, 1), generator(), 0.4)
    low, middle, high = (float(f(seen[0])) for f in (torch.min, torch.median, torch.max))
    assert 0.4 <= low < 0.41 and middle == pytest.approx(0.7, abs=0.01) and 0.99 < high <= 1


def test_samplers_follow_no_gradients_but_a_score_may():
    weight = torch.ones((), requires_grad=True)

    def guided(x: Tensor, t: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((-0.5 * weight * leaf**2).sum(), leaf)
        return gradient

    for function, _ in SAMPLERS.values():
        assert not function(VE(), guided, (3, 2), generator(), steps=3).requires_grad
        assert not function(
            VE(), lambda x, t: -weight * x, (3,), generator(), steps=3
        ).requires_grad


def test_langevin_steps_stay_finite_where_the_score_vanishes():
    for scale in (0.0, 1e-10, 1e-30):
        x = sde.predictor_corrector(
            VE(), lambda x, t, s=scale: s * x, (50, 3), generator(), steps=10, corrections=3
        )
        assert x.isfinite().all() and float(x.abs().max()) < 100
