"""Small spaces that can be enumerated, and what is computed on them slowly and obviously."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtailor.core import registry
from fedtailor.core.space import Arch, Choice, SearchSpace, Task
from fedtailor.networks.pieces import ChainSpace, Piece
from fedtailor.search import genes

TASK = Task((1, 8, 8), 10)
NAMES = ("mobilenetv3_plato", "mobilenetv3", "darts", "nasvit")


@dataclass(frozen=True)
class Layers(SearchSpace):
    """A depth, and a kernel for each of two layers: 0 where the layer is absent."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return Choice("depth", (0, 1, 2)), Choice("first", (3, 5, 7)), Choice("second", (3, 5))

    def repair(self, arch: Arch) -> Arch:
        return arch[: 1 + arch[0]] + (0,) * (2 - arch[0])

    def build(self, arch: Arch, task: Task) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class Edges(Layers):
    """Three edges into a node, which must not be fed by nothing; a last gene is for nothing."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        edges = (Choice(f"edge{i}", ("none", "skip", "conv")[: 2 + i % 2]) for i in range(3))
        return (*edges, Choice("alone", (1,)))

    def repair(self, arch: Arch) -> Arch:
        return arch if any(arch[:3]) else (1, *arch[1:])


@dataclass(frozen=True)
class Twins(Layers):
    """Two genes that must be equal: what one does depends on the other as it was drawn."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return Choice("left", (0, 1, 2)), Choice("right", (0, 1, 2))

    def repair(self, arch: Arch) -> Arch:
        return arch if arch[0] == arch[1] else (0, 0)


@dataclass(frozen=True)
class Free(Layers):
    """Three choices, and everything is legal."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return Choice("width", (8, 16, 32)), Choice("bias", (0, 1)), Choice("kernel", (3, 5, 7))

    def repair(self, arch: Arch) -> Arch:
        return arch


@dataclass(frozen=True)
class Additive(Free):
    """Thirty genes of three options; every option adds what it is worth, whatever the others."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(f"gene{i}", (0, 1, 2)) for i in range(30))

    def worth(self, archs: Sequence[Arch], seed: int = 0) -> Tensor:
        """Return what architectures are worth, in deviations from the mean of all."""
        table = torch.randn(30, 3, generator=generator(seed), dtype=torch.float64)
        table -= table.mean(1, keepdim=True)
        table /= table.square().mean(1).sum().sqrt()
        return genes.one_hot(self, archs).double() @ table.flatten()


@dataclass(frozen=True)
class Fixed(Layers):
    """No choice at all."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return ()

    def repair(self, arch: Arch) -> Arch:
        return arch


@dataclass(frozen=True)
class Coin(Fixed):
    """One choice of two."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Choice("side", (0, 1)),)


class Hidden(nn.Sequential):
    """A layer of units."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU())


@dataclass(frozen=True)
class Dense(ChainSpace):
    """Real networks that train in no time: one or two layers, each of three widths."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return Choice("depth", (1, 2)), Choice("first", (4, 16, 64)), Choice("second", (4, 16, 64))

    def repair(self, arch: Arch) -> Arch:
        return arch if arch[0] else (0, arch[1], 0)

    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        widths = [math.prod(task.shape), *(int(self.choices[1].options[g]) for g in arch[1:])]
        found = [
            Piece(f"hidden{layer}", Hidden, (widths[layer], widths[layer + 1]))
            for layer in range(1 + arch[0])
        ]
        return (*found, Piece("head", nn.Linear, (widths[1 + arch[0]], task.classes)))


SMALL = {"layers": Layers(), "edges": Edges(), "twins": Twins()}


def cpu(name: str) -> SearchSpace:
    kind = registry.find("space", name)
    return kind(**kind.presets["cpu"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def length(space: SearchSpace) -> int:
    return sum(genes.option_counts(space))


def drawn_alphas(space: SearchSpace, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(length(space), generator=generator(seed), dtype=torch.float64)


def every_draw(space: SearchSpace) -> list[Arch]:
    return list(itertools.product(*(range(n) for n in genes.option_counts(space))))


def chance(space: SearchSpace, alphas: Tensor, drawn: Arch, temperature: float = 1.0) -> float:
    """Return the probability of a draw, by plain arithmetic."""
    found, start = 1.0, 0
    for count, gene in zip(genes.option_counts(space), drawn, strict=True):
        raised = [math.exp(a / temperature) for a in alphas[start : start + count].tolist()]
        found *= raised[gene] / sum(raised)
        start += count
    return found


def slope(function: Callable[[Tensor], float], at: Tensor, step: float = 1e-5) -> Tensor:
    """Return the gradient of a function by central differences."""
    found = []
    for move in torch.eye(len(at), dtype=at.dtype) * step:
        found.append((function(at + move) - function(at - move)) / (2 * step))
    return torch.tensor(found, dtype=at.dtype)


def windowed(full: Tensor, shape: torch.Size) -> Tensor:
    """Cut by slices: leading channels, centred kernels."""
    for dimension, size in enumerate(shape):
        spare = full.shape[dimension] - size
        full = full.narrow(dimension, spare // 2 if dimension > 1 else 0, size)
    return full


def log_probability(space: SearchSpace, alphas: Tensor, drawn: Arch) -> Tensor:
    """Return the logarithm of the probability of drawing these genes."""
    parts = alphas.split(genes.option_counts(space))
    each = [part.log_softmax(0)[gene] for part, gene in zip(parts, drawn, strict=True)]
    return torch.stack(each).sum() if each else torch.zeros((), dtype=alphas.dtype)
