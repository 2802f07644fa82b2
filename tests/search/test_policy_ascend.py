"""How policies learn, against torch's own Adam."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.search import policy
from fedtailor.search.policy import Policies, ascend
from tests.helpers.made_up import Coin, Fixed, generator


def test_the_plain_rule_adds_the_gradient_to_what_moves():
    old = torch.tensor([[1.0, 2, 3], [4, 5, 6]], dtype=torch.float64)
    before = Policies((4, 7), old, old.new_zeros(2, 3, 3))
    gradient = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    some = torch.tensor([True, False, True])
    after = ascend(before, {7: gradient, 2: -gradient}, {7: some, 2: ~some}, "plain", 10.0)
    assert after.numbers == (4, 7, 2), "new ones are appended"
    rows = [[1, 2, 3], [5, 5, 9], [0, -2, 0]]
    assert torch.allclose(after.alphas, torch.tensor(rows, dtype=torch.float64))
    assert after.alphas.dtype == torch.float64 and not after.moments.any()
    assert before.alphas.tolist() == [[1, 2, 3], [4, 5, 6]], "the old policies are not written to"
    assert after.row(2, 3).tolist() == [0, -2, 0] and after.row(9, 3).tolist() == [0, 0, 0]
    assert ascend(before, {}, {}, "plain", 1.0) is before


def test_adam_is_torchs_where_everything_moves():
    rng = generator(8)
    state, everything = Policies(), torch.ones(5, dtype=torch.bool)
    leaves: dict[int, Tensor] = {}
    optimizers: dict[int, torch.optim.Adam] = {}
    for step in range(12):
        numbers = [0, 3] if step % 3 else [3, -1]  # each has its own steps
        gradients = {n: torch.randn(5, generator=rng, dtype=torch.float64) for n in numbers}
        state = ascend(state, gradients, dict.fromkeys(numbers, everything), "adam", 0.5)
        for number, gradient in gradients.items():
            if number not in leaves:
                leaves[number] = torch.zeros(5, dtype=torch.float64)
                optimizers[number] = torch.optim.Adam(
                    [leaves[number]], lr=0.5, betas=(0.5, 0.999), maximize=True
                )
            leaves[number].grad = gradient
            optimizers[number].step()
    assert state.numbers == (3, -1, 0)
    for number, leaf in leaves.items():
        assert torch.allclose(state.row(number, 5), leaf, atol=1e-9)


def test_adam_leaves_alone_what_does_not_move():
    """Every alpha is as if it had an optimizer of its own, stepped only when it moves."""
    rng = generator(9)
    state = Policies()
    leaves = [torch.zeros(1, dtype=torch.float64) for _ in range(6)]
    own = [torch.optim.Adam([leaf], lr=0.3, betas=(0.5, 0.999), maximize=True) for leaf in leaves]
    for _ in range(15):
        gradient = torch.randn(6, generator=rng, dtype=torch.float64)
        moved = torch.rand(6, generator=rng) < 0.5
        before = state
        state = ascend(state, {1: gradient}, {1: moved}, "adam", 0.3)
        if before.numbers:
            assert torch.equal(state.alphas[0, ~moved], before.alphas[0, ~moved])
            assert torch.equal(state.moments[0, :, ~moved], before.moments[0, :, ~moved])
        for place in moved.nonzero().flatten().tolist():
            leaves[place].grad = gradient[place : place + 1]
            own[place].step()
    assert torch.allclose(state.row(1, 6), torch.cat(leaves), atol=1e-9)
    assert state.moments.shape == (1, 3, 6)


@pytest.mark.parametrize("reward", [1e-4, 1e-2, 0.2])
def test_adam_erases_the_rewards_scale_and_the_plain_rule_does_not(reward: float):
    """The figures are those of the authors' code: a constant reward, one side always drawn."""
    sides: dict[Any, list[float]] = {"adam": [], "plain": []}
    for rule, chances in sides.items():
        state = Policies()
        for _ in range(3):
            gradient = reward * policy.score(Coin(), state.row(0, 2), (0,))
            moved = policy.acting(Coin(), (0,))
            state = ascend(state, {0: gradient}, {0: moved}, rule, 0.5)
            chances.append(float(policy.probabilities(Coin(), state.row(0, 2))[0][0]))
    assert sides["adam"] == pytest.approx([0.731, 0.866, 0.926], abs=1e-3)
    first = 1 / (1 + math.exp(-0.5 * reward))  # alphas of plus and minus reward / 4
    assert sides["plain"][0] == pytest.approx(first, rel=1e-12)
    assert sides["plain"][2] - 0.5 == pytest.approx(0.375 * reward, rel=0.1)


def test_a_fixed_model_has_an_empty_policy():
    nothing = torch.zeros(0, dtype=torch.float64)
    assert policy.draw(Fixed(), nothing, generator()) == ()
    assert policy.score(Fixed(), nothing, ()).shape == (0,)
    assert policy.acting(Fixed(), ()).shape == (0,)
    assert policy.entropies(Fixed(), nothing) == []
    assert policy.likeliest_within(Fixed(), nothing, lambda arch: 1.0, 0.5) == ()
    there = torch.zeros(0, dtype=torch.bool)
    once = ascend(Policies(), {0: nothing}, {0: there}, "adam", 1.0)
    twice = ascend(once, {1: nothing}, {1: there}, "adam", 1.0)
    assert twice.numbers == (0, 1) and twice.alphas.shape == (2, 0)
