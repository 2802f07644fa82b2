"""What is said of generated tables: by hand on a small space, and at its ends on a real one."""

import functools

import pytest
import torch
from torch import Tensor

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.pretrain.generator_quality import generation_quality
from fedtailor.search import genes
from fedtailor.search.diffusion.tokens import encoding, one_hot
from tests.helpers import made_up
from tests.helpers.made_up import cpu, generator

FREE = made_up.Free()  # 3, 2 and 3 options
KEYS = {"raw_valid", "unique", "novel", "operations", "operations_floor", "depths", "depths_floor"}


@functools.cache
def sampled(space: SearchSpace, number: int, seed: int) -> list[Arch]:
    return genes.sample_many(space, number, generator(seed))


def judged(space: SearchSpace, x: Tensor, seed: int = 1) -> dict[str, float]:
    return generation_quality(space, x, [], sampled(space, 10_000, seed))


def test_shares_and_distances_by_hand():
    archs: list[Arch] = [(0, 0, 0), (0, 0, 0), (1, 0, 0), (2, 1, 0)]
    x = one_hot(FREE, archs)
    x[3, 0, 0] = 0.6  # two entries above a half: not valid, though it projects as before
    found = generation_quality(FREE, x, [(0, 0, 0), (2, 1, 0)], [(0, 0, 0), (0, 1, 1)])
    assert found.keys() == KEYS
    assert (found["raw_valid"], found["unique"], found["novel"]) == (0.75, 0.75, 0.25)
    # (1/2, 1/4, 1/4) from (1, 0, 0); (3/4, 1/4) from (1/2, 1/2); (1, 0, 0) from (1/2, 1/2, 0)
    assert found["operations"] == pytest.approx((0.5 + 0.25 + 0.5) / 3)
    assert found["operations_floor"] == pytest.approx((0 + 1 + 1) / 3)  # one against the other
    assert found["depths"] == found["depths_floor"] == 0


@pytest.mark.parametrize("name", ["mobilenetv3", "darts", "nasvit"])
def test_true_samples_are_at_the_floor(name: str):
    space = cpu(name)
    found = judged(space, one_hot(space, sampled(space, 1000, 5)))
    assert found["raw_valid"] == found["unique"] == found["novel"] == 1
    for distance in ("operations", "depths"):
        assert found[distance] <= 1.5 * found[f"{distance}_floor"]
    assert (found["depths_floor"] > 0) == bool(encoding(space).depths)


def test_samples_of_another_kind_are_far_above_the_floor():
    space = cpu("mobilenetv3")
    shallow = [space.repair((0, *arch[1:])) for arch in sampled(space, 1000, 5)]  # the first stage
    found = judged(space, one_hot(space, shallow))
    assert found["depths"] == pytest.approx((2 / 3) / 5, abs=0.02)  # one stage of five
    assert found["depths"] > 3 * found["depths_floor"]
    assert found["operations"] > 1.5 * found["operations_floor"]


def test_the_floor_is_what_independent_samples_have():
    space = cpu("darts")
    floors = judged(space, one_hot(space, sampled(space, 500, 2)))["operations_floor"]
    found = [judged(space, one_hot(space, sampled(space, 500, s)))["operations"] for s in (5, 6, 7)]
    assert floors == pytest.approx(sum(found) / 3, rel=0.1)


def test_copies_are_neither_unique_nor_novel():
    space = cpu("nasvit")
    known = sampled(space, 50, 0)
    found = generation_quality(space, one_hot(space, known[:1] * 20), known, known)
    assert (found["unique"], found["novel"]) == (1 / 20, 0)


def test_too_little_is_refused():
    for archs, reference in (([], [(0, 0, 0)] * 2), ([(0, 0, 0)], [(0, 0, 0)])):
        with pytest.raises(ValueError, match="least"):
            generation_quality(FREE, one_hot(FREE, archs), [], reference)


def test_tables_of_anything_can_be_judged():
    found = judged(FREE, torch.randn(50, 3, 3, generator=generator()))
    assert 0 <= found["raw_valid"] < 1 and found["operations"] >= 0
