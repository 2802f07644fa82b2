"""The two MobileNetV3 spaces: published sizes, and learned kernel transforms."""

import math

import pytest
import torch
from torch.nn import functional as F

from fedtailor.core.space import Task
from fedtailor.networks import cost
from fedtailor.networks.store import full_shapes
from fedtailor.search import genes
from fedtailor.spaces._mobile import TransformedDepthwise
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from fedtailor.spaces.mobilenetv3_plato import MobileNetV3Plato

CIFAR = Task((3, 32, 32), 10)


def size(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def test_parameters_of_the_published_once_for_all_space():
    space = MobileNetV3()
    found = [cost.parameters(space, a, CIFAR) for a in three(space)]
    assert found == [2_142_602, 3_283_602, 6_396_570]  # 2.143, 3.284 and 6.397 M
    matrices = 20 * (25 * 25 + 9 * 9)
    for classes, millions in ((10, 6.411), (100, 6.526), (1000, 7.679)):
        task = Task((3, 32, 32), classes)
        whole = size(full_shapes(MobileNetV3(transforms=True), task))
        assert round(whole / 1e6, 3) == millions
        assert whole == size(full_shapes(space, task)) + matrices


def test_multiply_adds_of_the_published_once_for_all_space():
    """The reference counts the products with the kernel matrices too, once per image."""
    with_matrices, plain = MobileNetV3(transforms=True), MobileNetV3()
    small, middle, large = (cost.forward_macs(with_matrices, a, CIFAR) for a in three(plain))
    # Ours computes only the 9 of 25 outputs of the first matrix that a 3x3 kernel needs.
    small += 2064 * 16 * 25
    found = [macs / 1e6 for macs in (small, middle, large)]
    assert found == pytest.approx([12.7, 25.0, 49.6], abs=0.06)
    by_matrix = 2064 * (625 + 81)  # channels of the smallest's kernels, to 5x5 and then to 3x3
    assert small - cost.forward_macs(plain, plain.smallest(), CIFAR) == by_matrix


def three(space: MobileNetV3) -> tuple[tuple[int, ...], ...]:
    return space.smallest(), space.middle(), space.largest()


def test_genes_of_absent_layers_are_zero():
    space = MobileNetV3()
    assert len(space.choices) == 45
    arch = (0, *[2] * 44)  # the first stage has two layers only
    repaired = space.repair(arch)
    assert repaired[:9] == (0, 2, 2, 0, 0, 2, 2, 0, 0) and repaired[9:] == arch[9:]
    first, second = (space.pieces(a, CIFAR) for a in (arch, repaired))
    assert first == second, "equal networks have equal encodings"


def test_transformed_kernels_against_matrices_by_hand():
    """5x5: the centre of the 7x7 times a matrix; 3x3: the centre of that times another."""
    rng = torch.Generator().manual_seed(0)
    seven = torch.randn(6, 1, 7, 7, generator=rng)
    to5, to3 = torch.randn(25, 25, generator=rng), torch.randn(9, 9, generator=rng)
    five = (seven[:, 0, 1:6, 1:6].reshape(6, 25) @ to5).view(6, 1, 5, 5)
    three = (five[:, 0, 1:4, 1:4].reshape(6, 9) @ to3).view(6, 1, 3, 3)
    images = torch.randn(2, 6, 8, 8, generator=rng)
    full = {"weight": seven, "to5": to5.view(1, 25, 5, 5), "to3": to3.view(1, 9, 3, 3)}
    for kernel, expected in ((7, seven), (5, five), (3, three)):
        conv = TransformedDepthwise(6, kernel, 1)
        own = {"weight": full["weight"]}
        if kernel < 7:
            own = {"weight": seven[..., 1:6, 1:6], "to5": full["to5"]}
        if kernel == 3:
            own |= {"to5": full["to5"][..., 1:4, 1:4], "to3": full["to3"]}
        conv.load_state_dict(own)
        stock = F.conv2d(images, expected, padding=kernel // 2, groups=6)
        assert torch.allclose(conv(images), stock, atol=1e-4)


def test_parameters_of_the_plato_space():
    """Its public code also registers shortcut convolutions that no network uses."""
    space = MobileNetV3Plato()
    large, small = (cost.parameters(space, a, CIFAR) for a in (space.largest(), space.smallest()))
    assert large + 24**2 + 40**2 + 3 * 80**2 + 3 * 112**2 + 3 * 160**2 == 5_344_994
    assert small + 16**2 + 40**2 + 48**2 + 96**2 == 1_042_946
    assert len(space.choices) == 19
    assert genes.combinations(space) == 8_957_952
