"""The architecture that is deployed: the most probable one, or one that a device can hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core import registry
from fedtailor.core.space import Arch
from fedtailor.networks import cost
from fedtailor.search import genes, policy
from fedtailor.spaces.mobilenetv3 import GENES, MobileNetV3
from tests.helpers.made_up import (
    NAMES,
    TASK,
    Edges,
    Fixed,
    Layers,
    chance,
    cpu,
    drawn_alphas,
    every_draw,
    length,
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(data=st.data())
def test_the_likeliest_is_legal_and_takes_the_best_option(name: str, data: st.DataObject):
    space = cpu(name)
    values = st.lists(st.integers(0, 2), min_size=length(space), max_size=length(space))
    alphas = torch.tensor(data.draw(values), dtype=torch.float64)
    found = policy.likeliest(space, alphas)
    assert genes.is_legal(space, found)
    assert all(type(gene) is int for gene in found)
    if name == "darts":  # a cell that is fed by nothing is repaired
        return
    acting = policy.acting(space, found).split(genes.option_counts(space))
    for place, (part, gene, there) in enumerate(
        zip(alphas.split(genes.option_counts(space)), found, acting, strict=True)
    ):
        middle = (len(part) - 1) // 2
        if there.all():
            every = (genes.with_gene(found, place, option) for option in range(len(part)))
            same = torch.tensor([space.repair(arch) == found for arch in every])
            assert part[same].max() == part.max()
            assert gene == middle or part[middle] < part.max(), "of equals, the middle"


@pytest.mark.parametrize("name", registry.names("space"))
def test_the_likeliest_of_an_undecided_policy_is_the_middle(name: str):
    kind = registry.find("space", name)
    for fields in ({}, *kind.presets.values()):
        space = kind(**fields)
        undecided = torch.zeros(length(space), dtype=torch.float64)
        assert policy.likeliest(space, undecided) == space.middle()


def test_layers_that_the_middle_has_not_are_middling_too():
    """Only depth has been decided: the further layers are undecided, not the smallest."""
    space = MobileNetV3(**MobileNetV3.presets["cpu"])
    alphas = torch.zeros(length(space), dtype=torch.float64)
    for start in genes.offsets(space)[:-1:GENES]:
        alphas[start + 2] = 1.0  # of a stage's depths, four layers
    assert policy.likeliest(space, alphas) == space.repair((2, *[1] * (GENES - 1)) * 5)


def test_the_likeliest_by_hand():
    alphas = torch.tensor([0.1, 0, 0.2, 5, 0, 5, 0, 0.1], dtype=torch.float64)
    assert policy.likeliest(Layers(), alphas) == (2, 0, 1), "first of the best without the middle"
    alphas[0] = 0.3
    assert policy.likeliest(Layers(), alphas) == (0, 0, 0), "absent layers in their one form"
    assert policy.likeliest(Edges(), torch.tensor([1.0, 0, 1, 0, 0, 1, 0, 0])) == (1, 0, 0, 0)
    assert policy.likeliest(Fixed(), torch.zeros(0)) == ()


def size_of_layers(arch: Arch) -> float:
    return 10 * arch[0] + (2 * arch[1] if arch[0] > 0 else 0) + (3 * arch[2] if arch[0] > 1 else 0)


@given(st.integers(0, 10_000), st.floats(-1, 30))
def test_the_likeliest_within_a_limit_fits_it(seed: int, limit: float):
    space, alphas = Layers(), drawn_alphas(Layers(), seed, scale=3)
    found = policy.likeliest_within(space, alphas, size_of_layers, limit)
    assert genes.is_legal(space, found)
    if limit >= 0:
        assert size_of_layers(found) <= limit
    else:
        assert found == space.smallest(), "nothing fits: as small as can be"
    best = policy.likeliest(space, alphas)
    if size_of_layers(best) <= limit:
        assert found == best, "what fits is left alone"


@given(st.integers(0, 10_000))
def test_one_step_down_is_to_the_most_probable_smaller_architecture(seed: int):
    """Which is that of the most probable draw that comes to it."""
    space, alphas = Layers(), drawn_alphas(Layers(), seed, scale=3)
    alphas[2] = 20.0  # both layers are there, so that all genes act
    best = policy.likeliest(space, alphas)
    chances: dict[Arch, float] = {}
    for drawn in every_draw(space):
        arch = space.repair(drawn)
        chances[arch] = max(chances.get(arch, 0.0), chance(space, alphas, drawn))
    near = [a for a in genes.neighbours(space, best) if size_of_layers(a) < size_of_layers(best)]
    found = policy.likeliest_within(space, alphas, size_of_layers, size_of_layers(best) - 0.5)
    assert found == max(near, key=chances.__getitem__)


def test_a_layer_that_goes_takes_its_decisions_with_it():
    """Its kernel was certain to be large: that is no reason to keep the layer."""
    alphas = torch.tensor([0, 0.9, 1, 0, 0, 3, 0, 9], dtype=torch.float64)
    assert policy.likeliest(Layers(), alphas) == (2, 2, 1)
    found = policy.likeliest_within(Layers(), alphas, size_of_layers, 26)
    assert found == (1, 2, 0)


@pytest.mark.parametrize("name", NAMES)
def test_limits_on_real_spaces(name: str):
    space = cpu(name)

    def size(arch: Arch) -> float:
        return cost.parameters(space, arch, TASK)

    for seed in range(2):
        alphas = drawn_alphas(space, seed, scale=3)
        best, least = size(policy.likeliest(space, alphas)), size(space.smallest())
        for limit in (least, (best + least) / 2, best):
            found = policy.likeliest_within(space, alphas, size, limit)
            assert genes.is_legal(space, found)
            assert size(found) <= limit
        bottom = policy.likeliest_within(space, alphas, size, -1.0)
        assert size(bottom) <= least
        assert all(size(other) >= size(bottom) for other in genes.neighbours(space, bottom))


def test_limits_on_the_memory_of_cells():
    """Every operation of a cell is priced, and hundreds of cells."""
    space, alphas = cpu("darts"), drawn_alphas(cpu("darts"), seed=1, scale=3)

    def size(arch: Arch) -> float:
        return cost.training_memory(space, arch, TASK, 16)

    best, least = size(policy.likeliest(space, alphas)), size(space.smallest())
    for share in (0.9, 0.5, 0.1):
        limit = least + share * (best - least)
        found = policy.likeliest_within(space, alphas, size, limit)
        assert genes.is_legal(space, found) and least <= size(found) <= limit
    bottom = policy.likeliest_within(space, alphas, size, 0.0)
    assert all(size(other) >= size(bottom) for other in genes.neighbours(space, bottom))


def test_few_sizes_are_asked_for():
    """A size takes milliseconds, and a large space has hundreds of neighbours."""
    space, asked = cpu("mobilenetv3"), 0

    def size(arch: Arch) -> float:
        nonlocal asked
        asked += 1
        return sum(arch)

    alphas = drawn_alphas(space, seed=1)
    best = sum(policy.likeliest(space, alphas))
    policy.likeliest_within(space, alphas, size, best - 1)
    assert asked < length(space) / 4
