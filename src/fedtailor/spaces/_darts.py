"""Cells of the DARTS family: their wiring, their operations and the operation sets.

Liu et al. 2019, "DARTS: Differentiable Architecture Search"; the sets s1 to s4 are those of Zela et
al. 2020, "Understanding and Robustifying Differentiable Architecture Search".

A cell has two inputs, the outputs of the two cells before it, and four nodes; every node has an
edge from both inputs and from all nodes before it: 14 edges, numbered node by node. What goes from
cell to cell is (output before last, already rectified; last output): everything that reads the
former begins with a ReLU, which is thus computed once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.chain import Piece
from fedtailor.depthwise import DepthwiseConv2d
from fedtailor.errors import UserError
from fedtailor.types import Task

NODES = 4
STEM_WIDENING = 3  # the stem has so many times the channels of the first cell
KINDS = ("normal", "reduction")
NAMES = ("c_{k-2}", "c_{k-1}", "0", "1", "2", "3")  # of the inputs and nodes, as papers draw them
EDGES = tuple((source, node + 2) for node in range(NODES) for source in range(node + 2))
NODE_EDGES = tuple(
    tuple(number for number, (_, target) in enumerate(EDGES) if target == node + 2)
    for node in range(NODES)
)
EIGHT = (
    "none", "max_pool_3x3", "avg_pool_3x3", "skip_connect",
    "sep_conv_3x3", "sep_conv_5x5", "dil_conv_3x3", "dil_conv_5x5",
)  # fmt: skip

Operations = tuple[str, ...]
Edges = tuple[Operations, ...]  # the operations of each of a cell's 14 edges; () where it has none
Cells = tuple[Edges, Edges]  # of normal and of reduction cells
Arrow = tuple[str, str, Operations]  # source, target and what is between them

_SHORT = {"skip": "skip_connect", "max": "max_pool_3x3", "avg": "avg_pool_3x3"}
_SHORT |= {"sep3": "sep_conv_3x3", "dil3": "dil_conv_3x3", "dil5": "dil_conv_5x5"}


def _pairs(text: str) -> Edges:
    return tuple(tuple(_SHORT[word] for word in pair.split("/")) for pair in text.split())


# For the normal and for the reduction cell. s5 is as in DARTS-PT and SPIDER: without `none`.
OPERATION_SETS: dict[str, Cells] = {
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
    **{
        name: ((operations,) * len(EDGES),) * 2
        for name, operations in {
            "darts": EIGHT,
            "s2": ("skip_connect", "sep_conv_3x3"),
            "s3": ("none", "skip_connect", "sep_conv_3x3"),
            "s4": ("noise", "sep_conv_3x3"),
            "s5": EIGHT[1:],
        }.items()
    },
}


@dataclass(frozen=True)
class Style:
    """What distinguishes the cells of a supernet (the defaults) from those of a final network."""

    affine: bool = False  # batch norm learns scale and shift
    pool_norm: bool = True  # batch norm, without scale and shift, follows every pool
    drop_path: float = 0.0  # chance that an operation's output for an image is dropped


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
    """Resize the images if told to, widen them; no ReLU follows."""

    def __init__(self, before: int, after: int, stride: int, resolution: int | None) -> None:
        super().__init__()
        self.resolution = resolution
        self.conv = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the first cell reads."""
        if self.resolution:
            size = (self.resolution, self.resolution)
            images = F.interpolate(images, size, mode="bicubic", align_corners=False)
        maps = self.norm(self.conv(images))
        return F.relu(maps), maps


class Cell(nn.Module):
    """Four nodes, each the sum of the operations on its edges; their maps one after the other."""

    def __init__(self, place: Place, edges: Edges, style: Style) -> None:
        super().__init__()
        first = FactorizedReduce if place.after_reduction else _Pointwise
        self.preprocess0 = first(place.before_last, place.channels, style.affine)
        self.preprocess1 = _Pointwise(place.last, place.channels, style.affine)
        self.drop_path = style.drop_path
        self.sums: list[list[tuple[int, nn.Module | None]]] = [[] for _ in range(NODES)]
        for number, ((source, target), names) in enumerate(zip(EDGES, edges, strict=True)):
            edge = nn.ModuleDict()
            for name in names:
                made = operation(name, place.channels, place.stride(number), style)
                if made is not None:
                    edge[name] = made
                self.sums[target - 2].append((source, made))
            if edge:
                self.add_module(f"edge{number}", edge)
        self.used = {source for summands in self.sums for source, _ in summands}

    def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return what the next cell reads."""
        before_last, last = state[0], F.relu(state[1])
        maps = [
            _Maps(self.preprocess0(before_last) if 0 in self.used else before_last),
            _Maps(self.preprocess1(last) if 1 in self.used else last),
        ]
        for summands in self.sums:
            total: Tensor | None = None
            fresh = False  # whether `total` is nobody else's, and may be added to in place
            for source, made in summands:
                term = self._term(maps[source], made)
                if total is None:
                    total = term
                else:
                    total, fresh = (total.add_(term) if fresh else total + term), True
            assert total is not None
            maps.append(_Maps(total))
        return last, torch.cat([node.plain for node in maps[2:]], 1)

    def _term(self, maps: "_Maps", made: nn.Module | None) -> Tensor:
        if made is None:
            return maps.plain
        found = made(maps.rectified() if isinstance(made, _Rectifying) else maps.plain)
        if self.drop_path and self.training:
            keep = 1 - self.drop_path
            mask = torch.rand(len(found), 1, 1, 1, device=found.device, dtype=found.dtype) < keep
            found = found * (mask / keep)
        return found


class Head(nn.Linear):
    """Average over the last output's map and classify."""

    def forward(self, input: tuple[Tensor, Tensor]) -> Tensor:
        """Return the logits."""
        return super().forward(input[1].mean((2, 3)))


class _Maps:
    """What a node or input holds, and its ReLU once somebody has asked for it."""

    def __init__(self, plain: Tensor) -> None:
        self.plain = plain
        self._rectified: Tensor | None = None

    def rectified(self) -> Tensor:
        if self._rectified is None:
            self._rectified = F.relu(self.plain)
        return self._rectified


class _Rectifying(nn.Module):
    """An operation that begins with a ReLU, which its caller has computed."""


def operation(name: str, channels: int, stride: int, style: Style) -> nn.Module | None:
    """Make the module of an operation other than `none`; None: the input itself."""
    if name == "skip_connect":
        return None if stride == 1 else FactorizedReduce(channels, channels, style.affine)
    if name == "noise":
        return Noise(stride)
    kind, _, size = name.rpartition("_")
    if kind in ("max_pool", "avg_pool"):
        return Pool(kind, channels, stride, style.pool_norm)
    made = {"sep_conv": SeparableConv, "dil_conv": DilatedConv}[kind]
    return made(channels, int(size[0]), stride, style.affine)


class _Pointwise(_Rectifying):
    def __init__(self, before: int, after: int, affine: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 1, bias=False)
        self.norm = nn.BatchNorm2d(after, affine=affine)

    def forward(self, maps: Tensor) -> Tensor:
        return self.norm(self.conv(maps))


class FactorizedReduce(_Rectifying):
    """Halve the map: half the channels read the even pixels, the others the odd ones."""

    def __init__(self, before: int, after: int, affine: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after // 2, 1, stride=2, bias=False)
        self.conv2 = nn.Conv2d(before, after // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(after, affine=affine)

    def forward(self, maps: Tensor) -> Tensor:
        """Reduce; a map of odd size ends with zeros for the odd pixels that it lacks."""
        height, width = maps.shape[2:]
        padded = F.pad(maps, (0, width % 2, 0, height % 2)) if height % 2 or width % 2 else maps
        return self.norm(torch.cat([self.conv1(maps), self.conv2(padded[:, :, 1:, 1:])], 1))


class SeparableConv(_Rectifying):
    """Convolve each channel, mix channels, normalise; twice, the stride in the first."""

    def __init__(self, channels: int, kernel: int, stride: int, affine: bool) -> None:
        super().__init__()
        self.depthwise1 = DepthwiseConv2d(channels, kernel, stride)
        self.pointwise1 = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels, affine=affine)
        self.depthwise2 = DepthwiseConv2d(channels, kernel)
        self.pointwise2 = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels, affine=affine)

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve."""
        inner = F.relu(self.norm1(self.pointwise1(self.depthwise1(maps))))
        return self.norm2(self.pointwise2(self.depthwise2(inner)))


class DilatedConv(_Rectifying):
    """Convolve each channel with every second pixel, mix channels, normalise."""

    def __init__(self, channels: int, kernel: int, stride: int, affine: bool) -> None:
        super().__init__()
        self.depthwise = DepthwiseConv2d(channels, kernel, stride, dilation=2)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels, affine=affine)

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve."""
        return self.norm(self.pointwise(self.depthwise(maps)))


class Pool(nn.Module):
    """Pool 3x3 pixels, padding not counted in averages; in a supernet, normalise."""

    def __init__(self, kind: str, channels: int, stride: int, normalised: bool) -> None:
        super().__init__()
        self.largest, self.stride = kind == "max_pool", stride
        self.norm = nn.BatchNorm2d(channels, affine=False) if normalised else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        """Pool."""
        if self.largest:
            return self.norm(F.max_pool2d(maps, 3, self.stride, 1))
        return self.norm(F.avg_pool2d(maps, 3, self.stride, 1, count_include_pad=False))


class Noise(nn.Module):
    """Standard normal noise in the shape of a map, in training and in evaluation alike.

    Drawn from torch's global generator, which the training loop seeds before every step.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, maps: Tensor) -> Tensor:
        """Draw, in the layout of a channels_last map."""
        count, channels, *size = maps.shape
        height, width = ((pixels - 1) // self.stride + 1 for pixels in size)
        drawn = torch.randn(count, height, width, channels, device=maps.device, dtype=maps.dtype)
        return drawn.permute(0, 3, 1, 2)
