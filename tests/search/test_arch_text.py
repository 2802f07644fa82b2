"""Architectures as text: read back they are the same."""

import pytest

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.core.rng import rng_for
from fedtailor.core.space import Task
from fedtailor.runs.config import make_config
from fedtailor.search import genes
from fedtailor.search.arch_text import DIGITS, read_arch, write_arch
from fedtailor.spaces.mobilenetv3 import MobileNetV3

SEARCHED = [n for n in registry.names("space") if registry.find("space", n)().choices]


@pytest.mark.parametrize("pixels", [8, 32])
@pytest.mark.parametrize("name", SEARCHED)
def test_what_is_written_is_read(name: str, pixels: int):
    space = registry.find("space", name)().at(Task((3, pixels, pixels), 10))
    archs = [space.smallest(), space.largest(), *genes.sample_many(space, 20, rng_for(0, "text"))]
    for arch in archs:
        assert read_arch(space, write_arch(space, arch)) == arch
        assert read_arch(space, "".join(DIGITS[gene] for gene in arch)) == arch


def test_it_can_be_read_by_people():
    space = MobileNetV3()
    text = write_arch(space, space.smallest())
    assert text.startswith("stage 1: depth 2, kernel 3 3, expansion 3 3; stage 2: depth 2, ")


def test_a_config_takes_it():
    arch = genes.sample(MobileNetV3(), rng_for(1, "text"))
    text = write_arch(MobileNetV3(), arch)
    assert make_config({"space": {"name": "mobilenetv3", "arch": text}}).space_arch == arch


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stag 1: depth 2", r"no 'stag 1' in this space; did you mean stage 1\?"),
        ("stage 1: dept 2", r"stage 1 has no 'dept 2'; did you mean depth\?"),
        ("stage 1: depth 5", "stage 1 depth is one of 2, 3, 4, not 5"),
        ("stage 1: depth 2 2", "stage 1 has 1 of depth, not 2"),
        ("0123", "no '' in this space"),
    ],
)
def test_what_is_wrong_is_a_sentence(text: str, says: str):
    with pytest.raises(UserError, match=f"^space.arch: .*{says}"):
        read_arch(MobileNetV3(), text)
