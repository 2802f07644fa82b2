import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.core.space import SearchSpace, Task
from fedtailor.core.types import Budget, Setting
from fedtailor.networks import cost, counting
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import network_of, weights_of
from fedtailor.spaces.cnn import CNN
from fedtailor.spaces.resnet18 import ResNet18

CIFAR = Task((3, 32, 32), 10)
DIGITS = Task((1, 8, 8), 10)


def test_parameters_of_published_sizes():
    assert cost.parameters(ResNet18(), (), CIFAR) == 11_173_962
    assert cost.parameters(ResNet18(norm="group"), (), CIFAR) == 11_173_962
    assert cost.parameters(CNN(), (), CIFAR) == 479_386


def test_macs_counted_by_hand():
    """Two 3x3 convolutions on 8x8 and 4x4 maps, then 32 -> 16 -> 10."""
    convolutions = 8 * 8 * 9 * 1 * 4 + 4 * 4 * 9 * 4 * 8
    linear = 8 * 2 * 2 * 16 + 16 * 10
    space = CNN(width=4, hidden=16)
    assert cost.forward_macs(space, (), DIGITS) == convolutions + linear
    # Backward: once more for every weight, once more for every input but the images.
    images = 8 * 8 * 9 * 1 * 4
    whole = 3 * (convolutions + linear) - images
    assert cost.training_macs(space, (), DIGITS) == whole
    body = frozenset({"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"})
    body |= {"hidden.weight", "hidden.bias"}
    assert cost.training_macs(space, (), DIGITS, body) == convolutions + linear + 16 * 10


def test_counts_are_the_same_where_nothing_is_differentiated():
    """Torch takes other ways in inference mode, and counts are kept for all that follow."""
    space = CNN(width=4, hidden=16)
    usual = cost.forward_macs(space, (), DIGITS)
    counting.forward.cache_clear()
    with torch.inference_mode():
        assert cost.forward_macs(space, (), DIGITS) == usual > 0


def test_grouped_convolutions_cost_as_much_backward_as_forward_for_each_gradient():
    class Space(SearchSpace):
        def build(self, arch: tuple[int, ...], task: Task) -> nn.Module:
            layers = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Flatten()
            return nn.Sequential(*layers)

    first, second = 8 * 8 * 8, 8 * 8 * 8 * 9
    assert cost.forward_macs(Space(), (), DIGITS) == first + second
    assert cost.training_macs(Space(), (), DIGITS) == 2 * first + 3 * second


def test_wire_bytes_are_those_of_the_weights():
    space = ResNet18(width=4)
    model = space.build((), DIGITS)
    sent = sum(t.numel() * t.element_size() for t in weights_of(model).values())
    assert cost.wire_bytes(space, (), DIGITS) == sent


def test_training_memory_is_what_autograd_keeps():
    """Against the sizes of a two-layer network's saved tensors, added up by hand."""

    class Space(SearchSpace):
        def build(self, arch: tuple[int, ...], task: Task) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))

    weights = 4 * (64 * 32 + 32 + 32 * 10 + 10)
    batch = 8
    saved = (
        4 * batch * (64 + 32 + 10) + 8 * batch + 4
    )  # inputs, sigmoid, log-softmax, labels, weight
    assert cost.training_memory(Space(), (), DIGITS, batch) == 3 * weights + saved


def test_memory_grows_with_batch_and_width():
    small = cost.training_memory(CNN(), (), CIFAR, 8)
    assert small < cost.training_memory(CNN(), (), CIFAR, 16)
    assert small < cost.training_memory(CNN(width=64), (), CIFAR, 8)


def test_round_time():
    assert cost.round_seconds(2e9, 25_000_000, Budget(speed=1e9, mbps=100)) == pytest.approx(4.0)


def test_counting_computes_nothing():
    """A network of half a terabyte is counted like any other."""
    assert cost.parameters(CNN(hidden=30_000_000), (), CIFAR) > 1e11
    assert torch.device("meta").type == "meta"


def test_a_model_that_cannot_be_is_one_sentence():
    with pytest.raises(UserError, match=r"space\.groups"):
        ResNet18(norm="group", groups=3).build((), CIFAR)
    with pytest.raises(UserError, match="4x4"):
        CNN().build((), Task((1, 3, 3), 2))


@pytest.mark.parametrize("name", registry.names("space"))
def test_training_memory_against_what_torch_allocates(name: str):
    """The peak of a real step, read from the profiler's record of every allocation."""
    kind = registry.find("space", name)
    space = kind(**kind.presets.get("cpu", {}))
    setting, batch = Setting(CIFAR, space, 1, 0, space.middle()), 16
    model = network_of(setting.space, setting.arch, setting.task, initial_weights(setting)).module
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.randn(batch, *CIFAR.shape).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), torch.zeros(batch, dtype=torch.int64)).backward()
        optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    events: list[Any] = profile.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    peak = max(itertools.accumulate(sizes))
    before = 2 * sum(p.nbytes for p in model.parameters()) + images.nbytes  # and momentum
    estimate = cost.training_memory(space, setting.arch, CIFAR, batch)
    assert estimate == pytest.approx(before + peak, rel=0.2)
