"""The operations of DARTS cells.

A convolution begins with a ReLU, which those that read the same maps share: it is computed before.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.networks.depthwise import DepthwiseConv2d
from fedtailor.networks.pieces import Piece
from fedtailor.networks.pointwise import PointwiseConv2d
from fedtailor.spaces._darts_maps import dropped

Form = Literal["plain", "rectified", "even", "halves"]


@dataclass(frozen=True)
class Style:
    """What distinguishes the cells of a supernet (the defaults) from those of a final network."""

    affine: bool = False  # batch norm learns scale and shift
    pool_norm: bool = True  # batch norm, without scale and shift, follows every pool
    drop_path: float = 0.0  # chance that an operation's output for an image is dropped


def operation(name: str, channels: int, stride: int, style: Style, within: str) -> Piece | None:
    """Return the piece of an operation other than `none`; None stands for the maps themselves."""
    own = f"{within}.{name}"
    if name == "noise":
        return Piece(own, Noise, (stride,))
    if name == "skip_connect":
        return None if stride == 1 else Piece(own, FactorizedReduce, (channels, channels, style))
    if name in ("max_pool_3x3", "avg_pool_3x3"):
        largest = name == "max_pool_3x3"
        return Piece(own, Pool, (largest, channels, stride, style.pool_norm))
    kind = {"sep_conv": SeparableConv, "dil_conv": DilatedConv}[name[:8]]
    return Piece(own, kind, (channels, int(name[-1]), stride, style))


def reads(name: str, stride: int) -> Form:
    """Say what an operation reads: maps, their ReLU, or that at even pixels or in two halves."""
    if name in ("noise", "max_pool_3x3", "avg_pool_3x3"):
        return "plain"
    if stride == 1 or name.startswith("sep_conv"):
        return "rectified"
    return "halves" if name == "skip_connect" else "even"


class Preprocess(nn.Module):
    """Mix the channels of rectified maps, normalise."""

    def __init__(self, before: int, after: int, style: Style) -> None:
        super().__init__()
        self.conv = PointwiseConv2d(before, after)
        self.norm = nn.BatchNorm2d(after, affine=style.affine)

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve."""
        return self.norm(self.conv(maps))


class FactorizedReduce(nn.Module):
    """Halve rectified maps: half of the channels read the even pixels, half the odd; normalise."""

    def __init__(self, before: int, after: int, style: Style) -> None:
        super().__init__()
        self.conv1 = PointwiseConv2d(before, after // 2)
        self.conv2 = PointwiseConv2d(before, after // 2)
        self.norm = nn.BatchNorm2d(after, affine=style.affine)

    def forward(self, halves: tuple[Tensor, Tensor]) -> Tensor:
        """Reduce."""
        even, odd = halves
        return self.norm(torch.cat([self.conv1(even), self.conv2(odd)], 1))


class SeparableConv(nn.Module):
    """ReLU (done), convolve each channel, mix channels, normalise; twice, the stride first."""

    def __init__(self, channels: int, kernel: int, stride: int, style: Style) -> None:
        super().__init__()
        self.depthwise1 = DepthwiseConv2d(channels, kernel, stride)
        self.pointwise1 = PointwiseConv2d(channels, channels)
        self.norm1 = nn.BatchNorm2d(channels, affine=style.affine)
        self.depthwise2 = DepthwiseConv2d(channels, kernel)
        self.pointwise2 = PointwiseConv2d(channels, channels)
        self.norm2 = nn.BatchNorm2d(channels, affine=style.affine)

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve."""
        inner = F.relu(self.norm1(self.pointwise1(self.depthwise1(maps))))
        return self.norm2(self.pointwise2(self.depthwise2(inner)))


class DilatedConv(nn.Module):
    """Convolve each channel of rectified maps with dilation 2, mix channels, normalise.

    With stride 2 it is given even pixels only, and is a plain convolution of those.
    """

    def __init__(self, channels: int, kernel: int, stride: int, style: Style) -> None:
        super().__init__()
        self.depthwise = DepthwiseConv2d(channels, kernel, dilation=1 if stride == 2 else 2)
        self.pointwise = PointwiseConv2d(channels, channels)
        self.norm = nn.BatchNorm2d(channels, affine=style.affine)

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve."""
        return self.norm(self.pointwise(self.depthwise(maps)))


class Pool(nn.Module):
    """Pool 3x3 pixels, padding not counted in averages; in a supernet, normalise."""

    def __init__(self, largest: bool, channels: int, stride: int, normalised: bool) -> None:
        super().__init__()
        self.largest, self.stride = largest, stride
        self.norm = nn.BatchNorm2d(channels, affine=False) if normalised else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        """Pool."""
        if self.largest:
            return self.norm(F.max_pool2d(maps, 3, self.stride, 1))
        pooled = F.avg_pool2d(maps, 3, self.stride, 1, count_include_pad=False)
        return self.norm(pooled)


class Noise(nn.Module):
    """Standard normal noise in the shape of the maps, in training and in evaluation alike.

    Drawn from torch's global generator, which the training loop seeds for every step.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, maps: Tensor) -> Tensor:
        """Draw, in the layout of channels_last maps."""
        count, channels, *size = maps.shape
        height, width = ((pixels - 1) // self.stride + 1 for pixels in size)
        drawn = torch.randn(count, height, width, channels, device=maps.device, dtype=maps.dtype)
        return drawn.permute(0, 3, 1, 2)


class DropPath(nn.Module):
    """In training, drop an operation's output for some images."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def forward(self, maps: Tensor) -> Tensor:
        """Drop."""
        return dropped(maps, self.chance) if self.training else maps
