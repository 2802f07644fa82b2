"""DARTS cells the plain way: modules of their own, and a forward pass that reads top to bottom."""

import dataclasses
import functools

from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.space import Arch, Choice, Task
from fedtailor.networks.pieces import ChainSpace, Piece
from fedtailor.spaces._darts import OPERATION_SETS
from fedtailor.spaces._darts_cell import EDGES, NODES, Cell, Edges, Place
from fedtailor.spaces._darts_maps import concatenate, dropped, halves
from fedtailor.spaces._darts_operations import (
    DilatedConv,
    FactorizedReduce,
    Noise,
    Pool,
    Preprocess,
    Style,
    operation,
)
from fedtailor.spaces.darts import DARTS
from fedtailor.spaces.darts_network import DARTSNetwork


class Maps:
    """What an input or a node holds; what several operations make of it is computed once."""

    def __init__(self, plain: Tensor, rectified: Tensor | None = None) -> None:
        self.plain = plain
        if rectified is not None:
            self.rectified = rectified

    @functools.cached_property
    def rectified(self) -> Tensor:
        return F.relu(self.plain)

    @functools.cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        return halves(self.rectified)


def applied(made: nn.Module, maps: Maps, stride: int = 1) -> Tensor:
    """Return what an operation makes of maps."""
    if isinstance(made, Pool | Noise):
        return made(maps.plain)
    if isinstance(made, FactorizedReduce):
        return made(maps.halves)
    if isinstance(made, DilatedConv) and stride == 2:
        return made(maps.halves[0])
    return made(maps.rectified)


class PlainCell(nn.Module):
    """A cell."""

    def __init__(self, place: Place, edges: Edges, style: Style) -> None:
        super().__init__()
        first = FactorizedReduce if place.after_reduction else Preprocess
        self.preprocess0 = first(place.before_last, place.channels, style)
        self.preprocess1 = Preprocess(place.last, place.channels, style)
        self.chance = style.drop_path
        self.sums: list[list[tuple[int, nn.Module | None, int]]] = [[] for _ in range(NODES)]
        for number, ((source, target), names) in enumerate(zip(EDGES, edges, strict=True)):
            stride, modules = place.stride(number), nn.ModuleDict()
            for name in names:
                piece = operation(name, place.channels, stride, style, "")
                made = None if piece is None else piece.build()
                self.sums[target - 2].append((source, made, stride))
                if made is not None:
                    modules[name] = made
            if modules:
                self.add_module(f"edge{number}", modules)
        self.read = {source for terms in self.sums for source, _, _ in terms}

    def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        before_last, last = Maps(state[0], state[0]), Maps(state[1])
        maps = [
            Maps(applied(self.preprocess0, before_last)) if 0 in self.read else before_last,
            Maps(applied(self.preprocess1, last)) if 1 in self.read else last,
        ]
        for terms in self.sums:
            maps.append(Maps(self._sum(maps, terms)))
        return last.rectified, concatenate(tuple(node.plain for node in maps[2:]))

    def _sum(self, maps: list[Maps], terms: list[tuple[int, nn.Module | None, int]]) -> Tensor:
        total = self._term(maps, *terms[0])
        own = False
        for one in terms[1:]:
            term = self._term(maps, *one)
            total, own = (total.add_(term) if own else total + term), True
        return total

    def _term(self, maps: list[Maps], source: int, made: nn.Module | None, stride: int) -> Tensor:
        if made is None:
            return maps[source].plain
        found = applied(made, maps[source], stride)
        return dropped(found, self.chance) if self.chance and self.training else found


@dataclasses.dataclass(frozen=True)
class PlainSpace(ChainSpace):
    """A space of the family whose cells are plain: pieces of which nothing is known."""

    space: ChainSpace

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.space.choices

    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        return tuple(
            Piece(p.name, PlainCell, p.arguments) if p.kind is Cell else p
            for p in self.space.pieces(arch, task)
        )

    def cover(self) -> tuple[Arch, ...]:
        return self.space.cover()


SPACES: dict[str, ChainSpace] = {
    f"{operations} {form}": DARTS(
        channels=4,
        cells=4,
        operations=operations,  # pyright: ignore[reportArgumentType]
        form=form,  # pyright: ignore[reportArgumentType]
        affine=operations == "s5",
    )
    for operations in sorted(OPERATION_SETS)
    for form in ("path", "relaxed")
}
SPACES |= {
    "network": DARTSNetwork(channels=4, cells=4, drop_path=0.3),
    "network stride": DARTSNetwork(channels=4, cells=5, stem_stride=2, genotype="DARTS_V1"),
}
