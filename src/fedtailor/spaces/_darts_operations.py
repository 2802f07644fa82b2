"""The operations of DARTS cells, and what those that read the same maps share."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedtailor.networks.depthwise import DepthwiseConv2d
from fedtailor.networks.pointwise import PointwiseConv2d


@dataclass(frozen=True)
class Style:
    """What distinguishes the cells of a supernet (the defaults) from those of a final network."""

    affine: bool = False  # batch norm learns scale and shift
    pool_norm: bool = True  # batch norm, without scale and shift, follows every pool
    drop_path: float = 0.0  # chance that an operation's output for an image is dropped


class Maps:
    """What an input or a node holds; what several operations make of it is computed once."""

    def __init__(self, plain: Tensor, rectified: Tensor | None = None) -> None:
        self.plain = plain
        if rectified is not None:
            self.rectified = rectified

    @functools.cached_property
    def rectified(self) -> Tensor:
        """The ReLU, with which every convolution begins."""
        return F.relu(self.plain)

    @functools.cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        """The rectified pixels at even rows and columns, and those at odd ones."""
        return _Halves.apply(self.rectified)  # pyright: ignore[reportReturnType]


class _Halves(torch.autograd.Function):
    """Slicing, but for a gradient that is written once and not once per slice."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.shape, ctx.layout = maps.shape, _layout(maps)
        ctx.set_materialize_grads(False)
        height, width = maps.shape[2:]
        # Odd sizes: as many odd pixels as even ones, those outside of the map zero.
        odd = F.pad(maps, (0, width % 2, 0, height % 2)) if height % 2 or width % 2 else maps
        return _dense(maps[:, :, ::2, ::2]), _dense(odd[:, :, 1::2, 1::2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, even: Tensor | None, odd: Tensor | None) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = odd if even is None else even
        if given is None:
            return None
        kind = {"dtype": given.dtype, "device": given.device, "memory_format": ctx.layout}
        gradient = torch.empty(ctx.shape, **kind).zero_()
        if even is not None:
            gradient[:, :, ::2, ::2] = even
        if odd is not None:
            height, width = ctx.shape[2] // 2, ctx.shape[3] // 2
            gradient[:, :, 1::2, 1::2] = odd[:, :, :height, :width]
        return gradient


class _Concatenate(torch.autograd.Function):
    """torch.cat, but for dense gradients: batch norm is 7 times slower at slices of channels."""

    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.channels = [part.shape[1] for part in maps]
        return torch.cat(maps, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(_dense(part) for part in gradient.split(ctx.channels, 1))


def concatenate(maps: list[Tensor]) -> Tensor:
    """Put the channels of maps one after the other."""
    return _Concatenate.apply(*maps)  # pyright: ignore[reportReturnType]


def _dense(maps: Tensor) -> Tensor:
    """Copy a slice into memory of its own, in the layout of the maps it was taken from."""
    return maps.contiguous(memory_format=_layout(maps))


def _layout(maps: Tensor) -> torch.memory_format:
    return torch.channels_last if maps.stride(1) == 1 else torch.contiguous_format


def operation(name: str, channels: int, stride: int, style: Style) -> nn.Module | None:
    """Make the module of an operation other than `none`; None stands for the maps themselves."""
    if name == "noise":
        return Noise(stride)
    if name == "skip_connect":
        return None if stride == 1 else FactorizedReduce(channels, channels, style)
    if name in ("max_pool_3x3", "avg_pool_3x3"):
        return Pool(name == "max_pool_3x3", channels, stride, style.pool_norm)
    kind = {"sep_conv": SeparableConv, "dil_conv": DilatedConv}[name[:8]]
    return kind(channels, int(name[-1]), stride, style)


class Preprocess(nn.Module):
    """ReLU, mix channels, normalise."""

    def __init__(self, before: int, after: int, style: Style) -> None:
        super().__init__()
        self.conv = PointwiseConv2d(before, after)
        self.norm = nn.BatchNorm2d(after, affine=style.affine)

    def forward(self, maps: Maps) -> Tensor:
        """Convolve."""
        return self.norm(self.conv(maps.rectified))


class FactorizedReduce(nn.Module):
    """ReLU, halve the map: half of the channels read the even pixels, half the odd; normalise."""

    def __init__(self, before: int, after: int, style: Style) -> None:
        super().__init__()
        self.conv1 = PointwiseConv2d(before, after // 2)
        self.conv2 = PointwiseConv2d(before, after // 2)
        self.norm = nn.BatchNorm2d(after, affine=style.affine)

    def forward(self, maps: Maps) -> Tensor:
        """Reduce."""
        even, odd = maps.halves
        return self.norm(torch.cat([self.conv1(even), self.conv2(odd)], 1))


class SeparableConv(nn.Module):
    """ReLU, convolve each channel, mix channels, normalise; twice, the stride in the first."""

    def __init__(self, channels: int, kernel: int, stride: int, style: Style) -> None:
        super().__init__()
        self.depthwise1 = DepthwiseConv2d(channels, kernel, stride)
        self.pointwise1 = PointwiseConv2d(channels, channels)
        self.norm1 = nn.BatchNorm2d(channels, affine=style.affine)
        self.depthwise2 = DepthwiseConv2d(channels, kernel)
        self.pointwise2 = PointwiseConv2d(channels, channels)
        self.norm2 = nn.BatchNorm2d(channels, affine=style.affine)

    def forward(self, maps: Maps) -> Tensor:
        """Convolve."""
        inner = F.relu(self.norm1(self.pointwise1(self.depthwise1(maps.rectified))))
        return self.norm2(self.pointwise2(self.depthwise2(inner)))


class DilatedConv(nn.Module):
    """ReLU, convolve each channel with dilation 2, mix channels, normalise.

    With stride 2 it reads even pixels only, and is a plain convolution of those.
    """

    def __init__(self, channels: int, kernel: int, stride: int, style: Style) -> None:
        super().__init__()
        self.stride = stride
        self.depthwise = DepthwiseConv2d(channels, kernel, dilation=1 if stride == 2 else 2)
        self.pointwise = PointwiseConv2d(channels, channels)
        self.norm = nn.BatchNorm2d(channels, affine=style.affine)

    def forward(self, maps: Maps) -> Tensor:
        """Convolve."""
        read = maps.halves[0] if self.stride == 2 else maps.rectified
        return self.norm(self.pointwise(self.depthwise(read)))


class Pool(nn.Module):
    """Pool 3x3 pixels, padding not counted in averages; in a supernet, normalise."""

    def __init__(self, largest: bool, channels: int, stride: int, normalised: bool) -> None:
        super().__init__()
        self.largest, self.stride = largest, stride
        self.norm = nn.BatchNorm2d(channels, affine=False) if normalised else nn.Identity()

    def forward(self, maps: Maps) -> Tensor:
        """Pool."""
        if self.largest:
            return self.norm(F.max_pool2d(maps.plain, 3, self.stride, 1))
        pooled = F.avg_pool2d(maps.plain, 3, self.stride, 1, count_include_pad=False)
        return self.norm(pooled)


class Noise(nn.Module):
    """Standard normal noise in the shape of the maps, in training and in evaluation alike.

    Drawn from torch's global generator, which the training loop seeds for every step.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, maps: Maps) -> Tensor:
        """Draw, in the layout of channels_last maps."""
        like = maps.plain
        count, channels, *size = like.shape
        height, width = ((pixels - 1) // self.stride + 1 for pixels in size)
        drawn = torch.randn(count, height, width, channels, device=like.device, dtype=like.dtype)
        return drawn.permute(0, 3, 1, 2)


def dropped(maps: Tensor, chance: float) -> Tensor:
    """Replace the maps of some images by zero, drawn from torch's global generator.

    What is kept is scaled, so that the mean stays.
    """
    keep = 1 - chance
    drawn = torch.rand(len(maps), 1, 1, 1, device=maps.device, dtype=maps.dtype)
    return maps * ((drawn < keep) / keep)
