"""Equal networks have equal encodings: what computes the same is repaired to the same genes."""

import dataclasses
import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.core import registry
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.networks import cost
from fedtailor.networks.pieces import Piece, pieces_of
from fedtailor.networks.store import Store, full_shapes, shapes
from fedtailor.search import genes, schemes
from fedtailor.search.diffusion import tokens
from fedtailor.spaces.darts import DARTS
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from fedtailor.spaces.mobilenetv3_plato import MobileNetV3Plato
from fedtailor.spaces.nasvit import NASViT

NARROW = {
    MobileNetV3: {"width": 0.02},
    MobileNetV3Plato: {"width": 0.02},
    NASViT: {"width": 0.02},
    DARTS: {"channels": 2, "cells": 3},
}
# space, preset, pixels of the images: kernels of which no option makes a difference, and of which
# two of three make the same
MERGED = {
    ("mobilenetv3", "default", 32): (3, 0),
    ("mobilenetv3", "default", 28): (3, 0),
    ("mobilenetv3", "default", 8): (15, 0),
    ("mobilenetv3", "default", 5): (15, 4),
    ("mobilenetv3", "paper", 32): (0, 0),
    ("mobilenetv3", "cpu", 32): (3, 8),
    ("mobilenetv3_plato", "default", 32): (0, 0),
    ("mobilenetv3_plato", "default", 16): (2, 0),
    ("mobilenetv3_plato", "default", 5): (3, 0),
    ("mobilenetv3_plato", "paper", 32): (0, 0),
    ("mobilenetv3_plato", "cpu", 8): (3, 0),
    ("darts", "default", 32): (0, 0),
    ("darts", "default", 8): (0, 0),
    ("darts", "cpu", 32): (0, 0),
    ("nasvit", "default", 32): (0, 0),
    ("nasvit", "default", 2): (2, 0),
    ("nasvit", "paper", 32): (0, 0),
    ("nasvit", "cpu", 32): (0, 0),
}
cases = pytest.mark.parametrize(("name", "preset", "pixels"), MERGED)
# the same preset on larger maps says nothing new, and DARTS is slow
COMPUTED = MERGED.keys() - {
    ("mobilenetv3", "default", 28),
    ("mobilenetv3_plato", "default", 32),
    ("darts", "default", 32),
    ("darts", "cpu", 32),
    ("nasvit", "default", 32),
}


def fitted(name: str, preset: str, pixels: int) -> tuple[SearchSpace, Task]:
    """Return a preset for images of a size, as narrow as may be: that changes no map's size."""
    kind = registry.find("space", name)
    task = Task((1, pixels, pixels), 3)
    fields = {"default": {}, **kind.presets}[preset]
    return kind(**fields | NARROW[kind]).at(task), task


def random_weights(space: SearchSpace, task: Task) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    kind = {"generator": rng, "dtype": torch.float64}
    return {
        name: torch.randn(shape, **kind) / (max(1, len(shape) - 1) * shape[-1])
        if len(shape) > 1
        else 0.5 + torch.rand(shape, **kind)
        for name, shape in full_shapes(space, task).items()
    }


class Outputs:
    """What networks make of some images, in double precision.

    Norms use the images' own statistics: with none measured they would hide what pools do.
    """

    def __init__(self, space: SearchSpace, task: Task, count: int) -> None:
        self.store = Store(space, task, random_weights(space, task))
        rng = torch.Generator().manual_seed(1)
        images = torch.randn(count, *task.shape, generator=rng, dtype=torch.float64)
        self.known: dict[tuple[Piece, ...], Any] = {(): images}  # what beginnings make of them

    def of(self, arch: Arch) -> Tensor:
        pieces = pieces_of(self.store.space, arch, self.store.task)
        begun = next(n for n in range(len(pieces), -1, -1) if pieces[:n] in self.known)
        torch.manual_seed(0)  # of dropout
        for number in range(begun, len(pieces)):
            module = self.store.modules(pieces[number])[0].double()
            with torch.no_grad():
                self.known[pieces[: number + 1]] = module(self.known[pieces[:number]])
        return self.known[pieces]

    def equal(self, first: Arch, second: Arch) -> bool:
        one, other = self.of(first), self.of(second)
        return bool((one - other).abs().max() <= 1e-7 * one.abs().max())


@pytest.mark.parametrize(("name", "preset", "pixels"), sorted(COMPUTED))
def test_options_that_compute_the_same_are_repaired_to_one(name: str, preset: str, pixels: int):
    space, task = fitted(name, preset, pixels)
    large = preset == "paper"  # slow, but has so many pixels that one image has statistics
    outputs = Outputs(space, task, 1 if large else 2 if pixels > 8 else 6)
    drawn = genes.sample(space, torch.Generator().manual_seed(2))
    bases = (space.smallest(), space.smallest()) if large else (space.middle(), drawn)
    for gene, choice in enumerate(space.choices):
        base = bases[gene % 2]
        archs = [genes.with_gene(base, gene, o) for o in range(len(choice.options))]
        for first, second in itertools.combinations(archs, 2):
            same = space.repair(first) == space.repair(second)
            assert outputs.equal(first, second) == same, (choice, first, second)
        for arch in archs:
            assert outputs.equal(arch, space.repair(arch))


@cases
def test_so_many_options_are_the_same(name: str, preset: str, pixels: int):
    space, _ = fitted(name, preset, pixels)
    last = tuple(len(choice.options) - 1 for choice in space.choices)
    networks = Counter()
    for gene, choice in enumerate(space.choices):
        every = [genes.with_gene(last, gene, option) for option in range(len(choice.options))]
        networks[len({space.merged(arch) for arch in every}), len(every)] += 1
    none = sum(often for (left, of), often in networks.items() if left == 1 < of)
    fewer = sum(often for (left, of), often in networks.items() if 1 < left < of)
    assert (none, fewer) == MERGED[name, preset, pixels]


@cases
def test_everything_stays_in_the_form_that_equal_networks_share(
    name: str, preset: str, pixels: int
):
    space, task = fitted(name, preset, pixels)
    rng = torch.Generator().manual_seed(3)
    archs = [space.smallest(), space.middle(), space.largest(), *genes.sample_many(space, 5, rng)]
    archs += [genes.mutate(space, arch, rng) for arch in archs]
    archs += [*genes.neighbours(space, archs[-1])[:5], *schemes.fair(space, rng)]
    table = tokens.one_hot(space, archs)
    assert tokens.project(space, table) == archs and tokens.raw_valid(space, table).all()
    full = full_shapes(space, task)
    for arch in archs:
        assert genes.is_legal(space, arch) and space.merged(arch) == arch
        for parameter, shape in shapes(space, arch, task).items():
            assert all(map(int.__le__, shape, full[parameter]))


def test_the_smallest_of_equal_kernels_is_taken():
    space, task = fitted("mobilenetv3", "cpu", 32)
    last = tuple(len(choice.options) - 1 for choice in space.choices)
    assert cost.parameters(space, space.largest(), task) < cost.parameters(space, last, task)
    kernels = [space.largest()[9 * stage + 1 : 9 * stage + 5] for stage in range(5)]
    assert kernels == [(2,) * 4, (2,) * 4, (2, 1, 1, 1), (1,) * 4, (1, 0, 0, 0)]


def test_weights_fit_images_of_any_size():
    """The supernet keeps what no image of this size needs."""
    for kind in (MobileNetV3, MobileNetV3Plato):
        small = Task((3, 2, 2), 10)
        assert full_shapes(kind().at(small), small) == full_shapes(kind(), Task((3, 64, 64), 10))
    large = full_shapes(NASViT(), Task((3, 2, 2), 10))
    assert full_shapes(NASViT().at(small), small) == large


def test_transformed_kernels_differ_on_any_map():
    space = MobileNetV3(width=0.02, resolution=8, transforms=True)
    task = Task((1, 8, 8), 3)
    outputs, largest = Outputs(space, task, 6), space.largest()
    assert largest == tuple(len(choice.options) - 1 for choice in space.choices)
    for option in (0, 1):
        assert not outputs.equal(largest, genes.with_gene(largest, 9 * 4 + 4, option))


def test_images_that_are_not_square_keep_every_option():
    for kind in (MobileNetV3, MobileNetV3Plato, NASViT):
        assert kind().at(Task((3, 8, 4), 10)) == kind()


def test_a_space_is_fitted_to_a_task_once():
    for name in registry.names("space"):
        kind = registry.find("space", name)
        for fields in ({}, *kind.presets.values()):
            once = kind(**fields).at(Task((3, 8, 8), 10))
            assert once.at(Task((3, 9, 9), 10)) == once and once.choices == kind(**fields).choices
            given = {n: v for n, v in fields.items() if n.startswith("resolution")}
            assert given.items() <= dataclasses.asdict(once).items()


def test_a_user_may_name_any_of_equal_options():
    space = MobileNetV3(**MobileNetV3.presets["cpu"])
    last = tuple(len(choice.options) - 1 for choice in space.choices)
    assert genes.check(space, last) == space.largest() != last
    assert not genes.is_legal(space, last) and genes.is_legal(space, space.largest())


def test_a_table_may_have_any_of_equal_options():
    space = MobileNetV3(**MobileNetV3.presets["cpu"])
    last = tuple(len(choice.options) - 1 for choice in space.choices)
    table = tokens.one_hot(space, [last])
    assert tokens.raw_valid(space, table).all()
    assert tokens.project(space, table) == [space.largest()]
