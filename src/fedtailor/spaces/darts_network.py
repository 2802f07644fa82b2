"""The network that DARTS finds, as a fixed model: cells whose nodes have two inputs each.

Liu et al. 2019, "DARTS: Differentiable Architecture Search". 3,349,342 parameters with 10 classes.
Differs from the paper: there is no auxiliary head, and the chance of a dropped path is constant
where the paper raises it from 0 epoch by epoch.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Interval

from fedtailor.core.errors import UserError, nearest
from fedtailor.core.space import Arch, Task
from fedtailor.networks.pieces import ChainSpace, Piece
from fedtailor.spaces import _darts
from fedtailor.spaces._darts import EIGHT, KINDS, Cells
from fedtailor.spaces._darts_cell import EDGES, NODES, Edges, Operations
from fedtailor.spaces._darts_operations import Style

# "operation source" of every node's two inputs, of the normal / the reduction cell. Sources 0 and 1
# are c_{k-2} and c_{k-1}, source 2 is the first node.
PUBLISHED = {
    "DARTS_V1": """
        sep_conv_3x3 1, sep_conv_3x3 0, skip_connect 0, sep_conv_3x3 1,
        skip_connect 0, sep_conv_3x3 1, sep_conv_3x3 0, skip_connect 2 /
        max_pool_3x3 0, max_pool_3x3 1, skip_connect 2, max_pool_3x3 0,
        max_pool_3x3 0, skip_connect 2, skip_connect 2, avg_pool_3x3 0""",
    "DARTS_V2": """
        sep_conv_3x3 0, sep_conv_3x3 1, sep_conv_3x3 0, sep_conv_3x3 1,
        sep_conv_3x3 1, skip_connect 0, skip_connect 0, dil_conv_3x3 2 /
        max_pool_3x3 0, max_pool_3x3 1, skip_connect 2, max_pool_3x3 1,
        max_pool_3x3 0, skip_connect 2, skip_connect 2, max_pool_3x3 1""",
}


@dataclass(frozen=True)
class DARTSNetwork(ChainSpace):
    """A fixed model: a space without choices."""

    channels: Annotated[int, Ge(2)] = 36  # of the first cell; even
    cells: Annotated[int, Ge(3)] = 20  # two of them halve the map, the others are normal
    genotype: str = "DARTS_V2"  # or DARTS_V1, or one's own in the form of PUBLISHED
    drop_path: Annotated[float, Interval(ge=0, lt=1)] = 0.0  # chance that an operation is dropped
    stem_stride: Annotated[int, Interval(ge=1, le=2)] = 1  # 2 halves the images at once

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"channels": 36, "cells": 20, "drop_path": 0.2},
        "cpu": {"channels": 8, "cells": 5, "stem_stride": 2},
    }

    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        """List stem, cells and head."""
        layout = _darts.places(self.channels, self.cells)
        stem = _darts.stem(task, layout[0].last, self.stem_stride)
        style = Style(affine=True, pool_norm=False, drop_path=self.drop_path)
        return _darts.pieces(stem, layout, _cells(self.genotype), style, task.classes)

    def drawing(self, arch: Arch = ()) -> dict[str, list[_darts.Arrow]]:
        """List (source, target, operations) of the edges of both cells, for a figure."""
        return _darts.drawing(_cells(self.genotype))


def _cells(genotype: str) -> Cells:
    """Read a genotype."""
    halves = PUBLISHED.get(genotype, genotype).split("/")
    if len(halves) != 2:
        raise UserError(
            f"space.genotype: {genotype!r} is neither {' nor '.join(PUBLISHED)} nor two lists "
            f"`operation source, ...` (normal / reduction cell)"
        )
    normal, reduction = (_edges(*pair) for pair in zip(KINDS, halves, strict=True))
    return normal, reduction


def _edges(kind: str, text: str) -> Edges:
    inputs = [words.split() for words in text.split(",")]
    if len(inputs) != 2 * NODES:
        raise UserError(
            f"space.genotype: the {kind} cell must have {2 * NODES} inputs, two for each node, "
            f"not {len(inputs)}"
        )
    found: dict[int, Operations] = {}
    for number, words in enumerate(inputs):
        node, sources = number // 2, [str(source) for source in range(number // 2 + 2)]
        if len(words) != 2 or words[1] not in sources:
            raise UserError(
                f"space.genotype: {' '.join(words)!r} in the {kind} cell must be an operation and "
                f"a source, which for node {node} is one of {', '.join(sources)}"
            )
        edge = EDGES.index((int(words[1]), node + 2))
        if words[0] not in EIGHT[1:]:
            meant = nearest(words[0], list(EIGHT[1:]))
            raise UserError(f"space.genotype: no operation is called {words[0]!r}{meant}")
        if edge in found:
            raise UserError(f"space.genotype: node {node} of the {kind} cell reads a source twice")
        found[edge] = (words[0],)
    return tuple(found.get(edge, ()) for edge in range(len(EDGES)))
