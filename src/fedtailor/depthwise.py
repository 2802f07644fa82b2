"""Depthwise convolution that trains faster on a CPU than the stock one.

oneDNN's weight gradient of a depthwise convolution is slow for large kernels on small maps: 9 ms
for 640 channels, a 7x7 kernel and a 4x4 map. There it is computed as k*k shifted
multiply-and-sums instead, taps that see only padding skipped. Everything else is the stock
operator. Which formula is used depends on shapes alone, never on a measurement, so that results
are the same to the bit wherever they are computed.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class DepthwiseConv2d(nn.Conv2d):
    """A convolution of every channel by itself, without bias."""

    def __init__(self, channels: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        around = dilation * (kernel - 1) // 2
        super().__init__(
            channels, channels, kernel, stride, around, dilation, groups=channels, bias=False
        )
        self.around = around

    def forward(self, input: Tensor) -> Tensor:
        """Convolve."""
        return depthwise(input, self.weight, self.stride[0], self.around, self.dilation[0])


def depthwise(images: Tensor, weight: Tensor, stride: int, padding: int, dilation: int) -> Tensor:
    """Convolve every channel by itself; `weight` is (channels, 1, k, k)."""
    if images.device.type == "cpu" and weight.requires_grad and torch.is_grad_enabled():
        return _Depthwise.apply(images, weight, stride, padding, dilation)  # pyright: ignore
    return F.conv2d(images, weight, None, stride, padding, dilation, groups=len(weight))


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, images: Tensor, weight: Tensor, stride: int, padding: int, dilation: int
    ) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.how = (stride, padding, dilation)
        return F.conv2d(images, weight, None, stride, padding, dilation, groups=len(weight))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        images, weight = ctx.saved_tensors
        stride, padding, dilation = ctx.how
        wants_images, wants_weight = ctx.needs_input_grad[:2]
        shifted = wants_weight and prefers_shifts(images.shape, weight.shape[-1])
        for_images, for_weight, _ = torch.ops.aten.convolution_backward(
            gradient, images, weight, None,
            [stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], len(weight),
            [wants_images, wants_weight and not shifted, False],
        )  # fmt: skip
        if shifted:
            for_weight = shifted_weight_gradient(
                images, gradient, weight, stride, padding, dilation
            )
        return for_images, for_weight, None, None, None


def prefers_shifts(images: torch.Size, kernel: int) -> bool:
    """Tell by shapes alone whether shifted sums beat the stock weight gradient.

    Drawn from `python -m benchmarks.depthwise`: oneDNN is good at 3x3 kernels on all but the
    smallest maps, and at maps so large that shifted sums no longer fit the cache.
    """
    _, channels, height, width = images
    pixels = height * width
    if pixels <= 4:
        return kernel >= 3 and channels >= 48
    return kernel >= 5 and pixels <= 256 and channels >= 96


def shifted_weight_gradient(
    images: Tensor, gradient: Tensor, weight: Tensor, stride: int, padding: int, dilation: int
) -> Tensor:
    """Return the weight gradient: for every tap, the sum of gradient times shifted image."""
    inputs, outputs = images.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)
    sizes, taps = inputs.shape[1:3], weight.shape[-1]
    found = torch.zeros(taps, taps, len(weight), dtype=weight.dtype)
    for i in range(taps):
        rows = _overlap(sizes[0], outputs.shape[1], i * dilation - padding, stride)
        for j in range(taps):
            columns = _overlap(sizes[1], outputs.shape[2], j * dilation - padding, stride)
            if rows and columns:
                seen = inputs[:, rows[0], columns[0]]
                found[i, j] = (seen * outputs[:, rows[1], columns[1]]).sum((0, 1, 2))
    return found.permute(2, 0, 1)[:, None].contiguous()


def _overlap(size: int, out: int, shift: int, stride: int) -> tuple[slice, slice] | None:
    """Return which inputs a tap sees and the outputs they go to; None: padding alone."""
    first = max(0, math.ceil(-shift / stride))
    last = min(out - 1, (size - 1 - shift) // stride)
    if last < first:
        return None
    start = first * stride + shift
    return slice(start, start + (last - first) * stride + 1, stride), slice(first, last + 1)
