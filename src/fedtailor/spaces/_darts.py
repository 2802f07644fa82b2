"""Networks of the DARTS family: their cells in a row, and the sets of operations.

Liu et al. 2019, "DARTS: Differentiable Architecture Search"; the sets s1 to s4 are those of Zela et
al. 2020, "Understanding and Robustifying Differentiable Architecture Search".
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.space import Task
from fedtailor.networks.pieces import Piece
from fedtailor.spaces._darts_cell import EDGES, NODES, Cell, Edges, Mixing, Operations, Place
from fedtailor.spaces._darts_operations import Style

STEM_WIDENING = 3  # the stem has so many times the channels of the first cell
KINDS = ("normal", "reduction")
NAMES = ("c_{k-2}", "c_{k-1}", "0", "1", "2", "3")  # of the inputs and nodes, as papers draw them
EIGHT = (
    "none", "max_pool_3x3", "avg_pool_3x3", "skip_connect",
    "sep_conv_3x3", "sep_conv_5x5", "dil_conv_3x3", "dil_conv_5x5",
)  # fmt: skip

Cells = tuple[Edges, Edges]  # of normal and of reduction cells
Arrow = tuple[str, str, Operations]  # source, target and what is between them

_SHORT = {"skip": "skip_connect", "max": "max_pool_3x3", "avg": "avg_pool_3x3"}
_SHORT |= {"sep3": "sep_conv_3x3", "dil3": "dil_conv_3x3", "dil5": "dil_conv_5x5"}


def _pairs(text: str) -> Edges:
    return tuple(tuple(_SHORT[word] for word in pair.split("/")) for pair in text.split())


def _everywhere(*operations: str) -> Cells:
    edges = (operations,) * len(EDGES)
    return edges, edges


# s5 as DARTS-PT and SPIDER have it: without `none`.
OPERATION_SETS: dict[str, Cells] = {
    "darts": _everywhere(*EIGHT),
    "s1": (
        _pairs(
            "skip/dil3 skip/dil5  skip/dil5 skip/sep3 skip/dil3  max/skip skip/sep3 skip/sep3 "
            "skip/dil3  skip/sep3 max/skip skip/dil3 dil3/dil5 dil3/dil5"
        ),
        _pairs(
            "max/avg max/dil3  max/avg max/avg skip/dil5  max/avg max/sep3 skip/dil3 "
            "skip/dil5  max/avg max/avg skip/dil5 skip/dil5 skip/dil5"
        ),
    ),
    "s2": _everywhere("skip_connect", "sep_conv_3x3"),
    "s3": _everywhere("none", "skip_connect", "sep_conv_3x3"),
    "s4": _everywhere("noise", "sep_conv_3x3"),
    "s5": _everywhere(*EIGHT[1:]),
}


def places(channels: int, cells: int) -> tuple[Place, ...]:
    """Lay out the cells: at one third and at two thirds the map halves and the channels double."""
    if cells < 3:
        raise UserError(f"space.cells: {cells} leave no room for a normal cell; 3 at least")
    if channels < 2 or channels % 2:
        raise UserError(f"space.channels: must be even, not {channels}")
    found: list[Place] = []
    before_last = last = STEM_WIDENING * channels
    for number in range(cells):
        reduction = number in (cells // 3, 2 * cells // 3)
        channels *= 2 if reduction else 1
        after_reduction = bool(found) and found[-1].reduction
        found.append(Place(before_last, last, channels, reduction, after_reduction))
        before_last, last = last, NODES * channels
    return tuple(found)


def stem(task: Task, channels: int, stride: int, resolution: int | None = None) -> Piece:
    """Return the first piece."""
    resized = None if (resolution, resolution) == task.shape[1:] else resolution
    return Piece("stem", Stem, (task.shape[0], channels, stride, resized))


def pieces(
    stem: Piece, layout: tuple[Place, ...], cells: Cells, style: Style, classes: int
) -> tuple[Piece, ...]:
    """List all pieces of the network that has these cells."""
    middle = (
        Piece(f"cell{number}", Cell, (place, cells[place.reduction], style))
        for number, place in enumerate(layout)
    )
    return stem, *middle, Piece("head", Head, (NODES * layout[-1].channels, classes))


def drawing(cells: Cells) -> dict[str, list[Arrow]]:
    """List the edges there are, for a figure."""
    return {
        kind: [
            (NAMES[source], NAMES[target], operations)
            for (source, target), operations in zip(EDGES, cell, strict=True)
            if operations
        ]
        for kind, cell in zip(KINDS, cells, strict=True)
    }


class Stem(nn.Module):
    """Resize the images if told to, and widen them; no ReLU follows."""

    def __init__(self, before: int, after: int, stride: int, resolution: int | None) -> None:
        super().__init__()
        self.resolution = resolution
        self.conv = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, state: Tensor | tuple[Tensor, Mixing]) -> tuple[Any, ...]:
        """Return what the first cell reads, of images or of images and a mixing of operations."""
        images, *mixing = state if isinstance(state, tuple) else (state,)
        if self.resolution:
            size = (self.resolution, self.resolution)
            images = F.interpolate(images, size, mode="bicubic", align_corners=False)
        maps = self.norm(self.conv(images))
        return F.relu(maps), maps, *mixing


class Head(nn.Linear):
    """Average over the last output's map and classify."""

    def forward(self, input: tuple[Any, ...]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the logits."""
        return super().forward(input[1].mean((2, 3)))
