"""One table over every space and fixed model there is: a new file is tested from its first day."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from fedtailor import cost, learn, registry
from fedtailor.types import Setting, Task

EVERY = registry.names("space")
CIFAR = Task((3, 32, 32), 10)
TASKS = [CIFAR, Task((1, 28, 28), 3)]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("task", TASKS)
def test_builds_forward_and_backward(name: str, task: Task):
    space = registry.find("space", name)()
    arch = tuple(0 for _ in space.choices)
    setting = Setting(task, space, 1, 0)
    model = learn.model_of(setting, learn.initial_weights(setting, arch), "cpu", arch)
    images = torch.randn(4, *task.shape, generator=torch.Generator().manual_seed(0))
    logits = model(images)
    assert logits.shape == (4, task.classes)
    F.cross_entropy(logits, torch.arange(4) % task.classes).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert any(name.startswith("head.") for name, _ in model.named_parameters())


@pytest.mark.parametrize("name", EVERY)
def test_costs_are_counted(name: str):
    space = registry.find("space", name)()
    arch = tuple(0 for _ in space.choices)
    model = space.build(arch, CIFAR)
    assert cost.parameters(space, arch, CIFAR) == sum(p.numel() for p in model.parameters())
    macs = cost.forward_macs(space, arch, CIFAR)
    assert 2 * macs < cost.training_macs(space, arch, CIFAR) <= 3 * macs
    small, large = (cost.training_memory(space, arch, CIFAR, batch) for batch in (8, 16))
    assert small < large < 2 * small + 1


@pytest.mark.parametrize("name", EVERY)
def test_is_a_value(name: str):
    """Caches are keyed by spaces, and workers rebuild them from their fields."""
    kind = registry.find("space", name)
    assert kind() == kind() and hash(kind()) == hash(kind())
    assert dataclasses.fields(kind)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("cnn", 479_386), ("resnet18", 11_173_962), ("mobilenetv3_large", 4_214_842)],
)
def test_parameter_counts_of_published_sizes(name: str, parameters: int):
    assert cost.parameters(registry.find("space", name)(), (), CIFAR) == parameters
