"""A NASViT subnet as a static network: inverted bottlenecks, then transformers of head size 8."""

from collections.abc import Sequence
from math import ceil, sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.twins.mobilenetv3 import convolution
from benchmarks.twins.mobilenetv3 import head as classifier
from benchmarks.twins.mobilenetv3_plato import Block

HEAD, VALUE = 8, 4
SQUEEZES = (False, False, True, False, True, True, True)
STRIDES = (2, 1, 2, 2, 2, 2, 1, 2)
FIRST_TRANSFORMERS = 3


class MapNorm(nn.Module):
    """Normalise all tokens and channels of an image together; scale and shift by channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        shape = x.shape[1:]
        return F.layer_norm(x, shape, self.weight.expand(shape), self.bias.expand(shape))


class Positions(nn.Module):
    """A learned number for every head and every offset from key to query."""

    index: Tensor

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        span = 2 * size - 1
        self.table = nn.Parameter(torch.zeros(heads, 1, span, span))
        rows, columns = torch.arange(size * size) // size, torch.arange(size * size) % size
        down = size - 1 + rows[:, None] - rows
        right = size - 1 + columns[:, None] - columns
        self.register_buffer("index", (down * span + right).flatten(), persistent=False)
        self.shape = (heads, size * size, size * size)

    def forward(self) -> Tensor:
        """Return the numbers by head, query and key."""
        return self.table.flatten(1).index_select(1, self.index).view(self.shape)


class Attention(nn.Module):
    """Attention with relative positions, and heads that talk before and after the softmax."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.map, self.heads, values = (size, size), width // HEAD, VALUE * width
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, values)
        self.spread = nn.Conv2d(values, values, 3, padding=1, groups=values, bias=False)
        self.positions = Positions(self.heads, size)
        self.before = nn.Conv2d(self.heads, self.heads, 1)
        self.after = nn.Conv2d(self.heads, self.heads, 1)
        self.project = nn.Linear(values, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of each image."""
        q = self.q(x).unflatten(2, (self.heads, HEAD)).transpose(1, 2)
        k = self.k(x).unflatten(2, (self.heads, HEAD)).permute(0, 2, 3, 1)
        v = self.spread(self.v(x).transpose(1, 2).unflatten(2, self.map))
        v = v.flatten(2).unflatten(1, (self.heads, VALUE * HEAD)).transpose(2, 3)
        logits = q @ k / sqrt(HEAD) + self.positions()
        weights = self.after(self.before(logits).softmax(dim=3))
        return self.project(F.silu((weights @ v).transpose(1, 2).flatten(2)))


class Scale(nn.Module):
    """Scale a residual branch by channel, and by the share that a head has of the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1e-4))

    def forward(self, x: Tensor) -> Tensor:
        """Scale."""
        return x * (self.weight * (HEAD / len(self.weight)))


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))


class Transformer(nn.Module):
    """Attention and two perceptrons, each a scaled residual branch."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.norm1 = MapNorm(width)
        self.attention = Attention(width, size)
        self.attention_scale = Scale(width)
        self.norm3 = MapNorm(width)
        self.mlp2 = _mlp(width)
        self.norm2 = MapNorm(width)
        self.mlp1 = _mlp(width)
        self.mlp_scale = Scale(width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform the tokens."""
        x = x + self.attention_scale(self.attention(self.norm1(x)))
        x = x + self.mlp_scale(self.mlp2(self.norm3(x)))
        return x + self.mlp_scale(self.mlp1(self.norm2(x)))


class Transformers(nn.Sequential):
    """Transformers in a row, from map to map."""

    def forward(self, input: Tensor) -> Tensor:
        """Read the map as tokens, transform them and return a map."""
        tokens = super().forward(input.flatten(2).transpose(1, 2).contiguous())
        return tokens.transpose(1, 2).unflatten(2, input.shape[2:])


def build(
    stem: int,
    widths: Sequence[int],
    depths: Sequence[int],
    kernels: Sequence[int],
    expands: Sequence[int],
    head: int,
    size: int,
    classes: int,
    channels: int = 3,
    strides: Sequence[int] = STRIDES,
    resolution: int | None = None,
) -> nn.Module:
    """Return the network for images that have, or are resized to have, `size` pixels a side."""
    layers: list[nn.Module] = []
    if resolution is not None:
        layers.append(nn.Upsample(resolution, mode="bicubic", align_corners=False))
    layers.append(convolution(channels, stem, 3, strides[0], activation=nn.SiLU))
    current, size = stem, ceil(size / strides[0])
    for stage, (width, depth, stride) in enumerate(zip(widths, depths, strides[1:], strict=True)):
        size = ceil(size / stride)
        transformers = stage >= FIRST_TRANSFORMERS
        for layer in range(1 if transformers else depth):
            options = kernels[stage], stride if layer == 0 else 1, expands[stage]
            layers.append(Block(current, width, *options, SQUEEZES[stage], nn.SiLU))
            current = width
        if transformers and depth > 1:
            layers.append(Transformers(*(Transformer(width, size) for _ in range(depth - 1))))
    return nn.Sequential(*layers, classifier(current, 6 * current, head, classes, nn.SiLU))
