import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.twins import load_by_position
from benchmarks.twins.ours import twin_of
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, Task
from fedtailor.core.validation import validate
from fedtailor.networks import cost
from fedtailor.networks.pointwise import PointwiseConv2d
from fedtailor.spaces import _darts
from fedtailor.spaces._darts import OPERATION_SETS
from fedtailor.spaces._darts_cell import EDGES, NODE_EDGES, Cell, Place
from fedtailor.spaces._darts_maps import concatenate, halves
from fedtailor.spaces._darts_operations import DilatedConv, FactorizedReduce, Noise, Style
from fedtailor.spaces.darts import DARTS
from tests.helpers.plain_cells import Maps, applied

CIFAR = Task((3, 32, 32), 10)
SMALL = Task((3, 16, 16), 4)
SETS = sorted(OPERATION_SETS)
FORMS = ("path", "relaxed")


def small(operations: str, form: str) -> DARTS:
    return DARTS(channels=4, cells=3, operations=operations, form=form)  # pyright: ignore[reportArgumentType]


def drawn(space: DARTS, seed: int) -> Arch:
    rng = random.Random(seed)
    return tuple(rng.randrange(len(choice.options)) for choice in space.choices)


def shapes(space: DARTS, arch: Arch, task: Task = SMALL) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: p.shape for name, p in space.build(arch, task).named_parameters()}


def supernet(space: DARTS, task: Task = SMALL) -> dict[str, torch.Size]:
    """Return all weights; those of one name have the same shape in all architectures."""
    found: dict[str, torch.Size] = {}
    for arch in space.cover():
        for name, shape in shapes(space, arch, task).items():
            assert found.setdefault(name, shape) == shape
    return found


def cell_parameters(place: Place, operations: tuple[str, ...]) -> int:
    """Count by hand what these operations have on all edges, and both preprocessings."""
    c = place.channels
    total = (place.before_last + place.last) * c
    for edge in range(len(EDGES)):
        sizes = {
            "sep_conv_3x3": 2 * (9 * c + c * c),
            "sep_conv_5x5": 2 * (25 * c + c * c),
            "dil_conv_3x3": 9 * c + c * c,
            "dil_conv_5x5": 25 * c + c * c,
            "skip_connect": c * c if place.stride(edge) == 2 else 0,
        }
        total += sum(sizes.get(name, 0) for name in operations)
    return total


each_space = pytest.mark.parametrize(
    "space",
    [small(operations, form) for operations in SETS for form in FORMS],
    ids=lambda space: f"{space.operations}-{space.form}",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("operations", "parameters"), [("darts", 1_930_618), ("s2", 665_466)])
def test_supernets_of_published_size(operations: str, parameters: int, form: str):
    space = DARTS(operations=operations, form=form)  # pyright: ignore[reportArgumentType]
    weights = supernet(space, CIFAR)
    assert sum(math.prod(shape) for shape in weights.values()) == parameters
    for number, place in enumerate(_darts.places(16, 8)):
        own = sum(math.prod(s) for n, s in weights.items() if n.startswith(f"cell{number}."))
        assert own == cell_parameters(place, OPERATION_SETS[operations][0][0])


def test_reduction_cells_are_at_the_thirds():
    found = _darts.places(16, 8)
    assert [n for n, place in enumerate(found) if place.reduction] == [2, 5]
    assert [n for n, place in enumerate(found) if place.after_reduction] == [3, 6]
    assert [place.channels for place in found] == [16, 16, 32, 32, 32, 64, 64, 64]
    assert [n for n, place in enumerate(_darts.places(16, 20)) if place.reduction] == [6, 13]
    assert [n for n, place in enumerate(_darts.places(16, 3)) if place.reduction] == [1, 2]


def test_choices_are_the_edges_of_both_cells():
    choices = DARTS().choices
    assert len(choices) == 28 and len({choice.name for choice in choices}) == 28
    assert choices[0].name == "normal c_{k-2} to 0"
    assert choices[27].name == "reduction 2 to 3"
    assert choices[5].options == _darts.EIGHT
    assert small("s2", "relaxed").choices[5].options == (0, 1, 2, 3)
    assert small("s1", "path").choices[1].options == ("skip_connect", "dil_conv_5x5")


@each_space
def test_repair_is_idempotent_and_feeds_every_node(space: DARTS):
    named = [space.smallest(), space.middle(), space.largest(), *space.cover()]
    assert all(space.repair(arch) == arch for arch in named)
    zeros = tuple(0 for _ in space.choices)
    for arch in [zeros, *(drawn(space, seed) for seed in range(100))]:
        repaired = space.repair(arch)
        assert space.repair(repaired) == repaired
        assert all(k in range(len(c.options)) for k, c in zip(repaired, space.choices, strict=True))
        for cell in space._alive(repaired):
            assert all(any(cell[edge] for edge in edges) for edges in NODE_EDGES)
            assert all("none" not in names for names in cell)


def test_repair_changes_as_little_as_it_must():
    space = DARTS()
    dead = [*space.middle()]
    for edge in NODE_EDGES[1]:
        dead[edge] = 0
    mended = space.repair(tuple(dead))
    assert mended[2] == _darts.EIGHT.index("skip_connect")
    assert [m for k, m in enumerate(mended) if k != 2] == [d for k, d in enumerate(dead) if k != 2]


def test_equal_relaxed_networks_have_equal_encodings():
    space = small("darts", "relaxed")
    for seed in range(20):
        arch = drawn(space, seed)
        assert space.repair(tuple(k | 1 for k in arch)) == space.repair(tuple(k & ~1 for k in arch))


@each_space
def test_cover_has_every_weight_of_every_architecture(space: DARTS):
    weights, relaxed = supernet(space), small(space.operations, "relaxed")
    assert weights == shapes(relaxed, relaxed.largest())
    for seed in range(2):
        assert shapes(space, drawn(space, seed)).items() <= weights.items()


@each_space
def test_smallest_middle_and_largest_cost_in_that_order(space: DARTS):
    three = [space.smallest(), space.middle(), space.largest()]
    for measure in (cost.parameters, cost.forward_macs):
        least, middle, most = (measure(space, arch, SMALL) for arch in three)
        assert least < middle < most
    for seed in range(3):
        count = cost.parameters(space, space.repair(drawn(space, seed)), SMALL)
        assert count <= cost.parameters(space, space.largest(), SMALL)
        # In s4 a cell of noise alone is cheaper than the smallest, and useless.
        assert space.operations == "s4" or count >= cost.parameters(space, three[0], SMALL)


@each_space
def test_every_weight_of_the_named_architectures_learns(space: DARTS):
    torch.manual_seed(0)
    for arch in (space.smallest(), space.middle()):
        model = space.build(arch, SMALL)
        images = torch.randn(4, *SMALL.shape).contiguous(memory_format=torch.channels_last)
        F.cross_entropy(model(images), torch.arange(4)).backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_weights_are_registered_in_the_order_of_the_forward_pass():
    names = list(shapes(DARTS(channels=4, cells=3), DARTS().middle()))
    assert names[:5] == [
        "stem.conv.weight", "stem.norm.weight", "stem.norm.bias",
        "cell0.preprocess0.conv.weight", "cell0.preprocess1.conv.weight",
    ]  # fmt: skip
    edge = "cell0.edge0.sep_conv_3x3."
    parts = ("depthwise1", "pointwise1", "depthwise2", "pointwise2")
    assert names[5:9] == [f"{edge}{part}.weight" for part in parts]
    numbers = [int(n.split(".")[1][4:]) for n in names if n.startswith("cell1.edge")]
    assert numbers == sorted(numbers)
    assert names[-2:] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("operations", SETS)
def test_relaxed_with_one_operation_per_edge_is_the_path(operations: str):
    path, relaxed = small(operations, "path"), small(operations, "relaxed")
    arch = path.repair(drawn(path, 1))
    same = relaxed.repair(tuple(1 << gene for gene in arch))
    assert path.pieces(arch, SMALL) == relaxed.pieces(same, SMALL)
    one, other = path.build(arch, SMALL), relaxed.build(same, SMALL)
    other.load_state_dict(one.state_dict())
    images, results = torch.randn(2, *SMALL.shape), []
    for model in (one, other):
        torch.manual_seed(0)  # s4 draws noise
        results.append(model(images))
    assert torch.equal(*results)


@pytest.mark.parametrize("operations", [name for name in SETS if name != "s4"])
def test_a_relaxed_network_is_its_twin_in_stock_modules(operations: str):
    """Noise alone is drawn and cannot be compared."""
    torch.manual_seed(0)
    space = small(operations, "relaxed")
    for arch in (space.largest(), space.repair(drawn(space, 3))):
        ours = space.build(arch, SMALL).double()
        weights = {name: weight.detach() for name, weight in ours.named_parameters()}
        twin = twin_of(space, arch, SMALL, weights).double()
        load_by_position(twin, weights.values())  # in double precision
        images = torch.randn(3, *SMALL.shape).double()
        assert torch.allclose(ours(images), twin(images))


@pytest.mark.parametrize("reduction", [False, True])
def test_a_relaxed_cell_sums_all_operations(reduction: bool):
    """Against node by node, edge by edge, operation by operation."""
    torch.manual_seed(0)
    place = Place(6, 10, 4, reduction)
    cell = Cell(place, OPERATION_SETS["s5"][0], Style()).double()
    first, last = torch.randn(3, 6, 8, 8).double(), torch.randn(3, 10, 8, 8).double()
    rectified, found = cell((F.relu(first), last))
    nodes = [
        applied(cell.get_submodule(f"preprocess{number}"), Maps(maps))
        for number, maps in enumerate((first, last))
    ]
    for numbers in NODE_EDGES:
        total = torch.zeros(())
        for edge in numbers:
            source, made = nodes[EDGES[edge][0]], cell.get_submodule(f"edge{edge}")
            assert len(list(made.children())) == (7 if place.stride(edge) == 2 else 6)
            stride = place.stride(edge)
            total = total + sum(applied(op, Maps(source), stride) for op in made.children())
            total = total + (source if stride == 1 else 0)
        nodes.append(total)
    assert torch.equal(rectified, F.relu(last))
    assert torch.allclose(found, torch.cat(nodes[2:], 1))


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("kernel", [3, 5])
def test_a_strided_dilated_convolution_is_torchs(size: int, kernel: int):
    torch.manual_seed(0)
    made = DilatedConv(4, kernel, 2, Style()).double()
    maps = torch.randn(2, 4, size, size).double()
    weight = made.depthwise.weight
    inner = F.conv2d(F.relu(maps), weight, stride=2, padding=kernel - 1, dilation=2, groups=4)
    found = made(halves(F.relu(maps))[0])
    assert torch.allclose(found, made.norm(made.pointwise(inner)))


def test_a_factorized_reduce_reads_even_and_odd_pixels():
    torch.manual_seed(0)
    made = FactorizedReduce(4, 6, Style()).double()
    maps = torch.randn(2, 4, 8, 8).double()
    even = F.conv2d(F.relu(maps), made.conv1.weight, stride=2)
    odd = F.conv2d(F.relu(maps)[:, :, 1:, 1:], made.conv2.weight, stride=2)
    assert torch.allclose(made(halves(F.relu(maps))), made.norm(torch.cat([even, odd], 1)))
    assert made(halves(torch.randn(2, 4, 7, 5).double())).shape == (2, 6, 4, 3)


@pytest.mark.parametrize("pixels", [8, 9])
def test_mixing_channels_is_a_1x1_convolution_on_maps_of_any_size(pixels: int):
    torch.manual_seed(0)
    mix = PointwiseConv2d(6, 4).double()
    maps = torch.randn(2, 6, pixels, pixels).double().contiguous(memory_format=torch.channels_last)
    found = mix(maps)
    assert torch.allclose(found, F.conv2d(maps, mix.weight))
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(4, 4), (5, 3)])
def test_gradients_of_what_operations_share(size: tuple[int, int], layout: torch.memory_format):
    torch.manual_seed(0)
    maps = torch.rand(2, 4, *size).double().contiguous(memory_format=layout).requires_grad_()

    def one_half(maps: torch.Tensor) -> torch.Tensor:  # the other has no gradient then
        return halves(maps)[0]

    def other_half(maps: torch.Tensor) -> torch.Tensor:
        return halves(maps)[1]

    def joined(maps: torch.Tensor) -> torch.Tensor:
        return concatenate((maps, 2 * maps))

    for function in (one_half, other_half, joined, halves):
        assert torch.autograd.gradcheck(function, maps)


@pytest.mark.parametrize("stride", [1, 2])
def test_noise_looks_at_shapes_alone(stride: int):
    maps = torch.full((2, 4, 7, 8), torch.nan, requires_grad=True)
    made = Noise(stride).eval()
    torch.manual_seed(0)
    first = made(maps)
    assert not first.requires_grad and first.isfinite().all()
    assert first.shape == maps[:, :, ::stride, ::stride].shape
    assert not torch.equal(made(maps), first)
    torch.manual_seed(0)
    assert torch.equal(made(torch.zeros(2, 4, 7, 8)), first)
    many = made(torch.zeros(64, 16, 16, 16))
    assert abs(many.mean()) < 0.02 and abs(many.std() - 1) < 0.02


def test_drawing_data():
    space, skip = DARTS(), ("skip_connect",)
    assert space.drawing(space.smallest())["normal"] == [
        ("c_{k-2}", "0", skip), ("c_{k-1}", "0", skip),
        ("0", "1", skip), ("0", "2", skip), ("0", "3", skip),
    ]  # fmt: skip
    assert len(space.drawing(space.largest())["reduction"]) == 14
    relaxed = small("s3", "relaxed")
    last = relaxed.drawing(relaxed.largest())["normal"][13]
    assert last == ("2", "3", ("skip_connect", "sep_conv_3x3"))


def test_images_are_resized_first():
    space, resized = DARTS(channels=4, cells=3), DARTS(channels=4, cells=3, resolution=16)
    one, other = (s.build(s.middle(), CIFAR).eval() for s in (space, resized))
    other.load_state_dict(one.state_dict())
    images = torch.randn(2, *CIFAR.shape)
    shrunk = F.interpolate(images, (16, 16), mode="bicubic", align_corners=False)
    assert torch.allclose(one(shrunk), other(images), atol=1e-5)
    assert space.pieces(space.middle(), SMALL) == resized.pieces(space.middle(), SMALL)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 30, 22), (3, 4, 4)])
def test_images_of_any_size(shape: tuple[int, int, int], stride: int):
    space = DARTS(channels=4, cells=4, stem_stride=stride, form="relaxed")
    model = space.build(space.largest(), Task(shape, 3))
    assert model(torch.randn(2, *shape)).shape == (2, 3)


def test_presets_keep_every_choice():
    for fields in DARTS.presets.values():
        assert DARTS(**fields).choices == DARTS().choices
    assert DARTS(**DARTS.presets["paper"]) == DARTS()


def test_impossible_sizes_are_one_sentence():
    arch = DARTS().largest()
    with pytest.raises(UserError, match=r"^space\.cells: .*3 at least"):
        DARTS(cells=2).build(arch, SMALL)
    with pytest.raises(UserError, match=r"^space\.channels: must be even, not 5"):
        DARTS(channels=5).build(arch, SMALL)
    with pytest.raises(UserError, match=r"^space\.cells: .*3, not 2"):
        validate(DARTS, {"cells": 2}, "space")


def test_what_does_nothing_has_no_module():
    space = DARTS(channels=4, cells=3)
    model = space.build(space.smallest(), SMALL)
    children = [name for name, _ in model.get_submodule("cell0").named_children()]
    assert children == ["preprocess0", "preprocess1"]
    reduces = sum(isinstance(module, FactorizedReduce) for module in model.modules())
    convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
    assert (reduces, convolutions) == (1, 1 + 2 * 3 + 1)
