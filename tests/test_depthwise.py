"""The depthwise convolution against the stock one, in double precision."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from fedtailor.depthwise import DepthwiseConv2d, depthwise, prefers_shifts, shifted_weight_gradient

KERNELS, STRIDES, DILATIONS, MAPS = (1, 3, 5, 7), (1, 2, 3), (1, 2), (1, 2, 3, 4, 7, 8)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("size", MAPS)
def test_shifted_sums_are_the_stock_gradient(size: int):
    for kernel, stride, dilation in itertools.product(KERNELS, STRIDES, DILATIONS):
        padding = dilation * (kernel - 1) // 2
        images, weight = drawn(3, 5, size, size + 1), drawn(5, 1, kernel, kernel, seed=1)
        weight.requires_grad_()
        out = F.conv2d(images, weight, None, stride, padding, dilation, groups=5)
        gradient = drawn(*out.shape, seed=2)
        stock = torch.autograd.grad(out, weight, gradient)[0]
        ours = shifted_weight_gradient(images, gradient, weight, stride, padding, dilation)
        assert torch.allclose(stock, ours, rtol=1e-12, atol=1e-12), (kernel, stride, dilation)


@pytest.mark.parametrize(
    ("channels", "size", "kernel", "shifted"),
    [(128, 4, 5, True), (130, 1, 3, True), (8, 16, 5, False), (128, 4, 3, False)],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_forward_and_both_gradients_are_the_stock_ones(
    channels: int, size: int, kernel: int, shifted: bool, layout: torch.memory_format
):
    """On both sides of the rule that picks the formula."""
    weight, around = drawn(channels, 1, kernel, kernel, seed=1), kernel // 2
    found = []
    for stock in (True, False):
        x = drawn(2, channels, size, size).contiguous(memory_format=layout).requires_grad_()
        w = weight.clone().requires_grad_()
        if stock:
            out = F.conv2d(x, w, None, 2, around, 1, groups=channels)
        else:
            out = depthwise(x, w, 2, around, 1)
        out.square().sum().backward()
        found.append((out, x.grad, w.grad))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)
    assert prefers_shifts(torch.Size((2, channels, size, size)), kernel) == shifted


def test_gradients_by_finite_differences():
    conv = DepthwiseConv2d(128, 5, stride=2).double()
    images = drawn(1, 128, 3, 3).requires_grad_()
    weight = conv.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, w: depthwise(x, w, 2, 2, 1), (images, weight), fast_mode=True
    )


def test_frozen_weights_and_inference():
    conv = DepthwiseConv2d(128, 3)
    images = torch.randn(2, 128, 4, 4, requires_grad=True)
    conv.requires_grad_(False)
    conv(images).sum().backward()
    assert images.grad is not None and conv.weight.grad is None
    with torch.no_grad():
        assert torch.equal(conv(images), F.conv2d(images, conv.weight, padding=1, groups=128))
