"""A relaxed DARTS that is decided by two searches; to the package it is a user's own space."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from fedtailor.core.space import Arch
from fedtailor.spaces.darts import DARTS

BOTH, SKIP, SEP = 3, 1, 2  # bits of s2
OPEN = (0, 4)  # edges of each cell with two operations: c_{k-2} to 0, and 0 to 1
CELL = [BOTH, SEP, 0, 0, BOTH, 0, 0, SKIP, 0, 0, 0, SKIP, 0, 0]
CROWDED = [BOTH, SEP, SKIP, SEP, BOTH, 0, 0, SKIP, 0, 0, 0, SKIP, 0, 0]


@dataclass(frozen=True)
class FewEdges(DARTS):
    """A supernet of seven operations on five edges in each cell, or of nine on seven."""

    channels: Annotated[int, Ge(2)] = 2
    cells: Annotated[int, Ge(3)] = 3
    operations: Literal["darts", "s1", "s2", "s3", "s4", "s5"] = "s2"
    form: Literal["path", "relaxed"] = "relaxed"
    crowded: bool = False  # a node has three inputs

    def largest(self) -> Arch:
        return tuple((CROWDED if self.crowded else CELL) * 2)
