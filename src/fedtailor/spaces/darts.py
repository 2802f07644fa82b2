"""DARTS: one cell of 14 edges for all normal and one for all reduction cells, so 28 choices.

Liu et al. 2019. In path form an edge has one operation, as PerFedRLNAS and PerFedSDE-NAS search it;
in relaxed form any subset of its operations is alive and they are summed, as SPIDER trains it. Both
forms have the same parameter names. Differs from the paper: there are no architecture weights (a
sum, not a softmax average), and nothing is pruned to two edges per node. Legal architectures feed
every node and read both inputs of a cell, so that each of their parameters is trained.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeGuard

from annotated_types import Ge, Interval

from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, Choice, SearchSpace, Task, Token
from fedtailor.networks.pieces import ChainSpace, Piece
from fedtailor.spaces import _darts
from fedtailor.spaces._darts import NAMES, OPERATION_SETS, Cells
from fedtailor.spaces._darts_cell import EDGES, INPUT_EDGES, NODE_EDGES, NODES, Operations
from fedtailor.spaces._darts_operations import Style

CONVOLUTIONS = ("dil_conv_3x3", "dil_conv_5x5", "sep_conv_3x3", "sep_conv_5x5")
RANKS = {  # from cheap to dear, by stride: a strided skip connection is a convolution
    1: ("skip_connect", "noise", "max_pool_3x3", "avg_pool_3x3", *CONVOLUTIONS),
    2: ("noise", "max_pool_3x3", "avg_pool_3x3", "skip_connect", *CONVOLUTIONS),
}


@dataclass(frozen=True)
class DARTS(ChainSpace):
    """The DARTS supernet."""

    channels: Annotated[int, Ge(2)] = 16  # of the first cell; even
    cells: Annotated[int, Ge(3)] = 8  # two of them halve the map, the others are normal
    operations: Literal["darts", "s1", "s2", "s3", "s4", "s5"] = "darts"  # that an edge may have
    form: Literal["path", "relaxed"] = "path"  # one operation on an edge; relaxed: some, summed
    resolution: Annotated[int, Ge(1)] | None = None  # images are resized to it; None: they are not
    stem_stride: Annotated[int, Interval(ge=1, le=2)] = 1  # 2 halves the images at once
    affine: bool = False  # whether batch norm in the cells learns scale and shift

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"channels": 16, "cells": 8},  # SPIDER's operations are s2
        "cpu": {"channels": 8, "cells": 3, "resolution": 16},
    }

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The normal cell's edges, then the reduction cell's.

        A relaxed option is a bit mask: bit i says whether operation i of the edge is alive.
        """
        return _choices(self.operations, self.form)

    @property
    def offers(self) -> tuple[Operations, ...]:
        """The operations that each edge may have; relaxed, in the order of its bits."""
        return tuple(edge.offered for edge in _edges(self.operations, self.form))

    @property
    def tokens(self) -> tuple[Token, ...]:
        """One per edge, which reads the edges into its source; relaxed, all in a row."""
        return super().tokens if self.form == "relaxed" else _tokens(self.choices)

    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        """List stem, cells and head."""
        layout = _darts.places(self.channels, self.cells)
        stem = _darts.stem(task, layout[0].last, self.stem_stride, self.resolution)
        style = Style(affine=self.affine)
        return _darts.pieces(stem, layout, self._alive(self.repair(arch)), style, task.classes)

    def drawing(self, arch: Arch) -> dict[str, list[_darts.Arrow]]:
        """List (source, target, operations) of the edges of both cells, for a figure."""
        return _darts.drawing(self._alive(self.repair(arch)))

    def repair(self, arch: Arch) -> Arch:
        """Feed every node, and read both inputs: on the first edge that would do.

        An input that is read by `none` or `noise` alone would leave whole cells untrained.
        Relaxed, the bit of `none` is cleared: it adds nothing.
        """
        alive = [list(cell) for cell in self._alive(arch)]
        for cell, offers in zip(alive, OPERATION_SETS[self.operations], strict=True):
            for numbers in NODE_EDGES:
                if not any(cell[number] for number in numbers):
                    cell[numbers[0]] = (_rescue(offers[numbers[0]]),)
            for first, numbers in enumerate(INPUT_EDGES):
                if not any(set(cell[number]) - {"noise"} for number in numbers):
                    kept = cell[first] if self.form == "relaxed" else ()
                    added = {*kept, _rescue(offers[first])}
                    cell[first] = tuple(name for name in offers[first] if name in added)
        return self._arch(alive[0] + alive[1])

    def smallest(self) -> Arch:
        """Return the cheapest architecture in which images reach the classifier by both inputs.

        The first node reads the inputs, and the others read the first node.
        """
        return self._picked(_smallest)

    def middle(self) -> Arch:
        """Return separable 3x3 convolutions from both inputs to every node, the rest cheapest."""
        return self._picked(_middle)

    def largest(self) -> Arch:
        """Return the dearest operation on every edge; relaxed, all operations."""
        return self._picked(_largest if self.form == "path" else _all)

    def cover(self) -> tuple[Arch, ...]:
        """Return operation k on all edges, for every k; relaxed, all at once."""
        return super().cover() if self.form == "path" else (self.largest(),)

    def _picked(self, pick: "Callable[[_Edge], Operations]") -> Arch:
        return self._arch(pick(edge) for edge in _edges(self.operations, self.form))

    def _arch(self, alive: Iterable[Operations]) -> Arch:
        """Encode the live operations of the 28 edges."""
        pairs = list(zip(alive, _edges(self.operations, self.form), strict=True))
        if self.form == "path":
            return tuple(edge.offered.index(names[0] if names else "none") for names, edge in pairs)
        return tuple(sum(1 << edge.offered.index(n) for n in names) for names, edge in pairs)

    def _alive(self, arch: Arch) -> Cells:
        """Decode the live operations of both cells."""
        offers = [edge.offered for edge in _edges(self.operations, self.form)]
        alive = [_decoded(*pair, self.form) for pair in zip(arch, offers, strict=True)]
        return tuple(alive[: len(EDGES)]), tuple(alive[len(EDGES) :])


def is_relaxed(space: SearchSpace) -> TypeGuard[DARTS]:
    """Tell whether operations can be removed from a space."""
    return isinstance(space, DARTS) and space.form == "relaxed"


def check_relaxed(space: SearchSpace, who: str) -> None:
    """Raise unless operations can be removed from a space, or there is nothing to search."""
    if space.choices and not is_relaxed(space):
        raise UserError(
            f'space.name: {who} searches darts with space.form = "relaxed", or trains a fixed '
            "model; set one of these"
        )


@dataclass(frozen=True)
class _Edge:
    kind: str  # of cell
    source: int
    target: int
    offered: Operations
    removable: bool  # whether it may be without any operation

    @property
    def ranked(self) -> Operations:
        """The operations from cheap to dear."""
        rank = RANKS[2 if self.kind == "reduction" and self.source < 2 else 1]
        return tuple(name for name in rank if name in self.offered)

    @property
    def least(self) -> Operations:
        return () if self.removable else self.ranked[:1]


@functools.cache
def _edges(operations: str, form: str) -> tuple[_Edge, ...]:
    return tuple(
        _Edge(kind, source, target, offered, form == "relaxed" or "none" in offered)
        for kind, cell in zip(_darts.KINDS, OPERATION_SETS[operations], strict=True)
        for (source, target), offered in zip(EDGES, cell, strict=True)
    )


@functools.cache
def _choices(operations: str, form: str) -> tuple[Choice, ...]:
    return tuple(
        Choice(
            f"{edge.kind} {NAMES[edge.source]} to {NAMES[edge.target]}",
            edge.offered if form == "path" else tuple(range(1 << len(edge.offered))),
        )
        for edge in _edges(operations, form)
    )


def _tokens(choices: tuple[Choice, ...]) -> tuple[Token, ...]:
    """Return the line graph of the cells; the reduction cell reads the normal cell's last node."""
    found: list[Token] = []
    for stage in range(len(_darts.KINDS)):
        first = len(found)
        into = {node + 2: [first + edge for edge in NODE_EDGES[node]] for node in range(NODES)}
        inputs = range(first - len(NODE_EDGES[-1]), first) if stage else ()
        for place, (source, _) in enumerate(EDGES):
            gene = len(found)
            after = tuple(into.get(source, inputs))
            found.append(Token(choices[gene].name, (gene,), stage, place, after))
    return tuple(found)


@functools.lru_cache(maxsize=1 << 14)
def _decoded(gene: int, offered: Operations, form: str) -> Operations:
    mask = 1 << gene if form == "path" else gene
    return tuple(n for bit, n in enumerate(offered) if mask >> bit & 1 and n != "none")


def _rescue(offered: Operations) -> str:
    reading = [name for name in offered if name not in ("none", "noise")]
    return "skip_connect" if "skip_connect" in reading else reading[0]


def _smallest(edge: _Edge) -> Operations:
    if edge.target == 2:
        return next((name,) for name in edge.ranked if name != "noise")
    return edge.ranked[:1] if edge.source == 2 else edge.least


def _middle(edge: _Edge) -> Operations:
    if edge.source >= 2:
        return edge.least
    return ("sep_conv_3x3",) if "sep_conv_3x3" in edge.offered else edge.ranked[-1:]


def _largest(edge: _Edge) -> Operations:
    return edge.ranked[-1:]


def _all(edge: _Edge) -> Operations:
    return edge.ranked
