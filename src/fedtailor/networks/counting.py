"""Multiply-adds and bytes of single pieces, counted on the meta device.

Nothing is computed or allocated. Pieces are counted without their names, and those that have a
plan step by step: a part costs the same wherever it is given the same shapes.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from fedtailor.networks.flops import FlopCounter
from fedtailor.networks.pieces import Piece, blueprint
from fedtailor.networks.plans import Function, Plan, joined, plan_of, tensors, unnamed
from fedtailor.networks.store import piece_shapes

T = TypeVar("T")
State = tuple[tuple[int, ...], ...]  # the shapes of what flows from piece to piece
Needs = tuple[bool, ...]  # whether a gradient flows back to each of it
KEPT_COUNTS = 1 << 16


@functools.lru_cache(maxsize=KEPT_COUNTS)
def parameters(piece: Piece) -> int:
    """Count the parameters."""
    return sum(math.prod(shape) for shape in piece_shapes(piece).values())


@functools.lru_cache(maxsize=KEPT_COUNTS)
def state_bytes(piece: Piece) -> int:
    """Count the bytes of parameters and statistics."""
    plan = plan_of(piece)
    if plan is not None:
        return sum(state_bytes(unnamed(part)) for part in plan.parts)
    state = blueprint(piece.build).state_dict()
    return sum(t.numel() * t.element_size() for t in state.values() if t.is_floating_point())


@functools.lru_cache(maxsize=KEPT_COUNTS)
def forward(does: Piece | Function, state: State) -> tuple[int, State]:
    """Count the multiply-adds of one image's forward pass, and say what shapes it comes to."""
    plan = plan_of(does)
    if plan is not None:
        return _planned_forward(plan, state)
    module = built(does).eval()
    with torch.inference_mode(False), torch.no_grad(), FlopCounter() as counter:
        after = module(inputs(state, 1, (False,) * len(state)))
    return counter.flops // 2, shapes_of(after)


def _planned_forward(plan: Plan, state: State) -> tuple[int, State]:
    total, shapes = 0, [*state]
    for step in plan.steps:
        macs, made = forward(step.does, picked(shapes, step.reads))
        total += macs
        shapes += made
    return total, picked(shapes, plan.returns)


@functools.lru_cache(maxsize=KEPT_COUNTS)
def training(
    does: Piece | Function, state: State, needs: Needs, frozen: frozenset[str]
) -> tuple[float, State, Needs]:
    """Count those of one image's forward and backward pass, some of its parameters frozen."""
    plan = plan_of(does)
    if plan is not None:
        return _planned_training(plan, state, needs, frozen)
    module, images = built(does), 2  # batch norm cannot train on one
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in frozen)
    given = inputs(state, images, needs)
    with FlopCounter() as counter:
        after = module(given)
        wanted = [t for t in tensors(after) if t.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [torch.empty_like(t) for t in wanted])
    return counter.flops / 2 / images, shapes_of(after), needs_of(after)


def _planned_training(
    plan: Plan, state: State, needs: Needs, frozen: frozenset[str]
) -> tuple[float, State, Needs]:
    shapes, needy, both = [*state], [*needs], []
    for step in plan.steps:
        given = picked(shapes, step.reads)
        of_step = within(frozen, f"{step.part}.")
        macs, made, need = training(step.does, given, picked(needy, step.reads), of_step)
        results = range(len(shapes), len(shapes) + len(made))
        both.append((step.reads, results, macs, forward(step.does, given)[0]))
        shapes += made
        needy += need
    total, wanted = 0.0, {*plan.returns}
    for reads, results, macs, forward_alone in reversed(both):
        learns = any(needy[number] and number in wanted for number in results)
        wanted |= {*reads} if learns else set()
        total += macs if learns else forward_alone  # no gradient comes back to what is not wanted
    return total, picked(shapes, plan.returns), picked(needy, plan.returns)


def within(names: frozenset[str], prefix: str) -> frozenset[str]:
    """Return what follows a prefix in those of the names that have it."""
    return frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))


class _Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, state: Any) -> Any:
        return self.function(state)


def built(does: Piece | Function) -> nn.Module:
    """Return a module without memory that computes this."""
    return blueprint(does.build) if isinstance(does, Piece) else _Applied(does)


def inputs(state: State, batch: int, needs: Needs) -> Any:
    """Return tensors of these shapes, which may be written to."""
    made = [
        torch.empty((batch, *shape), device="meta", requires_grad=need)
        for shape, need in zip(state, needs, strict=True)
    ]
    return joined([tensor.clone() if tensor.requires_grad else tensor for tensor in made])


def shapes_of(state: Any) -> State:
    """Return the shapes of what one image comes to."""
    return tuple(tuple(t.shape[1:]) for t in tensors(state))


def needs_of(state: Any) -> Needs:
    """Return whether a gradient flows back to each tensor."""
    return tuple(t.requires_grad for t in tensors(state))


def picked(values: Sequence[T], numbers: Sequence[int]) -> tuple[T, ...]:
    """Return the values of these numbers."""
    return tuple([values[number] for number in numbers])
