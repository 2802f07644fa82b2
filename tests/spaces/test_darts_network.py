from collections.abc import Callable

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.space import Task
from fedtailor.networks import cost
from fedtailor.spaces._darts_cell import Cell, Place
from fedtailor.spaces._darts_maps import dropped
from fedtailor.spaces._darts_operations import Style
from fedtailor.spaces.darts_network import PUBLISHED, DARTSNetwork

CIFAR = Task((3, 32, 32), 10)
SMALL = Task((3, 16, 16), 4)


@pytest.mark.parametrize("preset", [{}, DARTSNetwork.presets["paper"]])
def test_published_size(preset: dict[str, object]):
    """The public script says "param size = 3.349342MB", and means millions of parameters."""
    assert cost.parameters(DARTSNetwork(**preset), (), CIFAR) == 3_349_342  # pyright: ignore[reportArgumentType]


def test_drawing_data():
    found = DARTSNetwork().drawing()
    assert [len(found[kind]) for kind in ("normal", "reduction")] == [8, 8]
    assert ("0", "3", ("dil_conv_3x3",)) in found["normal"]
    assert ("c_{k-1}", "3", ("max_pool_3x3",)) in found["reduction"]


def test_a_genotype_of_ones_own():
    own = DARTSNetwork(genotype=PUBLISHED["DARTS_V1"]).pieces((), SMALL)
    assert own == DARTSNetwork(genotype="DARTS_V1").pieces((), SMALL)
    assert own != DARTSNetwork().pieces((), SMALL)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: "DARTS_V3", "neither DARTS_V1 nor DARTS_V2"),
        (lambda text: text.replace("dil_conv_3x3 2 /", "/"), "in the normal cell must be"),
        (lambda text: text.replace(", dil_conv_3x3 2", ""), "normal cell must have 8 inputs"),
        (lambda text: text.replace("dil_conv_3x3 2", "dil_conv_3x3 5"), "'dil_conv_3x3 5' .* 0, 1"),
        (lambda text: text.replace("max_pool_3x3 0", "max_pool"), "'max_pool' in the reduction"),
        (lambda text: text.replace("max_pool", "max_pol"), r"did you mean max_pool_3x3\?"),
        (lambda text: text.replace("sep_conv_3x3 0", "none 0"), "no operation is called 'none'"),
        (lambda text: text.replace("max_pool_3x3 1", "max_pool_3x3 0"), "reads a source twice"),
    ],
)
def test_a_wrong_genotype_is_one_sentence(change: Callable[[str], str], says: str):
    with pytest.raises(UserError, match=r"^space\.genotype: .*" + says):
        DARTSNetwork(genotype=change(PUBLISHED["DARTS_V2"])).build((), SMALL)


@pytest.mark.parametrize("field", ["cells", "channels"])
def test_impossible_sizes_are_one_sentence(field: str):
    with pytest.raises(UserError, match=rf"^space\.{field}: "):
        DARTSNetwork(**{field: 1}).build((), SMALL)  # pyright: ignore[reportArgumentType]


def test_paths_are_dropped_per_image_and_the_rest_scaled():
    torch.manual_seed(0)
    found = dropped(torch.ones(4000, 2, 3, 3), 0.25)
    values = found.flatten(1)
    assert torch.equal(values.amin(1), values.amax(1))
    assert set(values[:, 0].tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert found.mean().item() == pytest.approx(1, abs=0.03)


def test_paths_are_dropped_in_training_alone_and_never_skip_connections():
    torch.manual_seed(0)
    style = Style(affine=True, pool_norm=False, drop_path=0.5)
    state = (torch.rand(8, 6, 4, 4), torch.randn(8, 6, 4, 4))
    for operation, changes in (("skip_connect", False), ("max_pool_3x3", True)):
        cell = Cell(Place(6, 6, 4), ((operation,),) * 14, style)
        assert torch.equal(cell(state)[1], cell(state)[1]) != changes
        cell.eval()
        assert torch.equal(cell(state)[1], cell(state)[1])


def test_names_do_not_depend_on_dropping():
    models = [DARTSNetwork(4, 3, drop_path=chance).build((), SMALL) for chance in (0.0, 0.5)]
    assert models[0].state_dict().keys() == models[1].state_dict().keys()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 30, 22), (3, 8, 8)])
def test_images_of_any_size(shape: tuple[int, int, int]):
    model = DARTSNetwork(channels=4, cells=4, stem_stride=2).build((), Task(shape, 3))
    assert model(torch.randn(2, *shape)).shape == (2, 3)
