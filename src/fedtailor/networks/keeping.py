"""What autograd keeps of an image batch for the backward pass, each tensor once.

It is looked up on the meta device for single pieces and functions. What keeps the same tensor is
found by following it from one to the next, which takes no tensors at all.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.networks.counting import (
    KEPT_COUNTS,
    Needs,
    State,
    built,
    inputs,
    needs_of,
    picked,
    shapes_of,
)
from fedtailor.networks.flops import FlopCounter
from fedtailor.networks.pieces import Piece
from fedtailor.networks.plans import Function, plan_of, tensors

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Kept:
    """What autograd keeps of one piece, and where its outputs come from."""

    inside: int  # bytes of tensors that are neither weights nor inputs nor outputs
    inputs: tuple[int, ...]  # inputs that are kept, by position
    outputs: tuple[int, ...]
    state: State
    sources: tuple[int | None, ...]  # per output: the input it is, or None for a new tensor
    needs: Needs  # per output: whether a gradient flows back to it
    sizes: tuple[int, ...]  # per output: the bytes of its memory


@functools.lru_cache(maxsize=KEPT_COUNTS)
def kept(does: Piece | Function, state: State, batch: int, needs: Needs) -> Kept:
    """Return what is kept of a piece or a function."""
    plan = plan_of(does)
    if plan is None:
        return _measured(does, state, batch, needs)
    ledger = Ledger(state, batch, needs)
    for step in plan.steps:
        ledger.step(step.does, step.reads)
    return ledger.kept(plan.returns)


class Ledger:
    """What is kept after some steps; values and the memory they are in are known by number."""

    def __init__(self, state: State, batch: int, needs: Needs) -> None:
        self.batch, self.given = batch, len(state)
        self._shapes, self._needs = [*state], [*needs]
        self._places = list(range(len(state)))  # per value
        self._sizes = [batch * math.prod(shape) * FLOAT for shape in state]  # per place
        self._saved: set[int] = set()  # places
        self._inside = 0

    def step(self, does: Piece | Function, reads: Sequence[int]) -> list[int]:
        """Compute something from values, and return the numbers of what it comes to."""
        given = picked(self._places, reads)
        needs = picked(self._needs, reads)
        found = kept(does, picked(self._shapes, reads), self.batch, needs)
        first, places = len(self._places), []
        for source, size in zip(found.sources, found.sizes, strict=True):
            if source is None:
                self._sizes.append(size)
            places.append(len(self._sizes) - 1 if source is None else given[source])
        self._inside += found.inside
        self._saved.update(given[i] for i in found.inputs)
        self._saved.update(places[i] for i in found.outputs)
        self._shapes += found.state
        self._needs += found.needs
        self._places += places
        return list(range(first, len(self._places)))

    @property
    def nbytes(self) -> int:
        """All that is kept."""
        return self._inside + sum(self._sizes[place] for place in self._saved)

    def kept(self, returns: Sequence[int]) -> Kept:
        """Return what is kept of all steps together, and of which values they return."""
        places = picked(self._places, returns)
        outside = {*range(self.given), *places}
        return Kept(
            self._inside + sum(self._sizes[place] for place in self._saved - outside),
            tuple(i for i in range(self.given) if i in self._saved),
            tuple(i for i, p in enumerate(places) if p in self._saved and p >= self.given),
            picked(self._shapes, returns),
            tuple(place if place < self.given else None for place in places),
            picked(self._needs, returns),
            picked(self._sizes, places),
        )


def _measured(does: Piece | Function, state: State, batch: int, needs: Needs) -> Kept:
    """Run something on the meta device, and look at what autograd saves."""
    module = built(does)
    weights = {p.untyped_storage()._cdata for p in module.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    given = inputs(state, batch, needs)
    before = [t.untyped_storage()._cdata for t in tensors(given)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), FlopCounter():
        after = module(given)  # held, so that no storage is counted under a reused key
    storages = [t.untyped_storage() for t in tensors(after)]
    outputs = [storage._cdata for storage in storages]
    sources = tuple(before.index(o) if o in before else None for o in outputs)
    return Kept(
        sum(size for key, size in saved.items() if key not in {*weights, *before, *outputs}),
        tuple(i for i, key in enumerate(before) if key in saved),
        tuple(i for i, key in enumerate(outputs) if key in saved and sources[i] is None),
        shapes_of(after),
        sources,
        needs_of(after),
        tuple(storage.nbytes() for storage in storages),
    )
