"""A space of small networks that train in milliseconds; to the package it is a user's own."""

from dataclasses import dataclass

from torch import Tensor, nn

from fedtailor.core.space import Arch, Choice, Task
from fedtailor.networks.pieces import ChainSpace, Piece

WIDTHS, KERNELS = (4, 6, 8), (1, 3)


class Layer(nn.Module):
    def __init__(self, inputs: int, width: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, images: Tensor) -> Tensor:
        return self.drop(self.norm(self.conv(images)).relu())


class Head(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)

    def forward(self, maps: Tensor) -> Tensor:
        return self.linear(maps.mean((2, 3)))


@dataclass(frozen=True)
class Tiny(ChainSpace):
    """Layers, each with a choice of width and kernel."""

    layers: int = 3

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(
            choice
            for layer in range(self.layers)
            for choice in (Choice(f"width{layer}", WIDTHS), Choice(f"kernel{layer}", KERNELS))
        )

    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        widths = [task.shape[0], *(WIDTHS[option] for option in arch[::2])]
        layers = (
            Piece(f"layer{n}", Layer, (*widths[n : n + 2], KERNELS[arch[2 * n + 1]]))
            for n in range(self.layers)
        )
        return (*layers, Piece("head", Head, (widths[-1], task.classes)))
