"""Training: rates and averages by hand, and the same bytes however often it is interrupted."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.types import Tensors
from fedtailor.pretrain import network_training as trainings
from fedtailor.pretrain.network_training import Checkpoint, Loss, Training, train
from tests.helpers.made_up import generator

SHORT = Training(10, 8, lr=0.01, warmup=3, ema=0.9)


class StopError(Exception):
    """What a kill looks like from inside."""


def model() -> nn.Sequential:
    """Return a network with dropout, batch statistics and a parameter that is not always used."""
    found = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
    found.append(nn.Linear(16, 1))
    found.register_parameter("rare", nn.Parameter(torch.zeros(2)))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator()))
    return found


def loss_of(found: nn.Module) -> Loss:
    def loss(step: int, rng: torch.Generator) -> Tensor:
        x = torch.randn(8, 3, generator=rng)
        rare = found.get_parameter("rare").sum() ** 2 if step % 4 == 1 else 0.0
        return ((found(x)[:, 0] - x.sum(1)) ** 2).mean() + rare

    return loss


def trained(**how: object) -> Tensors:
    found = model()
    return train(found, loss_of(found), SHORT, 5, **how).state_dict()  # pyright: ignore[reportArgumentType]


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def stop_at(step: int):
    def progress(done: int, total: int) -> None:
        assert total == SHORT.steps
        if done == step:
            raise StopError

    return progress


@pytest.mark.parametrize("stops", [(1,), (4,), (3, 7), (2, 3, 9)])
def test_it_goes_on_to_the_same_bytes(tmp_path: Path, stops: tuple[int, ...]):
    path = tmp_path / "a" / "checkpoint.safetensors"
    straight = tmp_path / "straight.safetensors"
    expected = trained(checkpoint=straight)
    for step in stops:
        with pytest.raises(StopError):
            trained(checkpoint=path, every=2, progress=stop_at(step))
        torch.rand(3)  # what else the process draws must not matter
    assert same(trained(checkpoint=path, every=2), expected)
    assert path.read_bytes() == straight.read_bytes()


def test_the_end_is_kept(tmp_path: Path):
    path = tmp_path / "checkpoint.safetensors"
    expected = trained(checkpoint=path)
    assert codec.read(Checkpoint, path).done == SHORT.steps
    found = model()

    def never(step: int, rng: torch.Generator) -> Tensor:
        raise AssertionError

    assert same(train(found, never, SHORT, 5, path).state_dict(), expected)


def test_a_kill_in_the_middle_of_writing_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "checkpoint.safetensors"
    codec.write_whole(path, {"step": 1})
    before, write = path.read_bytes(), codec.write

    def killed(part: Path, value: object) -> None:
        write(part, value)
        part.write_bytes(part.read_bytes()[:10])
        raise StopError

    monkeypatch.setattr(codec, "write", killed)
    with pytest.raises(StopError):
        codec.write_whole(path, {"step": 2})
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "header"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: str):
    path = tmp_path / "checkpoint.safetensors"
    trained(checkpoint=path)
    content = path.read_bytes()
    changed = {
        "cut": content[:-100],
        "empty": b"",
        "noise": bytes(range(256)) * 8,
        "header": content.replace(b'\\"seed\\"', b'\\"sead\\"'),
    }
    assert changed[damage] != content
    path.write_bytes(changed[damage])
    with pytest.raises(UserError, match=r"checkpoint\.safetensors: "):
        trained(checkpoint=path)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "checkpoint.safetensors"
    trained(checkpoint=path)
    found = model()
    for how, seed in ((SHORT, 6), (dataclasses.replace(SHORT, lr=0.02), 5)):
        with pytest.raises(UserError, match=r"checkpoint\.safetensors: .* other settings"):
            train(found, loss_of(found), how, seed, path)
    other = nn.Linear(3, 1)
    with pytest.raises(UserError, match=r"checkpoint\.safetensors: .* another network"):
        train(other, loss_of(other), SHORT, 5, path)


def test_global_randomness_is_left_alone():
    found, before = model(), torch.get_rng_state()
    train(found, loss_of(found), SHORT, 5)
    assert torch.equal(before, torch.get_rng_state())


def test_seeds_matter_and_numbers_of_checkpoints_do_not(tmp_path: Path):
    expected = trained()
    assert same(trained(checkpoint=tmp_path / "one", every=1), expected)
    found = model()
    assert not same(train(found, loss_of(found), SHORT, 6).state_dict(), expected)


def test_rates_by_hand():
    how = Training(100, lr=0.5, warmup=4, schedule="constant")
    assert [how.rate(step) for step in (0, 1, 3, 4, 99)] == [0.125, 0.25, 0.5, 0.5, 0.5]
    how = Training(100, lr=0.5, warmup=0, schedule="cosine")
    assert how.rate(0) == 0.5 and how.rate(50) == pytest.approx(0.25)
    assert how.rate(99) == pytest.approx(0.25 * (1 + math.cos(0.99 * math.pi)))
    how = Training(100, ema=0.99)  # min(decay, (1 + n) / (10 + n)) after the n-th step
    assert [how.decay(step) for step in (0, 1, 9)] == [2 / 11, 3 / 12, 11 / 20]
    assert how.decay(10_000) == 0.99


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_steps_and_average_by_hand(clip: float):
    """Adam's formulas on one number, its gradient cut, and the average after it."""
    found = nn.Linear(1, 1, bias=False)
    nn.init.constant_(found.weight, 2.0)
    how = Training(5, lr=0.1, warmup=2, clip=clip, ema=0.4, schedule="constant")
    weight = average = 2.0
    first = second = 0.0
    for step in range(5):
        slope = 2 * (weight - step)
        slope = max(-clip, min(clip, slope)) if clip else slope
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        bold, steep = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        weight -= how.rate(step) * bold / (math.sqrt(steep) + 1e-8)
        decay = min(0.4, (2 + step) / (11 + step))
        average = decay * average + (1 - decay) * weight
    train(found, lambda step, rng: ((found.weight - step) ** 2).sum(), how, 0)
    assert found.weight.item() == pytest.approx(average, abs=1e-5)
    assert not found.training


def test_infinite_gradients_are_told():
    found = nn.Linear(1, 1)
    with pytest.raises(UserError, match="step 1 is not finite"):
        train(found, lambda step, rng: (found.weight * math.nan).sum(), SHORT, 0)


def test_frozen_parameters_stay():
    found = model()
    found[0].requires_grad_(requires_grad=False)
    before = found[0].get_parameter("weight").clone()
    train(found, loss_of(found), SHORT, 0)
    assert torch.equal(found[0].get_parameter("weight"), before)


def test_the_papers_settings():
    score, predictor = trainings.PAPER_SCORE, trainings.PAPER_PREDICTOR
    assert (score.steps, score.lr, score.ema) == (1_000_000, 2e-5, 0.9999)
    assert (predictor.steps, predictor.lr) == (20_000, 1e-3)
    for each in (score, predictor):
        assert (each.batch, each.warmup, each.clip, each.schedule) == (256, 1000, 1.0, "constant")
    assert trainings.PAPER_SCORE_ARCHITECTURES == 500_000 and trainings.BETAS == (0.9, 0.999)
