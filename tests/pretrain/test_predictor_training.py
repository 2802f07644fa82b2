"""What a predictor learns from and is judged by, against truths that are known."""

from typing import cast

import pytest
import torch
from torch import Tensor

from fedtailor.pretrain.network_training import Training
from fedtailor.pretrain.predictor_training import Lessons, loss_of, pooled, ranking
from fedtailor.search.diffusion.predictor import Predictor, standardised
from fedtailor.search.diffusion.sde import VE

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


# what is learned and how it is judged


class Knowing:
    """A predictor that knows the truth: the data say which value of which token is worth what."""

    sde = VE()

    def __init__(self) -> None:
        self.asked: list[tuple[Tensor, Tensor, Tensor]] = []

    def embed(self, values: Tensor, present: Tensor) -> Tensor:
        assert bool(present.all())
        return values[:, 0, 0]

    def __call__(self, x: Tensor, t: Tensor, embedding: Tensor | None) -> Tensor:
        return x.flatten(1) @ embedding if embedding is not None else x[:, 0, 0]

    def loss(self, x0: Tensor, t: Tensor, targets: Tensor, data: Tensor, rng: object) -> Tensor:
        assert float(t.min()) > 0 and float(t.max()) <= 1
        self.asked.append((x0, targets, data))
        return targets.sum()


def known(tasks: int = 12, archs: int = 80) -> Lessons:
    """Of tasks the first 8 are learned from, of architectures the first 50."""
    rng = torch.Generator().manual_seed(1)
    tables, worth = torch.randn(archs, 3, 4, generator=rng), torch.randn(tasks, 12, generator=rng)
    truth = worth @ tables.flatten(1).T
    halves = torch.stack([truth, -truth], 2)
    truth[:8] *= -1  # so that learned tasks cannot be mistaken for others
    present = torch.ones(tasks, 1, 1, dtype=torch.bool)
    target, shares = torch.randn(tasks, archs, generator=rng), torch.zeros(3, 4)
    worth = worth[:, None, None]
    return Lessons(tables, truth, -truth, halves, target, 1.0, worth, present, shares, 8, 50)


def test_a_predictor_that_knows_the_truth_is_told_from_one_that_does_not():
    found = ranking(cast(Predictor, Knowing()), known(), torch.Generator().manual_seed(0))
    assert found["own_clean"] > 0.9 and found["own_likelihood"] < -0.9
    assert 0.2 < found["own_noisy"] < found["own_half"] < found["own_clean"]
    assert abs(found["other_clean"]) < 0.3 and abs(found["none_clean"]) < 0.3
    assert found["other_clean"] != found["none_clean"]
    assert found["seen_tasks_clean"] < -0.9 and found["halves"] == pytest.approx(-1)


@pytest.mark.parametrize("over", ["task", "all"])
def test_targets_belong_to_their_architectures_and_data(over: str):
    lessons, knowing = known(), Knowing()
    kind = "task" if over == "task" else "all"
    loss = loss_of(cast(Predictor, knowing), lessons, Training(1, 12, 0.1), 4, kind)
    seen: set[tuple[int, int]] = set()
    wanted = standardised(lessons.target[:8, :50], kind)
    for step in range(50):
        loss(step, torch.Generator().manual_seed(step))
        x0, targets, data = knowing.asked[-1]
        assert len(x0) == 12
        for table, target, embedding in zip(x0, targets, data, strict=True):
            [arch] = (lessons.tables == table).flatten(1).all(1).nonzero()[:, 0].tolist()
            [task] = (lessons.values[:, 0, 0] == embedding).all(1).nonzero()[:, 0].tolist()
            assert float(target) == float(wanted[task, arch])
            seen.add((task, arch))
    assert {task for task, _ in seen} == set(range(8))
    assert {arch for _, arch in seen} == set(range(50))
