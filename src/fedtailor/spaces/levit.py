"""LeViT-128S with strides for small images: a fixed model.

Graham et al. 2021, "LeViT: a Vision Transformer in ConvNet's Clothing for Faster Inference".
Four convolutions, then three stages of attention over 256, 64 and 16 tokens (images of 32 pixels),
where the paper has 196, 49 and 16. Differs from the paper: one head instead of the pair that
distillation needs; only the first of the four convolutions has stride 2 (`stem_strides`).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace, Task

KEY = 16  # dimensions of a query or key
STAGES = ((128, 4, 2), (256, 6, 3), (384, 8, 4))  # channels, heads, blocks
Stride = Annotated[int, Interval(ge=1, le=2)]


@dataclass(frozen=True)
class LeViT(SearchSpace):
    """A fixed model: a space without choices."""

    stem_strides: tuple[Stride, Stride, Stride, Stride] = (2, 1, 1, 1)  # the paper has 2 four times

    def build(self, arch: Arch, task: Task) -> nn.Module:
        """Build the network."""
        size = task.shape[1:]
        for stride in self.stem_strides:
            size = tuple((pixels - 1) // stride + 1 for pixels in size)
        if size[0] != size[1] or size[0] < 3:
            raise UserError(
                f"space.stem_strides: levit needs a square map of 3x3 at least after the stem, "
                f"not {size[0]}x{size[1]}"
            )
        return _Network(self.stem_strides, size[0], task)


class _LinearNorm(nn.Module):
    """A linear map of tokens followed by batch norm, in place of layer norm and bias."""

    def __init__(self, before: int, after: int, first_scale: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(before, after, bias=False)
        self.norm = nn.BatchNorm1d(after)
        self.norm.first_values = {"weight": first_scale}  # pyright: ignore[reportArgumentType]

    def forward(self, tokens: Tensor) -> Tensor:
        mapped = self.linear(tokens)
        return self.norm(mapped.flatten(0, 1)).view_as(mapped)


class _Attention(nn.Module):
    """Attention with a learned bias for every distance; with a stride, fewer queries than keys."""

    def __init__(
        self, before: int, after: int, heads: int, ratio: int, size: int, stride: int
    ) -> None:
        super().__init__()
        self.heads, self.stride, self.size = heads, stride, size
        self.values = ratio * KEY
        self.query = _LinearNorm(before, heads * KEY)
        self.key_value = _LinearNorm(before, heads * (KEY + self.values))
        self.project = _LinearNorm(heads * self.values, after, 0.0 if stride == 1 else 1.0)
        self.position_bias = nn.Parameter(torch.zeros(heads, size * size))
        self.register_buffer("distance", _distances(size, stride), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        count = tokens.shape[0]  # not len(), which an exporter would take for a constant
        asking = tokens
        if self.stride > 1:
            grid = tokens.view(count, self.size, self.size, -1)
            asking = grid[:, :: self.stride, :: self.stride].flatten(1, 2)
        query = self.query(asking).view(count, -1, self.heads, KEY).transpose(1, 2)
        both = self.key_value(tokens).view(count, -1, self.heads, KEY + self.values).transpose(1, 2)
        key, value = both.split([KEY, self.values], dim=3)
        bias = self.position_bias[:, self.get_buffer("distance")]
        weights = (query @ key.transpose(2, 3) * KEY**-0.5 + bias).softmax(-1)
        found = (weights @ value).transpose(1, 2).flatten(2)
        return self.project(F.hardswish(found))


def _distances(size: int, stride: int) -> Tensor:
    """Return for each query and key the number of their distance: (rows apart, columns apart)."""
    at = torch.arange(size, device="cpu")
    keys = torch.cartesian_prod(at, at)
    queries = torch.cartesian_prod(at[::stride], at[::stride])
    apart = (queries[:, None] - keys[None]).abs()
    return apart[..., 0] * size + apart[..., 1]


class _Feed(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide = _LinearNorm(channels, 2 * channels)
        self.narrow = _LinearNorm(2 * channels, channels, 0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.narrow(F.hardswish(self.wide(tokens)))


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.inner(tokens)


class _Network(nn.Module):
    def __init__(self, strides: tuple[int, ...], size: int, task: Task) -> None:
        super().__init__()
        widths = [task.shape[0], 16, 32, 64, 128]
        self.stem = nn.ModuleList(
            nn.Conv2d(a, b, 3, s, padding=1, bias=False)
            for a, b, s in zip(widths, widths[1:], strides, strict=False)
        )
        self.stem_norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        layers: list[nn.Module] = []
        before = widths[-1]
        for channels, heads, blocks in STAGES:
            if channels != before:  # the paper's shrinking attention: ratio 4, a head per 16
                layers.append(_Attention(before, channels, before // KEY, 4, size, 2))
                layers.append(_Residual(_Feed(channels)))
                size = (size - 1) // 2 + 1
            for _ in range(blocks):
                layers.append(_Residual(_Attention(channels, channels, heads, 2, size, 1)))
                layers.append(_Residual(_Feed(channels)))
            before = channels
        self.blocks = nn.Sequential(*layers)
        self.last_norm = nn.BatchNorm1d(before)
        self.head = nn.Linear(before, task.classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = images
        for number, (conv, norm) in enumerate(zip(self.stem, self.stem_norms, strict=True)):
            maps = norm(conv(maps if number == 0 else F.hardswish(maps)))
        tokens = self.blocks(maps.flatten(2).transpose(1, 2))
        return self.head(self.last_norm(tokens.mean(1)))
