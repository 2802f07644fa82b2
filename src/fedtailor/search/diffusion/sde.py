"""Diffusion in continuous time: two equations that turn data into noise, three ways back.

Song et al. 2021, "Score-Based Generative Modeling through Stochastic Differential Equations", whose
numbers of equations are given. Forwards dx = f(x, t) dt + g(t) dw from t = 0 to 1 (Eq. 5);
backwards dx = [f(x, t) - g(t)^2 score(x, t)] dt + g(t) dw (Eq. 6), where score is the gradient of
log p_t. DiffusionNAG (An et al. 2024) generates architectures so, by the VE equation.

Times are tensors of one entry per row of x, also where all rows share the time. Samplers follow no
gradients; a score that needs them, as guidance does, turns them on by `torch.enable_grad`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Score: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # of x (n, ...) and its times (n,)
Shape: TypeAlias = tuple[int, ...]

EPSILON = 1e-3  # the time at which samplers stop: at 0 VP's score is infinite


@dataclass(frozen=True)
class VE:
    """The variance explodes (Eq. 9): x_t = x_0 + sigma z, sigma = s_min (s_max / s_min)^t.

    So some noise, of s_min, is already there at t = 0.
    """

    s_min: float = 0.1
    s_max: float = 5.0

    def drift(self, x: Tensor, t: Tensor) -> Tensor:
        """Return f(x, t)."""
        del t
        return torch.zeros_like(x)

    def diffusion(self, t: Tensor) -> Tensor:
        """Return g(t)."""
        return self.marginal(t)[1] * math.sqrt(2 * math.log(self.s_max / self.s_min))

    def marginal(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return scale and std of x_t = scale x_0 + std z."""
        return torch.ones_like(t), self.s_min * (self.s_max / self.s_min) ** t

    def prior(self, shape: Shape, rng: torch.Generator) -> Tensor:
        """Draw x_1, as if of data that are all 0: s_max should be large beside them."""
        return self.s_max * torch.randn(shape, generator=rng)


@dataclass(frozen=True)
class VP:
    """The variance is preserved (Eq. 11): beta goes from beta_min to beta_max in a line."""

    beta_min: float = 0.1
    beta_max: float = 20.0

    def drift(self, x: Tensor, t: Tensor) -> Tensor:
        """Return f(x, t)."""
        return -0.5 * _rows(self._beta(t), x) * x

    def diffusion(self, t: Tensor) -> Tensor:
        """Return g(t)."""
        return self._beta(t).sqrt()

    def marginal(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return scale and std of x_t = scale x_0 + std z."""
        total = self.beta_min * t + (self.beta_max - self.beta_min) * t**2 / 2
        return (-total / 2).exp(), (-torch.expm1(-total)).sqrt()

    def prior(self, shape: Shape, rng: torch.Generator) -> Tensor:
        """Draw x_1 from N(0, 1)."""
        return torch.randn(shape, generator=rng)

    def _beta(self, t: Tensor) -> Tensor:
        return self.beta_min + (self.beta_max - self.beta_min) * t


SDE: TypeAlias = VE | VP


def score_loss(
    sde: SDE, score: Score, x0: Tensor, rng: torch.Generator, eps: float = EPSILON
) -> Tensor:
    """Return the mean of (score std + z)^2 at random times (Eq. 7, weighted by the variance)."""
    t = eps + (1 - eps) * torch.rand(len(x0), generator=rng)
    z = torch.randn(x0.shape, generator=rng)
    scale, std = (_rows(each, x0) for each in sde.marginal(t))
    return ((score(scale * x0 + std * z, t) * std + z) ** 2).mean()


def euler_maruyama(
    sde: SDE, score: Score, shape: Shape, rng: torch.Generator, steps: int, eps: float = EPSILON
) -> Tensor:
    """Draw samples by steps of Eq. 6, the last without its noise; one evaluation a step."""
    return predictor_corrector(sde, score, shape, rng, steps, eps, corrections=0)


@torch.no_grad()
def predictor_corrector(
    sde: SDE,
    score: Score,
    shape: Shape,
    rng: torch.Generator,
    steps: int,
    eps: float = EPSILON,
    snr: float = 0.16,
    corrections: int = 1,
) -> Tensor:
    """Draw samples as `euler_maruyama` does, with Langevin steps before every step (Appendix G).

    One evaluation a step and one a correction. The rows of a batch share the length of Langevin
    steps, to which all of them contribute.
    """
    x = mean = sde.prior(shape, rng)
    for t, dt in _times(x, steps, eps):
        for _ in range(corrections):
            x = _langevin(x, score(x, t), float(sde.marginal(t[0])[1]), snr, rng)
        g = _rows(sde.diffusion(t), x)
        mean = x - dt * (sde.drift(x, t) - g**2 * score(x, t))
        x = mean + g * math.sqrt(dt) * torch.randn(x.shape, generator=rng)
    return mean


@torch.no_grad()
def heun(
    sde: SDE, score: Score, shape: Shape, rng: torch.Generator, steps: int, eps: float = EPSILON
) -> Tensor:
    """Draw samples by Heun's method on the probability flow dx/dt = f - g^2 score / 2 (Eq. 13).

    Noise is drawn at the start alone; two evaluations a step.
    """

    def slope(x: Tensor, t: Tensor) -> Tensor:
        return sde.drift(x, t) - 0.5 * _rows(sde.diffusion(t), x) ** 2 * score(x, t)

    x = sde.prior(shape, rng)
    for t, dt in _times(x, steps, eps):
        first = slope(x, t)
        x = x - 0.5 * dt * (first + slope(x - dt * first, t - dt))
    return x


def _times(x: Tensor, steps: int, eps: float) -> Iterator[tuple[Tensor, float]]:
    """Return the time of every row and the length of the step, from 1 down to eps."""
    dt = (1 - eps) / steps
    return ((torch.full((len(x),), 1 - step * dt), dt) for step in range(steps))


def _langevin(x: Tensor, gradient: Tensor, std: float, snr: float, rng: torch.Generator) -> Tensor:
    """Return x after a step of length 2 (snr |z| / |gradient|)^2, norms averaged (Appendix G).

    Longer steps than the variance do not converge and are cut; a score near 0 asks for them.
    """
    z = torch.randn(x.shape, generator=rng)
    noise, steepness = (
        float(each.reshape(len(each), -1).norm(dim=1).mean()) for each in (z, gradient)
    )
    length = min(2 * (snr * noise / steepness) ** 2, std**2) if steepness else std**2
    return x + length * gradient + math.sqrt(2 * length) * z


def _rows(each: Tensor, x: Tensor) -> Tensor:
    """Shape one number per row so that it multiplies the rows of x."""
    return each.reshape(-1, *[1] * (x.dim() - 1))
