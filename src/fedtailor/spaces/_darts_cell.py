"""Cells of the DARTS family: their wiring, and how they compute.

A cell has two inputs, the outputs of the two cells before it, and four nodes; every node has an
edge from both inputs and from all nodes before it: 14 edges, numbered node by node. What goes from
cell to cell is (output before last, already rectified; last output): everything that reads the
former begins with a ReLU, which is thus computed once.

A third part may go with them: how much every operation counts in the sum of its node (`Mixing`).
Without it all count 1.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.networks.pieces import Piece
from fedtailor.networks.plans import Plan, Planned, Planner
from fedtailor.spaces._darts_maps import added, added_to, concatenate, halves, weighted
from fedtailor.spaces._darts_operations import (
    DropPath,
    FactorizedReduce,
    Form,
    Preprocess,
    Style,
    operation,
    reads,
)

NODES = 4
EDGES = tuple((source, node + 2) for node in range(NODES) for source in range(node + 2))
NODE_EDGES = tuple(
    tuple(number for number, (_, target) in enumerate(EDGES) if target == node + 2)
    for node in range(NODES)
)
INPUT_EDGES = tuple(
    tuple(number for number, (start, _) in enumerate(EDGES) if start == source)
    for source in range(2)
)
MIXING = 2  # the number of the third of a cell's values

Operations = tuple[str, ...]
Edges = tuple[Operations, ...]  # the operations of each of a cell's 14 edges; () where it has none
# Of normal and of reduction cells: a number for every operation, edge by edge.
Mixing = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Place:
    """Where a cell is: the channels it reads and has, what it does to the size of the map."""

    before_last: int
    last: int
    channels: int
    reduction: bool = False
    after_reduction: bool = False

    def stride(self, edge: int) -> int:
        """Return the stride of an edge: 2 from the inputs of a reduction cell."""
        return 2 if self.reduction and EDGES[edge][0] < 2 else 1


class _Maps:
    """What an input or a node holds; what several operations make of it is computed once."""

    def __init__(self, planner: Planner, plain: int, rectified: int | None = None) -> None:
        self.planner, self.plain = planner, plain
        if rectified is not None:
            self.rectified = rectified

    @functools.cached_property
    def rectified(self) -> int:
        """The ReLU, with which every convolution begins."""
        return self.planner.step(F.relu, self.plain)

    @functools.cached_property
    def halves(self) -> tuple[int, int]:
        """The rectified pixels at even rows and columns, and those at odd ones."""
        first = self.planner.step(halves, self.rectified, results=2)
        return first, first + 1

    def read(self, form: Form) -> tuple[int, ...]:
        """Return what an operation reads."""
        if form in ("even", "halves"):
            return self.halves if form == "halves" else self.halves[:1]
        return (self.plain if form == "plain" else self.rectified,)


class _Writer:
    """Writes the plan of a cell: node by node, edge by edge, operation by operation."""

    def __init__(self, place: Place, edges: Edges, style: Style, mixed: bool) -> None:
        self.place, self.edges, self.style, self.mixed = place, edges, style, mixed
        self.planner = Planner(given=3 if mixed else 2)
        live = [(edge, name) for edge, names in enumerate(edges) for name in names]
        self.order = {each: place for place, each in enumerate(live)}

    def plan(self) -> Plan:
        """Return it."""
        before_last, last = _Maps(self.planner, 0, rectified=0), _Maps(self.planner, 1)
        maps = self._preprocessed(before_last, last)
        for numbers in NODE_EDGES:
            maps.append(_Maps(self.planner, self._sum(maps, numbers)))
        rectified = last.rectified
        nodes = self.planner.step(concatenate, *(node.plain for node in maps[2:]))
        return self.planner.plan(rectified, nodes, *((MIXING,) if self.mixed else ()))

    def _preprocessed(self, before_last: _Maps, last: _Maps) -> list[_Maps]:
        """Bring both inputs to the cell's channels; one that nothing reads is left as it is."""
        place, planner, style = self.place, self.planner, self.style
        kind = FactorizedReduce if place.after_reduction else Preprocess
        first = planner.part(Piece("preprocess0", kind, (place.before_last, place.channels, style)))
        second = planner.part(Piece("preprocess1", Preprocess, (place.last, place.channels, style)))
        read = {source for (source, _), names in zip(EDGES, self.edges, strict=True) if names}
        found = [before_last, last]
        if 0 in read:
            form = "halves" if place.after_reduction else "rectified"
            found[0] = _Maps(planner, planner.step(first, *before_last.read(form)))
        if 1 in read:
            found[1] = _Maps(planner, planner.step(second, *last.read("rectified")))
        return found

    def _sum(self, maps: list[_Maps], numbers: tuple[int, ...]) -> int:
        """Add up all operations on some edges."""
        terms = [(number, name) for number in numbers for name in self.edges[number]]
        total = self._mixed(maps, *terms[0])
        own = False  # whether nobody else holds `total`, so that it may be added to in place
        for term in terms[1:]:
            add = added_to if own else added
            total, own = self.planner.step(add, total, self._mixed(maps, *term)), True
        return total

    def _mixed(self, maps: list[_Maps], edge: int, name: str) -> int:
        """Return what an operation adds to its node."""
        found = self._term(maps, edge, name)
        if not self.mixed:
            return found
        weigh = functools.partial(weighted, self.place.reduction, self.order[edge, name])
        return self.planner.step(weigh, found, MIXING)

    def _term(self, maps: list[_Maps], edge: int, name: str) -> int:
        """Return what an operation makes of its source."""
        source, stride = maps[EDGES[edge][0]], self.place.stride(edge)
        made = operation(name, self.place.channels, stride, self.style, f"edge{edge}")
        if made is None:
            return source.plain
        found = self.planner.step(made, *source.read(reads(name, stride)))
        if self.style.drop_path:
            found = self.planner.step(Piece("drop_path", DropPath, (self.style.drop_path,)), found)
        return found


@functools.lru_cache(maxsize=512)
def _plan(place: Place, edges: Edges, style: Style, mixed: bool = False) -> Plan:
    return _Writer(place, edges, style, mixed).plan()


class Cell(Planned):
    """Four nodes, each the sum of all operations on its edges; their maps one after the other."""

    plan = staticmethod(_plan)

    def __init__(self, *arguments: Any, modules: Sequence[nn.Module] | None = None) -> None:
        super().__init__(*arguments, modules=modules)
        self.arguments = arguments

    def forward(self, state: Any) -> Any:
        """Return the last output, rectified, and this one; the mixing goes along."""
        if len(state) == 2:
            return super().forward(state)
        return self.follow(_plan(*self.arguments, mixed=True), state)
