"""One table over every space and fixed model there is: a new file is tested from its first day."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.core import registry
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Setting
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import network_of
from fedtailor.search import genes

EVERY = registry.names("space")
CIFAR = Task((3, 32, 32), 10)
TASKS = [CIFAR, Task((1, 28, 28), 3)]


def some_archs(space: SearchSpace, count: int) -> list[Arch]:
    """Return the smallest, the middle, the largest and some random architectures."""
    rng = torch.Generator().manual_seed(0)
    drawn = [genes.sample(space, rng) for _ in range(count if space.choices else 0)]
    return list(dict.fromkeys([space.smallest(), space.middle(), space.largest(), *drawn]))


def presets(name: str) -> list[SearchSpace]:
    kind = registry.find("space", name)
    return [kind(**fields) for fields in ({}, *kind.presets.values())]


def images(task: Task, count: int = 4) -> Tensor:
    drawn = torch.randn(count, *task.shape, generator=torch.Generator().manual_seed(0))
    return drawn.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("task", TASKS, ids=str)
def test_builds_forward_and_backward(name: str, task: Task):
    """Every parameter of an architecture is used: it gets a gradient."""
    kind = registry.find("space", name)
    space = kind(**kind.presets.get("cpu", {}))
    setting = Setting(task, space, 1, 0)
    for arch in some_archs(space, 3):
        model = network_of(setting.space, arch, setting.task, initial_weights(setting, arch)).module
        logits = model(images(task))
        assert logits.shape == (4, task.classes)
        F.cross_entropy(logits, torch.arange(4) % task.classes).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        assert any(name.startswith("head.") for name, _ in model.named_parameters())


@pytest.mark.parametrize("name", EVERY)
def test_every_preset_builds(name: str):
    """On the meta device, where size costs nothing."""
    for space in presets(name):
        for arch in some_archs(space, 2):
            with torch.device("meta"):
                model = space.build(arch, CIFAR)
                assert model(torch.empty(2, *CIFAR.shape)).shape == (2, 10)


@pytest.mark.parametrize("name", EVERY)
def test_a_preset_keeps_every_gene_and_every_option(name: str):
    """Presets shrink widths, cells and resolution, never the space."""
    default, *others = presets(name)
    for space in others:
        kept = {c.name: c.options for c in space.choices}
        for choice in default.choices:
            assert len(kept[choice.name]) == len(choice.options)
        for choice in space.choices:
            assert len(set(choice.options)) == len(choice.options)


@pytest.mark.parametrize("name", EVERY)
def test_options_make_a_difference(name: str):
    """In the middle architecture and its neighbours no two networks are the same."""
    for space in presets(name):
        middle = space.middle()
        around = {middle, *genes.neighbours(space, middle)}
        seen = {str(_pieces(space, arch)) for arch in around}
        assert len(seen) == len(around)


def _pieces(space: SearchSpace, arch: Arch) -> object:
    from fedtailor.networks.pieces import pieces_of

    return pieces_of(space, arch, CIFAR)


@pytest.mark.parametrize("name", EVERY)
def test_costs_are_counted(name: str):
    kind = registry.find("space", name)
    space = kind(**kind.presets.get("cpu", {}))
    for arch in some_archs(space, 1):
        model = space.build(arch, CIFAR)
        assert cost.parameters(space, arch, CIFAR) == sum(p.numel() for p in model.parameters())
        macs = cost.forward_macs(space, arch, CIFAR)
        assert 2 * macs < cost.training_macs(space, arch, CIFAR) <= 3 * macs
        small, large = (cost.training_memory(space, arch, CIFAR, batch) for batch in (8, 16))
        assert small < large < 2 * small + 1


@pytest.mark.parametrize("name", EVERY)
def test_multiply_adds_are_those_of_torchs_counter(name: str):
    """Forward and backward; its rule for grouped convolutions' backward pass is replaced."""
    from fedtailor.networks.flops import _convolution_backward_flops

    def backward(gradient: Any, images: Any, weight: Any, *rest: Any, **_: Any) -> int:
        shapes = [torch.empty(s, device="meta") for s in (gradient, images, weight)]
        return _convolution_backward_flops(*shapes, *rest)

    kind = registry.find("space", name)
    space = kind(**kind.presets.get("cpu", {}))
    for arch in some_archs(space, 1):
        with torch.device("meta"):
            model, drawn = space.build(arch, CIFAR), torch.empty(2, *CIFAR.shape)
        rules = {torch.ops.aten.convolution_backward: backward}
        with FlopCounterMode(display=False, custom_mapping=rules) as counter:
            logits = model(drawn)
            logits.backward(torch.empty_like(logits))
        assert cost.training_macs(space, arch, CIFAR) == counter.get_total_flops() / 4
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.eval()(drawn[:1])
        assert cost.forward_macs(space, arch, CIFAR) == counter.get_total_flops() // 2


@pytest.mark.parametrize("name", EVERY)
def test_costs_of_pieces_add_up_to_those_of_the_whole(name: str):
    """Piece by piece, and the network as one piece whose parts are not known."""

    @dataclasses.dataclass(frozen=True)
    class Whole(SearchSpace):
        space: SearchSpace

        def build(self, arch: Arch, task: Task) -> nn.Module:
            return self.space.build(arch, task)

    kind = registry.find("space", name)
    space = kind(**kind.presets.get("cpu", {}))
    for arch in some_archs(space, 1):
        for count in (cost.forward_macs, cost.training_macs, cost.wire_bytes):
            assert count(space, arch, CIFAR) == count(Whole(space), arch, CIFAR)
        memory = [cost.training_memory(s, arch, CIFAR, 8) for s in (space, Whole(space))]
        assert memory[0] == pytest.approx(memory[1], rel=0.01)
        frozen = frozenset(cost.parameter_names(space, arch, CIFAR)[:9])
        macs = [cost.training_macs(s, arch, CIFAR, frozen) for s in (space, Whole(space))]
        assert macs[0] == macs[1]


@pytest.mark.parametrize("name", EVERY)
def test_smallest_middle_and_largest_are_in_order_of_cost(name: str):
    for space in presets(name):
        if space.choices:
            archs = (space.smallest(), space.middle(), space.largest())
            assert all(genes.is_legal(space, arch) for arch in archs)
            for count in (cost.parameters, cost.forward_macs):
                small, middle, large = (count(space, arch, CIFAR) for arch in archs)
                assert small < middle < large


@pytest.mark.parametrize("name", EVERY)
def test_is_a_value(name: str):
    """Caches are keyed by spaces, and workers rebuild them from their fields."""
    kind = registry.find("space", name)
    assert kind() == kind() and hash(kind()) == hash(kind())
    assert dataclasses.fields(kind)
