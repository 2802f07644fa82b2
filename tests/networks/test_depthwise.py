"""The depthwise convolution against the stock one, in double precision."""

import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from fedtailor.networks.depthwise import (
    CACHED,
    DepthwiseConv2d,
    depthwise,
    formula,
    images_gradient,
    shifted_weight_gradient,
    strip_weight_gradient,
)

KERNELS, STRIDES, DILATIONS, MAPS = (1, 3, 5, 7), (1, 2, 3), (1, 2), (1, 2, 3, 4, 7, 8)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def both(kernel: int, stride: int, dilation: int, size: tuple[int, int], channels: int):
    """Return images, weight, an output's gradient and how; and the stock gradients."""
    padding = dilation * (kernel - 1) // 2
    images = drawn(3, channels, *size).requires_grad_()
    weight = drawn(channels, 1, kernel, kernel, seed=1).requires_grad_()
    out = F.conv2d(images, weight, None, stride, padding, dilation, groups=channels)
    gradient = drawn(*out.shape, seed=2)
    stock = torch.autograd.grad(out, (images, weight), gradient)
    return (images.detach(), gradient, weight.detach(), stride, padding, dilation), stock


@pytest.mark.parametrize("size", MAPS)
def test_every_formula_is_the_stock_gradient(size: int):
    for kernel, stride, dilation in itertools.product(KERNELS, STRIDES, DILATIONS):
        how, (for_images, for_weight) = both(kernel, stride, dilation, (size, size + 1), 5)
        assert close(images_gradient(*how), for_images), (kernel, stride, dilation)
        assert close(shifted_weight_gradient(*how), for_weight), (kernel, stride, dilation)
        if dilation == 1 and kernel >= 3:
            assert close(strip_weight_gradient(*how[:-1]), for_weight), (kernel, stride)


@pytest.mark.parametrize("size", MAPS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_forward_and_both_gradients_are_the_stock_ones(size: int, layout: torch.memory_format):
    """Through autograd, with so many channels that every formula is chosen for some shape."""
    chosen = set()
    for kernel, stride, dilation in itertools.product(KERNELS, STRIDES, DILATIONS):
        how, stock = both(kernel, stride, dilation, (size, size), 64)
        x = how[0].contiguous(memory_format=layout).requires_grad_()
        w = how[2].clone().requires_grad_()
        out = depthwise(x, w, *how[3:])
        out.backward(how[1].contiguous(memory_format=layout))
        assert x.grad is not None and w.grad is not None
        assert close(x.grad, stock[0]) and close(w.grad, stock[1]), (kernel, stride, dilation)
        chosen.add(formula(how[0].shape, how[1].shape, kernel, dilation))
    assert chosen >= ({"shifts", "stock"} if size <= 4 else {"strips", "stock"})


def close(ours: torch.Tensor, stock: torch.Tensor) -> bool:
    return torch.allclose(ours, stock, rtol=1e-11, atol=1e-11)


def test_many_images_are_taken_a_few_at_a_time():
    images, gradient = drawn(9, 128, 32, 32), drawn(9, 128, 32, 32, seed=2)
    weight = drawn(128, 1, 5, 5, seed=1)
    assert images[0].numel() * 9 > CACHED
    stock = conv2d_weight(images, weight.shape, gradient, 1, 2, 1, 128)
    assert torch.allclose(strip_weight_gradient(images, gradient, weight, 1, 2), stock, rtol=1e-10)


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
