"""A DARTS subnet as a static network in the supernet's form: one operation or more on an edge."""

import functools
import operator
from collections.abc import Sequence

import torch
from torch import Tensor, nn

NODES, STEM_MULTIPLIER = 4, 3


def norm(channels: int) -> nn.BatchNorm2d:
    """Return the batch norm of a cell, which has no parameters."""
    return nn.BatchNorm2d(channels, affine=False)


def depthwise_separable(
    channels: int, kernel: int, stride: int, dilation: int = 1
) -> tuple[nn.Module, ...]:
    """Return ReLU, a depthwise convolution, a pointwise one and a norm."""
    padding = dilation * (kernel // 2)
    # The ReLU must not work in place: its input belongs to other edges too.
    return (
        nn.ReLU(),
        nn.Conv2d(
            channels, channels, kernel, stride, padding, dilation, groups=channels, bias=False
        ),
        nn.Conv2d(channels, channels, 1, bias=False),
        norm(channels),
    )


class FactorizedReduce(nn.Module):
    """Halve the map by two 1x1 convolutions, the second one pixel further on both axes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.second = nn.Conv2d(inputs, outputs - outputs // 2, 1, stride=2, bias=False)
        self.norm = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the halves side by side."""
        x = x.relu()
        return self.norm(torch.cat([self.first(x), self.second(x[:, :, 1:, 1:])], dim=1))


def operation(name: str, channels: int, stride: int) -> nn.Module | None:
    """Return the operation of an edge; None is the one that gives zeros."""
    match name:
        case "none":
            return None
        case "max_pool_3x3":
            return nn.Sequential(nn.MaxPool2d(3, stride, 1), norm(channels))
        case "avg_pool_3x3":
            pool = nn.AvgPool2d(3, stride, 1, count_include_pad=False)
            return nn.Sequential(pool, norm(channels))
        case "skip_connect":
            return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels)
        case "sep_conv_3x3" | "sep_conv_5x5":
            kernel = int(name[-1])
            return nn.Sequential(
                *depthwise_separable(channels, kernel, stride),
                *depthwise_separable(channels, kernel, 1),
            )
        case "dil_conv_3x3" | "dil_conv_5x5":
            return nn.Sequential(*depthwise_separable(channels, int(name[-1]), stride, 2))
    raise ValueError(f"no operation is called {name}")


class Sum(nn.ModuleDict):
    """Several operations on an edge, each by its name; what they give is added up."""

    def forward(self, x: Tensor) -> Tensor:
        """Add them up, one after the other."""
        return functools.reduce(operator.add, (made(x) for made in self.values()))


def edge(names: str | Sequence[str], channels: int, stride: int) -> nn.Module | None:
    """Return what is on an edge: an operation by its name, or several; None where there is none."""
    if isinstance(names, str):
        return operation(names, channels, stride)
    made = {name: operation(name, channels, stride) for name in names}
    return Sum({name: one for name, one in made.items() if one is not None}) if made else None


def preprocess(inputs: int, channels: int, halve: bool) -> nn.Module:
    """Bring a cell's input to the cell's channels and map size."""
    if halve:
        return FactorizedReduce(inputs, channels)
    return nn.Sequential(nn.ReLU(), nn.Conv2d(inputs, channels, 1, bias=False), norm(channels))


class Cell(nn.Module):
    """Four nodes, each the sum of operations on both inputs and on all earlier nodes."""

    def __init__(
        self,
        names: Sequence[str | Sequence[str]],
        inputs: tuple[int, int],
        channels: int,
        reduction: bool,
        after_reduction: bool,
    ) -> None:
        super().__init__()
        self.stride = 2 if reduction else 1
        self.preprocess0 = preprocess(inputs[0], channels, after_reduction)
        self.preprocess1 = preprocess(inputs[1], channels, False)
        self.edges = nn.ModuleDict()
        ends = [(node, source) for node in range(NODES) for source in range(node + 2)]
        for (node, source), on_it in zip(ends, names, strict=True):
            made = edge(on_it, channels, self.stride if source < 2 else 1)
            if made is not None:
                self.edges[f"{source}_to_{node}"] = made

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Return the nodes side by side."""
        states = [self.preprocess0(before), self.preprocess1(last)]
        for node in range(NODES):
            edges = {f"{source}_to_{node}": source for source in range(node + 2)}
            terms = [self.edges[e](states[s]) for e, s in edges.items() if e in self.edges]
            states.append(sum(terms[1:], terms[0]) if terms else self.zeros(states[0]))
        return torch.cat(states[2:], dim=1)

    def zeros(self, x: Tensor) -> Tensor:
        """Return what a node without any operation holds."""
        return torch.zeros_like(x[:, :, :: self.stride, :: self.stride])


class Network(nn.Module):
    """The stem, a chain of cells that see the two before them, and the classifier."""

    def __init__(self, stem: nn.Module, cells: Sequence[Cell], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.cells, self.head = stem, nn.ModuleList(cells), head

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        before = last = self.stem(x)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.head(last.mean((2, 3)))


def build(
    normal: Sequence[str | Sequence[str]],
    reduce: Sequence[str | Sequence[str]],
    classes: int,
    channels: int = 16,
    cells: int = 8,
    in_channels: int = 3,
    stem_stride: int = 1,
) -> nn.Module:
    """Return the network; operations are named edge by edge, in the order node, source.

    An edge has one by its name, or all of a list.
    """
    width = STEM_MULTIPLIER * channels
    conv = nn.Conv2d(in_channels, width, 3, stem_stride, 1, bias=False)
    inputs, built, after_reduction = (width, width), list[Cell](), False
    for index in range(cells):
        reduction = index in (cells // 3, 2 * cells // 3)
        channels = 2 * channels if reduction else channels
        names = reduce if reduction else normal
        built.append(Cell(names, inputs, channels, reduction, after_reduction))
        inputs, after_reduction = (inputs[1], NODES * channels), reduction
    return Network(nn.Sequential(conv, nn.BatchNorm2d(width)), built, nn.Linear(inputs[1], classes))
