"""Pieces made of parts: plans, and the modules and costs that follow them."""

import copy
import pickle
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedtailor.networks.counting import forward, state_bytes, training
from fedtailor.networks.keeping import kept
from fedtailor.networks.pieces import Piece
from fedtailor.networks.plans import Plan, Planned, Planner, assemble, parts_of, plan_of, unnamed


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    return values[:, :2], values[:, 2:]


def product(pair: tuple[Tensor, Tensor]) -> Tensor:
    return pair[0] * pair[1]


def written(by: int) -> Plan:
    """Write a plan: (first half through a layer twice) * second half, and the input."""
    planner = Planner(given=1)
    planner.part(Piece("never", nn.Linear, (1, 7)))
    layer = Piece("inner.layer", nn.Linear, (2, by))
    first = planner.step(halves, 0, results=2)
    twice = planner.step(layer, planner.step(layer, first))
    return planner.plan(planner.step(product, twice, first + 1), 0)


class Twice(Planned):
    plan: ClassVar[Callable[..., Plan]] = staticmethod(written)


PIECE = Piece("net", Twice, (2,))


def test_a_plan_says_when_nothing_needs_a_value_any_more():
    plan = written(2)
    assert [step.reads for step in plan.steps] == [(0,), (1,), (3,), (4, 2)]
    assert [set(step.last) for step in plan.steps] == [set(), {1}, {3}, {4, 2}]
    assert plan.returns == (5, 0)
    planner = Planner(given=1)
    planner.step(halves, 0, results=2)
    assert planner.plan(1).steps[0].last == (0, 2), "a result that nothing reads goes at once"


def test_parts_have_the_names_they_have_in_the_network():
    assert [part.name for part in parts_of(PIECE)] == ["net.never", "net.inner.layer"]
    assert [part.name for part in parts_of(unnamed(PIECE))] == ["never", "inner.layer"]
    assert parts_of(Piece("one", nn.Linear, (1, 2))) == (Piece("one", nn.Linear, (1, 2)),)
    assert plan_of(Piece("one", nn.Linear, (1, 2))) is None and plan_of(halves) is None
    names = ["never.weight", "never.bias", "inner.layer.weight", "inner.layer.bias"]
    assert list(PIECE.build().state_dict()) == names


@pytest.mark.parametrize(
    "change", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_a_planned_module_follows_its_plan(change: Callable[[nn.Module], nn.Module]):
    torch.manual_seed(0)
    module = change(PIECE.build())
    layer, values = module.get_submodule("inner.layer"), torch.randn(3, 4)
    found, given = module(values)
    assert torch.equal(found, layer(layer(values[:, :2])) * values[:, 2:])
    assert given is values
    found.sum().backward()
    assert layer.weight.grad is not None


def test_assembled_of_modules_that_are_there_it_has_those():
    modules = [part.build() for part in parts_of(PIECE)]
    module = assemble(PIECE, modules)
    assert [*module.modules()] == [module, modules[0], *module.folders, modules[1]]


def test_costs_follow_the_plan():
    does, state = unnamed(PIECE), ((4,),)
    assert forward(does, state) == (2 * 4, ((2,), (4,)))
    assert state_bytes(does) == 4 * (7 + 7 + 4 + 2)
    assert training(does, state, (True,), frozenset()) == (3 * 8, ((2,), (4,)), (True, True))
    weight = frozenset({"inner.layer.weight"})
    assert training(does, state, (False,), weight)[0] == 2 * 4 + 4, "no gradient before the bias"


@pytest.mark.parametrize("need", [True, False])
def test_what_is_kept_is_kept_once(need: bool):
    """The first half and the layer's output for its weight; that output's and the second half."""
    found = kept(unnamed(PIECE), ((4,),), 3, (need,))
    assert found.inputs == (0,) and found.outputs == ()
    assert found.sources == (None, 0) and found.needs == (True, need)
    # The halves are in the input's memory; of the product's factors autograd keeps what it needs.
    inside = 3 * 2 * 4
    assert found.inside == (2 * inside if need else inside)


def corner(values: Tensor) -> Tensor:
    return values.exp()[:, :1]  # autograd keeps all of the result, which the corner is in


def test_memory_is_that_of_the_whole_tensor_that_a_result_lies_in():
    found = kept(corner, ((4,),), 3, (True,))
    assert found.outputs == (0,) and found.state == ((1,),)
    assert found.sizes == (3 * 4 * 4,) and found.inside == 0
