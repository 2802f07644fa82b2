"""NASViT: published sizes, genes, the union of its subnets, and attention token by token."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.space import Arch, Task
from fedtailor.networks import cost
from fedtailor.networks.store import Shapes, full_shapes, shapes
from fedtailor.search import genes
from fedtailor.spaces._nasvit import Attention, Position, Transformer
from fedtailor.spaces.nasvit import STAGES, NASViT

PAPER, CPU, DEFAULT = NASViT(**NASViT.presets["paper"]), NASViT(**NASViT.presets["cpu"]), NASViT()
CIFAR = Task((3, 32, 32), 10)
PUBLISHED = 15_760_688  # parameters of the public supernet with 10 classes


def count(tensors: Shapes) -> int:
    return sum(math.prod(shape) for shape in tensors.values())


def random_arch(space: NASViT, seed: int) -> Arch:
    return genes.sample(space, torch.Generator().manual_seed(seed))


def randomised(model: Any) -> Any:
    """Draw every weight, so that no branch is closed and no term hidden."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def test_supernet_has_the_published_number_of_parameters():
    """What the public code has beyond ours, stage by stage: 15,760,688 to the last one."""
    ours = full_shapes(PAPER, CIFAR)
    positions = scales = shortcuts = unused = 0
    for name, stage in STAGES.items():
        width, depth = max(stage.widths), max(stage.depths)
        transformers = range(2, depth + 1) if stage.attention else ()
        for number in transformers:
            heads, _, rows, columns = ours[f"{name}_{number}.attention.position.bias"]
            positions += heads * (35 * 35 - rows * columns)  # distances that do not occur
            depths = sum(depth >= number for depth in stage.depths)
            scales += 2 * width * (10 * 8 - depths)  # a table of 10 depths and 8 counts of tokens
        bottlenecks = depth - len(transformers)
        shortcuts += (bottlenecks - 1) * width**2  # between equal widths, never used
        unused += bottlenecks * width  # a scale of every bottleneck, never used
    assert (positions, scales, shortcuts, unused) == (430_664, 579_536, 12_672, 1_056)
    assert count(ours) == 14_736_760
    assert count(ours) + positions + scales + shortcuts + unused == PUBLISHED


@pytest.mark.parametrize(("classes", "millions"), [(100, 15.94), (1000, 17.73)])
def test_supernet_with_more_classes(classes: int, millions: float):
    tasks = Task(CIFAR.shape, classes), CIFAR
    more, ten = (count(full_shapes(PAPER, task)) for task in tasks)
    assert round((PUBLISHED + more - ten) / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("resolution", "which", "millions"),
    [(192, "smallest", 188), (288, "largest", 1880), (64, "smallest", 21), (64, "largest", 75)],
)
def test_multiply_adds_are_the_published_ones(resolution: int, which: str, millions: float):
    space = NASViT(strides=PAPER.strides)
    macs = cost.forward_macs(space, getattr(space, which)(), Task((3, resolution, resolution), 10))
    assert macs == pytest.approx(millions * 1e6, rel=0.003)


def test_training_is_counted_too():
    """Without a value being computed, the table of positions included."""
    macs = cost.forward_macs(CPU, CPU.smallest(), CIFAR)
    assert 2 * macs < cost.training_macs(CPU, CPU.smallest(), CIFAR) <= 3 * macs


def test_genes():
    assert [len(space.choices) for space in (DEFAULT, PAPER, CPU)] == [22, 23, 23]
    names = [choice.name for choice in DEFAULT.choices]
    assert names[:4] == ["stem width", "mb1 width", "mb1 depth", "mb1 kernel"]
    assert names[-1] == "head width" and PAPER.choices[0].name == "resolution"
    assert not {"mb1 expansion", "mb3 kernel", "mb6 expansion"} & set(names)
    assert math.prod(genes.option_counts(DEFAULT)) == pytest.approx(1.2e10, rel=0.02)
    mb5 = {c.name: c.options for c in PAPER.choices if c.name.startswith("mb5")}
    assert mb5 == {
        "mb5 width": (112, 120, 128),
        "mb5 depth": (3, 4, 5, 6, 7, 8, 9),
        "mb5 expansion": (4, 5, 6),
    }


@pytest.mark.parametrize("width", [0.01, CPU.width, 0.125, 0.3, 0.5, 1.0, 1.7])
def test_no_option_is_lost_to_rounding(width: float):
    scaled = NASViT(width, PAPER.resolutions)
    assert genes.option_counts(scaled) == genes.option_counts(PAPER) == genes.option_counts(CPU)
    for choice in scaled.choices:
        assert tuple(sorted(set(choice.options))) == choice.options
        assert not choice.name.endswith("width") or all(int(o) % 8 == 0 for o in choice.options)


@pytest.mark.parametrize("space", [DEFAULT, CPU])
def test_every_option_is_another_network(space: NASViT):
    near = genes.neighbours(space, random_arch(space, 0))
    assert len(near) == sum(genes.option_counts(space)) - len(space.choices)
    assert len({space.pieces(arch, CIFAR) for arch in near}) == len(near)


@pytest.mark.parametrize("space", [DEFAULT, CPU, NASViT(0.125), NASViT(0.3, (24, 32))])
def test_cover_is_the_union_of_all_subnets(space: NASViT):
    full, seen = full_shapes(space, CIFAR), {}
    for seed in range(100):
        for name, shape in shapes(space, random_arch(space, seed), CIFAR).items():
            pairs = list(zip(shape, full[name], strict=True))
            assert all(small <= large for small, large in pairs), name
            assert all((large - small) % 2 == 0 for small, large in pairs[2:]), name
            seen[name] = tuple(map(max, shape, seen.get(name, shape)))
    assert seen.keys() == full.keys()
    assert count(seen) > 0.95 * count(full)


@pytest.mark.parametrize("space", [DEFAULT, CPU, PAPER])
@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 64, 64), (1, 28, 28)])
def test_builds_for_images_of_any_size(space: NASViT, shape: tuple[int, int, int]):
    arch = random_arch(space, 1)
    with torch.device("meta"):
        model = space.build(arch, Task(shape, 7))
        assert model(torch.empty(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("space", "pixels", "least"), [(DEFAULT, 32, 2), (DEFAULT, 64, 4), (CPU, 32, 2), (PAPER, 32, 3)]
)
def test_the_last_transformers_have_something_to_attend_to(space: NASViT, pixels: int, least: int):
    pieces = space.pieces(space.smallest(), Task((3, pixels, pixels), 10))
    sizes = {piece.name: piece.arguments[1] for piece in pieces if piece.kind is Transformer}
    assert sizes["mb7_2"] == (least, least)


@pytest.mark.parametrize("arch", [CPU.smallest(), CPU.largest(), CPU.cover()[-1]])
def test_gradients_reach_every_parameter(arch: Arch):
    """But for two biases: they move all scores of a query alike, and the softmax forgets them."""
    torch.manual_seed(0)
    model = randomised(CPU.build(arch, CIFAR)).to(memory_format=torch.channels_last)
    images = torch.randn(4, *CIFAR.shape).to(memory_format=torch.channels_last)
    F.cross_entropy(model(images), torch.arange(4)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        idle = name.endswith(("key.bias", "mix_before.bias"))
        assert idle or parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 2), (4, 4)])
def test_attention_against_loops(size: tuple[int, int], layout: torch.memory_format):
    """Image by image, query by query, key by key, head by head; and so the gradients."""
    torch.manual_seed(0)
    attention = randomised(Attention(24, size)).double()
    maps = torch.randn(2, 24, *size, dtype=torch.float64).contiguous(memory_format=layout)
    weights = list(attention.parameters())
    fast = attention(maps.permute(0, 2, 3, 1))
    slow = torch.stack([slow_attention(attention, map) for map in maps]).view_as(fast)
    assert torch.allclose(fast, slow, atol=1e-10)
    pairs = (torch.autograd.grad(out.square().sum(), weights) for out in (fast, slow))
    assert all(torch.allclose(a, b, atol=1e-8) for a, b in zip(*pairs, strict=True))


def slow_attention(attention: Any, map: Tensor) -> Tensor:
    (height, width), heads = map.shape[1:], len(map) // 8
    places = [(row, column) for row in range(height) for column in range(width)]
    tokens = map.flatten(1).T
    query, key, value = attention.query(tokens), attention.key(tokens), attention.value(tokens)
    value = value.T.reshape(1, -1, height, width)
    value = F.conv2d(value, attention.around.weight, padding=1, groups=32 * heads)[0].flatten(1).T
    found = []
    for at, (row, column) in enumerate(places):
        scores = []
        for to, (other_row, other_column) in enumerate(places):
            near = height - 1 + row - other_row, width - 1 + column - other_column
            for head in range(heads):
                mine = slice(8 * head, 8 * head + 8)
                bias = attention.position.bias[head, 0, *near]
                scores.append(query[at, mine] @ key[to, mine] / math.sqrt(8) + bias)
        mixed = attention.mix_before(torch.stack(scores).view(-1, heads)).softmax(0)
        mixed = attention.mix_after(mixed)
        token = [mixed[:, head] @ value[:, 32 * head : 32 * head + 32] for head in range(heads)]
        found.append(attention.project(F.silu(torch.cat(token))))
    return torch.stack(found)


def test_transformer_against_the_reference():
    """Layer norm over places and channels, branches times 8 / width, mlp2 before mlp1."""
    torch.manual_seed(0)
    block = randomised(Transformer(16, (3, 5), 4)).double()
    maps = torch.randn(2, 16, 3, 5, dtype=torch.float64)

    def norm(layer: nn.Module, x: Tensor) -> Tensor:
        weight, bias = (parameter.expand(15, 16) for parameter in layer.parameters())
        return F.layer_norm(x, (15, 16), weight, bias)

    x = maps.flatten(2).transpose(1, 2)
    attended = block.attention(norm(block.norm1, x).view(2, 3, 5, 16)).flatten(1, 2)
    x = x + block.attention_scale.depth_4 * attended * 8 / 16
    for normalise, mlp in ((block.norm3, block.mlp2), (block.norm2, block.mlp1)):
        changed = mlp.second(F.silu(mlp.first(norm(normalise, x))))
        x = x + block.mlp_scale.depth_4 * changed * 8 / 16
    assert torch.allclose(block(maps).flatten(2).transpose(1, 2), x, atol=1e-12)


def test_a_smaller_map_sees_the_middle_of_the_table():
    """What two places add is the same on both maps: a window, and not another table."""
    large, small = Position(2, (5, 5)), Position(2, (3, 3))
    with torch.no_grad():
        large.bias.copy_(torch.arange(2 * 81.0).view(2, 1, 9, 9))
        small.bias.copy_(large.bias[..., 2:-2, 2:-2])
    corner = [5 * row + column for row in range(3) for column in range(3)]
    expected = large().view(2, 25, 25)[:, corner][:, :, corner]
    assert torch.equal(small().view(2, 9, 9), expected)


def test_order_of_parameters():
    """Networks written from the reference are compared by the position of their parameters."""
    names = [name.rpartition(".")[0] for name, _ in Transformer(16, (2, 2), 3).named_parameters()]
    inner = ["query", "key", "value", "around", "position", "mix_before", "mix_after", "project"]
    assert list(dict.fromkeys(names)) == [
        "norm1", *(f"attention.{part}" for part in inner), "attention_scale", "norm3",
        "mlp2.first", "mlp2.second", "norm2", "mlp1.first", "mlp1.second", "mlp_scale",
    ]  # fmt: skip
