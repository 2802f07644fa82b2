"""What cells made of parts cost, against plain ones that are run whole: the same numbers."""

import random

import pytest
import torch

from fedtailor.core.space import Task
from fedtailor.networks import cost
from fedtailor.networks.counting import training
from fedtailor.networks.pieces import ChainSpace, Piece
from fedtailor.networks.store import full_shapes
from fedtailor.search import genes
from fedtailor.spaces._darts import OPERATION_SETS
from fedtailor.spaces._darts_cell import EDGES, Cell, Place
from fedtailor.spaces._darts_operations import Style
from fedtailor.spaces.darts import DARTS
from tests.helpers.plain_cells import SPACES, PlainCell, PlainSpace

# Down to maps of one pixel, and odd ones.
TASKS = (Task((3, 12, 12), 4), Task((1, 9, 7), 3), Task((3, 2, 2), 2))
EACH = pytest.mark.parametrize("space", SPACES.values(), ids=list(SPACES))


@EACH
def test_costs_are_those_of_whole_cells(space: ChainSpace):
    both = (space, PlainSpace(space))
    drawn = genes.sample_many(space, 2, torch.Generator().manual_seed(1)) if space.choices else []
    for arch, task in zip([space.smallest(), *drawn], TASKS, strict=False):
        for count in (cost.parameters, cost.wire_bytes, cost.forward_macs, cost.training_macs):
            one, other = (count(s, arch, task) for s in both)
            assert one == other
        one, other = (cost.parameter_names(s, arch, task) for s in both)
        assert one == other
        for batch, optimizer in ((2, "sgd"), (5, "adamw")):
            one, other = (cost.training_memory(s, arch, task, batch, optimizer) for s in both)
            assert one == other
    one, other = (full_shapes(s, TASKS[0]) for s in both)
    assert one == other


@EACH
def test_costs_of_training_a_part_are_those_of_whole_cells(space: ChainSpace):
    arch, task, rng = space.middle(), TASKS[1], random.Random(0)
    if space.choices:
        arch = genes.sample(space, torch.Generator().manual_seed(2))
    names = cost.parameter_names(space, arch, task)
    for frozen in (
        [n for n in names if n.startswith(("stem", "cell0", "cell1.preprocess0"))],
        rng.sample(names, len(names) // 2),
    ):
        one, other = (
            cost.training_macs(s, arch, task, frozenset(frozen)) for s in (space, PlainSpace(space))
        )
        assert one == other


@pytest.mark.parametrize("seed", range(3))
def test_memory_of_many_architectures_is_that_of_whole_cells(seed: int):
    rng = random.Random(seed)
    for operations in sorted(OPERATION_SETS):
        for form in ("path", "relaxed"):
            space = DARTS(channels=2, cells=3, operations=operations, form=form)  # pyright: ignore[reportArgumentType]
            drawn = [rng.randrange(len(choice.options)) for choice in space.choices]
            if form == "relaxed":  # with many edges that have no operation
                drawn = [gene if rng.random() < 0.4 else 0 for gene in drawn]
            arch = space.repair(tuple(drawn))
            one, other = (
                cost.training_memory(s, arch, TASKS[seed], 3) for s in (space, PlainSpace(space))
            )
            assert one == other


@pytest.mark.parametrize("needs", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("source", [0, 1])
def test_what_no_gradient_comes_back_to_costs_its_forward_pass_alone(
    needs: tuple[bool, bool], source: int
):
    """An input that noise alone reads is preprocessed, and learns nothing."""
    edges = tuple(("noise" if start == source else "sep_conv_3x3",) for start, _ in EDGES)
    how, state = (Place(6, 6, 4), edges, Style()), ((6, 8, 8), (6, 8, 8))
    for frozen in (frozenset[str](), frozenset({"preprocess1.conv.weight"})):
        one, other = (training(Piece("", k, how), state, needs, frozen) for k in (Cell, PlainCell))
        assert one == other


def test_pricing_a_new_architecture_builds_no_module(monkeypatch: pytest.MonkeyPatch):
    """Once its operations are known, in whichever place."""
    task = Task((3, 10, 10), 3)
    for form in ("path", "relaxed"):
        space = DARTS(channels=4, cells=3, form=form)  # pyright: ignore[reportArgumentType]
        archs = genes.sample_many(space, 42, torch.Generator().manual_seed(3))
        for arch in (*space.cover(), *archs[:40]):
            _priced(space, arch, task)
        with monkeypatch.context() as context:
            context.setattr("fedtailor.networks.counting.blueprint", None)
            context.setattr("fedtailor.networks.store.blueprint", None)
            for arch in archs[40:]:
                _priced(space, arch, task)


def _priced(space: DARTS, arch: tuple[int, ...], task: Task) -> None:
    cost.parameters(space, arch, task)
    cost.forward_macs(space, arch, task)
    cost.training_macs(space, arch, task)
    cost.training_memory(space, arch, task, 4)
