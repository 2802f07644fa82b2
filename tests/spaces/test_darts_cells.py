"""Cells made of parts, against plain ones that are built whole: the same to the bit."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.space import Arch, Task
from fedtailor.core.types import Examples, Setting, Tensors
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.pieces import ChainSpace
from fedtailor.networks.store import Store
from fedtailor.search import genes
from fedtailor.spaces._darts_cell import Cell
from fedtailor.spaces.darts import DARTS
from fedtailor.training.optimise import SupernetOptimizer
from fedtailor.training.population import walk
from tests.helpers.plain_cells import SPACES, PlainSpace

TASK = Task((3, 12, 12), 4)
EACH = pytest.mark.parametrize("space", SPACES.values(), ids=list(SPACES))


def archs_of(space: ChainSpace, count: int) -> list[Arch]:
    if not space.choices:
        return [()]
    drawn = genes.sample_many(space, count, torch.Generator().manual_seed(1))
    return [space.smallest(), *drawn]


def weights_of(space: ChainSpace) -> Tensors:
    rng = torch.Generator().manual_seed(2)
    found = initial_supernet(Setting(TASK, space, 1, 0))
    return {n: w + 0.1 * torch.randn(w.shape, generator=rng) for n, w in found.items()}


def stores(space: ChainSpace) -> tuple[Store, Store]:
    weights = weights_of(space)
    return Store(space, TASK, weights), Store(PlainSpace(space), TASK, weights)


def batch() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    images = torch.randn(6, *TASK.shape, generator=rng)
    images = images.contiguous(memory_format=torch.channels_last)
    return images, torch.randint(TASK.classes, (6,), generator=rng)


def same(one: Tensors, other: Tensors) -> bool:
    """Compare names, their order and bits."""
    return list(one) == list(other) and all(torch.equal(one[n], other[n]) for n in one)


def trained(model: nn.Module) -> tuple[Tensor, Tensors, Tensors]:
    """Return a step's logits, gradients and what the network holds then."""
    images, labels = batch()
    torch.manual_seed(0)  # noise and dropped paths
    logits = model(images)
    F.cross_entropy(logits, labels).backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), found, {n: t.clone() for n, t in model.state_dict().items()}


@EACH
def test_a_step_of_a_bound_network_is_the_same_to_the_bit(space: ChainSpace):
    ours, plain = stores(space)
    for arch in archs_of(space, 3):
        one, other = trained(ours.bind(arch)), trained(plain.bind(arch))
        assert torch.equal(one[0], other[0])
        assert one[1] and same(one[1], other[1])
        assert same(one[2], other[2])
        with torch.inference_mode():
            torch.manual_seed(0)
            alone = ours.bind(arch).eval()(batch()[0])
            torch.manual_seed(0)
            assert torch.equal(alone, plain.bind(arch).eval()(batch()[0]))


@EACH
def test_a_built_network_is_the_same_to_the_bit(space: ChainSpace):
    arch = archs_of(space, 1)[-1]
    one, other = space.build(arch, TASK), PlainSpace(space).build(arch, TASK)
    other.load_state_dict(one.state_dict())
    assert [n for n, _ in one.named_parameters()] == [n for n, _ in other.named_parameters()]
    results = [trained(model) for model in (one, other)]
    assert torch.equal(results[0][0], results[1][0])
    assert all(same(*pair) for pair in zip(results[0][1:], results[1][1:], strict=True))


@pytest.mark.parametrize("name", ["darts path", "s4 path", "s1 relaxed"])
def test_training_several_architectures_at_once_is_the_same_to_the_bit(name: str):
    """They share operations, whose gradients add up in one place instead of several."""
    space = SPACES[name]
    images, labels = batch()
    found = []
    for store in stores(space):
        torch.manual_seed(0)
        optimizer = SupernetOptimizer(store, "sgd", 0.9, 0.01, clip=1.0)
        archs = archs_of(space, 8)
        for first in range(0, 9, 3):
            models = [store.bind(arch) for arch in archs[first : first + 3]]
            for model in models:
                F.cross_entropy(model(images), labels).backward()
            optimizer.step(models, 0.05)
        found.append(store.weights)
    assert same(*found)
    assert not same(found[0], weights_of(space))


@pytest.mark.parametrize("name", ["darts path", "s1 relaxed", "s5 relaxed"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_population_is_the_same_to_the_bit(name: str, calibrated: bool):
    space, rng = SPACES[name], torch.Generator().manual_seed(5)
    images = torch.randint(256, (11, *TASK.shape), generator=rng).to(torch.uint8)
    tested = Examples(images, torch.zeros(11).long(), torch.arange(11), (0.5,) * 3, (0.25,) * 3)
    parent = archs_of(space, 1)[-1]
    near = [genes.mutate(space, parent, rng, 0.05) for _ in range(4)]
    archs, few = [parent, *near, parent], tested if calibrated else None
    ours, plain = (dict(walk(store, archs, tested, few)) for store in stores(space))
    assert all(torch.equal(ours[number], plain[number]) for number in range(len(archs)))


def operations_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return a network's operations and preprocessings by name."""
    cells = {n: m for n, m in model.named_children() if isinstance(m, Cell)}
    return {
        f"{name}.{inner}": module
        for name, cell in cells.items()
        for inner, module in cell.named_modules()
        if inner.count(".") == inner.startswith("edge") and inner
    }


def test_architectures_share_the_operations_they_have_in_common():
    space = DARTS(channels=4, cells=4)
    store = Store(space, TASK, weights_of(space))
    first, second = archs_of(space, 2)[1:]
    one, other = (operations_of(store.bind(arch)) for arch in (first, second))
    assert len({*map(id, one.values())}) == len(one), "no module is in two places of a network"
    common = one.keys() & other.keys()
    assert 8 < len(common) < len(one)
    assert all(one[name] is other[name] for name in common)
    assert not {id(one[n]) for n in one.keys() - common} & {*map(id, other.values())}


def test_binding_resets_what_is_shared_and_nothing_else():
    space = DARTS(channels=4, cells=4, affine=True)
    store = Store(space, TASK, weights_of(space))
    first, second = archs_of(space, 2)[1:]
    model = store.bind(first)
    trained(model)
    model.eval()
    next(model.parameters()).requires_grad_(False)
    held = {n: t.clone() for n, t in model.state_dict().items()}
    shared = dict(store.bind(second).named_parameters())
    buffers = {id(b) for b in store.bind(second).buffers()}
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (shared.get(name) is parameter), name
        assert parameter.requires_grad
    fresh = space.build(first, TASK).state_dict()
    for name, buffer in model.named_buffers():
        expected = fresh if id(buffer) in buffers else held
        assert torch.equal(buffer, expected[name]), name
    common = operations_of(store.bind(second))
    for name, module in operations_of(model).items():
        assert module.training == (common.get(name) is module)
    assert all(module.training for module in store.bind(first).modules())


def test_operations_that_were_forgotten_are_bound_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedtailor.networks.store.KEPT_PIECES", 5)
    for name in ("darts path", "s1 relaxed"):
        ours, plain = stores(SPACES[name])
        for arch in archs_of(SPACES[name], 3) * 2:
            one, other = trained(ours.bind(arch)), trained(plain.bind(arch))
            assert torch.equal(one[0], other[0]) and same(one[1], other[1])
        assert len(ours._pieces) <= 5
