"""Depthwise convolution that trains faster on a CPU than the stock one.

Three facts about oneDNN without AVX-512, all in `python -m benchmarks.depthwise`: its weight
gradient is fast for kernels up to 3 wide, however high, and ten times slower for wider ones; both
of its gradients are slow with dilation; its forward pass is always fast. So here

* the images' gradient is the forward pass of the flipped kernel (stride 1);
* a dilated kernel's gradient is that of a plain one on every second pixel;
* a wide kernel's gradient is put together from strips 3 wide; and on maps of a few pixels it is
  k*k shifted multiply-and-sums, taps that see only padding skipped.

Which formula is used depends on shapes alone, never on a measurement, so that results are the
same to the bit wherever they are computed.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

STRIP = 3  # columns of a kernel that oneDNN is fast at
CACHED = 1 << 20  # numbers that stay in the cache while they are used


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
    learns = torch.is_grad_enabled() and (weight.requires_grad or images.requires_grad)
    if learns and images.device.type == "cpu":
        made = torch.Size((pixels - 1) // stride + 1 for pixels in images.shape)
        if dilation > 1 or formula(images.shape, made, weight.shape[-1], 1) != "stock":
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
        for_images = for_weight = None
        if wants_images:
            for_images = images_gradient(images, gradient, weight, stride, padding, dilation)
        if wants_weight:
            for_weight = weight_gradient(images, gradient, weight, stride, padding, dilation)
        return for_images, for_weight, None, None, None


def images_gradient(
    images: Tensor, gradient: Tensor, weight: Tensor, stride: int, padding: int, dilation: int
) -> Tensor:
    """Return the images' gradient: for stride 1 the forward pass of the flipped kernel."""
    if stride == 1 and 2 * padding == dilation * (weight.shape[-1] - 1):
        flipped = weight.flip(2, 3)
        return F.conv2d(gradient, flipped, None, 1, padding, dilation, groups=len(weight))
    if stride == dilation == 2 and padding % 2 == 0:  # only every second pixel was looked at
        found = torch.zeros_like(images)
        seen = images[..., ::2, ::2]
        found[..., ::2, ::2] = images_gradient(seen, gradient, weight, 1, padding // 2, 1)
        return found
    return _stock(images, gradient, weight, stride, (padding, padding), dilation, weights=False)


def weight_gradient(
    images: Tensor, gradient: Tensor, weight: Tensor, stride: int, padding: int, dilation: int
) -> Tensor:
    """Return the weight's gradient by the formula that suits the shapes."""
    if dilation == 2 and padding % 2 == 0 and stride in (1, 2):
        if stride == 1:
            images, gradient = _phases(images), _phases(gradient)
        else:
            images = images[..., ::2, ::2].contiguous(memory_format=torch.channels_last)
        stride, padding, dilation = 1, padding // 2, 1
    how = formula(images.shape, gradient.shape, weight.shape[-1], dilation)
    if how == "shifts":
        return shifted_weight_gradient(images, gradient, weight, stride, padding, dilation)
    if how == "strips":
        return strip_weight_gradient(images, gradient, weight, stride, padding)
    return _stock(images, gradient, weight, stride, (padding, padding), dilation, weights=True)


def formula(images: torch.Size, gradient: torch.Size, kernel: int, dilation: int) -> str:
    """Choose by shapes alone how to compute a weight gradient: shifts, strips or stock."""
    channels, seen, made = images[1], math.prod(images[2:]), math.prod(gradient[2:])
    if kernel < 3 or (kernel == 3 and seen > 4):
        return "stock"
    if made <= 4:
        return "shifts" if channels >= 48 else "stock"
    return "strips" if dilation == 1 and channels * made >= 512 else "stock"


def _phases(maps: Tensor) -> Tensor:
    """Turn each map into four of half its size, by the parity of rows and columns."""
    height, width = maps.shape[2:]
    if height % 2 or width % 2:
        maps = F.pad(maps, (0, width % 2, 0, height % 2))
    pixels = maps.permute(0, 2, 3, 1).unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
    return pixels.permute(2, 4, 0, 1, 3, 5).flatten(0, 2).permute(0, 3, 1, 2)


def strip_weight_gradient(
    images: Tensor, gradient: Tensor, weight: Tensor, stride: int, padding: int
) -> Tensor:
    """Return the weight gradient, three columns of the kernel at a time.

    Each strip is an unpadded convolution of the images moved by its first column; a few images at
    a time, so that the moved copies stay in the cache.
    """
    taps, (height, width), out = weight.shape[-1], images.shape[2:], gradient.shape[2:]
    strip = weight[..., :STRIP]
    bottom = (out[0] - 1) * stride + taps - height - padding
    found = torch.zeros_like(weight, memory_format=torch.contiguous_format)
    together = max(1, CACHED // images[0].numel())
    for some, theirs in zip(images.split(together), gradient.split(together), strict=True):
        for first in (*range(0, taps - STRIP, STRIP), taps - STRIP):
            left = padding - first
            right = (out[1] - 1) * stride + STRIP - width - left
            moved = F.pad(some, (left, right, padding, bottom))
            part = _stock(moved, theirs, strip, stride, (0, 0), 1, weights=True)
            fresh = STRIP if first % STRIP == 0 else taps % STRIP  # the last strip may overlap
            found[..., first + STRIP - fresh : first + STRIP] += part[..., STRIP - fresh :]
    return found


def _stock(
    images: Tensor,
    gradient: Tensor,
    weight: Tensor,
    stride: int,
    padding: tuple[int, int],
    dilation: int,
    weights: bool,
) -> Tensor:
    """Return the weight's or the images' gradient as torch computes it."""
    both = torch.ops.aten.convolution_backward(
        gradient, images, weight, None, [stride] * 2, list(padding), [dilation] * 2, False, [0, 0],
        len(weight), [not weights, weights, False],
    )  # fmt: skip
    return both[1 if weights else 0]


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
