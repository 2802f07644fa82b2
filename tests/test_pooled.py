"""Targets of the predictor: what tasks have in common, and of their own what is not chance."""

import pytest
import torch
from torch import Tensor

from fedtailor.pretrain.predictor import pooled
from fedtailor.search.predictor import standardised

TASKS, ARCHS = 40, 300


def made_up(own: float, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, their halves and the truth: common effects of size 1, a task's own, chance."""
    rng = torch.Generator().manual_seed(0)
    common = torch.randn(ARCHS, generator=rng)
    truth = common + own * torch.randn(TASKS, ARCHS, generator=rng)
    chance = noise * torch.randn(TASKS, ARCHS, 2, generator=rng)
    halves = truth[..., None] + chance
    return halves.mean(2), halves, truth


def agreement(first: Tensor, second: Tensor) -> float:
    """Return the correlation within tasks."""
    return float((standardised(first) * standardised(second)).mean())


@pytest.mark.parametrize("own", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_of_a_tasks_own_the_share_that_is_not_chance_is_kept(own: float, noise: float):
    values, halves, truth = made_up(own, noise)
    target, share = pooled(values, halves)
    assert share == pytest.approx(own**2 / (own**2 + noise**2 / 2), abs=0.05)
    assert agreement(target, truth) > agreement(values, truth) - 0.01
    if noise == 2.0:
        assert agreement(target, truth) > agreement(values, truth) + 0.05


def test_without_chance_nothing_is_taken_off():
    values, halves, _ = made_up(0.7, 0.0)
    target, share = pooled(values, halves)
    assert share == pytest.approx(1.0, abs=1e-5)
    assert agreement(target, values) > 0.99


def test_equal_architectures_have_no_targets():
    target, share = pooled(torch.ones(3, 5), torch.ones(3, 5, 2))
    assert share == 0.0 and torch.equal(target, torch.zeros(3, 5))


def test_halves_that_contradict_each_other_are_chance():
    values, halves, _ = made_up(1.0, 0.1)
    wrong = torch.stack([halves[..., 0], -halves[..., 0]], 2)
    assert pooled(values, wrong)[1] == 0.0
